//! Batches for authors' tests, and components built as a host would build them.
//!
//! ```
//! use capo_plugin::prelude::*;
//! use capo_plugin::testing::{self, Fixture};
//!
//! #[derive(Deserialize)]
//! struct SurpriseCap {
//!     max_nats: f32,
//! }
//!
//! impl PreBackwardMask for SurpriseCap {
//!     fn mask(&mut self, _ctx: &mut Ctx, batch: &Batch, keep: &mut [u8]) -> Result<(), PluginError> {
//!         for (keep, logp) in keep.iter_mut().zip(batch.logps) {
//!             *keep &= u8::from(-logp <= self.max_nats);
//!         }
//!         Ok(())
//!     }
//! }
//!
//! let fixture = Fixture::new(2, 3).logps(&[-0.1, -0.2, -9.0, -0.1, -9.0, -0.3]);
//! let mut mask = testing::mask::<SurpriseCap>("max_nats = 5.0").unwrap();
//! assert_eq!(fixture.mask(&mut mask).unwrap().keep, [1, 1, 0, 1, 0, 1]);
//! ```
//!
//! `host check LIB` asks the built library the same and more: [`Fixture::canonical`] and [`Fixture::random`] are its batches.

mod batches;
mod layer;

use serde::de::DeserializeOwned;

use crate::batch::{Batch, Dims, OptimizerInfo, OptimizerKind};
use crate::component::{Advantage, Mask, ObjectiveFn, Sink};
use crate::error::PluginError;
use crate::guard;
use crate::points::{AdvantageEstimator, Objective, PreBackwardMask};

use layer::LayerData;

/// Builds an advantage estimator from its table, written as `key = value` lines, behind the real wire.
///
/// # Errors
///
/// What a host would show.
pub fn advantage<T: AdvantageEstimator + DeserializeOwned + 'static>(table: &str) -> Result<Advantage, PluginError> {
    guard::advantage::<T>(&json(table)?).map(|wire| Advantage::new("test.advantage", wire))
}

/// Builds an objective from its table, written as `key = value` lines, behind the real wire.
///
/// # Errors
///
/// What a host would show.
pub fn objective<T: Objective + DeserializeOwned + 'static>(table: &str) -> Result<ObjectiveFn, PluginError> {
    guard::objective::<T>(&json(table)?).map(|wire| ObjectiveFn::new("test.objective", wire))
}

/// Builds a mask from its table, written as `key = value` lines, behind the real wire.
///
/// # Errors
///
/// What a host would show.
pub fn mask<T: PreBackwardMask + DeserializeOwned + 'static>(table: &str) -> Result<Mask, PluginError> {
    guard::mask::<T>(&json(table)?).map(|wire| Mask::new("test.mask", wire))
}

/// `key = value` lines to a JSON object; a value is a number, a boolean, a quoted string or an array of those.
fn json(table: &str) -> Result<String, PluginError> {
    let mut object = serde_json::Map::new();
    for line in table.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (key, value) =
            line.split_once('=').ok_or_else(|| PluginError::config(format!("`{line}` is not `key = value`")))?;
        let value = serde_json::from_str(value.trim())
            .map_err(|error| PluginError::config(format!("the value in `{line}`: {error}")))?;
        object.insert(key.trim().to_owned(), value);
    }
    Ok(serde_json::Value::Object(object).to_string())
}

/// An owned batch with plausible values everywhere, every optional input included.
///
/// Values are a fixed function of their position, so that tests read the same on every machine. Setters replace one array
/// and check its length.
#[derive(Clone, Debug)]
pub struct Fixture {
    dims: Dims,
    optimizer: OptimizerInfo,
    step: u64,
    mask: Vec<u8>,
    truncated: Vec<u8>,
    ids: Vec<u32>,
    rewards: Vec<f32>,
    advantages: Vec<f32>,
    logps: Vec<f32>,
    /// `−advantage`: a policy gradient's loss on policy, and its derivative too.
    losses: Vec<f32>,
    old_logps: Vec<f32>,
    ref_logps: Vec<f32>,
    entropy: Vec<f32>,
    layer: LayerData,
}

/// What a mask did to a fixture.
#[derive(Debug)]
pub struct Masked {
    /// `[B, T]`.
    pub keep: Vec<u8>,
    /// What it reported.
    pub records: Records,
}

