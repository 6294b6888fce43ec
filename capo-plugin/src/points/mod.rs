//! The extension points, a file each: the trait for authors, which may gain methods with defaults, and what stands between it and the wire.

#[macro_use]
mod shared;
mod advantage;
mod mask;
mod objective;
mod reward;
mod step_control;
mod weight;

use crate::abi::{AdvantagePoint, ComponentInfo, MaskPoint, ObjectivePoint};
use crate::abi_reward::RewardPoint;
use crate::abi_step_control::StepControlPoint;
use crate::abi_weight::WeightPoint;
use crate::extension::Extension;
use crate::image::Image;
use crate::point::Point;
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
    /// The components that it offers at `point`; empty where it does not know the point.
    ///
    /// # Errors
    ///
    /// When the image compiled another layout under the point's id.
    pub fn components(&self, point: Point) -> Result<Vec<ComponentInfo>, String> {
        match point {
            Point::Reward => self.list::<RewardPoint>(),
            Point::Advantage => self.list::<AdvantagePoint>(),
            Point::Objective => self.list::<ObjectivePoint>(),
            Point::Mask => self.list::<MaskPoint>(),
            Point::Weight => self.list::<WeightPoint>(),
            Point::StepControl => self.list::<StepControlPoint>(),
        }
    }
}

/// What this image offers at `point`.
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
