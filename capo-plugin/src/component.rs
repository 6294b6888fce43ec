//! The host's side of the wire: handles that call a component and check what it did.

use abi_stable::std_types::{RSlice, RSliceMut};

use crate::abi::{AdvantageBox, MaskBox, ObjectiveBox, WireBatch};
use crate::abi_reward::{RewardBox, WireCompletion};
use crate::abi_weight::WeightBox;
use crate::batch::{Batch, Dims, Inputs, Reduction};
use crate::call::{Guest, guarded};
use crate::error::PluginError;
use crate::rollout::Rollout;
use crate::sink::{Sink, contract, listen, per_token};

/// Every value finite, and zero on padding.
fn check_per_token(what: &str, values: &[f32], batch: &Batch<'_>) -> Result<(), PluginError> {
    let tokens = batch.dims.tokens.max(1) as usize;
    for (i, (value, mask)) in values.iter().zip(batch.completion_mask).enumerate() {
        let (completion, token) = (i / tokens, i % tokens);
        if !value.is_finite() {
            return Err(contract(format!(
                "{what} is {value} at completion {completion}, token {token} (it must be finite)"
            )));
        }
        if *mask == 0 && *value != 0.0 {
            return Err(contract(format!(
                "{what} is {value} at completion {completion}, token {token}, which is padding (leave padding at 0)"
            )));
        }
    }
    Ok(())
}

macro_rules! handle_basics {
    ($name:ident) => {
        impl $name {
            /// The component's id.
            #[must_use]
            pub fn id(&self) -> &str {
                &self.id
            }

            /// Its state for a checkpoint.
            ///
            /// # Errors
            ///
            /// The component's own sentence, its id in front.
            pub fn save(&self) -> Result<Vec<u8>, PluginError> {
                let state = guarded(|| self.wire.save().into_result());
                state.map(|state| state.into_vec()).map_err(|error| self.named(error.into()))
            }

            /// Takes up a saved state.
            ///
            /// # Errors
            ///
            /// The component's own sentence, its id in front.
            pub fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
                let loaded = guarded(|| self.wire.load(RSlice::from_slice(state)).into_result());
                loaded.map_err(|error| self.named(error.into()))
            }

            fn named(&self, error: PluginError) -> PluginError {
                error.context(format_args!("component `{}`", self.id))
            }
        }
    };
}

pub(crate) use handle_basics;

macro_rules! handle_inputs {
    ($name:ident, $wire:ty) => {
        impl $name {
            pub(crate) fn new(id: &str, wire: $wire) -> Self {
                let inputs = guarded(|| wire.inputs());
                Self { id: id.to_owned(), inputs, wire: Guest::new(id, wire) }
            }

            /// What the host must compute for it: asked once, when it was made.
            #[must_use]
            pub fn inputs(&self) -> Inputs {
                self.inputs
            }
        }
    };
}

/// A live [`crate::Reward`].
pub struct RewardFn {
    id: String,
    wire: Guest<RewardBox>,
}

handle_basics!(RewardFn);

impl RewardFn {
    pub(crate) fn new(id: &str, wire: RewardBox) -> Self {
        Self { id: id.to_owned(), wire: Guest::new(id, wire) }
    }

    /// The same under another name in reports, where a run has several of one component.
    #[must_use]
    pub fn with_name(self, name: &str) -> Self {
        Self { id: name.to_owned(), ..self }
    }

    /// Calls `score` on zeroed `rewards`, `[B]`.
    ///
    /// # Errors
    ///
    /// The component's own sentence, or the rule that it broke: a reward that is not finite.
    pub fn score(
        &mut self,
        sink: &mut dyn Sink,
        rollout: &Rollout<'_>,
        rewards: &mut [f32],
    ) -> Result<(), PluginError> {
        let count = rollout.completions.len();
        assert_eq!(rewards.len(), count, "`rewards` is [B]");
        rewards.fill(0.0);
        let completions = rollout.completions.iter().map(WireCompletion::from).collect::<Vec<_>>();
        let wire = &mut self.wire;
        let length = (count, "completions (at this point one per completion)");
        let outcome = listen((&self.id, "score", Inputs::NONE), length, sink, |host| {
            wire.score(host, &rollout.to_wire(&completions), RSliceMut::from_mut_slice(rewards)).into_result()
        });
        outcome.and_then(|()| check_rewards(rewards)).map_err(|error| self.named(error))
    }
}

fn check_rewards(rewards: &[f32]) -> Result<(), PluginError> {
    match rewards.iter().enumerate().find(|(_, reward)| !reward.is_finite()) {
        None => Ok(()),
        Some((completion, reward)) => {
            Err(contract(format!("the reward is {reward} at completion {completion} (it must be finite)")))
        }
    }
}

