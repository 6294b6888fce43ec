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

use std::marker::PhantomData;

use capo_plugin::prelude::*;
use capo_plugin::{KeyDocs, keys};

use crate::dppo::{self, Divergence, Kl, Sides, TotalVariation};
use crate::policies::Policies;
use crate::rated::{self, Bounded, Rated};

/// Bounds on the divergence.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, bound = "")]
struct DppoTopK<D> {
    clip_ratio: Option<f32>,
    clip_ratio_low: Option<f32>,
    clip_ratio_high: Option<f32>,
    target_rejection_rate: Option<f64>,
    #[serde(skip)]
    divergence: PhantomData<D>,
}

impl<D> DppoTopK<D> {
    fn sides(&self) -> Sides {
        Sides {
            both: self.clip_ratio,
            low: self.clip_ratio_low,
            high: self.clip_ratio_high,
        }
    }

    const KEYS: KeyDocs = keys! {
        clip_ratio = dppo::BOUND => "largest divergence at a token that would go further"; 1e-9..10.0,
        clip_ratio_low = None::<f32> => dppo::LOW,
        clip_ratio_high = None::<f32> => dppo::HIGH,
        target_rejection_rate = None::<f64> => rated::ABOUT,
    };
}

/// Pairs (q, p) of the sampler's and the trainer's probability: one per token that both list, then
/// the rest with Stable-RL's minimum.
fn known(
    sampler: (&[u32], &[f32]),
    trainer: (&[u32], &[f32]),
    logsumexp: f32,
    temperature: f32,
) -> Vec<(f64, f64)> {
    let (mut rest, mut pairs) = ((1.0, 1.0), Vec::with_capacity(sampler.0.len() + 1));
    for (id, logp) in sampler.0.iter().zip(sampler.1) {
        let Some(at) = trainer.0.iter().position(|other| other == id) else {
            continue;
        };
        let q = f64::from(*logp).exp();
        let p = f64::from(trainer.1[at] / temperature - logsumexp).exp();
        rest = (rest.0 - q, rest.1 - p);
        pairs.push((q, p));
    }
    pairs.push((rest.0.max(1e-12), rest.1.max(1e-12)));
    pairs
}

impl<D: Divergence> Bounded for DppoTopK<D> {
    fn given(&self) -> (Option<f64>, Option<&'static str>) {
        (self.target_rejection_rate, self.sides().given())
    }

    fn sizes(&self, batch: &Batch) -> Result<Vec<f64>, PluginError> {
        let compared = Policies::TrainerSampler.compare(batch)?;
        let (layer, sampler) = (batch.last_layer()?, batch.sampler_top_k()?);
        let (ids, logits, logsumexp) = (
            layer.topk_ids.as_u32()?,
            layer.topk_logits.as_f32()?,
            layer.logsumexp.as_f32()?,
        );
        let (k, width) = (
            ids.len() / batch.dims.len().max(1),
            batch.dims.tokens as usize,
        );
        let divergence = |i: usize| {
            let (b, t, own) = (i / width, i % width, i * k..(i + 1) * k);
            let theirs = (sampler.ids(b, t), sampler.logps(b, t));
            let pairs = known(
                theirs,
                (&ids[own.clone()], &logits[own]),
                logsumexp[i],
                batch.loss_temperature,
            );
            pairs.into_iter().map(|(q, p)| D::part(q, p)).sum::<f64>()
        };
        let size = |i: usize| {
            if compared.goes_further(i, batch.advantages[i]) {
                divergence(i).max(0.0)
            } else {
                0.0
            }
        };
        Ok((0..batch.dims.len()).map(size).collect())
    }

    fn limit(&self, advantage: f32) -> f64 {
        f64::from(self.sides().limit(advantage))
    }

    fn inputs(&self) -> Inputs {
        Inputs::LAST_LAYER | Inputs::SAMPLER_TOP_K | Policies::TrainerSampler.inputs()
    }

    fn validate(&self) -> Result<(), PluginError> {
        self.sides().check()
    }
}

register!(
    Mask,
    Rated<DppoTopK<TotalVariation>>,
    "masks.dppo-topk-tv",
    "as dppo-tv, over the sampler's most likely tokens",
    DppoTopK::<TotalVariation>::KEYS
);
register!(
    Mask,
    Rated<DppoTopK<Kl>>,
    "masks.dppo-topk-kl",
    "as dppo-kl, over the sampler's most likely tokens",
    DppoTopK::<Kl>::KEYS
);
