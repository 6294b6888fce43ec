//! Meanings of LaTeX commands and Unicode signs, and the units that an answer may leave out.

/// Commands that change only the layout of what follows.
pub(crate) const SILENT: &str = "\
    left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr middle displaystyle \
    textstyle scriptstyle limits nolimits angle triangle enspace thinspace mathbf mathit \
    boldsymbol bm bf rm it mathsf mathcal vec hat hfill tiny scriptsize footnotesize small \
    normalsize large Large LARGE huge Huge mathtt mathscr ensuremath displaylines";

/// Commands whose argument is text.
pub(crate) const TEXT: &str = "\
    text textbf textit textrm textsf texttt textnormal textup textsl textmd textsc emph mbox \
    hbox mathrm operatorname";

/// Functions that plain text names without a backslash.
pub(crate) const FUNCTIONS: &str = "sqrt pi sin cos tan log ln exp inf infinity";

/// Words of two or three letters that are not products of variables if they stand alone.
pub(crate) const SHORT_WORDS: &str =
    "if iff for the of is at as on so but not nor are was all any its it an no has";

/// Commands that are variables.
pub(crate) const GREEK: &str = "\
    alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi \
    rho sigma tau phi varphi chi psi omega Gamma Delta Theta Lambda Sigma Phi Psi Omega ell hbar";

/// Commands, each followed by the sign that it writes.
const MARKS: &str = "\
    cdot * times * ast * div ÷ le ≤ leq ≤ leqslant ≤ ge ≥ geq ≥ geqslant ≥ lt < gt > ne ≠ neq ≠ \
    in ∈ cup ∪ cap ∩ setminus ∖ backslash ∖ pm ± mp ∓ infty ∞ mid | lvert | rvert | vert | \
    lbrace ⦃ rbrace ⦄ langle ( rangle ) circ ° degree ° approx ≈ equiv = top ⊤ intercal ⊤ \
    emptyset ∅ varnothing ∅ prime ' colon : implies , lor ∨ vee ∨ land ∧ wedge ∧ rightarrow → \
    longrightarrow → to →";

/// True if `command` is in `list`.
pub(crate) fn is_in(list: &str, command: &str) -> bool {
    list.split_whitespace().any(|known| known == command)
}

/// The sign that a command writes.
pub(crate) fn mark(command: &str) -> Option<char> {
    let mut words = MARKS.split_whitespace();
    // No sign is the name of a command.
    words.find(|known| *known == command)?;
    words.next()?.chars().next()
}

/// Unicode signs, each followed by the LaTeX or plain text for it.
const PLAIN: &str = "\
    \u{2009} ~ \u{202f} ~ \u{2002} ~ \u{2003} ~ \u{2005} ~ \u{3000} ~ ’ ' → \\to … \\ldots \
    ⟨ \\langle ⟩ \\rangle ∫ \\int ∑ \\sum − - – - ‑ - － - ′ ' × * · * ⋅ * ∗ * ⁄ / π \\pi \
    √ \\sqrt ½ \\frac12 ¼ \\frac14 ¾ \\frac34 ⅓ \\frac13 ⅔ \\frac23 \u{a0} ~ ℝ \\mathbb{R} \
    ℤ \\mathbb{Z} ， , （ ( ） ) ℓ \\ell ℏ \\hbar ℃ ° ℉ ° º ° α \\alpha β \\beta γ \\gamma \
    δ \\delta ε \\epsilon ζ \\zeta η \\eta θ \\theta κ \\kappa λ \\lambda μ \\mu ν \\nu ξ \\xi \
    ρ \\rho σ \\sigma τ \\tau φ \\phi χ \\chi ψ \\psi ω \\omega Γ \\Gamma Δ \\Delta Θ \\Theta \
    Λ \\Lambda Σ \\Sigma Φ \\Phi Ψ \\Psi Ω \\Omega";

