#![doc = include_str!("../README.md")]
//!
//! # In a training step
//!
//! A step runs **rollout → advantage → objective → mask → backward → step**. A *component* takes
//! part at one of seven extension points: [`Environment`], [`Reward`], [`Advantage`],
//! [`Objective`], [`Mask`], [`Weight`] or [`StepControl`]. It is a struct: its fields are its
//! configuration keys, and its trait defines its behaviour. `host new-plugin NAME` makes a crate
//! with all of the above.
//!
//! # What a component sees
//!
//! [`Batch`] is the whole batch of one optimizer step, however the trainer splits its work. Further
//! arrays come on request: return their flags from `inputs`, as in
//! `Inputs::LAST_LAYER | Inputs::OLD_LOGPS`. Without a flag the array is absent. A curvature model
//! needs the last layer's features, its largest logits and the optimizer's settings. In a trainer
//! on a GPU these tensors are in GPU memory ([`Tensor::device`]). A reward sees a [`Rollout`]
//! instead: prompt, completion text, and the dataset's row, as in
//! `completion.column::<u32>("level")`. An environment sees [`Episodes`] when they begin, and then
//! each [`Turn`] of the model.
//!
//! With `Inputs::ROLLOUT_CONTEXT`, [`Batch::rollout_context`] has the prompt ids, completion texts
//! with a byte range per token, the rewards of every reward function, the log-probabilities under
//! the sampler's own distribution, and the rollout's age in optimizer steps. With
//! `Inputs::SAMPLER_TOP_K`, [`Batch::sampler_top_k`] has the sampler's most likely tokens at each
//! position, drawn or not. All arrays are the host's and valid until the call returns:
//!
//! ```
//! # use capo_plugin::prelude::*;
//! # struct Drift { max_nats: f32 }
//! impl Mask for Drift {
//!     fn inputs(&self) -> Inputs {
//!         Inputs::OLD_LOGPS | Inputs::ROLLOUT_CONTEXT
//!     }
//!
//!     fn mask(&mut self, _ctx: &mut Ctx, batch: &Batch, token_mask: &mut [u8]) -> Result<(), PluginError> {
//!         let (old_logps, context) = (batch.old_logps()?, batch.rollout_context()?);
//!         for (i, old) in old_logps.iter().enumerate() {
//!             token_mask[i] &= u8::from((old - context.sampler_logps()[i]).abs() <= self.max_nats);
//!         }
//!         Ok(())
//!     }
//! }
//! ```
//!
//! A step control also gets the proposed [`Update`]: its norm per parameter group, its cost as
//! Adam's second moment estimates it, and KL divergences between the policies before and after.
//! Each number is computed on request.
//!
//! # Keys
//!
//! [`component`](macro@component) describes a component at its struct: a key's meaning, default,
//! limits and search range stand at its field. Unknown keys, wrong types and values outside of the
//! limits are refused from there. `validate` refuses keys that contradict each other.
//!
//! # State
//!
//! A component may keep state between steps. `save` and `load` carry the state through checkpoints,
//! and a resumed run continues bit for bit. Draw random numbers from `batch.seed` and `batch.step`
//! ([`Draws`]), never from the clock.
//!
//! # Declarations
//!
//! A mask or weight that decides each token by itself may declare [`Traits::TOKEN_WISE`] in
//! `traits`. A trainer may then call it on parts of a step's batch, within the forward pass of
//! training. `host check` tests the declarations.
//!
//! # Many ranks
//!
//! In a trainer with several processes, [`Ctx::collective`] connects the ranks: it sums and gathers
//! values over all of them. A component that merges the state of all ranks in `step_end` declares
//! [`Traits::SUMS_RANKS`]. For other components the trainer gathers the batch.
//!
//! # Errors
//!
//! Return a [`PluginError`] with a message: the problem, the value, the limit, and the next action.
//! The trainer prefixes the component's id and stops; the run can be resumed. A panic is caught and
//! reported in the same way, and the instance is retired. The host also reports non-finite values,
//! masks that set cleared entries, and per-token arrays of the wrong length.
//!
//! # Recipes
//!
//! [`recipe!`] attaches a default choice of components, so that `--plugin` alone selects a method.
//! It may also set defaults of `[train]`, `[rollout]` and `[[reward]]`. If a plugin has recipes
//! `NAME` and `NAME-...`, the longer names are variants. `--plugin` alone selects `NAME`, and
//! `--set recipe=NAME-...` selects a variant.
//!
//! # Tests
//!
//! [`testing::Fixture`] makes batches. [`testing::mask`] and its siblings build a component behind
//! the real ABI. Every component should handle [`testing::batches`]. [`testing::snapshot`] renders
//! a component's results on them as text to store. [`testing::conform`] runs the checks of
//! `host check LIB` on all components.
//!
//! # What stays stable
//!
//! The types of [`wire`] never change; new capabilities get new extension ids. A plugin loads in a
//! host that was built with another compiler, profile or 1.x version of this crate.