/// A live [`crate::AdvantageEstimator`].
pub struct Advantage {
    id: String,
    inputs: Inputs,
    wire: Guest<AdvantageBox>,
}

handle_basics!(Advantage);
handle_inputs!(Advantage, AdvantageBox);

impl Advantage {
    /// Calls `estimate` on zeroed `advantages`, `[B, T]`.
    ///
    /// # Errors
    ///
    /// The component's own sentence, or the rule that it broke: a value that is not finite, or not zero on padding.
    pub fn estimate(
        &mut self,
        sink: &mut dyn Sink,
        batch: &Batch<'_>,
        advantages: &mut [f32],
    ) -> Result<(), PluginError> {
        assert_eq!(advantages.len(), batch.dims.len(), "`advantages` is [B, T]");
        advantages.fill(0.0);
        let (seen, wire) = (WireBatch::from(&batch.with_only(self.inputs)), &mut self.wire);
        let outcome = listen((&self.id, "estimate", self.inputs), per_token(batch.dims), sink, |host| {
            wire.estimate(host, &seen, RSliceMut::from_mut_slice(advantages)).into_result()
        });
        outcome.and_then(|()| check_per_token("the advantage", advantages, batch)).map_err(|error| self.named(error))
    }
}

/// A live [`crate::Objective`].
pub struct ObjectiveFn {
    id: String,
    inputs: Inputs,
    wire: Guest<ObjectiveBox>,
}

handle_basics!(ObjectiveFn);
handle_inputs!(ObjectiveFn, ObjectiveBox);

impl ObjectiveFn {
    /// How its per-token losses become one number.
    #[must_use]
    pub fn reduction(&self) -> Reduction {
        guarded(|| self.wire.reduction())
    }

    /// Calls `evaluate` on zeroed `loss` and `dloss_dlogp`, `[B, T]` each.
    ///
    /// # Errors
    ///
    /// The component's own sentence, or the rule that it broke: a value that is not finite, or not zero on padding.
    pub fn evaluate(
        &mut self,
        sink: &mut dyn Sink,
        batch: &Batch<'_>,
        loss: &mut [f32],
        dloss_dlogp: &mut [f32],
    ) -> Result<(), PluginError> {
        assert!(
            loss.len() == batch.dims.len() && dloss_dlogp.len() == loss.len(),
            "`loss` and `dloss_dlogp` are [B, T]"
        );
        loss.fill(0.0);
        dloss_dlogp.fill(0.0);
        let (seen, wire) = (WireBatch::from(&batch.with_only(self.inputs)), &mut self.wire);
        let outcome = listen((&self.id, "evaluate", self.inputs), per_token(batch.dims), sink, |host| {
            let (loss, slope) = (RSliceMut::from_mut_slice(loss), RSliceMut::from_mut_slice(dloss_dlogp));
            wire.evaluate(host, &seen, loss, slope).into_result()
        });
        outcome
            .and_then(|()| check_per_token("the loss", loss, batch))
            .and_then(|()| check_per_token("the loss's derivative", dloss_dlogp, batch))
            .map_err(|error| self.named(error))
    }
}

/// A live [`crate::PreBackwardMask`].
pub struct Mask {
    id: String,
    inputs: Inputs,
    wire: Guest<MaskBox>,
}

handle_basics!(Mask);
handle_inputs!(Mask, MaskBox);

impl Mask {
    /// The same mask under another id in reports and sentences: for a host that runs a component more than once.
    #[must_use]
    pub fn renamed(self, id: &str) -> Self {
        Self { id: id.to_owned(), ..self }
    }

    /// Calls `mask` on `keep`, `[B, T]`, which holds zeros and ones.
    ///
    /// # Errors
    ///
    /// The component's own sentence, or the rule that it broke: a cleared entry that it set.
    pub fn mask(&mut self, sink: &mut dyn Sink, batch: &Batch<'_>, keep: &mut [u8]) -> Result<(), PluginError> {
        assert_eq!(keep.len(), batch.dims.len(), "`keep` is [B, T]");
        let before = keep.to_vec();
        let (seen, wire) = (WireBatch::from(&batch.with_only(self.inputs)), &mut self.wire);
        let outcome = listen((&self.id, "mask", self.inputs), per_token(batch.dims), sink, |host| {
            wire.mask(host, &seen, RSliceMut::from_mut_slice(keep)).into_result()
        });
        outcome.and_then(|()| check_cleared_only(&before, keep, batch.dims)).map_err(|error| self.named(error))
    }

