//! The extension points, one file each: the author's trait, which may gain methods with defaults,
//! and its adapters to the wire.

#[macro_use]
mod shared;
mod advantage;
mod environment;
mod mask;
mod objective;
mod reward;
mod step_control;
mod weight;

use crate::Extension;
pub use advantage::{Advantage, AdvantageHandle};
pub use environment::{Environment, EnvironmentHandle};
pub use mask::{Mask, MaskHandle};
pub use objective::{Objective, ObjectiveHandle, TokenLosses};
pub use reward::{Reward, RewardHandle};
pub use step_control::{StepControl, StepControlHandle};
pub use weight::{Weight, WeightHandle};
pub(crate) use {
    advantage::advantage, environment::environment, mask::mask, objective::objective,
    reward::reward, step_control::step_control, weight::weight,
};

/// An extension point of the training loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum Point {
    /// [`crate::Environment`].
    Environment,
    /// [`crate::Reward`].
    Reward,
    /// [`crate::Advantage`].
    Advantage,
    /// [`crate::Objective`].
    Objective,
    /// [`crate::Mask`].
    Mask,
    /// [`crate::Weight`].
    Weight,
    /// [`crate::StepControl`].
    StepControl,
}

impl Point {
    /// All points, in the order of the loop.
    pub const ALL: [Self; 7] = [
        Self::Environment,
        Self::Reward,
        Self::Advantage,
        Self::Objective,
        Self::Mask,
        Self::Weight,
        Self::StepControl,
    ];

    /// Name of the point in a configuration: `environment`, `reward`, `advantage`, `objective`,
    /// `mask`, `weight`, `step_control`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Environment => "environment",
            Self::Reward => "reward",
            Self::Advantage => "advantage",
            Self::Objective => "objective",
            Self::Mask => "mask",
            Self::Weight => "weight",
            Self::StepControl => "step_control",
        }
    }

    /// True if the components see texts and no tokens.
    pub fn sees_text(self) -> bool {
        matches!(self, Self::Environment | Self::Reward)
    }

    /// Extension id of the point.
    pub fn extension_id(self) -> &'static str {
        match self {
            Self::Environment => "capo.environment/1",
            Self::Reward => "capo.reward/1",
            Self::Advantage => "capo.advantage/1",
            Self::Objective => "capo.objective/1",
            Self::Mask => "capo.mask/1",
            Self::Weight => "capo.weight/1",
            Self::StepControl => "capo.step-control/1",
        }
    }
}

/// This image's components at `point`, as an extension.
pub(crate) fn own(point: Point) -> Extension<'static> {
    match point {
        Point::Environment => Extension::of(&environment::OWN),
        Point::Reward => Extension::of(&reward::OWN),
        Point::Advantage => Extension::of(&advantage::OWN),
        Point::Objective => Extension::of(&objective::OWN),
        Point::Mask => Extension::of(&mask::OWN),
        Point::Weight => Extension::of(&weight::OWN),
        Point::StepControl => Extension::of(&step_control::OWN),
    }
}
