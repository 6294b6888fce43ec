//! DPPO-Binary-TV and DPPO-Binary-KL: drop tokens whose probability has moved too far, if the step would push them further.
//!
//! p is the token's probability under the trainer, q its probability under the other policy. A token is dropped if A > 0, p > q and
//! D > `clip_ratio_high`, or if A ≤ 0, p < q and D > `clip_ratio_low`. D is the divergence of the two policies with all other
//! tokens merged into one: the total variation abs(p − q), or the KL divergence q ln(q/p) + (1 − q) ln((1 − q)/(1 − p)).
//!
//! Qi et al., *Rethinking the Trust Region in LLM Reinforcement Learning*, arXiv 2602.04879; verl, `core_algos.py`, loss modes
//! `dppo_tv` and `dppo_kl` (there against `old`, which is the sampler's in its bypass mode); prime-rl's default loss, `dppo_mask_low`
//! and `_high`.

use std::marker::PhantomData;

use capo_plugin::prelude::*;

use crate::policies::{self, Compared, Policies};
use crate::rated::{self, Bounded, Rated};
use crate::sides::{self, Sides};

/// A divergence between two distributions.
pub(crate) trait Divergence: Send {
    /// Divergence at token i of `[B, T]`, with all other tokens merged into one.
    fn of_token(compared: &Compared, i: usize) -> f32;

    /// Contribution of one entry, a token or the merged rest: `q` is the sampler's probability, `p` the trainer's.
    fn part(q: f64, p: f64) -> f64;
}

pub(crate) struct TotalVariation;
pub(crate) struct Kl;

impl Divergence for TotalVariation {
    fn of_token(compared: &Compared, i: usize) -> f32 {
        let (p, q) = compared.probabilities(i);
        (p - q).abs()
    }

    fn part(q: f64, p: f64) -> f64 {
        0.5 * (q - p).abs()
    }
}

impl Divergence for Kl {
    fn of_token(compared: &Compared, i: usize) -> f32 {
        let (p, q) = compared.probabilities(i);
        // verl's constant keeps the logarithm finite for tokens of probability 1.
        let rest = |p: f32| 1.0 - p + 1e-8;
        q * (compared.against[i] - compared.of[i]) + (1.0 - q) * (rest(q) / rest(p)).ln()
    }

    fn part(q: f64, p: f64) -> f64 {
        if q > 0.0 { q * (q / p).ln() } else { 0.0 }
    }
}

/// Bounds on the divergence, not on the ratio.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, bound = "")]
struct Dppo<D> {
    /// Default of both bounds.
    clip_ratio: Option<f32>,
    /// Bound for tokens whose probability fell.
    clip_ratio_low: Option<f32>,
    /// Bound for tokens whose probability rose.
    clip_ratio_high: Option<f32>,
    /// Fraction of tokens to drop; replaces the bounds.
    target_rejection_rate: Option<f64>,
    /// Policies that the mask compares.
    #[serde(default = "Policies::trainer_sampler")]
    policies: Policies,
    #[serde(skip)]
    divergence: PhantomData<D>,
}

impl<D> Dppo<D> {
    fn sides(&self) -> Sides {
        Sides { both: self.clip_ratio, low: self.clip_ratio_low, high: self.clip_ratio_high }
    }
}

impl<D: Divergence> Bounded for Dppo<D> {
    fn given(&self) -> (Option<f64>, Option<&'static str>) {
        (self.target_rejection_rate, self.sides().given())
    }

    fn sizes(&self, ctx: &mut Ctx, batch: &Batch) -> Result<Vec<f64>, PluginError> {
        let compared = self.policies.compare(ctx, batch)?;
        let size = |i: usize| {
            let divergence = D::of_token(&compared, i).max(0.0);
            if compared.goes_further(i, batch.advantages[i]) { f64::from(divergence) } else { 0.0 }
        };
        Ok((0..batch.dims.len()).map(size).collect())
    }

    fn limit(&self, advantage: f32) -> f64 {
        f64::from(self.sides().limit(advantage))
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }

    fn validate(&self) -> Result<(), PluginError> {
        self.sides().check()
    }
}

register!(PreBackwardMask, Rated<Dppo<TotalVariation>>, "masks.dppo-tv", "drops tokens that have moved too far and would go further", {
    clip_ratio = sides::bound() => "how far a token's probability may move"; 1e-6..1.0,
    clip_ratio_low = None::<f32> => sides::LOW,
    clip_ratio_high = None::<f32> => sides::HIGH,
    target_rejection_rate = None::<f64> => rated::ABOUT,
    policies = Policies::TrainerSampler => policies::ABOUT,
});
register!(PreBackwardMask, Rated<Dppo<Kl>>, "masks.dppo-kl", "drops tokens that diverge too much and would go further", {
    clip_ratio = sides::bound() => "largest divergence of a token, nats"; 1e-9..10.0,
    clip_ratio_low = None::<f32> => sides::LOW,
    clip_ratio_high = None::<f32> => sides::HIGH,
    target_rejection_rate = None::<f64> => rated::ABOUT,
    policies = Policies::TrainerSampler => policies::ABOUT,
});
