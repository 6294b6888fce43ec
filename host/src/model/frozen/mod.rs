//! Models that are only read: a reference to compare with, and models that score texts.
//!
//! Those of the families that are trained here run in the same decoder; others through `candle-transformers`.

mod classifier;
mod labels;
mod scorer;

pub use classifier::Classifier;
