//! The left side of `\lim_{x \to 0} f(x) = 1`, which names a value and need not be known.

/// Commands of relations other than equality, and of what separates answers.
const OTHERS: &str =
    "ne neq le leq leqslant ge geq geqslant lt gt in approx quad qquad implies lor land";

/// Words that deny what they stand beside.
const DENIALS: [&str; 8] = [
    "not",
    "never",
    "isn",
    "isnt",
    "wrong",
    "false",
    "incorrect",
    "neither",
];

/// True if a text has a word that denies what it stands beside.
pub(crate) fn denies(text: &str) -> bool {
    let lower = text.to_lowercase();
    lower
        .split(|c: char| !c.is_alphanumeric())
        .any(|word| DENIALS.contains(&word))
}

/// True if the letters of a name, which has no spaces, deny its value.
pub(crate) fn is_denied(letters: &str) -> bool {
    letters.starts_with("not")
        || ["wrong", "incorrect", "isnot", "arenot", "false"]
            .iter()
            .any(|word| letters.contains(word))
}

/// Positions of the equality signs outside of brackets and environments; `None` if another relation
/// or a separator is outside too.
pub(crate) fn equals(text: &str) -> Option<Vec<usize>> {
    let mut depth = 0i64;
    let mut environments = 0i64;
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at + c.len_utf8()..];
        let outside = depth == 0 && environments == 0;
        let mut length = c.len_utf8();
        match c {
            '\\' => {
                let name = &rest[..rest
                    .find(|c: char| !c.is_ascii_alphabetic())
                    .unwrap_or(rest.len())];
                match name {
                    "begin" => environments += 1,
                    "end" => environments -= 1,
                    _ if outside && OTHERS.split(' ').any(|other| other == name) => return None,
                    // `\{`, and a line break.
                    "" if outside && rest.starts_with('\\') => return None,
                    "" if rest.starts_with('{') => depth += 1,
                    "" if rest.starts_with('}') => depth -= 1,
                    _ => {}
                }
                length += if name.is_empty() {
                    rest.chars().next().map_or(0, char::len_utf8)
                } else {
                    name.len()
                };
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ',' | ';' | '<' | '>' | '≤' | '≥' | '≠' | '≈' | '∈' | '\n' if outside => {
                return None;
            }
            '!' if outside && rest.starts_with('=') => return None,
            '=' if outside => found.push(at),
            _ => {}
        }
        at += length;
    }
    Some(found)
}

/// The name that a left side is: its letters and signs. `None` if it is empty, or denies its value.
pub(crate) fn name(side: &str) -> Option<String> {
    let name: String = side
        .chars()
        .filter(|c| !c.is_whitespace() && *c != '$')
        .collect();
    (!name.is_empty() && !denies(side)).then_some(name)
}
