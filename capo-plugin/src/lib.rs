//! Write rewards, advantage estimators, objectives, gradient masks, token weights and step controls for reinforcement learning of
//! language models, as shared libraries that a trainer loads at run time. The library keeps loading in trainers that are built later.
//!
//! # A mask in ten minutes
//!
//! A training step runs **rollout → advantage → objective → mask → backward → step**. A *component* takes part at one of six
//! points of it:
//!
//! | point | trait | what it does |
//! |---|---|---|
//! | `[[reward]]` | [`Reward`] | completions as text to rewards `[B]` |
//! | `[advantage]` | [`AdvantageEstimator`] | rewards `[B]` to advantages `[B, T]` |
//! | `[objective]` | [`Objective`] | advantages and log-probabilities to a loss per token and its derivative |
//! | `[[mask]]` | [`PreBackwardMask`] | clears the tokens that must not reach the backward pass |
//! | `[[weight]]` | [`TokenWeight`] | a factor for each token that the masks left, on its loss and derivative |
//! | `[[step_control]]` | [`StepControl`] | how much of the step that the optimizer proposes is taken |
//!
//! `host new-plugin NAME` makes a crate with all of the following. By hand: make a library crate, and depend on this one and
//! on serde:
//!
//! ```toml
//! [lib]
//! crate-type = ["cdylib"]
//!
//! [dependencies]
//! capo-plugin = "1"
//! serde = { version = "1", features = ["derive"] }
//! ```
//!
//! A component is a struct. Its fields are its configuration keys; its trait says what it does:
//!
//! ```
//! #![forbid(unsafe_code)]
//! use capo_plugin::prelude::*;
//!
//! /// Drops tokens that the policy found too surprising.
//! #[derive(Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct SurpriseCap {
//!     /// Largest `-logp` kept, nats.
//!     max_nats: f32,
//! }
//!
//! impl PreBackwardMask for SurpriseCap {
//!     fn mask(&mut self, ctx: &mut Ctx, batch: &Batch, keep: &mut [u8]) -> Result<(), PluginError> {
//!         for (keep, logp) in keep.iter_mut().zip(batch.logps) {
//!             *keep &= u8::from(-logp <= self.max_nats);
//!         }
//!         ctx.record("largest_nats", f64::from(batch.logps.iter().fold(0.0_f32, |most, logp| most.max(-logp))));
//!         Ok(())
//!     }
//! }
//!
//! register!(PreBackwardMask, SurpriseCap, "acme.surprise-cap", "drops tokens above a surprise limit", {
//!     max_nats => "largest `-logp` kept, nats",
//! });
//! # fn main() {}
//! ```
//!
//! `cargo build --release` makes `libacme.so`; a run uses it with
//!
//! ```toml
//! [[mask]]
//! use = "acme.surprise-cap"
//! max_nats = 6.0
//! ```
//!
//! and `host train --config that.toml --plugin target/release/libacme.so`.
//!
//! # What a component sees
//!
//! [`Batch`] is the whole batch of one optimizer step, however the trainer splits its work. More than the plain arrays comes on request:
//! return the flags from `inputs`, as in `Inputs::LAST_LAYER | Inputs::OLD_LOGPS`. Inputs that were not asked for are not there. The last
//! layer's features, its largest logits and the optimizer's settings are what a curvature model needs; where the trainer runs on a GPU,
//! these tensors lie there ([`Tensor::device`]). A reward sees a [`Rollout`] instead: prompt and completion as text, and what the dataset's
//! row says, as in `completion.column::<u32>("level")`.
//!
//! With `Inputs::ROLLOUT_CONTEXT`, [`Ctx::rollout_context`] lends the rollout's context: prompt ids, the completions' text and each token's
//! part of it, the rewards of every reward function, the log-probabilities under the sampler's own distribution, and how many steps old all
//! of it is. It is the host's memory, good until the call returns:
//!
//! ```
//! # use capo_plugin::prelude::*;
//! # struct Drift { max_nats: f32 }
//! impl PreBackwardMask for Drift {
//!     fn inputs(&self) -> Inputs {
//!         Inputs::OLD_LOGPS | Inputs::ROLLOUT_CONTEXT
//!     }
//!
//!     fn mask(&mut self, ctx: &mut Ctx, batch: &Batch, keep: &mut [u8]) -> Result<(), PluginError> {
//!         let context = ctx.rollout_context()?;
//!         for (i, old) in batch.old_logps()?.iter().enumerate() {
//!             keep[i] &= u8::from((old - context.sampler_logps()[i]).abs() <= self.max_nats);
//!         }
//!         Ok(())
//!     }
//! }
//! ```
//!
//! With `Inputs::SAMPLER_TOP_K`, [`Ctx::sampler_top_k`] lends the tokens that the sampler found most likely at each place, drawn or not.
//!
//! A step control also gets the proposed [`Update`]: norms by group of parameters, Adam's estimate of what it costs, and KL
//! divergences of the policy before and after, each computed when it is asked for.
//!
//! # Keys
//!
//! serde reads them and refuses unknown ones; `validate` refuses values that are out of range or do not go together. [`register!`] takes
//! what each key means, its default, and between which values a search for a good one makes sense ([`keys!`]).
//!
//! # State
//!
//! A component may keep state between steps. `save` and `load` carry it through checkpoints; a resumed run continues bit
//! for bit. Draw random numbers from `batch.seed` and `batch.step` ([`Draws`]), never from the clock.
//!
//! # Declarations
//!
//! A mask or weight that decides each token by itself may say so, with [`MaskTraits::TOKEN_WISE`] from `traits`: a trainer can then call it
//! on parts of a step's batch, inside the forward pass that trains. `host check` tries what is declared.
//!
//! # Many ranks
//!
//! Where a trainer is several processes, [`Ctx::collective`] connects them: sums over all ranks, and what each has to tell. A component that
//! brings the state of all ranks together in `step_end` declares [`MaskTraits::SUMS_RANKS`]; for others the trainer gathers the batch.
//!
//! # Errors
//!
//! Return a [`PluginError`] with a sentence: what is wrong, the value, the limit, what to do. The trainer puts the
//! component's id in front, stops, and the run can be resumed. A panic is caught and reported the same way, and the instance
//! is retired. Values that are not finite, cleared entries that a mask sets and per-token arrays of the wrong length are
//! reported as the component's errors.
//!
//! # Recipes
//!
//! [`recipe!`] attaches a default choice of components, so that `--plugin` alone selects a method; it may also set defaults of
//! `[train]`, `[rollout]` and `[[reward]]`. Of several recipes in one plugin, `NAME-...` beside `NAME` are variants: `--plugin` alone takes
//! `NAME`, `--set recipe=NAME-...` another.
//!
//! # Tests
//!
//! [`testing::Fixture`] makes batches, [`testing::mask`] and its siblings build a component behind the real ABI.
//! [`testing::batches`] are those that every component should get along with, and [`testing::snapshot`] renders what a
//! component does on them as text to keep. [`testing::conform`] asks of all components what `host check LIB` asks of the built library.
//!
//! # What stays stable
//!
//! The types of [`abi`] and its siblings never change; new capabilities arrive under new extension ids. A plugin built with one compiler,
//! profile or 1.x version of this crate loads in a host built with another.

