//! Batches for authors' tests, and components that are built as in a host.
//!
//! ```
//! use capo_plugin::prelude::*;
//! use capo_plugin::testing::{self, Fixture};
//!
//! #[keys]
//! struct SurpriseCap {
//!     /// Largest `-logp` that is kept, nats.
//!     #[key(above = 0)]
//!     max_nats: f32,
//! }
//!
//! impl Mask for SurpriseCap {
//!     fn mask(&mut self, _ctx: &mut Ctx, batch: &Batch, token_mask: &mut [u8]) -> Result<(), PluginError> {
//!         for (keep, logp) in token_mask.iter_mut().zip(batch.logps) {
//!             *keep &= u8::from(-logp <= self.max_nats);
//!         }
//!         Ok(())
//!     }
//! }
//!
//! let fixture = Fixture::new(2, 3).logps(&[-0.1, -0.2, -9.0, -0.1, -9.0, -0.3]);
//! let mut mask = testing::mask::<SurpriseCap>("max_nats = 5.0").unwrap();
//! assert_eq!(fixture.mask(&mut mask).unwrap().token_mask, [1, 1, 0, 1, 0, 1]);
//! ```
//!
//! A component that reads texts is tested on texts of your own, one for each token:
//!
//! ```
//! use capo_plugin::prelude::*;
//! use capo_plugin::testing::{self, Fixture};
//!
//! /// Drops tokens that hold a digit.
//! #[keys]
//! struct Wordy {}
//!
//! impl Mask for Wordy {
//!     fn inputs(&self) -> Inputs {
//!         Inputs::ROLLOUT_CONTEXT
//!     }
//!
//!     fn mask(&mut self, _ctx: &mut Ctx, batch: &Batch, token_mask: &mut [u8]) -> Result<(), PluginError> {
//!         let context = batch.rollout_context()?;
//!         for b in 0..batch.dims.completions as usize {
//!             for (t, i) in batch.dims.row(b).enumerate() {
//!                 let text = &context.text(b)[context.span(b, t)];
//!                 token_mask[i] &= u8::from(!text.contains(|c: char| c.is_ascii_digit()));
//!             }
//!         }
//!         Ok(())
//!     }
//! }
//!
//! let fixture = Fixture::new(2, 3).texts(&[&["four", " is ", "4"], &["no"]]);
//! let mut mask = testing::mask::<Wordy>("").unwrap();
//! assert_eq!(fixture.mask(&mut mask).unwrap().token_mask, [1, 1, 0, 1, 0, 0]);
//! ```
//!
//! [`conform`] runs the checks of `host check LIB` on every component of a plugin.
//! [`Fixture::derivative`] measures the derivative that an objective should return. [`key_tables`]
//! keeps the tables of keys in a README.

mod calls;
pub mod check;
mod context;
mod fixture;
mod layer;
mod measured;
mod observed;
mod pages;
mod random;
mod ranks;
mod rollout;
mod shapes;
mod snapshot;
mod variants;

pub use calls::{Controlled, Masked, Weighed};
pub use check::conform;
pub use fixture::Fixture;
pub use measured::Measured;
pub use observed::{Answer, Input, Observed};
pub use pages::key_tables;
pub use ranks::{ThreadRank, on_ranks};
pub use rollout::{RolloutFixture, Scored};
#[doc(hidden)]
pub use shapes::odd_context;
pub use shapes::{batches, rollouts};
pub use snapshot::{Snapshot, snapshot};

use crate::{
    Advantage, AdvantageHandle, Environment, EnvironmentHandle, Keys, Mask, MaskHandle, Objective,
    ObjectiveHandle, PluginError, Reward, RewardHandle, Sink, StepControl, StepControlHandle,
    Weight, WeightHandle, points,
};

macro_rules! builders {
    ($($name:ident $what:literal: $trait:ident => $handle:ident, $id:literal;)*) => {$(
        #[doc = concat!("Builds ", $what, " from its table, written as `key = value` lines, behind the real wire.")]
        ///
        /// # Errors
        ///
        /// The message that a host would show.
        pub fn $name<T: $trait + Keys + 'static>(table: &str) -> Result<$handle, PluginError> {
            points::$name::<T>(&json(table)?).map(|wire| $handle::new($id, wire))
        }
    )*};
}

builders! {
    environment "an environment": Environment => EnvironmentHandle, "test.environment";
    reward "a reward": Reward => RewardHandle, "test.reward";
    advantage "an advantage estimator": Advantage => AdvantageHandle, "test.advantage";
    objective "an objective": Objective => ObjectiveHandle, "test.objective";
    mask "a mask": Mask => MaskHandle, "test.mask";
    weight "a weight": Weight => WeightHandle, "test.weight";
    step_control "a step control": StepControl => StepControlHandle, "test.step-control";
}

fn json(table: &str) -> Result<String, PluginError> {
    object(table).map(|object| serde_json::Value::Object(object).to_string())
}

/// Converts `key = value` lines to a JSON object; a value is a number, a boolean, a quoted string
/// or an array of such values.
fn object(table: &str) -> Result<serde_json::Map<String, serde_json::Value>, PluginError> {
    let mut object = serde_json::Map::new();
    for line in table.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (key, value) = line
            .split_once('=')
            .ok_or_else(|| PluginError::config(format!("`{line}` is not `key = value`")))?;
        let value = serde_json::from_str(value.trim())
            .map_err(|error| PluginError::config(format!("the value in `{line}`: {error}")))?;
        object.insert(key.trim().to_owned(), value);
    }
    Ok(object)
}

/// Reports of a component in one call.
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
    pub fn number(&self, name: &str) -> Option<f64> {
        self.numbers
            .iter()
            .rev()
            .find(|(recorded, _)| recorded == name)
            .map(|(_, value)| *value)
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

/// A fixed pseudo-random value in `[0, 1)` for position `i` of array `salt`.
fn wobble(salt: u64, i: usize) -> f32 {
    let mixed = (i as u64 + 1)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_left(23)
        ^ salt.wrapping_mul(0xD1B5_4A32_D192_ED03);
    (mixed.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 40) as f32 / (1u64 << 24) as f32
}

fn assert_permutation(order: &[usize], groups: usize) {
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    assert!(
        sorted.into_iter().eq(0..groups),
        "`order` is a permutation of the {groups} groups"
    );
}