/// The LaTeX or plain text for a Unicode sign.
fn plain(sign: char) -> Option<&'static str> {
    let mut words = PLAIN.split(' ');
    let mut pairs = std::iter::from_fn(|| words.next().zip(words.next()));
    pairs
        .find(|(known, _)| !sign.is_ascii() && known.starts_with(sign))
        .map(|(_, text)| text)
}

/// Superscripts and subscripts, and the characters that they write, in the same order.
const SCRIPTS: [(char, &str, &str); 2] = [
    ('^', "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n"),
    ('_', "₀₁₂₃₄₅₆₇₈₉₊₋ₙ", "0123456789+-n"),
];

/// The place of a superscript or a subscript, `^` or `_`, and what stands there.
fn script(sign: char) -> Option<(char, char)> {
    SCRIPTS.iter().find_map(|(place, signs, plain)| {
        let at = signs.chars().position(|known| known == sign)?;
        Some((*place, plain.chars().nth(at)?))
    })
}

/// The text with LaTeX or plain text for each Unicode sign.
pub(crate) fn spelled(text: &str) -> String {
    let mut spelled = String::with_capacity(text.len());
    let mut open = None;
    for c in text.chars() {
        // The digits of `10²³` are one number.
        let script = script(c);
        let place = script.map(|(place, _)| place);
        if open != place {
            spelled.push_str(if open.is_some() { "}" } else { "" });
            spelled.extend(place.into_iter().flat_map(|place| [place, '{']));
            open = place;
        }
        // A full-width sign of ASCII.
        let c = if ('０'..='９').contains(&c)
            || matches!(c, '：' | '；' | '．' | '＝' | '＋' | '％' | '＜' | '＞')
        {
            u8::try_from(u32::from(c) - 0xfee0).map_or(c, char::from)
        } else {
            c
        };
        match plain(c) {
            _ if let Some((_, sign)) = script => spelled.push(sign),
            Some(command) if command.starts_with('\\') => spelled.extend([command, " "]),
            Some(sign) => spelled.push_str(sign),
            None => spelled.push(c),
        }
    }
    spelled + if open.is_some() { "}" } else { "" }
}

/// Units that are one capital letter; outside of `\text{...}` such a letter is a variable.
pub(crate) const LETTERS: &str = "N J V W A K T";

/// Names of units and currencies, in lower case and without regular plural endings.
const UNITS: &str = "\
    mm cm dm m km in inch inche ft foot feet yd yard mi mile meter metre centimeter centimetre \
    millimeter kilometer kilometre unit squareunit cubicunit mg g kg gram kilogram ton tonne lb \
    pound oz ounce ml l liter litre gallon quart pint cup s sec second min minute h hr hour day \
    week month year ms am pm mph kph degree deg radian rad dollar cent euro usd eur point people \
    person student way time apple piece page book mole mol volt watt joule newton hz square \
    cubic per coin ball marble child children men women car ticket hectare acre gb mb gbp cny \
    rmb jpy inr cad aud chf yuan yen rupee peso franc";

/// One text for the ways to say that there is no answer.
pub(crate) fn synonym(words: &str) -> String {
    match words {
        "dne"
        | "doesnotexist"
        | "itdoesnotexist"
        | "thelimitdoesnotexist"
        | "limitdoesnotexist" => "doesnotexist",
        "nosolutions"
        | "thereisnosolution"
        | "therearenosolutions"
        | "nosolutionexists"
        | "nosolutionsexist" => "nosolution",
        "norealsolutions" | "therearenorealsolutions" | "thereisnorealsolution" => "norealsolution",
        other => other,
    }
    .to_owned()
}

/// True if a lower-case word is a unit, in the singular or the plural.
pub(crate) fn is_unit(word: &str) -> bool {
    let singular = word.strip_suffix('s').filter(|stem| stem.len() > 1);
    UNITS
        .split(' ')
        .any(|unit| unit == word || Some(unit) == singular)
}
