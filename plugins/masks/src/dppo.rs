//! DPPO-Binary-TV and DPPO-Binary-KL: drop tokens whose probability has moved too far, if the step
//! would push them further.
//!
//! p is the token's probability under the trainer, q its probability under the other policy. A
//! token is dropped if A > 0, p > q and D > `clip_ratio_high`, or if A ≤ 0, p < q and D >
//! `clip_ratio_low`. D is the divergence of the two policies with all other tokens merged into one:
//! the total variation abs(p − q), or the KL divergence q ln(q/p) + (1 − q) ln((1 − q)/(1 − p)).
//!
//! Qi et al., *Rethinking the Trust Region in LLM Reinforcement Learning*, arXiv 2602.04879; verl,
//! `core_algos.py`, loss modes `dppo_tv` and `dppo_kl` (there against `old`, which is the sampler's
//! in its bypass mode); prime-rl's default loss, `dppo_mask_low` and `_high`.

use std::marker::PhantomData;

use capo_plugin::prelude::*;

use crate::policies::{Compared, Policies};
use crate::rated::{Bounded, Rated};

/// A divergence between two distributions.
pub(crate) trait Divergence: Send {
    /// Smallest bound that a search tries.
    const SEARCH_LOW: f64;
    /// Largest bound that a search tries.
    const SEARCH_HIGH: f64;

    /// Divergence at token i of `[B, T]`, with all other tokens merged into one.
    fn of_token(compared: &Compared, i: usize) -> f32;

    /// Contribution of one entry, a token or the merged rest: `q` is the sampler's probability, `p`
    /// the trainer's.
    fn part(q: f64, p: f64) -> f64;
}

pub(crate) struct TotalVariation;
pub(crate) struct Kl;

impl Divergence for TotalVariation {
    const SEARCH_LOW: f64 = 1e-6;
    const SEARCH_HIGH: f64 = 1.0;

    fn of_token(compared: &Compared, i: usize) -> f32 {
        let (p, q) = compared.probabilities(i);
        (p - q).abs()
    }

    fn part(q: f64, p: f64) -> f64 {
        0.5 * (q - p).abs()
    }
}

impl Divergence for Kl {
    const SEARCH_LOW: f64 = 1e-9;
    const SEARCH_HIGH: f64 = 10.0;

    fn of_token(compared: &Compared, i: usize) -> f32 {
        let (p, q) = compared.probabilities(i);
        q * (compared.against[i] - compared.of[i]) + (1.0 - q) * (rest(q) / rest(p)).ln()
    }

    fn part(q: f64, p: f64) -> f64 {
        if q > 0.0 { q * (q / p).ln() } else { 0.0 }
    }
}

/// Probability of all other tokens. verl's constant keeps the logarithm finite for tokens of
/// probability 1.
fn rest(p: f32) -> f32 {
    1.0 - p + 1e-8
}

/// Bounds for the two directions of a step: verl's `clip_ratio_low` and `clip_ratio_high`.
#[keys]
pub(crate) struct Sides<D: Divergence> {
    /// Largest divergence of a token that the step would move further: of its probability, or nats.
    #[key(
        default = 0.2,
        at_least = 0,
        infinite,
        search = D::SEARCH_LOW..=D::SEARCH_HIGH,
        not_with = "target_rejection_rate"
    )]
    clip_ratio: f32,
    /// The same for tokens that have fallen; `clip_ratio` when absent.
    #[key(at_least = 0, infinite, not_with = "target_rejection_rate")]
    clip_ratio_low: Option<f32>,
    /// The same for tokens that have risen; `clip_ratio` when absent.
    #[key(at_least = 0, infinite, not_with = "target_rejection_rate")]
    clip_ratio_high: Option<f32>,
    divergence: PhantomData<D>,
}

impl<D: Divergence> Sides<D> {
    /// Bound at this advantage: a step raises the token's probability if the advantage is above 0,
    /// and lowers it otherwise.
    pub(crate) fn limit(&self, advantage: f32) -> f32 {
        let side = if advantage > 0.0 {
            self.clip_ratio_high
        } else {
            self.clip_ratio_low
        };
        side.unwrap_or(self.clip_ratio)
    }
}

/// A mask with bounds on a divergence, not on the ratio.
#[keys]
struct Dppo<D: Divergence> {
    #[key(flatten)]
    sides: Sides<D>,
    #[key(default = Policies::TrainerSampler)]
    policies: Policies,
}

impl<D: Divergence> Bounded for Dppo<D> {
    fn sizes(&self, batch: &Batch) -> Result<Vec<f64>, PluginError> {
        let compared = self.policies.compare(batch)?;
        let mut sizes = vec![0.0; batch.dims.len()];
        for (i, size) in sizes.iter_mut().enumerate() {
            if compared.goes_further(i, batch.advantages[i]) {
                *size = f64::from(D::of_token(&compared, i).max(0.0));
            }
        }
        Ok(sizes)
    }

    fn limit(&self, advantage: f32) -> f64 {
        f64::from(self.sides.limit(advantage))
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }
}

register!(
    Mask,
    Rated<Dppo<TotalVariation>>,
    "masks.dppo-tv",
    "Drops tokens that have moved too far and would go further."
);
register!(
    Mask,
    Rated<Dppo<Kl>>,
    "masks.dppo-kl",
    "Drops tokens that diverge too much and would go further."
);
