//! REINFORCE: the plain policy gradient.

use capo_plugin::prelude::*;
use capo_plugin::{KeyDocs, keys};

use super::defaults::{ABOUT_REDUCTION, completion_mean};
use super::kl::{ABOUT_BETA, ABOUT_ESTIMATOR, KlEstimator, MeanKl, Penalty};
use super::term::Term;

/// `−A · logp + beta · KL`: the plain policy gradient of samples from the current policy
/// (REINFORCE).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyGradient {
    #[serde(default)]
    beta: f32,
    #[serde(default)]
    kl_estimator: KlEstimator,
    #[serde(default = "completion_mean")]
    reduction: Reduction,
}

impl PolicyGradient {
    /// Meanings of the keys, for `register!`.
    pub const KEYS: KeyDocs = keys! {
        beta = 0.0 => ABOUT_BETA,
        kl_estimator = KlEstimator::default() => ABOUT_ESTIMATOR,
        reduction = completion_mean() => ABOUT_REDUCTION,
    };

    fn penalty(&self) -> Penalty {
        Penalty {
            beta: self.beta,
            estimator: self.kl_estimator,
            by_ratio: false,
        }
    }
}

impl Objective for PolicyGradient {
    fn evaluate(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        out: TokenLosses<'_>,
    ) -> Result<(), PluginError> {
        let (ref_logps, mut kl) = (self.penalty().ref_logps(batch)?, MeanKl::default());
        for i in (0..batch.dims.len()).filter(|&i| batch.completion_mask[i] == 1) {
            let (advantage, logp) = (batch.advantages[i], batch.logps[i]);
            let mut term = Term {
                loss: -advantage * logp,
                by_logp: -advantage,
                ..Term::default()
            };
            if let Some(ref_logps) = ref_logps {
                kl.add(self.penalty().apply(&mut term, 1.0, logp, ref_logps[i]));
            }
            (out.losses[i], out.dloss_dlogp[i]) = (term.loss, term.by_logp);
        }
        kl.record(ctx);
        Ok(())
    }

    fn validate(&self) -> Result<(), PluginError> {
        self.penalty().validate()
    }

    fn reduction(&self) -> Reduction {
        self.reduction
    }

    fn inputs(&self) -> Inputs {
        self.penalty().inputs()
    }
}
