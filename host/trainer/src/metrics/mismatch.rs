//! How far the sampler's log-probabilities are from the trainer's, under the names of TRL
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
    /// For each token, the trainer's log-probability minus the sampler's, nats.
    log_ratios: Vec<f64>,
    /// Mean of the trainer's log-probabilities, nats per token.
    training: f64,
    /// Mean of the sampler's log-probabilities, nats per token.
    sampler: f64,
}

/// Compares two log-probabilities of the sampled tokens, `[B, T]` each, nats: `training` is the
/// trainer's for the sampling policy, and `sampler` is the sampler's. Completions without a token
/// are ignored. If no completion remains, the result is empty.
///
/// The ratio is training over sampler, before clipping, as in TRL's modes `token_*`.
pub fn mismatch(training: &[f32], sampler: &[f32], mask: &[u8], dims: Dims) -> Values {
    let mut sequences = Vec::new();
    for b in 0..dims.completions as usize {
        let tokens = dims.row(b).filter(|&i| mask[i] == 1);
        sequences.extend(Sequence::new(tokens.map(|i| (training[i], sampler[i]))));
    }
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
        let mut training = Vec::new();
        let mut sampler = Vec::new();
        let mut log_ratios = Vec::new();
        for (of_trainer, of_sampler) in tokens {
            training.push(f64::from(of_trainer));
            sampler.push(f64::from(of_sampler));
            log_ratios.push(f64::from(of_trainer) - f64::from(of_sampler));
        }
        (!log_ratios.is_empty()).then(|| Self {
            log_ratios,
            training: mean(training.into_iter()),
            sampler: mean(sampler.into_iter()),
        })
    }

    /// The sampler's mean log-probability minus the trainer's, nats per token.
    fn excess(&self) -> f64 {
        self.sampler - self.training
    }

    /// The log of the ratio of the whole completion.
    fn log_ratio(&self) -> f64 {
        self.log_ratios.iter().sum()
    }
}

fn trl(sequences: &[Sequence]) -> [(&'static str, f64); 5] {
    let differences: Vec<f64> = tokens(sequences).map(f64::abs).collect();
    let ratios: Vec<f64> = tokens(sequences).map(f64::exp).collect();
    let largest_difference = largest(differences.iter().copied());
    let smallest_ratio = -largest(ratios.iter().map(|ratio| -ratio));
    [
        (
            "sampling/sampling_logp_difference/mean",
            mean(differences.into_iter()),
        ),
        ("sampling/sampling_logp_difference/max", largest_difference),
        ("sampling/importance_sampling_ratio/min", smallest_ratio),
        (
            "sampling/importance_sampling_ratio/max",
            largest(ratios.iter().copied()),
        ),
        (
            "sampling/importance_sampling_ratio/mean",
            mean(ratios.into_iter()),
        ),
    ]
}

/// Means over tokens cover all tokens of the batch. Means over completions weight each completion
/// equally.
fn verl(sequences: &[Sequence]) -> [(&'static str, f64); 13] {
    let excesses: Vec<f64> = sequences.iter().map(Sequence::excess).collect();
    let training = sequences.iter().map(|sequence| sequence.training);
    let sampler = sequences.iter().map(|sequence| sequence.sampler);
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
            mean(training.clone().map(|logp| (-logp).exp())),
        ),
        (
            "rollout_corr/training_log_ppl",
            mean(training.map(|logp| -logp)),
        ),
        (
            "rollout_corr/rollout_ppl",
            mean(sampler.clone().map(|logp| (-logp).exp())),
        ),
        (
            "rollout_corr/rollout_log_ppl",
            mean(sampler.map(|logp| -logp)),
        ),
        ("rollout_corr/log_ppl_diff", mean(excesses.iter().copied())),
        (
            "rollout_corr/log_ppl_abs_diff",
            mean(excesses.iter().map(|excess| excess.abs())),
        ),
        (
            "rollout_corr/log_ppl_diff_max",
            largest(excesses.iter().copied()),
        ),
        (
            "rollout_corr/log_ppl_diff_min",
            -largest(excesses.iter().map(|excess| -excess)),
        ),
        (
            "rollout_corr/ppl_ratio",
            mean(excesses.iter().map(|excess| excess.exp())),
        ),
        (
            "rollout_corr/chi2_token",
            mean(tokens(sequences).map(squared_ratio)) - 1.0,
        ),
        (
            "rollout_corr/chi2_seq",
            mean(
                sequences
                    .iter()
                    .map(|sequence| squared_ratio(sequence.log_ratio())),
            ) - 1.0,
        ),
    ]
}

fn squared_ratio(log_ratio: f64) -> f64 {
    (2.0 * log_ratio.clamp(-BOUND, BOUND)).exp()
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