#![deny(missing_docs)]

mod answers;
mod batch;
mod call;
mod collective;
mod component;
mod config;
mod context;
mod convert;
mod ctx;
mod described;
mod draws;
mod error;
mod extension;
mod guard;
mod image;
mod keys;
mod point;
mod points;
mod recipe;
mod register;
mod rollout;
mod sink;
mod sketch;
mod step_control;
mod tensor;
pub mod testing;
mod wire;

pub use batch::{Batch, Denominator, Dims, Inputs, LastLayer, OptimizerInfo, OptimizerKind, OptimizerState, Reduction};
pub use call::{guarded, watch_drops};
pub use collective::{Connection, OneRank, Ranks};
pub use component::{Component, Wired};
pub use config::{known_keys, nearest, unknown_key};
pub use context::{CompletionContext, ContextData, Lending, PromptContext};
pub use ctx::Ctx;
pub use draws::Draws;
pub use error::{ErrorKind, PluginError};
pub use extension::Extension;
pub use image::Image;
pub use keys::KeyDocs;
pub use point::Point;
pub use points::{
    Advantage, AdvantageEstimator, Mask, Objective, ObjectiveFn, PerToken, PreBackwardMask, Reward, RewardFn,
    StepControl, StepControlFn, TokenWeight, Weight,
};
pub use rollout::{Completion, Purpose, Rollout};
pub use sink::Sink;
pub use sketch::{Sketch, check_target};
pub use step_control::{Measurements, ParameterGroup, Update};
pub use tensor::{DType, DeviceKind, Tensor};
pub use wire::abi_collective::Collective;
pub use wire::abi_context::RolloutContext;
pub use wire::abi_top_k::SamplerTopK;
pub use wire::abi_traits::MaskTraits;
pub use wire::{
    abi, abi_alignment, abi_collective, abi_context, abi_keys, abi_recipe, abi_reward, abi_step_control, abi_sweep,
    abi_top_k, abi_traits, abi_weight,
};

/// The page on the registry does what it says.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// All that a component's file needs: `use capo_plugin::prelude::*;`.
pub mod prelude {
    pub use crate::{
        AdvantageEstimator, Batch, Ctx, Inputs, MaskTraits, Objective, PerToken, PluginError, PreBackwardMask, Purpose,
        Reduction, Reward, Rollout, StepControl, TokenWeight, Update, recipe, register,
    };
    pub use serde::Deserialize;
}

#[doc(hidden)]
pub mod __private {
    pub use crate::keys::Key;
    pub use crate::register::{Entry, Recipe};
    pub use inventory;
}
