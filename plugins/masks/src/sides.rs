//! Two bounds, one for each way in which a step can push a token, as verl's `clip_ratio`, `clip_ratio_low` and `clip_ratio_high`.

use capo_plugin::prelude::*;

use crate::checks;

/// Meaning of the lower bound's key, for `register!`.
pub(crate) const LOW: &str = "the same for tokens that have fallen; `clip_ratio` when absent";
/// Meaning of the upper bound's key, for `register!`.
pub(crate) const HIGH: &str = "the same for tokens that have risen; `clip_ratio` when absent";

/// verl's.
pub(crate) fn bound() -> f32 {
    0.2
}

/// `both`, or verl's bound, where the side's own does not say otherwise.
#[derive(Clone, Copy)]
pub(crate) struct Sides {
    pub(crate) both: Option<f32>,
    pub(crate) low: Option<f32>,
    pub(crate) high: Option<f32>,
}

impl Sides {
    /// The bound that holds at this advantage: a step pushes a token up where it is above 0, else down.
    pub(crate) fn limit(self, advantage: f32) -> f32 {
        if advantage > 0.0 { self.high } else { self.low }.or(self.both).unwrap_or(bound())
    }

    /// The key of a bound that a table gives.
    pub(crate) fn given(self) -> Option<&'static str> {
        let keys = [("clip_ratio", self.both), ("clip_ratio_low", self.low), ("clip_ratio_high", self.high)];
        keys.into_iter().find(|(_, bound)| bound.is_some()).map(|(key, _)| key)
    }

    /// Refuses bounds below 0.
    pub(crate) fn check(self) -> Result<(), PluginError> {
        checks::bound("clip_ratio", self.both.unwrap_or_default())?;
        checks::bound("clip_ratio_low", self.low.unwrap_or_default())?;
        checks::bound("clip_ratio_high", self.high.unwrap_or_default())
    }
}
