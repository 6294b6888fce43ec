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

use crate::checks;
use crate::policies::{self, Compared, Policies};
use crate::rated::{self, Bounded, Rated};

/// A divergence between two distributions.
pub(crate) trait Divergence: Send {
    /// Divergence at token i of `[B, T]`, with all other tokens merged into one.
    fn of_token(compared: &Compared, i: usize) -> f32;

    /// Contribution of one entry, a token or the merged rest: `q` is the sampler's probability, `p`
    /// the trainer's.
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

/// Meaning of the lower bound's key, for `register!`.
pub(crate) const LOW: &str = "the same for tokens that have fallen; `clip_ratio` when absent";
/// Meaning of the upper bound's key, for `register!`.
pub(crate) const HIGH: &str = "the same for tokens that have risen; `clip_ratio` when absent";

/// verl's default bound.
pub(crate) const BOUND: f32 = 0.2;

/// Bounds for the two directions of a step: verl's `clip_ratio_low` and `clip_ratio_high`. An
/// absent one is `both`, its `clip_ratio`, or else verl's default.
#[derive(Clone, Copy)]
pub(crate) struct Sides {
    pub(crate) both: Option<f32>,
    pub(crate) low: Option<f32>,
    pub(crate) high: Option<f32>,
}

impl Sides {
    /// Bound at this advantage: a step raises the token's probability if the advantage is above 0,
    /// and lowers it otherwise.
    pub(crate) fn limit(self, advantage: f32) -> f32 {
        if advantage > 0.0 { self.high } else { self.low }
            .or(self.both)
            .unwrap_or(BOUND)
    }

    /// Key of a bound that the table gives.
    pub(crate) fn given(self) -> Option<&'static str> {
        let keys = [
            ("clip_ratio", self.both),
            ("clip_ratio_low", self.low),
            ("clip_ratio_high", self.high),
        ];
        keys.into_iter()
            .find(|(_, bound)| bound.is_some())
            .map(|(key, _)| key)
    }

    /// Refuses bounds below 0.
    pub(crate) fn check(self) -> Result<(), PluginError> {
        checks::bound("clip_ratio", self.both.unwrap_or_default())?;
        checks::bound("clip_ratio_low", self.low.unwrap_or_default())?;
        checks::bound("clip_ratio_high", self.high.unwrap_or_default())
    }
}

/// Bounds on the divergence, not on the ratio.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, bound = "")]
struct Dppo<D> {
    clip_ratio: Option<f32>,
    clip_ratio_low: Option<f32>,
    clip_ratio_high: Option<f32>,
    target_rejection_rate: Option<f64>,
    #[serde(default = "Policies::trainer_sampler")]
    policies: Policies,
    #[serde(skip)]
    divergence: PhantomData<D>,
}

impl<D> Dppo<D> {
    fn sides(&self) -> Sides {
        Sides {
            both: self.clip_ratio,
            low: self.clip_ratio_low,
            high: self.clip_ratio_high,
        }
    }
}

impl<D: Divergence> Bounded for Dppo<D> {
    fn given(&self) -> (Option<f64>, Option<&'static str>) {
        (self.target_rejection_rate, self.sides().given())
    }

    fn sizes(&self, batch: &Batch) -> Result<Vec<f64>, PluginError> {
        let compared = self.policies.compare(batch)?;
        let size = |i: usize| {
            let divergence = D::of_token(&compared, i).max(0.0);
            if compared.goes_further(i, batch.advantages[i]) {
                f64::from(divergence)
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
        self.policies.inputs()
    }

    fn validate(&self) -> Result<(), PluginError> {
        self.sides().check()
    }
}

register!(Mask, Rated<Dppo<TotalVariation>>, "masks.dppo-tv", "drops tokens that have moved too far and would go further", {
    clip_ratio = BOUND => "how far a token's probability may move"; 1e-6..1.0,
    clip_ratio_low = None::<f32> => LOW,
    clip_ratio_high = None::<f32> => HIGH,
    target_rejection_rate = None::<f64> => rated::ABOUT,
    policies = Policies::TrainerSampler => policies::ABOUT,
});
register!(Mask, Rated<Dppo<Kl>>, "masks.dppo-kl", "drops tokens that diverge too much and would go further", {
    clip_ratio = BOUND => "largest divergence of a token, nats"; 1e-9..10.0,
    clip_ratio_low = None::<f32> => LOW,
    clip_ratio_high = None::<f32> => HIGH,
    target_rejection_rate = None::<f64> => rated::ABOUT,
    policies = Policies::TrainerSampler => policies::ABOUT,
});
