//! ReinCAPO as a plugin: its advantage, objective and curvature mask, and the recipe that
//! `--plugin libreincapo.so` selects.

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

type Mask = CurvatureMask<ReinCapo>;

register!(
    Advantage,
    RewardAsAdvantage,
    "reincapo.advantage",
    "The reward itself."
);
register!(
    Objective,
    PolicyGradient,
    "reincapo.objective",
    "Policy gradient, mean over completions of their means."
);
register!(Mask, Mask, "reincapo.curvature");
register!(Weight, CurvatureWeight, "reincapo.curvature-weight");
recipe!(
    "reincapo",
    "REINFORCE with the curvature mask, as published; a governor holds at rates where it collapses",
    include_str!("../recipe.toml")
);
recipe!(
    "reincapo-soft",
    "REINFORCE with curvature weights, remembered by the optimizer",
    include_str!("../soft.toml")
);

#[cfg(test)]
mod tests {
    #[test]
    fn the_readme_has_the_keys() {
        capo_plugin::testing::key_tables("README.md").unwrap();
    }
}
