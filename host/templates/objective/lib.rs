//! An objective that corrects for tokens sampled by an older policy, up to a limit.

#![forbid(unsafe_code)]

use capo_plugin::prelude::*;

/// Policy gradient with a limited importance weight.
///
/// A token weighs `min(ratio, max_ratio)`, where `ratio` is the probability of the token now over
/// that when it was sampled. The weight is a constant to the gradient. The fields with `#[key]` are
/// the keys of its table in a config.
#[component(Objective, id = "plugin-name.objective")]
struct LimitedRatio {
    /// Largest weight of a token.
    #[key(default = 2.0, above = 0)]
    max_ratio: f32,
}

impl Objective for LimitedRatio {
    fn evaluate(
        &mut self,
        ctx: &mut Ctx,
        batch: &Batch,
        out: TokenLosses,
    ) -> Result<(), PluginError> {
        let old_logps = batch.old_logps()?;
        let mut tokens = 0;
        let mut limited = 0;
        for i in (0..batch.dims.len()).filter(|&i| batch.completion_mask[i] == 1) {
            let ratio = (batch.logps[i] - old_logps[i]).exp();
            let weighted = -ratio.min(self.max_ratio) * batch.advantages[i];
            out.losses[i] = weighted * batch.logps[i];
            out.dloss_dlogp[i] = weighted;
            tokens += 1;
            limited += usize::from(ratio > self.max_ratio);
        }
        ctx.record("ratio_limited", limited as f64 / tokens.max(1) as f64);
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        Inputs::OLD_LOGPS
    }
}

#[cfg(test)]
mod tests;
