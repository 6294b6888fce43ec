//! `Semantics::EXACT` and the switches it is made of, against the dense model over the whole
//! vocabulary; and the comparison itself.

use capo_core::{
    Acceptance, Assessment, CurvatureAverage, CurvatureModel, EmptyState, Feature, Granularity,
    ObjectiveShift, OptimizerKind, OptimizerModel, OutsideAction, PolicyShift, Probabilities,
    Reason, RejectedBatch, Semantics, StateDtype, Step, Temperature, TokenGradient, UntouchedRows,
    Weights,
};

use super::device::ON_DEVICE;
use super::fixture::{
    ADAM, ADAM_OF_BOTH, ADAMW, Dims, GRANULARITIES, OPEN, Rng, SGD, assert_close, model,
};
use super::scene::{REDUCTIONS, Scene};
use super::whole::{Optimizer, Shifts, Whole, has_outside_actions};

const EXACT: Semantics = Semantics::EXACT;
const PAPER: Semantics = Semantics::PAPER;
/// Everything kept, a part of the vocabulary, and a single logit.
const SHAPES: [Dims; 3] = [
    Dims(4, 3, 6, 9, 6),
    Dims(2, 4, 2, 17, 7),
    Dims(3, 2, 1, 18, 7),
];
/// Of the largest value: the token proposals of Adam add up in `f32`.
const TOLERANCE: f64 = 3e-6;
/// The limit on a device, whose roots and quotients are off by up to one and two ulps each (4e-7
/// together). Rows cancel in a token's shift, and its square doubles what is left. In these batches
/// of a few tokens and columns nothing averages that.
const TOLERANCE_OF_TOKENS_ON_DEVICE: f64 = 3e-5;

fn compare(what: &str, got: &Assessment, expected: &[Shifts], tolerance: f64) {
    let column = |read: fn(&Shifts) -> f64| expected.iter().map(read).collect::<Vec<_>>();
    assert_close(
        &format!("{what} m_f"),
        &got.m_f,
        &column(|x| x.m_f),
        tolerance,
    );
    assert_close(
        &format!("{what} m_h"),
        &got.m_h,
        &column(|x| x.m_h),
        tolerance,
    );
    if expected
        .iter()
        .all(|x| x.kl.is_finite() && x.surrogate.is_finite())
    {
        assert_close(&format!("{what} kl"), &got.kl, &column(|x| x.kl), tolerance);
        assert_close(
            &format!("{what} surrogate"),
            &got.surrogate,
            &column(|x| x.surrogate),
            tolerance,
        );
    }
}

/// Runs `steps` steps of both models side by side at every granularity, keeping a random part of
/// each batch.
pub fn side_by_side(
    semantics: Semantics,
    optimizer: OptimizerModel,
    seed_and_steps: (u64, usize),
    scene: &dyn Fn(&mut Rng) -> Scene,
) {
    weighted_side_by_side(
        semantics,
        optimizer,
        seed_and_steps,
        [0.0, 1.0, 1.0, 1.0],
        scene,
    );
}