/// What a component reported in one call.
#[derive(Debug, Default)]
pub struct Records {
    /// `record(name, value)`, in order.
    pub numbers: Vec<(String, f64)>,
    /// `record_tokens(name, values)`, in order.
    pub tokens: Vec<(String, Vec<f32>)>,
    /// `warn(text)`, in order.
    pub warnings: Vec<String>,
}

impl Records {
    /// The last number recorded under `name`.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<f64> {
        self.numbers.iter().rev().find(|(recorded, _)| recorded == name).map(|(_, value)| *value)
    }
}

impl Sink for Records {
    fn record(&mut self, _component: &str, name: &str, value: f64) {
        self.numbers.push((name.to_owned(), value));
    }

    fn record_tokens(&mut self, _component: &str, name: &str, values: &[f32]) {
        self.tokens.push((name.to_owned(), values.to_vec()));
    }

    fn warn(&mut self, _component: &str, text: &str) {
        self.warnings.push(text.to_owned());
    }
}

/// A fixed value in `[0, 1)` for position `i` of array `salt`.
fn wobble(salt: u64, i: usize) -> f32 {
    let mixed =
        (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23) ^ salt.wrapping_mul(0xD1B5_4A32_D192_ED03);
    (mixed.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 40) as f32 / (1u64 << 24) as f32
}

impl Fixture {
    /// B completions of T tokens, all one group, nothing padded; D = 8, K = 4, V = 16.
    ///
    /// # Panics
    ///
    /// When `completions` is 0.
    #[must_use]
    pub fn new(completions: usize, tokens: usize) -> Self {
        assert!(completions > 0, "a batch has at least one completion");
        let dims = Dims { completions: completions as u64, tokens: tokens as u64, group_size: completions as u64 };
        let n = dims.len();
        let fill =
            |salt: u64, scale: f32, shift: f32| (0..n).map(|i| wobble(salt, i) * scale + shift).collect::<Vec<_>>();
        let logps = fill(1, -3.0, -0.01);
        let mut fixture = Self {
            dims,
            optimizer: OptimizerInfo {
                kind: OptimizerKind::ADAMW,
                learning_rate: 1e-3,
                beta1: 0.9,
                beta2: 0.999,
                eps: 1e-8,
                weight_decay: 0.0,
                max_grad_norm: 1.0,
                steps_taken: 0,
            },
            step: 0,
            mask: vec![1; n],
            truncated: vec![0; completions],
            ids: (0..n).map(|i| (wobble(2, i) * 16.0) as u32).collect(),
            rewards: (0..completions).map(|b| (b % 2) as f32).collect(),
            advantages: fill(3, 2.0, -1.0),
            losses: fill(3, -2.0, 1.0),
            old_logps: logps.clone(),
            ref_logps: fill(4, -3.0, -0.01),
            entropy: fill(5, 2.0, 0.0),
            logps,
            layer: LayerData::new(dims, 8, 4, 16),
        };
        // The sampled token's logit is consistent with its log-probability.
        let layer = &mut fixture.layer;
        for i in 0..n {
            layer.action_logits.0[i] = layer.logsumexp[i] + fixture.logps[i];
        }
        fixture
    }

    /// Cuts completion `b` to `lengths[b]` tokens; the rest is padding, zeroed everywhere.
    ///
    /// # Panics
    ///
    /// When there is not one length per completion, or one exceeds T.
    #[must_use]
    pub fn lengths(mut self, lengths: &[usize]) -> Self {
        assert_eq!(lengths.len(), self.dims.completions as usize, "one length per completion");
        for (b, &length) in lengths.iter().enumerate() {
            assert!(length <= self.dims.tokens as usize, "length {length} exceeds T = {}", self.dims.tokens);
            for i in self.dims.row(b).skip(length) {
                self.mask[i] = 0;
                self.ids[i] = 0;
                for array in
                    [&mut self.advantages, &mut self.losses, &mut self.logps, &mut self.old_logps, &mut self.ref_logps]
                {
                    array[i] = 0.0;
                }
            }
        }
        self
    }

    /// Splits the completions into groups of `size`.
    ///
    /// # Panics
    ///
    /// When `size` does not divide B.
    #[must_use]
    pub fn groups_of(mut self, size: usize) -> Self {
        assert!(size > 0 && self.dims.completions.is_multiple_of(size as u64), "the group size divides B");
        self.dims.group_size = size as u64;
        self
    }

