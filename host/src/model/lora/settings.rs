//! The numbers that make an adapter.

use serde_json::{Map, Value};

/// The first factor of a module, `[r, in]`, after its name.
pub(super) const A: &str = "lora_A.weight";
/// The second factor of a module, `[out, r]`, after its name.
pub(super) const B: &str = "lora_B.weight";

/// Settings of an adapter, under PEFT's names.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraConfig {
    /// Rank.
    pub r: usize,
    /// Factor of the product of both factors, before the division by the rank.
    pub alpha: f64,
    /// Share of the inputs of A that a training pass leaves out.
    pub dropout: f64,
    /// Which modules have an adapter.
    pub targets: Targets,
    /// True if it is divided by the root of the rank instead. Source: <https://arxiv.org/abs/2312.03732>.
    pub rslora: bool,
    /// The rest of an `adapter_config.json` that was read, to be written again.
    pub rest: Map<String, Value>,
}

/// Which modules have an adapter.
#[derive(Debug, Clone, PartialEq)]
pub enum Targets {
    /// Those that PEFT takes in a model of this family.
    OfFamily,
    /// All in the layers.
    AllLinear,
    /// Those whose name is or ends in one of these, from a dot on.
    Named(Vec<String>),
    /// Those that a file has, by a regular expression that was theirs.
    Pattern(String),
}

impl LoraConfig {
    /// Scale of the product of both factors: `alpha / r`, or `alpha / √r` with `rslora`.
    pub fn scale(&self) -> f64 {
        let r = self.r as f64;
        self.alpha / if self.rslora { r.sqrt() } else { r }
    }
}
