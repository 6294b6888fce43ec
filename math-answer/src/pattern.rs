//! Regular expressions that are compiled once.

/// A regular expression whose text is the given parts in a row.
macro_rules! pattern {
    ($($part:expr),+ $(,)?) => {{
        static PATTERN: std::sync::LazyLock<regex::Regex> = std::sync::LazyLock::new(|| {
            regex::Regex::new(&[$($part),+].concat()).expect("the pattern is a constant")
        });
        &*PATTERN
    }};
}
