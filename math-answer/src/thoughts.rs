//! What a completion says outside of its thoughts.

use crate::phrases;

/// Tags around thoughts, as the templates of models write them.
const TAGS: [(&str, &str); 5] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("[THINK]", "[/THINK]"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
];

/// The text without its thoughts; the whole text if nothing is left, because then the answer can
/// only be among them.
///
/// A template may open the thoughts in the prompt, so everything before an end without a beginning
/// is a thought. An opening tag in the middle of a line is only quoted unless it is closed.
#[must_use]
pub fn without_thoughts(text: &str) -> String {
    let mut said = text.to_owned();
    for (open, close) in TAGS {
        if said.contains(close) || said.contains(open) {
            said = without(&said, open, close);
        }
    }
    if said.trim().is_empty() {
        text.to_owned()
    } else {
        said
    }
}

/// What a completion says: without its thoughts, and without Markdown's signs for bold.
pub(crate) fn said(completion: &str) -> String {
    phrases::without_bold(&without_thoughts(completion))
}

/// The text without what stands between two tags.
fn without(text: &str, open: &str, close: &str) -> String {
    let mut said = String::new();
    let mut rest = text;
    // A tag that is not found once is not in the rest either.
    let mut has_open = true;
    loop {
        let begins = if has_open { rest.find(open) } else { None };
        has_open = begins.is_some();
        let ends = rest.find(close);
        match (begins, ends) {
            (None, None) => return said + rest,
            (Some(begins), ends) if ends.is_none_or(|ends| begins < ends) => {
                let before = &rest[..begins];
                let inside = &rest[begins + open.len()..];
                let Some(length) = inside.find(close) else {
                    let is_quoted = !before
                        .rsplit('\n')
                        .next()
                        .unwrap_or_default()
                        .trim()
                        .is_empty();
                    return said + if is_quoted { rest } else { before };
                };
                said.push_str(before);
                rest = &inside[length + close.len()..];
            }
            // All ends before the next beginning are without one.
            (begins, _) => {
                said.clear();
                let before = begins.unwrap_or(rest.len());
                let last = rest[..before].rfind(close).unwrap_or_default();
                rest = &rest[last + close.len()..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_thoughts_out() {
        let same = [
            ("<think>41</think>42", "42"),
            ("41</think>42", "42"),
            ("42\n<think>41", "42\n"),
            ("42 <think>41</think>", "42 "),
            ("<think>41</think>42\n<think>43</think>", "42\n"),
            ("<think>the tag <think> opens</think>42", "42"),
            ("<think>the tag </think> closes</think>42", "42"),
            ("<thinking>41</thinking>42", "42"),
            ("[THINK]41[/THINK]42", "42"),
            ("the tag <think> opens, 42", "the tag <think> opens, 42"),
            ("no thoughts, 42", "no thoughts, 42"),
            // Nothing is said beside the thoughts.
            ("<think>42</think>\n", "<think>42</think>\n"),
            ("<think>42", "<think>42"),
        ];
        for (text, expected) in same {
            assert_eq!(without_thoughts(text), expected, "{text}");
        }
    }
}
