//! Meanings of LaTeX commands and Unicode signs.

/// Commands that change only the layout of what follows.
const SILENT: &str = "left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr middle displaystyle textstyle scriptstyle \
    limits nolimits quad qquad enspace thinspace mathbf mathit boldsymbol bm bf rm it mathsf mathcal vec hat hfill";

/// Commands whose argument is text.
const TEXT: &str = "text textbf textit textrm textsf texttt textnormal mbox hbox mathrm operatorname";

/// Commands that are variables.
const GREEK: &str = "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau phi \
    varphi chi psi omega Gamma Delta Theta Lambda Sigma Phi Omega";

/// Commands with the sign that each of them writes.
const MARKS: &str = "cdot * times * ast * div ÷ le ≤ leq ≤ leqslant ≤ ge ≥ geq ≥ geqslant ≥ lt < gt > ne ≠ neq ≠ in ∈ cup ∪ cap ∩ \
    setminus ∖ backslash ∖ pm ± mp ∓ infty ∞ mid | lvert | rvert | vert | lbrace ⦃ rbrace ⦄ circ ° degree ° approx ≈ equiv = \
    emptyset ∅ varnothing ∅ prime ' colon : implies ,";

pub(super) fn is_silent(command: &str) -> bool {
    SILENT.split_whitespace().any(|known| known == command)
}

pub(super) fn is_text(command: &str) -> bool {
    TEXT.split_whitespace().any(|known| known == command)
}

pub(super) fn is_greek(command: &str) -> bool {
    GREEK.split_whitespace().any(|known| known == command)
}

/// The sign that a command writes.
pub(super) fn mark(command: &str) -> Option<char> {
    let mut words = MARKS.split_whitespace();
    words
        .by_ref()
        .step_by(2)
        .position(|known| known == command)
        .and_then(|at| MARKS.split_whitespace().nth(2 * at + 1)?.chars().next())
}

/// The LaTeX or plain text for a Unicode sign.
pub(super) fn plain(sign: char) -> Option<&'static str> {
    Some(match sign {
        '−' | '–' => "-",
        '×' | '·' | '⋅' | '∗' => "*",
        '⁄' => "/",
        'π' => "\\pi ",
        '√' => "\\sqrt ",
        '²' => "^2",
        '³' => "^3",
        '½' => "\\frac12 ",
        '¼' => "\\frac14 ",
        '¾' => "\\frac34 ",
        '⅓' => "\\frac13 ",
        '⅔' => "\\frac23 ",
        '\u{a0}' => " ",
        'ℝ' => "\\mathbb{R}",
        'ℤ' => "\\mathbb{Z}",
        '，' => ",",
        '（' => "(",
        '）' => ")",
        _ => return None,
    })
}
