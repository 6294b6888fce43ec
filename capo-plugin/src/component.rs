//! The host's side of the wire: handles that call a component and check what it did.

use std::collections::BTreeSet;

use abi_stable::sabi_trait::TD_Opaque;
use abi_stable::sabi_types::RMut;
use abi_stable::std_types::{ROption, RSlice, RSliceMut, RStr};

use crate::abi::{AdvantageBox, HostRef, HostWire, HostWire_TO, MaskBox, ObjectiveBox, WireBatch, WireError};
use crate::abi_reward::{RewardBox, WireCompletion};
use crate::batch::{Batch, Dims, Inputs, Reduction};
use crate::error::{ErrorKind, PluginError};
use crate::extension::Extension;
use crate::rollout::Rollout;

/// Where a component's reports go: implemented by hosts. It must not panic.
pub trait Sink {
    /// One number of this step, under the component's id.
    fn record(&mut self, component: &str, name: &str, value: f64);
    /// One number per token, `[B, T]`.
    fn record_tokens(&mut self, component: &str, name: &str, values: &[f32]);
    /// A sentence for the person at the terminal.
    fn warn(&mut self, component: &str, text: &str);
    /// The host's extension `id`, or none.
    fn extension(&mut self, id: &str) -> Option<Extension<'_>> {
        let _ = id;
        None
    }
    /// A call of `method` begins: for a host that watches over calls.
    fn enter(&mut self, component: &str, method: &'static str) {
        let _ = (component, method);
    }
    /// That call has come back.
    fn leave(&mut self) {}
    /// What the host has against the names that were recorded in this call, told once: it becomes the call's error.
    fn objection(&mut self) -> Option<String> {
        None
    }
}

/// Most names that one call may record under: a component that makes up names would fill memory and metrics.
const MOST_NAMES: usize = 1000;
/// Longest such name, bytes.
const LONGEST_NAME: usize = 200;

/// One call's sink on the wire. A broken rule is kept until the call returns.
struct Ear<'a> {
    component: &'a str,
    /// Length of an array that it may record, and what that counts.
    length: (usize, &'static str),
    sink: &'a mut dyn Sink,
    names: BTreeSet<String>,
    broken: Option<String>,
}

impl Ear<'_> {
    /// Whether `name` is within the limits.
    fn takes(&mut self, name: &str) -> bool {
        if name.len() > LONGEST_NAME {
            let length = name.len();
            self.broken.get_or_insert_with(|| {
                format!("recorded under a name of {length} bytes, at most {LONGEST_NAME} are allowed")
            });
            return false;
        }
        if self.names.contains(name) {
            return true;
        }
        if self.names.len() == MOST_NAMES {
            self.broken.get_or_insert_with(|| {
                format!(
                    "recorded under more than {MOST_NAMES} names in one call, `{name}` among them (give a number per token to `record_tokens`)"
                )
            });
            return false;
        }
        self.names.insert(name.to_owned())
    }
}

impl HostWire for Ear<'_> {
    fn record(&mut self, name: RStr<'_>, value: f64) {
        if self.takes(name.as_str()) {
            self.sink.record(self.component, name.as_str(), value);
        }
    }

    fn record_tokens(&mut self, name: RStr<'_>, values: RSlice<'_, f32>) {
        if !self.takes(name.as_str()) {
            return;
        }
        let (have, (want, counted)) = (values.len(), self.length);
        if have == want {
            self.sink.record_tokens(self.component, name.as_str(), values.as_slice());
        } else {
            self.broken.get_or_insert_with(|| {
                format!("`record_tokens(\"{name}\")` got {have} values for a batch of {want} {counted}")
            });
        }
    }

    fn warn(&mut self, text: RStr<'_>) {
        self.sink.warn(self.component, text.as_str());
    }

    fn extension(&mut self, id: RStr<'_>) -> ROption<Extension<'_>> {
        self.sink.extension(id.as_str()).into()
    }
}

/// Length of a `[B, T]` array, and what it counts.
fn per_token(dims: Dims) -> (usize, &'static str) {
    (dims.len(), "tokens (B · T, padding included)")
}

