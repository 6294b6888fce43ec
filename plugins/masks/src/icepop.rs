//! IcePop: drops tokens that trainer and sampler disagree on.
//!
//! With r = p / q the ratio of the two probabilities: dropped where r < `alpha` or r > `beta`. The sources also multiply the tokens
//! that stay by r, which is the weight `masks.tis` with `rollout_is_threshold_lower = alpha`, `rollout_is_threshold = beta`; it drops the
//! same tokens, so that one of the two is enough.
//!
//! Ling team, *Every Step Evolves*, arXiv 2510.18855; slime, `megatron_utils/loss.py`, `icepop_function`; NeMo RL,
//! `truncated_importance_sampling_type = "icepop"`; verl, `rollout_is_threshold = "0.5_5.0"`.

use capo_plugin::prelude::*;

use crate::policies::{self, Policies};
use crate::{checks, tokens};

/// A range of ratios.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IcePop {
    /// Smallest ratio kept.
    #[serde(default = "alpha")]
    alpha: f32,
    /// Largest ratio kept.
    #[serde(default = "beta")]
    beta: f32,
    /// Whose probabilities.
    #[serde(default = "Policies::old_sampler")]
    policies: Policies,
}

fn alpha() -> f32 {
    0.5
}

fn beta() -> f32 {
    5.0
}

impl PreBackwardMask for IcePop {
    fn mask(&mut self, ctx: &mut Ctx, batch: &Batch, keep: &mut [u8]) -> Result<(), PluginError> {
        let log_ratios = self.policies.compare(ctx, batch)?.log_ratios();
        tokens::drop_where(keep, |i| !(self.alpha..=self.beta).contains(&log_ratios[i].exp()));
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }

    fn traits(&self) -> MaskTraits {
        tokens::ALONE
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::bound("alpha", self.alpha)?;
        checks::range(("alpha", self.alpha), ("beta", self.beta))
    }
}

register!(PreBackwardMask, IcePop, "masks.icepop", "drops tokens on which trainer and sampler disagree", {
    alpha = alpha() => "smallest ratio kept",
    beta = beta() => "largest ratio kept"; 1.00001..1000.0,
    policies = Policies::OldSampler => policies::ABOUT,
});
