//! CAPO as a plugin: its advantage, objective and curvature mask, and the recipe that
//! `--plugin libcapo.so` selects.

#![forbid(unsafe_code)]

use capo_baselines::{ByCompletion, ClippedSurrogate, GroupNormalized};
use capo_curvature::{CurvatureMask, CurvatureWeight, Thresholds};
use capo_plugin::{recipe, register};

/// The paper's thresholds for CAPO.
struct Capo;

impl Thresholds for Capo {
    const FISHER: f64 = 1e-4;
    const HESSIAN: f64 = 1e-2;
}

type Mask = CurvatureMask<Capo>;

register!(
    Advantage,
    GroupNormalized,
    "capo.advantage",
    "(reward - group mean) / (group std + epsilon)."
);
register!(
    Objective,
    ClippedSurrogate<ByCompletion>,
    "capo.objective",
    "Clipped surrogate, mean over completions of their means."
);
register!(Mask, Mask, "capo.curvature");
register!(Weight, CurvatureWeight, "capo.curvature-weight");
recipe!(
    "capo",
    "GRPO with the curvature mask, as published; capo-soft holds at rates where it collapses",
    include_str!("../recipe.toml")
);
recipe!(
    "capo-soft",
    "GRPO with curvature weights, remembered by the optimizer",
    include_str!("../soft.toml")
);

#[cfg(test)]
mod tests {
    #[test]
    fn the_readme_has_the_keys() {
        capo_plugin::testing::key_tables("README.md").unwrap();
    }

    #[test]
    fn thresholds_that_follow_the_run_conform() {
        for (semantics, granularity) in [("paper", "token"), ("paper", "group"), ("exact", "token")]
        {
            let table = |key: &str| {
                format!("{key}\nsemantics = \"{semantics}\"\ngranularity = \"{granularity}\"")
            };
            let (mask, weight) = (
                table("target_rejection_rate = 0.2"),
                table("fisher_threshold = \"auto\""),
            );
            let tables = [
                ("capo.curvature", mask.as_str()),
                ("capo.curvature-weight", weight.as_str()),
            ];
            capo_plugin::testing::conform(&tables).unwrap();
        }
    }
}