/// Runs one call of `method` with an ear, then answers for the rules that the component broke through it.
fn listen(
    (component, method): (&str, &'static str),
    length: (usize, &'static str),
    sink: &mut dyn Sink,
    call: impl FnOnce(&mut HostRef<'_>) -> Result<(), WireError>,
) -> Result<(), PluginError> {
    sink.enter(component, method);
    let mut ear = Ear { component, length, sink, names: BTreeSet::new(), broken: None };
    let outcome = {
        let mut host = HostWire_TO::from_ptr(RMut::new(&mut ear), TD_Opaque);
        call(&mut host)
    };
    ear.sink.leave();
    let broken = ear.broken.or_else(|| ear.sink.objection());
    outcome.map_err(PluginError::from)?;
    broken.map_or(Ok(()), |sentence| Err(contract(sentence)))
}

fn contract(sentence: String) -> PluginError {
    PluginError::new(ErrorKind::CONTRACT, sentence)
}

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
    ($name:ident, $wire:ty) => {
        impl $name {
            pub(crate) fn new(id: &str, wire: $wire) -> Self {
                Self { id: id.to_owned(), wire }
            }

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
                let state = self.wire.save().into_result();
                state.map(|state| state.into_vec()).map_err(|error| self.named(error.into()))
            }

            /// Takes up a saved state.
            ///
            /// # Errors
            ///
            /// The component's own sentence, its id in front.
            pub fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
                let loaded = self.wire.load(RSlice::from_slice(state)).into_result();
                loaded.map_err(|error| self.named(error.into()))
            }

            fn named(&self, error: PluginError) -> PluginError {
                error.context(format_args!("component `{}`", self.id))
            }
        }
    };
}

macro_rules! handle_inputs {
    ($($name:ident),*) => {
        $(impl $name {
            /// What the host must compute for it.
            #[must_use]
            pub fn inputs(&self) -> Inputs {
                self.wire.inputs()
            }
        })*
    };
}

handle_inputs!(Advantage, ObjectiveFn, Mask);

/// A live [`crate::Reward`].
pub struct RewardFn {
    id: String,
    wire: RewardBox,
}

handle_basics!(RewardFn, RewardBox);

impl RewardFn {
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
        let outcome = listen((&self.id, "score"), length, sink, |host| {
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
    wire: AdvantageBox,
}

handle_basics!(Advantage, AdvantageBox);

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
        let wire = &mut self.wire;
        let outcome = listen((&self.id, "estimate"), per_token(batch.dims), sink, |host| {
            wire.estimate(host, &WireBatch::from(batch), RSliceMut::from_mut_slice(advantages)).into_result()
        });
        outcome.and_then(|()| check_per_token("the advantage", advantages, batch)).map_err(|error| self.named(error))
    }
}

/// A live [`crate::Objective`].
pub struct ObjectiveFn {
    id: String,
    wire: ObjectiveBox,
}

handle_basics!(ObjectiveFn, ObjectiveBox);

impl ObjectiveFn {
    /// How its per-token losses become one number.
    #[must_use]
    pub fn reduction(&self) -> Reduction {
        self.wire.reduction()
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
        let wire = &mut self.wire;
        let outcome = listen((&self.id, "evaluate"), per_token(batch.dims), sink, |host| {
            let (loss, slope) = (RSliceMut::from_mut_slice(loss), RSliceMut::from_mut_slice(dloss_dlogp));
            wire.evaluate(host, &WireBatch::from(batch), loss, slope).into_result()
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
    wire: MaskBox,
}

handle_basics!(Mask, MaskBox);

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
        let wire = &mut self.wire;
        let outcome = listen((&self.id, "mask"), per_token(batch.dims), sink, |host| {
            wire.mask(host, &WireBatch::from(batch), RSliceMut::from_mut_slice(keep)).into_result()
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
        let wire = &mut self.wire;
        let outcome = listen((&self.id, "step_end"), per_token(batch.dims), sink, |host| {
            wire.step_end(host, &WireBatch::from(batch), RSlice::from_slice(keep), taken).into_result()
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
