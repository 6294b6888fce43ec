//! ReinCAPO as a plugin: its advantage, objective and curvature mask, and the recipe that `--plugin libreincapo.so` selects.

#![forbid(unsafe_code)]

use capo_baselines::{PolicyGradient, RewardAsAdvantage};
use capo_curvature::{CurvatureMask, CurvatureWeight, Thresholds};
use capo_plugin::{recipe, register};

/// The paper's thresholds for ReinCAPO.
struct ReinCapo;

impl Thresholds for ReinCapo {
    const FISHER: f64 = 1e-5;
    const HESSIAN: f64 = 1e-1;
}

register!(AdvantageEstimator, RewardAsAdvantage, "reincapo.advantage", "the reward itself", RewardAsAdvantage::KEYS);
register!(
    Objective,
    PolicyGradient,
    "reincapo.objective",
    "policy gradient, mean over completions of their means",
    PolicyGradient::KEYS
);
register!(
    PreBackwardMask,
    CurvatureMask<ReinCapo>,
    "reincapo.curvature",
    "drops tokens whose predicted step moves objective or policy too far",
    CurvatureMask::<ReinCapo>::KEYS
);
register!(
    TokenWeight,
    CurvatureWeight,
    "reincapo.curvature-weight",
    "lets tokens whose predicted step moves the policy too far count less",
    CurvatureWeight::KEYS
);
recipe!("reincapo", "REINFORCE with the curvature mask", include_str!("../recipe.toml"));
recipe!("reincapo-soft", "REINFORCE with curvature weights, remembered by the optimizer", include_str!("../soft.toml"));

#[cfg(test)]
mod tests {
    #[test]
    fn all_components_conform() {
        capo_plugin::testing::conform(&[]).unwrap();
    }
}
