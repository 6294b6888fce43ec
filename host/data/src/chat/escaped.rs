//! Texts of others, which a model reads beside its own.

use crate::Tokenizer;

impl Tokenizer {
    /// A text of others, in which no added token of the vocabulary can be read: a space separates the first character of one from the rest.
    /// Control characters other than tab and line feed become `\u{..}`.
    pub fn escaped(&self, text: &str) -> String {
        let control = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
        let escape = |c: char| if control(c) { c.escape_unicode().to_string() } else { c.to_string() };
        let mut text: String = text.chars().map(escape).collect();
        let added = self.inner.get_added_tokens_decoder();
        let added = added.values().filter_map(|token| {
            let first = token.content.find(|c: char| !c.is_whitespace())?;
            let (one, rest) = token.content.split_at(token.content.ceil_char_boundary(first + 1));
            (!rest.is_empty()).then(|| (token.content.as_str(), format!("{one} {rest}")))
        });
        let added: Vec<(&str, String)> = added.collect();
        while let Some((token, apart)) = added.iter().find(|(token, _)| text.contains(token)) {
            text = text.replace(token, apart);
        }
        text
    }
}
