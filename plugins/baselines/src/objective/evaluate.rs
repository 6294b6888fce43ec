//! Evaluation of an objective over a batch: its loss term at every token, and the KL penalty.

use capo_plugin::prelude::*;

use super::clips::Clips;
use super::kl::{MeanKl, RatioPenalty};
use super::ratio::Level;
use super::term::{Term, Token};

/// Writes each token's `term` with the penalty to the output, and returns the fractions of clipped
/// tokens.
pub(super) fn evaluate(
    level: Level,
    penalty: RatioPenalty,
    ctx: &mut Ctx<'_>,
    batch: &Batch<'_>,
    out: TokenLosses<'_>,
    term: impl Fn(&Token) -> Term,
) -> Result<Clips, PluginError> {
    let old_logps = batch.old_logps()?;
    let ref_logps = penalty.ref_logps(batch)?;
    let mut clips = Clips::new(level);
    let mut kl = MeanKl::default();
    for completion in 0..batch.dims.completions as usize {
        let row: Vec<usize> = batch
            .dims
            .row(completion)
            .filter(|&i| batch.completion_mask[i] == 1)
            .collect();
        let ratios = level.ratios(batch.logps, old_logps, &row);
        let mut by_ratio = Vec::with_capacity(row.len());
        for (&i, &ratio) in row.iter().zip(&ratios) {
            let token = Token {
                completion,
                ratio,
                advantage: batch.advantages[i],
                logp: batch.logps[i],
            };
            let mut term = term(&token);
            clips.count(term.held);
            if let Some(ref_logps) = ref_logps {
                kl.add(penalty.apply(&mut term, ratio, token.logp, ref_logps[i]));
            }
            out.losses[i] = term.loss;
            out.dloss_dlogp[i] = term.by_logp;
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
