//! REINFORCE: the plain policy gradient.

use capo_plugin::prelude::*;

use super::kl::{MeanKl, Penalty, RatioPenalty};
use super::term::Term;

/// `−A · logp + beta · KL`: the plain policy gradient of samples from the current policy
/// (REINFORCE).
#[keys]
#[derive(Debug, Clone)]
pub struct PolicyGradient {
    #[key(flatten)]
    penalty: Penalty,
    #[key(default = Reduction::COMPLETION_MEAN)]
    reduction: Reduction,
}

impl Objective for PolicyGradient {
    fn evaluate(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        out: TokenLosses<'_>,
    ) -> Result<(), PluginError> {
        let penalty = RatioPenalty::without_ratio(self.penalty);
        let ref_logps = penalty.ref_logps(batch)?;
        let mut kl = MeanKl::default();
        for i in (0..batch.dims.len()).filter(|&i| batch.completion_mask[i] == 1) {
            let advantage = batch.advantages[i];
            let logp = batch.logps[i];
            let mut term = Term {
                loss: -advantage * logp,
                by_logp: -advantage,
                ..Term::default()
            };
            if let Some(ref_logps) = ref_logps {
                kl.add(penalty.apply(&mut term, 1.0, logp, ref_logps[i]));
            }
            out.losses[i] = term.loss;
            out.dloss_dlogp[i] = term.by_logp;
        }
        kl.record(ctx);
        Ok(())
    }

    fn validate(&self) -> Result<(), PluginError> {
        self.penalty.validate()
    }

    fn reduction(&self) -> Reduction {
        self.reduction
    }

    fn inputs(&self) -> Inputs {
        self.penalty.inputs()
    }
}