#![deny(missing_docs)]

// The macros name this crate as its users do.
extern crate self as capo_plugin;

mod answers;
mod batch;
mod call;
mod collective;
mod component;
mod context;
mod convert;
mod cross;
mod ctx;
mod described;
mod draws;
mod episode;
mod error;
mod extension;
pub mod fields;
mod guard;
mod image;
mod key;
mod limits;
pub mod plain;
mod points;
mod register;
mod rollout;
mod sink;
mod sketch;
mod step_control;
mod table;
mod tensor;
pub mod testing;
mod traits;
mod value;
pub mod wire;

#[doc(inline)]
/// ```
/// use capo_plugin::prelude::*;
///
/// /// The tokens to which a limit applies.
/// #[derive(Choice, Clone, Copy)]
/// enum Side {
///     Both,
///     // In a table: `rising/only`. Without the attribute: `rising_only`.
///     #[choice("rising/only")]
///     RisingOnly,
/// }
///
/// #[keys]
/// struct Limit {
///     // The description of the enum is the key's too.
///     #[key(default = Side::Both)]
///     side: Side,
/// }
/// ```
pub use capo_plugin_derive::Choice;
#[doc(inline)]
/// `#[component(Mask, id = "vendor.kebab-name")]` stands above the struct that implements the trait
/// [`Mask`]. The first paragraph of the doc comment is the component's description. The fields are
/// those of [`keys`](macro@keys). `within = Wrapper` registers `Wrapper<Struct>` in the place of
/// the struct. For a generic struct, or one with several ids, use [`keys`](macro@keys) and
/// [`register!`].
///
/// ```
/// use capo_plugin::prelude::*;
///
/// /// Drops tokens above a surprise limit.
/// #[component(Mask, id = "acme.surprise-cap")]
/// struct SurpriseCap {
///     /// Largest `-logp` that is kept, nats.
///     #[key(default = 6.0, above = 0, search = 1e-3..=50.0)]
///     max_nats: f32,
///     /// Share of tokens to drop, in the place of a limit.
///     #[key(above = 0, below = 1, not_with = "max_nats")]
///     share: Option<f32>,
///     // State: it has no `#[key]`.
///     calls: u64,
/// }
///
/// impl Mask for SurpriseCap {
///     fn mask(&mut self, ctx: &mut Ctx, batch: &Batch, token_mask: &mut [u8]) -> Result<(), PluginError> {
///         self.calls += 1;
/// #       let _ = (ctx, batch, token_mask, self.share, self.max_nats);
///         Ok(())
///     }
/// }
/// # fn main() {}
/// ```
pub use capo_plugin_derive::component;
#[doc(inline)]
/// A field with `#[key]` is a key of the component's table. The first paragraph of its doc comment
/// is the key's meaning; without a doc comment it is that of the type ([`KeyValue::ABOUT`]). A
/// field without `#[key]` is state, which `Default` builds. The arguments are:
///
/// | argument | meaning |
/// |---|---|
/// | `default = 0.5` | the value that a table may leave out. Without it a table must have the key, unless its type is an `Option` |
/// | `at_least`, `above`, `at_most`, `below` | limits of a number, or of all numbers in a list |
/// | `infinite` | a number that its type cannot hold is infinite; without it such a number is refused |
/// | `search = 1e-3..=50.0` | the range in which to search for a good value. The component must take both ends. `host compare-masks --target-rate` varies the first key with a range |
/// | `not_with = "other"` | a key that must not be given beside this one; also a list of keys |
/// | `name = "type"` | the name in a table, if it is not the field's |
/// | `flatten` | the field is a struct with `#[keys]` of its own, whose keys stand in the same table |
///
/// A wrong argument is a compile error at its place:
///
/// ```compile_fail
/// # use capo_plugin::prelude::*;
/// #[keys]
/// struct Wrong {
///     /// A word has no limits.
///     #[key(above = 0)]
///     word: String,
/// }
/// ```
///
/// ```compile_fail
/// # use capo_plugin::prelude::*;
/// #[keys]
/// struct Wrong {
///     #[key(above = 0)]
///     key_without_a_meaning: f32,
/// }
/// # <Wrong as capo_plugin::Keys>::keys();
/// ```
///
/// ```compile_fail
/// # use capo_plugin::prelude::*;
/// #[keys]
/// struct Wrong {
///     /// A default of another type.
///     #[key(default = "much")]
///     amount: f32,
/// }
/// ```
pub use capo_plugin_derive::keys;

