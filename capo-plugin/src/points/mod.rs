//! The extension points, one file each: the author's trait, which may gain methods with defaults, and its adapters to the wire.

#[macro_use]
mod shared;
mod advantage;
mod mask;
mod objective;
mod reward;
mod step_control;
mod weight;

use crate::Extension;
use crate::abi::{ADVANTAGE_POINT, MASK_POINT, OBJECTIVE_POINT};
use crate::abi_reward::REWARD_POINT;
use crate::abi_step_control::STEP_CONTROL_POINT;
use crate::abi_weight::WEIGHT_POINT;
pub use advantage::{Advantage, AdvantageEstimator};
pub use mask::{Mask, PreBackwardMask};
pub use objective::{Objective, ObjectiveFn, PerToken};
pub use reward::{Reward, RewardFn};
pub use step_control::{StepControl, StepControlFn};
pub use weight::{TokenWeight, Weight};
pub(crate) use {
    advantage::advantage, mask::mask, objective::objective, reward::reward, step_control::step_control, weight::weight,
};

/// An extension point of the training loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum Point {
    /// [`crate::Reward`].
    Reward,
    /// [`crate::AdvantageEstimator`].
    Advantage,
    /// [`crate::Objective`].
    Objective,
    /// [`crate::PreBackwardMask`].
    Mask,
    /// [`crate::TokenWeight`].
    Weight,
    /// [`crate::StepControl`].
    StepControl,
}

impl Point {
    /// All points, in the order of the loop.
    pub const ALL: [Self; 6] =
        [Self::Reward, Self::Advantage, Self::Objective, Self::Mask, Self::Weight, Self::StepControl];

    /// Name of the point in a configuration: `reward`, `advantage`, `objective`, `mask`, `weight`, `step_control`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reward => "reward",
            Self::Advantage => "advantage",
            Self::Objective => "objective",
            Self::Mask => "mask",
            Self::Weight => "weight",
            Self::StepControl => "step_control",
        }
    }

    /// Extension id of the point.
    pub fn extension_id(self) -> &'static str {
        match self {
            Self::Reward => REWARD_POINT,
            Self::Advantage => ADVANTAGE_POINT,
            Self::Objective => OBJECTIVE_POINT,
            Self::Mask => MASK_POINT,
            Self::Weight => WEIGHT_POINT,
            Self::StepControl => STEP_CONTROL_POINT,
        }
    }
}

/// This image's components at `point`, as an extension.
pub(crate) fn own(point: Point) -> Extension<'static> {
    match point {
        Point::Reward => Extension::of(&reward::OWN),
        Point::Advantage => Extension::of(&advantage::OWN),
        Point::Objective => Extension::of(&objective::OWN),
        Point::Mask => Extension::of(&mask::OWN),
        Point::Weight => Extension::of(&weight::OWN),
        Point::StepControl => Extension::of(&step_control::OWN),
    }
}
