//! Frozen models: a reference model for a KL penalty, and models that score texts.
//!
//! Models of the trained families run in the same decoder. Encoders that score texts have the
//! bodies of `candle-transformers` and heads of our own, in 32-bit floats. Panics of that crate
//! become errors in one place, `contained`.

mod classifier;
mod encoder;
mod encoders;
mod known;
mod labels;
mod reference;
mod scorer;
mod weights;

pub use classifier::Classifier;
pub use reference::Reference;
pub use weights::bytes_in_memory;

use anyhow::{Context, Result, ensure};
use capo_system::contain::contain;

use super::files::ModelFiles;
use super::lora::ADAPTER_CONFIG_FILE;

/// What a classifier may read.
#[derive(Clone, Copy)]
struct Limits {
    /// Number of token ids.
    vocab: usize,
    /// Length of the longest text, tokens.
    positions: usize,
}

/// Refuses an adapter, because only its base would be read.
fn no_adapter(files: &ModelFiles) -> Result<()> {
    ensure!(
        !files.contains(ADAPTER_CONFIG_FILE),
        "{} makes it an adapter, which is not supported for this model \
         (merge it with PEFT, and name the merged one)",
        files.describe(ADAPTER_CONFIG_FILE)
    );
    Ok(())
}

/// Calls into `candle-transformers`, which may panic on inconsistent sizes; a panic becomes an
/// error.
fn contained<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    contain(call).context("a model that is only read cannot be used")?
}
