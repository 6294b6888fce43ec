//! Texts of others, which a model reads beside its own.

use crate::Tokenizer;

impl Tokenizer {
    /// A text of others, in which no added token of the vocabulary can be read, and none of `marks`, with which a chat template begins and ends
    /// messages: a space separates the first character of one from the rest. Control characters other than tab and line feed become `\u{..}`.
    pub fn escaped(&self, text: &str, marks: &[String]) -> String {
        let control = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
        let escape = |c: char| if control(c) { c.escape_unicode().to_string() } else { c.to_string() };
        let mut text: String = text.chars().map(escape).collect();
        let added = self.inner.get_added_tokens_decoder();
        let added = added.values().map(|token| token.content.as_str()).chain(marks.iter().map(String::as_str));
        let added = added.filter_map(|token: &str| {
            let visible = token.trim();
            let (one, rest) = visible.split_at(visible.ceil_char_boundary(1));
            match rest {
                "" if one.len() == token.len() || one.is_empty() => None,
                // A space after the only character that is no space would separate nothing.
                "" => Some((token, token.replace(one, &one.escape_unicode().to_string()))),
                _ => Some((visible, format!("{one} {rest}"))),
            }
        });
        let added: Vec<(&str, String)> = added.collect();
        while let Some((token, apart)) = added.iter().find(|(token, _)| text.contains(token)) {
            text = text.replace(token, apart);
        }
        text
    }
}