pub use batch::{
    AgedContext, Batch, BatchBuffer, BatchScalars, Denominator, Dims, Inputs, LastLayer,
    LayerBuffer, LendTensor, Memory, OptimizerInfo, OptimizerKind, OptimizerState, Reduction,
    StateBuffer, TensorBuffer, Values,
};
pub use call::{keeping_arithmetic, watch_drops};
pub use collective::{Collective, OneRank, Ranks};
pub use component::{Component, WireObject};
pub use context::{CompletionContext, ContextData, PromptContext, RolloutContext, SamplerTopK};
pub use ctx::Ctx;
pub use draws::Draws;
pub use episode::{Episode, Episodes, Message, Observation, ToolCall, Turn};
pub use error::{ErrorKind, PluginError};
pub use extension::Extension;
pub use image::Image;
#[doc(hidden)]
pub use key::Key;
pub use key::Keys;
pub use limits::Limits;
pub use points::{
    Advantage, AdvantageHandle, Environment, EnvironmentHandle, Mask, MaskHandle, Objective,
    ObjectiveHandle, Point, Reward, RewardHandle, StepControl, StepControlHandle, TokenLosses,
    Weight, WeightHandle,
};
pub use rollout::{Completion, Purpose, Rollout};
pub use serde_json::Value;
pub use sink::Sink;
pub use sketch::Sketch;
pub use step_control::{Measurements, ParameterGroup, ProposedStep, Update};
pub use table::{Table, nearest, unknown_key};
pub use tensor::{DType, DeviceKind, Tensor};
pub use traits::Traits;
pub use value::{KeyValue, Numeric, Wanted};

/// Everything that a component's file needs: `use capo_plugin::prelude::*;`.
pub mod prelude {
    pub use crate::{
        Advantage, Batch, Choice, Ctx, Environment, Episodes, Inputs, Mask, Objective, Observation,
        PluginError, Purpose, Reduction, Reward, Rollout, StepControl, TokenLosses, Traits, Turn,
        Update, Weight, component, recipe, register,
    };
    pub use capo_plugin_derive::keys;
}

#[doc(hidden)]
pub mod __private {
    pub use crate::key::described;
    pub use crate::register::{Entry, Name, Recipe};
    pub use inventory;
}
