//! Token ids of a text that continues another one: a solution behind its prompt, a reply behind a
//! turn.

use anyhow::Result;

use super::tokenizer::Tokenizer;

impl Tokenizer {
    /// Token ids of a text behind other text: those of [`Self::encode`], without the space that
    /// SentencePiece tokenizers put before a text. TRL's `SFTTrainer` gets them by encoding both
    /// texts together. Errors are those of [`Self::encode`].
    pub fn encode_after(&self, text: &str) -> Result<Vec<u32>> {
        let alone = self.encode(text)?;
        let behind = if self.puts_space {
            self.behind(text)?
        } else {
            None
        };
        Ok(behind.filter(|ids| !ids.is_empty()).unwrap_or(alone))
    }

    /// True if a text behind a line break has other ids than alone.
    pub(super) fn begins_texts_anew(&self) -> bool {
        ["a", "1"]
            .into_iter()
            .any(|text| match (self.behind(text), self.ids(text)) {
                (Ok(Some(behind)), Ok(alone)) => behind != alone,
                _ => false,
            })
    }

    /// Token ids of a text behind a line break; `None` if a token spans both.
    fn behind(&self, text: &str) -> Result<Option<Vec<u32>>> {
        const BEFORE: &str = "\n";
        let [before, whole] = [self.ids(BEFORE)?, self.ids(&(BEFORE.to_owned() + text))?];
        Ok(whole.strip_prefix(&before[..]).map(<[u32]>::to_vec))
    }
}