    /// Sets the rewards, `[B]`.
    #[must_use]
    pub fn rewards(mut self, rewards: &[f32]) -> Self {
        replace(&mut self.rewards, rewards);
        self
    }

    /// Sets the advantages, `[B, T]`.
    #[must_use]
    pub fn advantages(mut self, advantages: &[f32]) -> Self {
        replace(&mut self.advantages, advantages);
        self.losses = advantages.iter().map(|advantage| -advantage).collect();
        self
    }

    /// Sets the log-probabilities, `[B, T]`, nats.
    #[must_use]
    pub fn logps(mut self, logps: &[f32]) -> Self {
        replace(&mut self.logps, logps);
        self
    }

    /// Sets the log-probabilities at sampling, `[B, T]`, nats.
    #[must_use]
    pub fn old_logps(mut self, old_logps: &[f32]) -> Self {
        replace(&mut self.old_logps, old_logps);
        self
    }

    /// Sets the log-probabilities under the reference model, `[B, T]`, nats.
    #[must_use]
    pub fn ref_logps(mut self, ref_logps: &[f32]) -> Self {
        replace(&mut self.ref_logps, ref_logps);
        self
    }

    /// Sets which completions the length limit cut off, `[B]`.
    #[must_use]
    pub fn truncated(mut self, truncated: &[u8]) -> Self {
        assert_eq!(truncated.len(), self.truncated.len(), "length");
        self.truncated.copy_from_slice(truncated);
        self
    }

    /// Sets the optimizer.
    #[must_use]
    pub fn optimizer(mut self, optimizer: OptimizerInfo) -> Self {
        self.optimizer = optimizer;
        self
    }

    /// Sets the step.
    #[must_use]
    pub fn step(mut self, step: u64) -> Self {
        self.step = step;
        self
    }

    /// The batch.
    #[must_use]
    pub fn batch(&self) -> Batch<'_> {
        let mut batch = Batch::new(self.dims, self.optimizer);
        batch.step = self.step;
        batch.completion_ids = &self.ids;
        batch.completion_mask = &self.mask;
        batch.truncated = &self.truncated;
        batch.rewards = &self.rewards;
        batch.advantages = &self.advantages;
        batch.logps = &self.logps;
        batch.losses = Some(&self.losses);
        batch.dloss_dlogp = Some(&self.losses);
        batch.old_logps = Some(&self.old_logps);
        batch.ref_logps = Some(&self.ref_logps);
        batch.entropy = Some(&self.entropy);
        batch.last_layer = Some(self.layer.borrow());
        batch.optimizer_state = Some(self.layer.borrow_state());
        batch
    }

    /// Runs an advantage estimator and returns the advantages, `[B, T]`.
    ///
    /// # Errors
    ///
    /// What a host would show.
    pub fn estimate(&self, component: &mut Advantage) -> Result<Vec<f32>, PluginError> {
        let mut advantages = vec![0.0; self.dims.len()];
        component.estimate(&mut Records::default(), &self.batch(), &mut advantages)?;
        Ok(advantages)
    }

    /// Runs an objective and returns the loss and its derivative, `[B, T]` each.
    ///
    /// # Errors
    ///
    /// What a host would show.
    pub fn evaluate(&self, component: &mut ObjectiveFn) -> Result<(Vec<f32>, Vec<f32>), PluginError> {
        let (mut loss, mut slope) = (vec![0.0; self.dims.len()], vec![0.0; self.dims.len()]);
        component.evaluate(&mut Records::default(), &self.batch(), &mut loss, &mut slope)?;
        Ok((loss, slope))
    }

    /// Runs a mask on the completion mask.
    ///
    /// # Errors
    ///
    /// What a host would show.
    pub fn mask(&self, component: &mut Mask) -> Result<Masked, PluginError> {
        let (mut keep, mut records) = (self.mask.clone(), Records::default());
        component.mask(&mut records, &self.batch(), &mut keep)?;
        Ok(Masked { keep, records })
    }

    /// Ends the step with `keep`, as a host does after the optimizer step.
    ///
    /// # Errors
    ///
    /// What a host would show.
    pub fn step_end(&self, component: &mut Mask, keep: &[u8], taken: bool) -> Result<(), PluginError> {
        component.step_end(&mut Records::default(), &self.batch(), keep, taken)
    }
}

fn replace(array: &mut [f32], values: &[f32]) {
    assert_eq!(values.len(), array.len(), "the array's length");
    array.copy_from_slice(values);
}
