//! The extension points, one file each: the author's trait, which may gain methods with defaults, and its adapters to the wire.

#[macro_use]
mod shared;
mod advantage;
mod mask;
mod objective;
mod reward;
mod step_control;
mod weight;

use crate::abi::{AdvantageBox, ComponentInfo, MaskBox, ObjectiveBox};
use crate::abi_reward::RewardBox;
use crate::abi_step_control::StepControlBox;
use crate::abi_weight::WeightBox;
use crate::{Extension, Image, Point};
pub use advantage::{Advantage, AdvantageEstimator};
pub use mask::{Mask, PreBackwardMask};
pub use objective::{Objective, ObjectiveFn, PerToken};
pub use reward::{Reward, RewardFn};
pub use step_control::{StepControl, StepControlFn};
pub use weight::{TokenWeight, Weight};
pub(crate) use {
    advantage::advantage, mask::mask, objective::objective, reward::reward, step_control::step_control, weight::weight,
};

impl Image {
    /// Components that the image offers at `point`; empty where it does not know the point.
    ///
    /// # Errors
    ///
    /// When the image compiled another layout under the point's id.
    pub fn components(&self, point: Point) -> Result<Vec<ComponentInfo>, String> {
        match point {
            Point::Reward => self.list::<RewardBox>(),
            Point::Advantage => self.list::<AdvantageBox>(),
            Point::Objective => self.list::<ObjectiveBox>(),
            Point::Mask => self.list::<MaskBox>(),
            Point::Weight => self.list::<WeightBox>(),
            Point::StepControl => self.list::<StepControlBox>(),
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
