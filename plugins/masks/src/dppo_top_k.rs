//! DPPO-Top-K: like [`crate::dppo`], with the divergence over the sampler's K most likely tokens
//! and one entry for all others.
//!
//! q and p are the sampler's and the trainer's distributions over these entries; the divergence is
//! ½ Σ abs(q − p) or Σ q ln(q/p). A token is dropped if A > 0, its probability rose and the
//! divergence exceeds `clip_ratio_high`. It is also dropped if A ≤ 0, its probability fell and the
//! divergence exceeds `clip_ratio_low`. The trainer's probabilities come from its top logits
//! (`train.last_layer_top_k`). A sampler's token outside them counts with the others on both sides.
//!
//! Qi et al., arXiv 2602.04879; Stable-RL, `core_algos.py`, loss modes `dppo_topk_tv` and
//! `dppo_topk_kl`, `utils.py`, `compute_topk_kl`.

use capo_plugin::prelude::*;

use crate::dppo::{Divergence, Kl, Sides, TotalVariation};
use crate::policies::Policies;
use crate::rated::{Bounded, Rated};

/// A mask with bounds on the divergence over several tokens.
#[keys]
struct DppoTopK<D: Divergence> {
    #[key(flatten)]
    sides: Sides<D>,
}

/// A position's most likely tokens, in one order.
struct TopTokens<'a> {
    ids: &'a [u32],
    /// Log-probabilities of the sampler, or logits of the trainer.
    scores: &'a [f32],
}

/// Pairs (q, p) of the sampler's and the trainer's probability: one per token that both list, then
/// the rest with Stable-RL's minimum. `logp` gives the trainer's log-probability of a logit.
fn pairs(
    sampler: &TopTokens<'_>,
    trainer: &TopTokens<'_>,
    logp: impl Fn(f32) -> f32,
) -> Vec<(f64, f64)> {
    let mut rest_q = 1.0;
    let mut rest_p = 1.0;
    let mut pairs = Vec::with_capacity(sampler.ids.len() + 1);
    for (id, sampler_logp) in sampler.ids.iter().zip(sampler.scores) {
        let Some(at) = trainer.ids.iter().position(|other| other == id) else {
            continue;
        };
        let q = f64::from(*sampler_logp).exp();
        let p = f64::from(logp(trainer.scores[at])).exp();
        rest_q -= q;
        rest_p -= p;
        pairs.push((q, p));
    }
    pairs.push((rest_q.max(1e-12), rest_p.max(1e-12)));
    pairs
}

impl<D: Divergence> Bounded for DppoTopK<D> {
    fn sizes(&self, batch: &Batch) -> Result<Vec<f64>, PluginError> {
        let compared = Policies::TrainerSampler.compare(batch)?;
        let layer = batch.last_layer()?;
        let sampler = batch.sampler_top_k()?;
        let ids = layer.topk_ids.as_u32()?;
        let logits = layer.topk_logits.as_f32()?;
        let logsumexp = layer.logsumexp.as_f32()?;
        let k = ids.len() / batch.dims.len().max(1);
        let width = batch.dims.tokens as usize;
        let mut sizes = vec![0.0; batch.dims.len()];
        for (i, size) in sizes.iter_mut().enumerate() {
            if !compared.goes_further(i, batch.advantages[i]) {
                continue;
            }
            let own = i * k..(i + 1) * k;
            let sampler = TopTokens {
                ids: sampler.ids(i / width, i % width),
                scores: sampler.logps(i / width, i % width),
            };
            let trainer = TopTokens {
                ids: &ids[own.clone()],
                scores: &logits[own],
            };
            let logp = |logit: f32| logit / batch.loss_temperature - logsumexp[i];
            let divergence: f64 = pairs(&sampler, &trainer, logp)
                .into_iter()
                .map(|(q, p)| D::part(q, p))
                .sum();
            *size = divergence.max(0.0);
        }
        Ok(sizes)
    }

    fn limit(&self, advantage: f32) -> f64 {
        f64::from(self.sides.limit(advantage))
    }

    fn inputs(&self) -> Inputs {
        Inputs::LAST_LAYER | Inputs::SAMPLER_TOP_K | Policies::TrainerSampler.inputs()
    }
}

register!(
    Mask,
    Rated<DppoTopK<TotalVariation>>,
    "masks.dppo-topk-tv",
    "The same as dppo-tv, over the sampler's most likely tokens."
);
register!(
    Mask,
    Rated<DppoTopK<Kl>>,
    "masks.dppo-topk-kl",
    "The same as dppo-kl, over the sampler's most likely tokens."
);
