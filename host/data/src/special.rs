//! Special tokens of a tokenizer.

use std::collections::BTreeSet;

use capo_system::contain::contain;
use tokenizers::Model;

/// Ids that no text from an environment may contain: those of special tokens, and of added tokens
/// that the model's own vocabulary does not have, except the token for unknown characters.
pub(super) fn special_ids(inner: &tokenizers::Tokenizer) -> BTreeSet<u32> {
    const UNKNOWN: &str = "\u{10fffe}";
    let unknown = contain(|| inner.encode_fast(UNKNOWN, false))
        .ok()
        .and_then(Result::ok);
    let unknown = unknown.map_or_else(Vec::new, |encoding| encoding.get_ids().to_vec());
    let added = inner.get_added_tokens_decoder();
    let special = added.iter().filter(|(id, token)| {
        (token.special || inner.get_model().token_to_id(&token.content).is_none())
            && !token.content.trim().is_empty()
            && !unknown.contains(id)
    });
    special.map(|(id, _)| *id).collect()
}
