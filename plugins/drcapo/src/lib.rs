//! Dr.CAPO as a plugin: its advantage, objective and curvature mask, and the recipe that
//! `--plugin libdrcapo.so` selects.

#![forbid(unsafe_code)]

use capo_baselines::{ByFixedLength, ClippedSurrogate, GroupCentered};
use capo_curvature::{CurvatureMask, CurvatureWeight, Thresholds};
use capo_plugin::{recipe, register};

/// The paper's thresholds for Dr.CAPO.
struct DrCapo;

impl Thresholds for DrCapo {
    const FISHER: f64 = 1e-3;
    const HESSIAN: f64 = 5e-4;
}

type Mask = CurvatureMask<DrCapo>;
type Surrogate = ClippedSurrogate<ByFixedLength>;

register!(
    Advantage,
    GroupCentered,
    "drcapo.advantage",
    "Reward - group mean."
);
register!(
    Objective,
    Surrogate,
    "drcapo.objective",
    "Clipped surrogate, sum over a fixed length."
);
register!(Mask, Mask, "drcapo.curvature");
register!(Weight, CurvatureWeight, "drcapo.curvature-weight");
recipe!(
    "drcapo",
    "Dr.GRPO with the curvature mask, as published; drcapo-soft holds at rates where it collapses",
    include_str!("../recipe.toml")
);
recipe!(
    "drcapo-soft",
    "Dr.GRPO with curvature weights, remembered by the optimizer",
    include_str!("../soft.toml")
);

#[cfg(test)]
mod tests {
    #[test]
    fn the_readme_has_the_keys() {
        capo_plugin::testing::key_tables("README.md").unwrap();
    }
}