    /// Calls `step_end` with the final `keep` of all masks.
    ///
    /// # Errors
    ///
    /// The component's own sentence.
    pub fn step_end(
        &mut self,
        sink: &mut dyn Sink,
        batch: &Batch<'_>,
        keep: &[u8],
        taken: bool,
    ) -> Result<(), PluginError> {
        assert_eq!(keep.len(), batch.dims.len(), "`keep` is [B, T]");
        let (seen, wire) = (WireBatch::from(&batch.with_only(self.inputs)), &mut self.wire);
        let outcome = listen((&self.id, "step_end", self.inputs), per_token(batch.dims), sink, |host| {
            wire.step_end(host, &seen, RSlice::from_slice(keep), taken).into_result()
        });
        outcome.map_err(|error| self.named(error))
    }
}

fn check_cleared_only(before: &[u8], after: &[u8], dims: Dims) -> Result<(), PluginError> {
    // Without an early end, so that the compiler takes many bytes at a time.
    if !before.iter().zip(after).fold(false, |set, (before, after)| set | (after > before)) {
        return Ok(());
    }
    let tokens = dims.tokens.max(1) as usize;
    for (i, (before, after)) in before.iter().zip(after).enumerate() {
        let (completion, token) = (i / tokens, i % tokens);
        if after > before {
            let sentence = if *before == 0 {
                format!(
                    "set `keep` to {after} at completion {completion}, token {token}, where it was cleared (a mask may only clear)"
                )
            } else {
                format!("wrote {after} into `keep` at completion {completion}, token {token} (entries are 0 or 1)")
            };
            return Err(contract(sentence));
        }
    }
    Ok(())
}

/// A live [`crate::TokenWeight`].
pub struct Weight {
    id: String,
    inputs: Inputs,
    wire: Guest<WeightBox>,
}

handle_basics!(Weight);
handle_inputs!(Weight, WeightBox);

impl Weight {
    /// The same weight under another id in reports and sentences: for a host that runs a component more than once.
    #[must_use]
    pub fn renamed(self, id: &str) -> Self {
        Self { id: id.to_owned(), ..self }
    }

    /// Calls `weigh` on `weights`, `[B, T]`, which becomes `keep`, zeros and ones, before.
    ///
    /// # Errors
    ///
    /// The component's own sentence, or the rule that it broke: a weight that is negative or not finite, or not 0 where `keep` is.
    pub fn weigh(
        &mut self,
        sink: &mut dyn Sink,
        batch: &Batch<'_>,
        keep: &[u8],
        weights: &mut [f32],
    ) -> Result<(), PluginError> {
        assert!(keep.len() == batch.dims.len() && weights.len() == keep.len(), "`keep` and `weights` are [B, T]");
        weights.iter_mut().zip(keep).for_each(|(weight, keep)| *weight = f32::from(*keep));
        let (seen, wire) = (WireBatch::from(&batch.with_only(self.inputs)), &mut self.wire);
        let outcome = listen((&self.id, "weigh", self.inputs), per_token(batch.dims), sink, |host| {
            wire.weigh(host, &seen, RSlice::from_slice(keep), RSliceMut::from_mut_slice(weights)).into_result()
        });
        outcome.and_then(|()| check_weights(keep, weights, batch.dims)).map_err(|error| self.named(error))
    }

    /// Calls `step_end` with the product of all weights.
    ///
    /// # Errors
    ///
    /// The component's own sentence.
    pub fn step_end(
        &mut self,
        sink: &mut dyn Sink,
        batch: &Batch<'_>,
        weights: &[f32],
        taken: bool,
    ) -> Result<(), PluginError> {
        assert_eq!(weights.len(), batch.dims.len(), "`weights` is [B, T]");
        let (seen, wire) = (WireBatch::from(&batch.with_only(self.inputs)), &mut self.wire);
        let outcome = listen((&self.id, "step_end", self.inputs), per_token(batch.dims), sink, |host| {
            wire.step_end(host, &seen, RSlice::from_slice(weights), taken).into_result()
        });
        outcome.map_err(|error| self.named(error))
    }
}

fn check_weights(keep: &[u8], weights: &[f32], dims: Dims) -> Result<(), PluginError> {
    let tokens = dims.tokens.max(1) as usize;
    for (i, (keep, weight)) in keep.iter().zip(weights).enumerate() {
        let (completion, token) = (i / tokens, i % tokens);
        if !(weight.is_finite() && *weight >= 0.0) {
            return Err(contract(format!(
                "the weight is {weight} at completion {completion}, token {token} (it must be finite, 0 or more)"
            )));
        }
        if *keep == 0 && *weight != 0.0 {
            return Err(contract(format!(
                "the weight is {weight} at completion {completion}, token {token}, which is padding or was dropped (leave it at 0)"
            )));
        }
    }
    Ok(())
}
