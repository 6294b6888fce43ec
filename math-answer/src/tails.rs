//! Words behind a value: number words multiply it, units say what it measures, and other words may
//! change it.

use crate::signs::is_in;
use crate::token::Token;

/// Number words behind a value, with the factor that each of them is.
const SCALES: [(&str, &str); 17] = [
    ("mn", "1000000"),
    ("mln", "1000000"),
    ("bn", "1000000000"),
    ("dozen", "12"),
    ("hundred", "100"),
    ("thousand", "1000"),
    ("lakh", "100000"),
    ("million", "1000000"),
    ("crore", "10000000"),
    ("billion", "1000000000"),
    ("trillion", "1000000000000"),
    ("quadrillion", "1000000000000000"),
    ("百", "100"),
    ("千", "1000"),
    ("万", "10000"),
    ("萬", "10000"),
    ("亿", "100000000"),
];

/// Words for equal parts, with the number of them in a whole. Quarters are coins and seasons too.
const PARTS: [(&str, &str); 10] = [
    ("halves", "2"),
    ("thirds", "3"),
    ("fourths", "4"),
    ("fifths", "5"),
    ("sixths", "6"),
    ("sevenths", "7"),
    ("eighths", "8"),
    ("tenths", "10"),
    ("hundredths", "100"),
    ("thousandths", "1000"),
];

/// Words behind a value that change it, deny it, or name another one beside it.
const CHANGES: &str = "\
    is isn isnt isn't not no never wrong incorrect false neither nor cannot can't cant doesn't \
    or more less fewer greater smaller larger least most than above below over under plus minus \
    times divided multiplied double doubled twice half halved squared cubed factorial modulo \
    negative except excluding unless but if when without maybe perhaps instead rather was were \
    are aren't wasn't";

/// What says that a value is the answer.
const ENDORSES: [&str; 6] = [
    "is the answer",
    "is the final answer",
    "is correct",
    "is right",
    "is the correct answer",
    "is the solution",
];

/// Words that lead to a condition on what stands before them.
const CONDITIONS: &str = "if for when where with whenever provided given";

/// Signs of Chinese words that change a value, or name another one beside it.
const CHINESE_CHANGES: [char; 10] = ['不', '非', '错', '或', '多', '少', '以', '至', '倍', '半'];

/// True if words lead to a condition on what stands before them.
pub(crate) fn is_condition(words: &str) -> bool {
    CONDITIONS.split(' ').any(|known| known == words)
}

/// True if words such as `for all` begin a condition that always holds.
pub(crate) fn is_for_all(words: &str) -> bool {
    ["forall", "forany", "forevery", "foreach"]
        .iter()
        .any(|known| words.starts_with(known))
}

/// Letters of a text without its spaces and punctuation.
pub(crate) fn letters(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).collect()
}

/// The tokens of lower-case words that stand behind a value. Behind a unit, `squared` belongs to
/// that.
pub(crate) fn tokens(text: &str, behind_unit: bool) -> Vec<Token> {
    let words: Vec<&str> = text
        .split(|c: char| c.is_whitespace() || matches!(c, '-' | '~'))
        .filter(|word| !word.is_empty())
        .collect();
    let mut tokens = Vec::new();
    let mut rest = words.as_slice();
    while let Some((calculation, behind)) = calculation(rest).filter(|_| !behind_unit) {
        tokens.extend(calculation);
        rest = behind;
    }
    let rest = rest.join(" ");
    if !rest.is_empty() && !ENDORSES.contains(&rest.trim_end_matches(['.', '!'])) {
        tokens.push(if changes(&rest, behind_unit) {
            Token::Remark(letters(&rest))
        } else {
            Token::Words(letters(&rest))
        });
    }
    tokens
}

/// True if words change the value before them. A condition alone leads to a formula.
fn changes(rest: &str, behind_unit: bool) -> bool {
    let has_change = rest
        .split([' ', ',', '.', ';', '(', ')', '’'])
        .any(|word| is_in(CHANGES, word) && !is_power(word));
    // `5 units squared` is a unit.
    let raises = !behind_unit && rest.split(' ').next().is_some_and(is_power);
    !is_condition(rest) && (has_change || raises || rest.contains(CHINESE_CHANGES))
}

fn is_power(word: &str) -> bool {
    matches!(word, "squared" | "cubed")
}

/// The tokens of number words at the beginning, and the words behind them.
fn calculation<'w>(words: &'w [&'w str]) -> Option<(Vec<Token>, &'w [&'w str])> {
    let (tokens, behind) = match words {
        ["and", "a" | "one", "half", behind @ ..] => (fraction("1", "2"), behind),
        ["and", "a" | "one", "third", behind @ ..] => (fraction("1", "3"), behind),
        ["and", "two", "thirds", behind @ ..] => (fraction("2", "3"), behind),
        ["and", "a" | "one", "quarter", behind @ ..] => (fraction("1", "4"), behind),
        ["and", "three", "quarters", behind @ ..] => (fraction("3", "4"), behind),
        ["half", behind @ ..] => (operation('/', "2"), behind),
        ["squared", behind @ ..] => (operation('^', "2"), behind),
        ["cubed", behind @ ..] => (operation('^', "3"), behind),
        ["factorial", behind @ ..] => (vec![Token::Mark('!')], behind),
        ["percent", behind @ ..] => (vec![Token::Mark('%')], behind),
        [word, behind @ ..] => (scaled(word)?, behind),
        [] => return None,
    };
    Some((tokens, behind))
}

/// The tokens of a word that multiplies or divides a value.
fn scaled(word: &str) -> Option<Vec<Token>> {
    let scale = SCALES
        .iter()
        .find(|(known, _)| word == *known || word.strip_suffix('s') == Some(known));
    if let Some((_, factor)) = scale {
        return Some(operation('*', factor));
    }
    let (_, parts) = PARTS.iter().find(|(known, _)| word == *known)?;
    Some(operation('/', parts))
}

fn operation(sign: char, digits: &str) -> Vec<Token> {
    vec![Token::Mark(sign), Token::Number(digits.into())]
}

/// The tokens that add a fraction.
fn fraction(above: &str, below: &str) -> Vec<Token> {
    [operation('+', above), operation('/', below)].concat()
}

/// The tokens of Chinese or Japanese letters behind a value: `12万元` is 120,000.
pub(crate) fn chinese(run: &str) -> Vec<Token> {
    const UNITS: [&str; 6] = ["千米", "千克", "千瓦", "千卡", "百分", "千字"];
    let mut tokens = Vec::new();
    let mut rest = run;
    while !UNITS.iter().any(|unit| rest.starts_with(unit))
        && let Some((known, factor)) = SCALES
            .iter()
            .find(|(known, _)| !known.is_ascii() && rest.starts_with(known))
    {
        tokens.extend([Token::Mark('*'), Token::Number((*factor).into())]);
        rest = &rest[known.len()..];
    }
    if !rest.is_empty() {
        let is_change = rest.contains(CHINESE_CHANGES);
        tokens.push(if is_change {
            Token::Remark(rest.into())
        } else {
            Token::Words(rest.into())
        });
    }
    tokens
}
