//! Answers as text: their letters without layout, and what a comparison of values would miss.

/// Commands that mark words and layout.
const LAYOUT: [&str; 7] = [
    "\\displaystyle",
    "\\left",
    "\\right",
    "\\textbf",
    "\\text",
    "\\mathrm",
    "\\!",
];

/// Commands that are white space.
const SPACES: [&str; 4] = ["\\,", "\\:", "\\;", "\\ "];

/// The text without layout and case; commands keep their case.
pub(crate) fn letters(text: &str) -> String {
    let mut letters = String::new();
    let mut is_command = false;
    for c in bare(text).chars() {
        is_command = c == '\\' || is_command && c.is_ascii_alphabetic();
        if is_command {
            letters.push(c);
        } else {
            letters.extend(c.to_lowercase());
        }
    }
    letters
}

/// The text without layout: spaces, dollars, `\text`, `\left`. A text without other commands also
/// loses its braces, and a choice its brackets. A text that is too long for an answer stays as it
/// is.
pub(crate) fn bare(text: &str) -> String {
    if text.len() > crate::lex::MOST_BYTES {
        return text.to_owned();
    }
    let mut plain = text.to_owned();
    for command in LAYOUT {
        plain = plain.replace(command, "");
    }
    for command in SPACES {
        plain = plain.replace(command, " ");
    }
    let joined = without_spaces(&plain);
    let bare = joined.trim_end_matches('.');
    let words: String = bare.chars().filter(|c| !matches!(c, '{' | '}')).collect();
    let words = words.trim_end_matches('.');
    let choice = words.trim_start_matches('(').trim_end_matches(')');
    if choice.chars().count() == 1 && choice.chars().all(char::is_alphabetic) {
        choice.to_owned()
    } else if !words.contains(['\\', '^', '_']) {
        words.to_owned()
    } else {
        bare.to_owned()
    }
}

/// The text without white space and dollars. A space stays between two numbers, and in `2.5e - 6`.
fn without_spaces(text: &str) -> String {
    let mut joined = String::new();
    for part in text.split(|c: char| c.is_whitespace() || matches!(c, '$' | '~')) {
        let begins_number = part.starts_with(|c: char| c.is_ascii_digit());
        let between_numbers = ends_with_digit(&joined) && begins_number;
        let behind_exponent = joined.strip_suffix(['e', 'E']).is_some_and(ends_with_digit);
        if !part.is_empty() && (between_numbers || behind_exponent) {
            joined.push(' ');
        }
        joined.push_str(part);
    }
    joined
}

fn ends_with_digit(text: &str) -> bool {
    text.ends_with(|c: char| c.is_ascii_digit())
}

/// True if two answers differ in something that only their text says: the time of day, its half, or
/// the order of capitals.
pub(crate) fn differ(one: &str, other: &str) -> bool {
    [half_of_day, clocks, capitals].iter().any(|read| {
        read(one)
            .zip(read(other))
            .is_some_and(|(one, other)| one != other)
    })
}

/// The times of day in a text; as a ratio, `4:30` would be `2:15`.
fn clocks(text: &str) -> Option<String> {
    let clock = pattern!(r"(?:^|[^:.\d])0?(\d|1\d|2[0-3]):([0-5]\d)(?:[^:\d]|$)");
    let times: String = clock
        .captures_iter(text)
        .map(|found| format!("{}:{} ", &found[1], &found[2]))
        .collect();
    (!times.is_empty()).then_some(times)
}

/// Three capitals or more, which are an order and not a product. An angle is the same from either
/// end.
fn capitals(text: &str) -> Option<String> {
    let text = text.trim_start_matches(['$', ' ']);
    let angle = text.strip_prefix("\\angle");
    let name = bare(angle.unwrap_or(text));
    if name.len() <= 2 || !name.bytes().all(|b| b.is_ascii_uppercase()) {
        return None;
    }
    if angle.is_none() {
        return Some(name);
    }
    let reversed = name.chars().rev().collect();
    Some(name.min(reversed))
}

/// `a` or `p` of a time such as `10 a.m.`, which the comparison of values leaves out as a unit.
fn half_of_day(text: &str) -> Option<String> {
    let half = pattern!(r"(?i)\d[^\p{L}\p{N}]*(?:\\text\s*\{\s*)?([ap])\.?\s?m\b");
    half.captures(text).map(|found| found[1].to_lowercase())
}
