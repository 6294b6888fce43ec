//! Settings of an adapter.

use serde_json::{Map, Value};

/// Name suffix of a module's first factor, `[r, in]`.
pub(super) const A: &str = "lora_A.weight";
/// Name suffix of a module's second factor, `[out, r]`.
pub(super) const B: &str = "lora_B.weight";

/// Settings of an adapter, under PEFT's names.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraConfig {
    /// Rank of the factors.
    pub r: usize,
    /// Numerator of the scale of the factors' product; the rank divides it.
    pub alpha: f64,
    /// Probability that an input of A is dropped in a training pass.
    pub dropout: f64,
    /// The modules that have an adapter.
    pub targets: Targets,
    /// True if the root of the rank divides `alpha` instead. Source: <https://arxiv.org/abs/2312.03732>.
    pub rslora: bool,
    /// All other keys of the `adapter_config.json` that was read, to be written again.
    pub rest: Map<String, Value>,
}

/// The modules that have an adapter.
#[derive(Debug, Clone, PartialEq)]
pub enum Targets {
    /// PEFT's default modules for this family.
    OfFamily,
    /// All linear modules in the layers.
    AllLinear,
    /// Modules whose name equals one of these texts, or ends in a dot followed by one.
    Named(Vec<String>),
    /// The modules in the adapter's file. The text is the regular expression that selected them.
    Pattern(String),
}

impl LoraConfig {
    /// Scale of the product of both factors: `alpha / r`, or `alpha / √r` with `rslora`.
    pub fn scale(&self) -> f64 {
        let r = self.r as f64;
        self.alpha / if self.rslora { r.sqrt() } else { r }
    }
}
