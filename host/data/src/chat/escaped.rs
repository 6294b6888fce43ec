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
        // A token with blanks at its end would still be there after the separation.
        let added = added.map(str::trim).filter_map(|token| {
            let (one, rest) = token.split_at(token.ceil_char_boundary(1));
            (!rest.is_empty()).then(|| (token, format!("{one} {rest}")))
        });
        let added: Vec<(&str, String)> = added.collect();
        while let Some((token, apart)) = added.iter().find(|(token, _)| text.contains(token)) {
            text = text.replace(token, apart);
        }
        text
    }
}
