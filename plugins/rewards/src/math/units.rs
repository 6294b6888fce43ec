//! Units, which an answer may leave out.

/// Names of units and currencies, in lower case and without regular plural endings.
const UNITS: &str = "mm cm dm m km in inch inche ft foot feet yd yard mi mile meter metre centimeter centimetre millimeter kilometer \
    kilometre unit squareunit cubicunit mg g kg gram kilogram ton tonne lb pound oz ounce ml l liter litre gallon \
    quart pint cup sec second min minute h hr hour day week month year ms am pm mph kph degree deg radian rad \
    percent dollar cent euro usd eur point people person student way time apple piece page book mole mol volt watt \
    joule newton hz square cubic per coin ball marble child children men women car ticket hectare acre gb mb";

/// True if a lower-case word is a unit, in the singular or the plural.
pub(super) fn is_unit(word: &str) -> bool {
    let singular = word.strip_suffix('s').filter(|stem| stem.len() > 1);
    UNITS.split(' ').any(|unit| unit == word || Some(unit) == singular)
}
