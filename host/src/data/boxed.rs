//! Finds the last `\boxed{}` of a text.

/// Content of the last `\boxed{...}` or `\fbox{...}` with matching braces, or the word after a `\boxed` without braces.
///
/// `None` if the text has no box, or its brace is never closed.
pub fn last_boxed(text: &str) -> Option<&str> {
    let (at, name) = ["\\boxed", "\\fbox"].iter().filter_map(|name| Some((text.rfind(name)?, name))).max()?;
    let rest = &text[at + name.len()..];
    let Some(inside) = rest.trim_start().strip_prefix('{') else {
        // For example `\boxed 5` and `\boxed5`.
        let word = rest.trim_start().split([' ', '$', '\n', '.', ',']).next();
        return word.filter(|word| !word.is_empty());
    };
    let (mut depth, mut escaped) = (1_usize, false);
    for (place, c) in inside.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&inside[..place]);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_match() {
        assert_eq!(last_boxed(r"so \boxed{1}, then \boxed{\frac{1}{2}} cm"), Some(r"\frac{1}{2}"));
        assert_eq!(last_boxed(r"\boxed{\{1, 2\}}."), Some(r"\{1, 2\}"));
        assert_eq!(last_boxed(r"\fbox{7}"), Some("7"));
        assert_eq!(last_boxed(r"$\boxed 5$"), Some("5"));
        assert_eq!(last_boxed(r"\boxed{1"), None);
        assert_eq!(last_boxed("none"), None);
        assert_eq!(last_boxed(&r"\boxed{".repeat(100_000)), None);
    }
}
