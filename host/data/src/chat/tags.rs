//! The tags in a text that speak of thoughts.

use std::sync::LazyLock;

use regex::Regex;

/// The tags in a text that speak of thoughts: `<think>`, `[/THINK]`, `<|end_of_thought|>`.
pub(super) fn tags(text: &str) -> Vec<String> {
    static TAG: LazyLock<Regex> = LazyLock::new(|| {
        let inner = r#"[^<>\[\]◁▷\s'"]*"#;
        Regex::new(&format!(
            "[<\\[◁]{inner}(?i:think|thought|reason){inner}[>\\]▷]"
        ))
        .expect("the pattern is a constant")
    });
    TAG.find_iter(text)
        .map(|tag| tag.as_str().to_owned())
        .collect()
}