/// The pair of `side_by_side`, where a token has one of `weights` at random.
pub fn weighted_side_by_side(
    semantics: Semantics,
    optimizer: OptimizerModel,
    (seed, steps): (u64, usize),
    weights: [f32; 4],
    scene: &dyn Fn(&mut Rng) -> Scene,
) {
    let mut rng = Rng(seed);
    let scenes: Vec<Scene> = (0..steps).map(|_| scene(&mut rng)).collect();
    let mut models = GRANULARITIES.map(|granularity| (granularity, model(semantics, granularity)));
    let mut whole = Whole {
        semantics,
        optimizer: Optimizer::new(optimizer, scenes[0].batch.dims),
    };
    let mut keep = Rng(seed + 1);
    for (index, scene) in scenes.iter().enumerate() {
        let lr = 0.02 + 0.1 * keep.uniform();
        let step = scene.step(&optimizer, lr);
        let weight = |mask: &u8| f32::from(*mask) * weights[keep.below(4)];
        let weights: Vec<f32> = scene.batch.mask.iter().map(weight).collect();
        let mask: Vec<u8> = weights
            .iter()
            .map(|&weight| u8::from(weight > 0.0))
            .collect();
        for (granularity, model) in &mut models {
            let prepared = model.prepare(&step, &scene.batch.mask).unwrap();
            let got = model.assess(&prepared).unwrap();
            let roots = ON_DEVICE
                && *granularity == Granularity::Token
                && optimizer.kind == OptimizerKind::Adam;
            let tolerance = if roots {
                TOLERANCE_OF_TOKENS_ON_DEVICE
            } else {
                TOLERANCE
            };
            let expected = whole.assess(scene, lr, *granularity);
            compare(
                &format!("step {index} {granularity:?}"),
                &got,
                &expected,
                tolerance,
            );
            assert_eq!(got.token_mask, scene.batch.mask);
            let (shift, expected) = (
                model.batch_shift(&prepared, &mask).unwrap(),
                whole.batch_shift(scene, lr, &mask),
            );
            assert_close("batch m_f", &[shift.m_f as f32], &[expected.m_f], TOLERANCE);
            assert_close("batch m_h", &[shift.m_h as f32], &[expected.m_h], TOLERANCE);
            if expected.surrogate.is_finite() {
                assert_close("batch kl", &[shift.kl as f32], &[expected.kl], TOLERANCE);
                assert_close(
                    "batch surrogate",
                    &[shift.surrogate as f32],
                    &[expected.surrogate],
                    TOLERANCE,
                );
            }
            model.commit_weighted(&prepared, &weights).unwrap();
        }
        whole.commit_weighted(scene, &weights);
    }
}

#[test]
fn the_exact_preset_equals_the_dense_model() {
    for (shape, temperature) in SHAPES.into_iter().flat_map(|x| [(x, 1.0), (x, 0.7)]) {
        for (index, reduction) in REDUCTIONS.into_iter().enumerate() {
            for optimizer in [SGD, ADAM, ADAMW, ADAM_OF_BOTH] {
                let scene = |rng: &mut Rng| Scene {
                    reduction,
                    ..Scene::random(rng, shape, temperature)
                };
                side_by_side(EXACT, optimizer, (50 + index as u64, 3), &scene);
            }
        }
    }
}

#[test]
fn the_exact_preset_weighs_with_the_counted_tokens() {
    for (reduction, optimizer) in REDUCTIONS
        .into_iter()
        .flat_map(|x| [(x, SGD), (x, ADAM), (x, ADAM_OF_BOTH)])
    {
        let scene = |rng: &mut Rng| {
            let mut scene = Scene {
                reduction,
                ..Scene::random(rng, SHAPES[1], 0.7)
            };
            // All that were sampled, of which the mask has already lost some.
            scene.counted = Some(scene.batch.mask.clone());
            scene
                .batch
                .mask
                .iter_mut()
                .for_each(|x| *x &= u8::from(rng.below(3) > 0));
            scene
        };
        side_by_side(EXACT, optimizer, (60, 3), &scene);
    }
}

