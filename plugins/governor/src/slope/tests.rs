use capo_plugin::Reduction;
use capo_plugin::testing::Fixture;

use super::*;

/// A stream of numbers in 0..1 (SplitMix64).
fn uniform(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *state;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

/// Many batches of a policy that knows each token's distribution, each with advantages that have
/// nothing to do with its tokens: the slopes along one fixed step have mean 0 and variance 1.
#[test]
fn a_slope_that_is_chance_has_a_standard_error_of_one() {
    const TOKENS: usize = 24;
    const VOCABULARY: usize = 5;
    let mut state = 7;
    let mut draw = || uniform(&mut state);
    // Logits, and a short step in each of them.
    let logits: Vec<[f64; VOCABULARY]> = (0..TOKENS)
        .map(|_| std::array::from_fn(|_| 3.0 * draw()))
        .collect();
    let step: Vec<[f64; VOCABULARY]> = (0..TOKENS)
        .map(|_| std::array::from_fn(|_| 1e-3 * (draw() - 0.5)))
        .collect();
    let policy = |logits: &[f64; VOCABULARY]| {
        let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
        logits.map(|logit| logit.exp() / sum)
    };
    let before: Vec<_> = logits.iter().map(policy).collect();
    let after: Vec<_> = (logits.iter().zip(&step))
        .map(|(logits, step)| policy(&std::array::from_fn(|v| logits[v] + step[v])))
        .collect();
    let divergence: f64 = (before.iter().zip(&after))
        .flat_map(|(old, new)| old.iter().zip(new))
        .map(|(old, new)| old * (old / new).ln())
        .sum::<f64>()
        / TOKENS as f64;
    let length = step
        .iter()
        .flatten()
        .map(|one| one * one)
        .sum::<f64>()
        .sqrt();
    let batches = 4000;
    let mut sums = [0.0; 2];
    for _ in 0..batches {
        let mut fall = 0.0;
        let mut squares = 0.0;
        for token in 0..TOKENS {
            let factor = (draw() - 0.5) / TOKENS as f64;
            let mut left = draw();
            let chosen = before[token]
                .iter()
                .position(|share| {
                    left -= share;
                    left < 0.0
                })
                .unwrap_or(VOCABULARY - 1);
            let mean: f64 = (0..VOCABULARY)
                .map(|v| before[token][v] * step[token][v])
                .sum();
            fall += factor * (step[token][chosen] - mean) / length;
            squares += factor * factor;
        }
        let errors = Slope {
            fall,
            squares,
            upside: 1.0,
        }
        .errors(divergence / (length * length));
        sums[0] += errors;
        sums[1] += errors * errors;
    }
    let [mean, square] = sums.map(|sum| sum / f64::from(batches));
    // Both have a standard error of 0.016 and 0.022 here.
    assert!(mean.abs() < 0.06, "{mean}");
    assert!((square - 1.0).abs() < 0.08, "{square}");
}

/// The batch's factors are the derivatives of the reduced loss of −A log p: by differences.
#[test]
fn squares_are_those_of_the_losss_derivatives() {
    let fixture = Fixture::new(3, 4);
    for reduction in [
        Reduction::COMPLETION_MEAN,
        Reduction::FIXED_LENGTH,
        Reduction::TOKEN_MEAN,
        Reduction::COMPLETION_SUM,
    ] {
        for denominator in [Denominator::KEPT, Denominator::ORIGINAL] {
            let mut batch = fixture.batch();
            batch.reduction = reduction;
            batch.denominator = denominator;
            let tokens = batch.dims.tokens as usize;
            let weights: Vec<f32> = (0..batch.dims.len())
                .map(|i| [1.0, 0.0, 0.5][i % 3])
                .collect();
            let of = |i: usize| f64::from(batch.completion_mask[i] != 0);
            let kept = |i: usize| of(i) * f64::from(weights[i] != 0.0);
            let counted = |i: usize| {
                if denominator == Denominator::KEPT {
                    kept(i)
                } else {
                    of(i)
                }
            };
            let loss = |logps: &[f64]| {
                let token = |i: usize| {
                    -f64::from(batch.advantages[i]) * f64::from(weights[i]) * of(i) * logps[i]
                };
                let row = |b: usize| batch.dims.row(b);
                let sum = |b: usize| row(b).map(token).sum::<f64>();
                let all: f64 = (0..batch.dims.len()).map(counted).sum();
                let completions = batch.dims.completions as usize;
                let of_completion = |b: usize| match reduction {
                    Reduction::COMPLETION_MEAN => {
                        sum(b) / row(b).map(counted).sum::<f64>().max(1.0) / completions as f64
                    }
                    Reduction::FIXED_LENGTH => {
                        sum(b) / (completions * batch.max_completion_length) as f64
                    }
                    Reduction::TOKEN_MEAN => sum(b) / all,
                    _ => sum(b) / completions as f64,
                };
                (0..completions).map(of_completion).sum::<f64>()
            };
            assert_eq!(tokens * batch.dims.completions as usize, batch.dims.len());
            let logps: Vec<f64> = batch.logps.iter().map(|logp| f64::from(*logp)).collect();
            let mut expected = 0.0;
            for i in 0..batch.dims.len() {
                let mut moved = logps.clone();
                moved[i] += 1.0;
                expected += (loss(&moved) - loss(&logps)).powi(2);
            }
            assert!(expected > 0.0);
            let found = squares(&batch, &weights).unwrap();
            assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
        }
    }
}

/// Advantages of a group of eight, of any scale, have the upside of the share that is right.
#[test]
fn an_upside_is_that_of_the_share_that_is_right() {
    for right in 1..8 {
        let share = f64::from(right) / 8.0;
        for scale in [1.0, 1e-3] {
            let fixture = Fixture::new(8, 2);
            let mut batch = fixture.batch();
            let advantages: Vec<f32> = (0..16)
                .map(|i| {
                    let reward = f64::from(u8::from(i / 2 < right));
                    (scale * (reward - share)) as f32
                })
                .collect();
            batch.advantages = &advantages;
            let expected = ((1.0 - share) / share).sqrt();
            assert!((upside(&batch) / expected - 1.0).abs() < 1e-4, "{right}");
        }
    }
}
