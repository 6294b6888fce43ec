//! Two bounds, one for each direction of a step: verl's `clip_ratio`, `clip_ratio_low` and `clip_ratio_high`.

use capo_plugin::prelude::*;

use crate::checks;

/// Meaning of the lower bound's key, for `register!`.
pub(crate) const LOW: &str = "the same for tokens that have fallen; `clip_ratio` when absent";
/// Meaning of the upper bound's key, for `register!`.
pub(crate) const HIGH: &str = "the same for tokens that have risen; `clip_ratio` when absent";

/// verl's default bound.
pub(crate) fn bound() -> f32 {
    0.2
}

/// Bounds per side; an absent one is `both`, or else verl's default.
#[derive(Clone, Copy)]
pub(crate) struct Sides {
    pub(crate) both: Option<f32>,
    pub(crate) low: Option<f32>,
    pub(crate) high: Option<f32>,
}

impl Sides {
    /// Bound at this advantage: a step raises the token's probability if the advantage is above 0, and lowers it otherwise.
    pub(crate) fn limit(self, advantage: f32) -> f32 {
        if advantage > 0.0 { self.high } else { self.low }.or(self.both).unwrap_or(bound())
    }

    /// Key of a bound that the table gives.
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
