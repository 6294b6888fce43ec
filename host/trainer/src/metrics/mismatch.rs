//! Mismatch between the sampler and the policy as the trainer computes it, under the names of TRL
//! (`sampling/…`) and of verl (`rollout_corr/…`).
//!
//! Sources: TRL 1.16 `GRPOTrainer._generate_and_score_completions`; verl 0.9.1
//! `compute_offpolicy_metrics`.

use capo_plugin::Dims;

use super::line::Values;

/// Bound on a log-ratio before the ratio is squared, as in verl.
const BOUND: f64 = 20.0;

/// Statistics of one completion.
struct Sequence {
    /// Trainer's log-probability minus the sampler's, per token, nats.
    log_ratios: Vec<f64>,
    /// Mean log-probability of the completion's tokens, nats: first the trainer's, then the
    /// sampler's.
    training: f64,
    sampler: f64,
}

/// Compares two log-probabilities of the sampled tokens, `[B, T]` each, nats: `training` is the
/// trainer's for the sampling policy, and `sampler` is the sampler's. Completions without a token
/// are ignored. If no completion remains, the result is empty.
///
/// The ratio is TRL's of the `token_*` modes, training over sampler, before clipping.
pub fn mismatch(training: &[f32], sampler: &[f32], mask: &[u8], dims: Dims) -> Values {
    let sequence = |b| {
        Sequence::new(
            dims.row(b)
                .filter(|&i| mask[i] == 1)
                .map(|i| (training[i], sampler[i])),
        )
    };
    let sequences: Vec<Sequence> = (0..dims.completions as usize)
        .filter_map(sequence)
        .collect();
    if sequences.is_empty() {
        return Values::new();
    }
    let values = trl(&sequences).into_iter().chain(verl(&sequences));
    values
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

impl Sequence {
    /// Statistics from pairs of the trainer's and the sampler's log-probability; `None` without a
    /// token.
    fn new(tokens: impl Iterator<Item = (f32, f32)>) -> Option<Self> {
        let (training, sampler): (Vec<f64>, Vec<f64>) =
            tokens.map(|(a, b)| (f64::from(a), f64::from(b))).unzip();
        let log_ratios: Vec<f64> = training
            .iter()
            .zip(&sampler)
            .map(|(training, sampler)| training - sampler)
            .collect();
        let (training, sampler) = (mean(training.into_iter()), mean(sampler.into_iter()));
        (!log_ratios.is_empty()).then_some(Self {
            log_ratios,
            training,
            sampler,
        })
    }

    /// The sampler's mean log-probability minus the trainer's, nats per token.
    fn excess(&self) -> f64 {
        self.sampler - self.training
    }
}

fn trl(sequences: &[Sequence]) -> [(&'static str, f64); 5] {
    let difference = || tokens(sequences).map(f64::abs);
    let ratio = || tokens(sequences).map(f64::exp);
    [
        ("sampling/sampling_logp_difference/mean", mean(difference())),
        (
            "sampling/sampling_logp_difference/max",
            largest(difference()),
        ),
        (
            "sampling/importance_sampling_ratio/min",
            -largest(ratio().map(|ratio| -ratio)),
        ),
        ("sampling/importance_sampling_ratio/mean", mean(ratio())),
        ("sampling/importance_sampling_ratio/max", largest(ratio())),
    ]
}

/// Means over tokens cover all tokens of the batch. Means over completions weight each completion
/// equally.
fn verl(sequences: &[Sequence]) -> [(&'static str, f64); 13] {
    let of = |f: fn(&Sequence) -> f64| mean(sequences.iter().map(f));
    let excess = || sequences.iter().map(Sequence::excess);
    let squared_ratio = |log_ratio: f64| (2.0 * log_ratio.clamp(-BOUND, BOUND)).exp();
    [
        (
            "rollout_corr/kl",
            mean(tokens(sequences).map(|log_ratio| -log_ratio)),
        ),
        (
            "rollout_corr/k3_kl",
            mean(tokens(sequences).map(|log_ratio| log_ratio.exp_m1() - log_ratio)),
        ),
        (
            "rollout_corr/training_ppl",
            of(|sequence| (-sequence.training).exp()),
        ),
        (
            "rollout_corr/training_log_ppl",
            of(|sequence| -sequence.training),
        ),
        (
            "rollout_corr/rollout_ppl",
            of(|sequence| (-sequence.sampler).exp()),
        ),
        (
            "rollout_corr/rollout_log_ppl",
            of(|sequence| -sequence.sampler),
        ),
        ("rollout_corr/log_ppl_diff", mean(excess())),
        (
            "rollout_corr/log_ppl_abs_diff",
            mean(excess().map(f64::abs)),
        ),
        ("rollout_corr/log_ppl_diff_max", largest(excess())),
        (
            "rollout_corr/log_ppl_diff_min",
            -largest(excess().map(|excess| -excess)),
        ),
        ("rollout_corr/ppl_ratio", mean(excess().map(f64::exp))),
        (
            "rollout_corr/chi2_token",
            mean(tokens(sequences).map(squared_ratio)) - 1.0,
        ),
        (
            "rollout_corr/chi2_seq",
            mean(
                sequences
                    .iter()
                    .map(|sequence| squared_ratio(sequence.log_ratios.iter().sum())),
            ) - 1.0,
        ),
    ]
}

/// The log-ratios of all tokens.
fn tokens(sequences: &[Sequence]) -> impl Iterator<Item = f64> {
    sequences
        .iter()
        .flat_map(|sequence| sequence.log_ratios.iter().copied())
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_u64), |(sum, count), value| (sum + value, count + 1));
    sum / count as f64
}

/// The largest value; NaN if any value is NaN.
fn largest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::NEG_INFINITY, |most, value| {
        if value > most || value.is_nan() {
            value
        } else {
            most
        }
    })
}
