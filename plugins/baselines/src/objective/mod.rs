//! Losses per token, and their derivatives by the log-probability, a file for each family.
//!
//! `ratio` says whose probabilities are compared over what, `kl` what distance from a reference costs, `defaults` what an id's keys are where
//! its table does not say; a family says what a token's loss is, given its ratio.

mod cispo;
mod clipped;
mod clips;
mod correction;
mod defaults;
mod kl;
mod policy_gradient;
mod ratio;
mod sapo;
mod vespo;

use capo_plugin::prelude::*;

pub use cispo::Cispo;
pub use clipped::ClippedSurrogate;
pub use correction::CorrectionMode;
pub use defaults::{ByCompletion, ByFixedLength, ByToken, Dapo, Defaults, Gspo, Luspo, Rloo};
pub use kl::KlEstimator;
pub use policy_gradient::PolicyGradient;
pub use ratio::Level;
pub use sapo::Sapo;
pub use vespo::Vespo;

use clips::{Clips, Side};
use kl::{MeanKl, Penalty};

/// What a loss is made of at one token.
#[derive(Clone, Copy)]
struct Token {
    /// Which completion it belongs to.
    completion: usize,
    /// How much more probable it is than when it was sampled.
    ratio: f32,
    advantage: f32,
    logp: f32,
}

/// A token's loss, and its derivatives by the ratio and, apart from that, by the log-probability.
#[derive(Default)]
struct Term {
    loss: f32,
    by_ratio: f32,
    by_logp: f32,
    /// Where a limit on the ratio holds.
    held: Option<Side>,
}

/// Gives every token its `term`, and the penalty; returns how often limits held.
fn evaluate(
    level: Level,
    penalty: Penalty,
    ctx: &mut Ctx<'_>,
    batch: &Batch<'_>,
    out: PerToken<'_>,
    term: impl Fn(&Token) -> Term,
) -> Result<Clips, PluginError> {
    let (old_logps, ref_logps) = (batch.old_logps()?, penalty.ref_logps(batch)?);
    let (mut clips, mut kl) = (Clips::new(level), MeanKl::default());
    for completion in 0..batch.dims.completions as usize {
        let row: Vec<usize> = batch.dims.row(completion).filter(|&i| batch.completion_mask[i] == 1).collect();
        let ratios = level.ratios(batch.logps, old_logps, &row);
        let mut by_ratio = Vec::with_capacity(row.len());
        for (&i, &ratio) in row.iter().zip(&ratios) {
            let token = Token { completion, ratio, advantage: batch.advantages[i], logp: batch.logps[i] };
            let mut term = term(&token);
            clips.count(term.held);
            if let Some(ref_logps) = ref_logps {
                kl.add(penalty.apply(&mut term, ratio, token.logp, ref_logps[i]));
            }
            (out.loss[i], out.dloss_dlogp[i]) = (term.loss, term.by_logp);
            by_ratio.push(term.by_ratio);
        }
        clips.end_completion();
        for (&i, slope) in row.iter().zip(level.by_logp(&ratios, &by_ratio)) {
            out.dloss_dlogp[i] += slope;
        }
    }
    kl.record(ctx);
    Ok(clips)
}

#[cfg(test)]
mod tests;
