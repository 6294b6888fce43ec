//! The derivatives that `reduce` hands to the backward passes.

use capo_loader::decision::{Decision, Factors};
use capo_plugin::{Denominator, OptimizerKind, Reduction};
use host_model::TokenOutputs;
use host_trainer::stages::backward::{Reduced, reduce};
use host_trainer::stages::batch::{BatchWithLogps, StepBatch, TokenLoss};

use crate::objectives;
use crate::shared::first_step;

/// Three completions of up to four tokens.
const LENGTHS: [usize; 3] = [4, 2, 3];
const PLACES: usize = 12;

fn batch() -> StepBatch {
    let entropy = Some((0..PLACES).map(|at| 0.1 + at as f32).collect());
    let outputs = TokenOutputs {
        logps: vec![-0.5; PLACES],
        entropy,
        hidden: None,
        last_layer: None,
    };
    let wave = |at: usize| (at as f32 * 0.7).sin() + 0.1;
    let (loss, dloss_dlogp) = (0..PLACES).map(|at| (wave(at), wave(at + 20))).unzip();
    let batch = BatchWithLogps::new(objectives::batch(&LENGTHS, 3, vec![0.0; 3]), outputs).unwrap();
    StepBatch {
        scored: batch,
        advantages: vec![0.0; PLACES],
        loss: TokenLoss { loss, dloss_dlogp },
    }
}

fn decision(batch: &StepBatch, rejected: &[usize]) -> Decision {
    let mut token_mask = batch.sampled().completion_mask().to_vec();
    rejected.iter().for_each(|&at| token_mask[at] = 0);
    Decision::of(token_mask)
}

fn reduced(
    kind: OptimizerKind,
    reduction: Reduction,
    denominator: Denominator,
    rejected: &[usize],
) -> Reduced {
    let info = first_step(kind, reduction, denominator, 6);
    let batch = batch();
    reduce(&batch, &info, &decision(&batch, rejected), None).unwrap()
}

const BOTH: OptimizerKind = OptimizerKind::ADAMW_KEPT_AND_REJECTED;

#[test]
fn d_logps_and_rest_add_up_to_the_derivatives_without_rejection() {
    let constant = [Reduction::FIXED_LENGTH, Reduction::COMPLETION_SUM];
    for reduction in [Reduction::COMPLETION_MEAN, Reduction::TOKEN_MEAN]
        .into_iter()
        .chain(constant)
    {
        for denominator in [Denominator::KEPT, Denominator::ORIGINAL] {
            let some = reduced(BOTH, reduction, denominator, &[1, 2, 8]);
            let rest = some.rest.as_ref().expect("tokens are rejected");
            let whole = reduced(BOTH, reduction, denominator, &[]);
            assert!(
                whole.rest.is_none() && whole.completions_with_rest(&batch().sampled().dims()) == 0
            );
            for (at, expected) in whole.d_logps.iter().enumerate() {
                assert!(
                    (some.d_logps[at] + rest[at] - expected).abs() < 1e-7,
                    "{reduction:?} {denominator:?}, token {at}"
                );
            }
            // If the denominator counts kept tokens, each kept token weighs more once others are
            // rejected. Then `rest` is not 0 for kept tokens of the same completion, or of all.
            let more_in_its_completion =
                denominator == Denominator::KEPT && !constant.contains(&reduction);
            assert_eq!(rest[0] != 0.0, more_in_its_completion);
            let everywhere = denominator == Denominator::KEPT && reduction == Reduction::TOKEN_MEAN;
            assert_eq!(
                some.completions_with_rest(&batch().sampled().dims()),
                if everywhere { 3 } else { 2 }
            );
        }
    }
}

#[test]
fn computes_rest_only_for_optimizers_that_ask() {
    for kind in [OptimizerKind::SGD, OptimizerKind::ADAMW] {
        assert!(
            reduced(
                kind,
                Reduction::COMPLETION_MEAN,
                Denominator::KEPT,
                &[1, 2, 8]
            )
            .rest
            .is_none()
        );
    }
}

#[test]
fn the_entropy_bonus_is_a_mean_over_kept_tokens() {
    let batch = batch();
    // Two of the nine tokens are rejected; places 6, 7 and 11 are padding. A weight of 0 does not
    // take a token out of the bonus.
    let by_masks = decision(&batch, &[0, 8]);
    let mut by_weight = decision(&batch, &[0, 1, 8]);
    let token_mask = by_masks.token_mask.clone();
    by_weight.factors.push(Factors {
        by: "test.weight".into(),
        factors: vec![1.0; PLACES],
        token_mask,
    });
    let mean = [1, 2, 3, 4, 5, 9, 10]
        .iter()
        .map(|&at| 0.1 + f64::from(at))
        .sum::<f64>()
        / 7.0;
    let info = first_step(BOTH, Reduction::FIXED_LENGTH, Denominator::ORIGINAL, 6);
    for decision in [&by_masks, &by_weight] {
        let mut reduced = reduced(
            OptimizerKind::ADAMW,
            Reduction::FIXED_LENGTH,
            Denominator::ORIGINAL,
            &[0, 8],
        );
        let before = reduced.loss;
        assert!(reduced.d_entropy.is_none());
        reduced.add_entropy_bonus(&batch, &info, decision, 0.3);
        let [rest, rest_entropy] = [reduced.rest, reduced.rest_entropy].map(Option::unwrap);
        assert!(rest == [0.0; PLACES] && (rest_entropy[1] - 0.3 / 7.0 + 0.3 / 9.0).abs() < 1e-8);
        assert_eq!(reduced.policy_loss, Some(before));
        assert!(
            (before - reduced.loss - 0.3 * mean).abs() < 1e-6,
            "{before} {} {mean}",
            reduced.loss
        );
        for (at, derivative) in reduced.d_entropy.unwrap().iter().enumerate() {
            let expected = if by_masks.token_mask[at] == 1 {
                -0.3 / 7.0
            } else {
                0.0
            };
            assert!(
                (derivative - expected).abs() < 1e-8,
                "token {at}: {derivative}"
            );
        }
    }
}