#[test]
fn each_switch_alone_equals_the_dense_model() {
    let switched = [
        Semantics {
            policy_shift: PolicyShift::Expected,
            ..PAPER
        },
        Semantics {
            policy_shift: PolicyShift::Kl,
            ..PAPER
        },
        Semantics {
            objective_shift: ObjectiveShift::Surrogate,
            ..PAPER
        },
        Semantics {
            curvature_average: CurvatureAverage::Loss,
            ..PAPER
        },
        Semantics {
            subset_weights: Weights::Loss,
            ..PAPER
        },
        Semantics {
            moment_input: Weights::Loss,
            ..PAPER
        },
        Semantics {
            token_gradient: TokenGradient::Loss,
            ..PAPER
        },
        Semantics {
            temperature: Temperature::One,
            ..PAPER
        },
        Semantics {
            temperature: Temperature::Loss,
            ..PAPER
        },
        Semantics {
            temperature: Temperature::Loss,
            probabilities: Probabilities::Full,
            ..PAPER
        },
        Semantics {
            temperature: Temperature::One,
            outside_action: OutsideAction::LeaveOut,
            ..PAPER
        },
        Semantics {
            outside_action: OutsideAction::LeaveOut,
            ..PAPER
        },
        Semantics {
            feature: Feature::Next,
            ..PAPER
        },
        Semantics {
            subset_weights: Weights::RowMean,
            ..PAPER
        },
        Semantics {
            curvature_average: CurvatureAverage::CompletionMean,
            ..PAPER
        },
        Semantics {
            untouched_rows: UntouchedRows::Freeze,
            ..PAPER
        },
        Semantics {
            empty_state: EmptyState::RawGradient,
            ..PAPER
        },
        Semantics {
            rejected_batch: RejectedBatch::Counts,
            ..PAPER
        },
        Semantics {
            rejected_batch: RejectedBatch::Counts,
            untouched_rows: UntouchedRows::Freeze,
            ..PAPER
        },
        PAPER,
    ];
    for (semantics, optimizer) in switched
        .into_iter()
        .flat_map(|x| [SGD, ADAM, ADAMW, ADAM_OF_BOTH].map(|y| (x, y)))
    {
        if semantics.feature == Feature::Next && optimizer.weight_decay > 0.0 {
            continue;
        }
        println!("{semantics:?}");
        side_by_side(semantics, optimizer, (70, 3), &|rng| {
            let scene = Scene::random(rng, SHAPES[1], 0.7);
            assert!(has_outside_actions(&scene.batch));
            scene
        });
    }
}

/// Their subset may be rejected, and they may be all of it.
#[test]
fn tokens_without_a_gradient_are_kept_and_not_counted() {
    let mut scene = Scene::full(&mut Rng(80), SHAPES[1], 0.7);
    for at in [1, 2, 5] {
        scene.derivatives[at] = if at == 2 { -0.0 } else { 0.0 };
    }
    // The advantages say nothing.
    scene.batch.advantages.fill(0.0);
    let reject_all = Acceptance {
        fisher_threshold: Some(1e-300),
        ..OPEN
    };
    for (granularity, optimizer) in GRANULARITIES
        .into_iter()
        .flat_map(|x| [(x, SGD), (x, ADAM), (x, ADAM_OF_BOTH)])
    {
        let mut model = CurvatureModel::new(reject_all, granularity, EXACT).unwrap();
        scene.commit(&mut model, &optimizer);
        let got = scene.assess(&model, &optimizer, 0.1);
        let kept: Vec<usize> = (0..8).filter(|&at| got.token_mask[at] == 1).collect();
        assert_eq!(
            (kept, got.tokens, got.rejected.fisher, got.rejected.total),
            (vec![1, 2, 5], 5, 5, 5)
        );
        assert!(
            got.reasons
                .iter()
                .zip(&got.token_mask)
                .all(|(&reason, &keep)| (reason == Reason::None) == (keep == 1))
        );
    }
}

/// In rows that every step touches: those at rest decay in `f32` until they are written again.
#[test]
fn bf16_moments_are_dense_adam_rounded_after_each_step() {
    let semantics = Semantics {
        state_dtype: StateDtype::Bf16,
        ..PAPER
    };
    side_by_side(semantics, ADAM, (81, 6), &|rng| {
        Scene::full(rng, SHAPES[0], 1.0)
    });
}

#[test]
fn the_exact_model_needs_the_derivatives() {
    let scene = Scene::full(&mut Rng(82), SHAPES[1], 1.0);
    let mut step = scene.step(&ADAM, 0.1);
    step.loss.derivatives = None;
    let refused = |step: &Step| {
        model(EXACT, Granularity::Token)
            .prepare(step, &scene.batch.mask)
            .unwrap_err()
            .to_string()
    };
    let mut said = vec![refused(&step)];
    step.loss.derivatives = Some(&scene.derivatives[1..]);
    said.push(refused(&step));
    step = scene.step(&ADAM, 0.1);
    step.loss.counted = Some(&[1]);
    said.push(refused(&step));
    assert_eq!(
        said,
        include_str!("mistakes_in_the_loss.txt")
            .lines()
            .collect::<Vec<_>>()
    );
    // Nobody else needs them.
    step = scene.step(&ADAM, 0.1);
    step.loss.derivatives = None;
    model(PAPER, Granularity::Token)
        .prepare(&step, &scene.batch.mask)
        .unwrap();
}
