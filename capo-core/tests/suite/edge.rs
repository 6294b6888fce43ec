//! The corners: degenerate supports and batches, non-finite and extreme data, refused inputs.

use capo_core::{
    Acceptance, Assessment, CurvatureModel, Granularity, LastLayer, OptimizerModel, Policy,
    Rejections, Semantics,
};

use super::device;
use super::fixture::{
    self, ADAM, ADAMW, Batch, Dims, GRANULARITIES, POLICY, PRESETS, Rng, SGD, assert_close, model,
    open_model,
};
use super::scene::{REDUCTIONS, Scene};

const DIMS: Dims = Dims(3, 4, 3, 18, 7);
const OPTIMIZERS: [OptimizerModel; 3] = [SGD, ADAM, ADAMW];

/// Every preset with every granularity and optimizer.
fn all() -> impl Iterator<Item = (Semantics, Granularity, OptimizerModel)> {
    let granularities = PRESETS
        .into_iter()
        .flat_map(|x| GRANULARITIES.map(|y| (x, y)));
    granularities.flat_map(|(x, y)| OPTIMIZERS.map(|z| (x, y, z)))
}

/// A model with some history; a group is the whole batch.
fn seasoned(
    semantics: Semantics,
    granularity: Granularity,
    optimizer: &OptimizerModel,
) -> CurvatureModel {
    let (mut model, mut rng) = (model(semantics, granularity), Rng(3));
    for _ in 0..3 {
        Scene::full(&mut rng, DIMS, 0.7).commit(&mut model, optimizer);
    }
    model
}

fn shifts(assessment: &Assessment) -> impl Iterator<Item = f32> {
    fixture::shifts(assessment)
        .into_iter()
        .flat_map(|(_, x)| x)
        .copied()
}

#[test]
fn zero_advantage_moves_by_momentum_alone() {
    let mut scene = Scene::full(&mut Rng(1), DIMS, 1.0);
    scene.batch.advantages.fill(0.0);
    let sgd = scene.assess(&open_model(), &SGD, 0.1);
    assert!(sgd.m_f.iter().chain(&sgd.m_h).all(|&x| x == 0.0));
    let seasoned = seasoned(Semantics::PAPER, Granularity::Token, &ADAM);
    let adam = scene.assess(&seasoned, &ADAM, 0.1);
    assert!(adam.m_f.iter().all(|&x| x > 0.0));
    assert!(adam.m_h.iter().all(|&x| x == 0.0));

    // Such a step counts, decays every row and gives no row moments.
    let mut model = open_model();
    scene.commit(&mut model, &ADAM);
    assert_eq!((model.steps(), model.rows()), (1, 0));
}

/// Each token keeps one logit, that of the sampled token, which has the whole probability.
#[test]
fn a_certain_token_moves_nothing() {
    let mut scene = Scene::full(&mut Rng(130), Dims(3, 4, 1, 18, 7), 0.7);
    let Batch {
        topk_ids,
        topk_logits,
        action_ids,
        action_logits,
        logsumexp,
        mask,
        ..
    } = &mut scene.batch;
    action_ids.clone_from(topk_ids);
    action_logits.clone_from(topk_logits);
    for (sum, logit) in logsumexp.iter_mut().zip(topk_logits) {
        // Rounded down or not, the logsumexp leaves next to nothing for the other rows.
        *sum = ((f64::from(*logit) / f64::from(0.7f32)) as f32).next_down();
    }
    let everything = mask.clone();
    for (semantics, granularity, optimizer) in all() {
        let got = scene.assess(
            &seasoned(semantics, granularity, &optimizer),
            &optimizer,
            0.1,
        );
        assert!(shifts(&got).all(|x| x == 0.0), "{got:?}");
        assert_eq!(got.token_mask, everything);
    }
}

#[test]
fn an_all_but_certain_token_keeps_its_digits() {
    // p = 1 - 1e-13: u_a = 1 - p would have three digits left if it were subtracted.
    let batch = Batch {
        hidden: vec![1.0],
        topk_ids: vec![0, 1],
        topk_logits: vec![0.0, -30.0],
        action_ids: vec![0],
        action_logits: vec![0.0],
        logsumexp: vec![1.0],
        advantages: vec![1.0],
        mask: vec![1],
        ..Batch::empty(Dims(1, 1, 2, 1, 2))
    };
    let scene = Scene {
        batch,
        policy: POLICY,
        ..Scene::full(&mut Rng(1), Dims(1, 1, 2, 1, 2), 1.0)
    };
    let rest = (-30.0f64).exp() / (1.0 + (-30.0f64).exp());
    let m_h = scene.assess(&open_model(), &SGD, 1.0).m_h[0];
    assert!(
        (f64::from(m_h) / (2.0 * rest * rest) - 1.0).abs() < 1e-6,
        "{m_h}"
    );
}

#[test]
fn an_empty_mask_assesses_nothing() {
    let mut padded = Scene::full(&mut Rng(131), DIMS, 0.7);
    padded.batch.mask.fill(0);
    // Never read on padding.
    padded.batch.hidden.fill(f32::NAN);
    padded.batch.logsumexp.fill(f32::NAN);
    padded.derivatives.fill(f32::NAN);
    padded.batch.topk_ids.fill(u32::MAX);
    let empty = |dims: Dims| Scene {
        batch: Batch::empty(dims),
        derivatives: vec![],
        counted: Some(vec![]),
        ..padded.clone()
    };
    let scenes = [
        empty(Dims(0, 4, 3, 18, 7)),
        empty(Dims(3, 0, 3, 18, 7)),
        padded.clone(),
    ];
    for (scene, reduction) in scenes
        .into_iter()
        .flat_map(|scene| REDUCTIONS.map(|reduction| (scene.clone(), reduction)))
    {
        let scene = Scene { reduction, ..scene };
        for (semantics, granularity, optimizer) in all() {
            let mut model = seasoned(semantics, granularity, &optimizer);
            let state = model.save().unwrap();
            let got = scene.assess(&model, &optimizer, 0.1);
            assert!(shifts(&got).all(|x| x == 0.0) && got.token_mask.iter().all(|&x| x == 0));
            assert_eq!((got.tokens, got.rejected), (0, Rejections::default()));
            let prepared = model
                .prepare(&scene.step(&optimizer, 0.1), &scene.batch.mask)
                .unwrap();
            let shift = model.batch_shift(&prepared, &scene.batch.mask).unwrap();
            assert_eq!((shift.m_f, shift.m_h, shift.tokens), (0.0, 0.0, 0));
            scene.commit(&mut model, &optimizer);
            assert_eq!(model.save().unwrap(), state, "no accepted token is no step");
        }
    }
}

#[test]
fn sgd_has_no_state_and_no_decay() {
    let model = seasoned(Semantics::PAPER, Granularity::Token, &SGD);
    assert_eq!((model.steps(), model.rows()), (0, 0));
    let scene = Scene::full(&mut Rng(5), DIMS, 0.7);
    let decayed = OptimizerModel {
        weight_decay: 0.3,
        ..SGD
    };
    assert_eq!(
        scene.assess(&model, &decayed, 0.1),
        scene.assess(&model, &SGD, 0.1)
    );
}

#[test]
fn learning_rate_zero_accepts_everything_finite() {
    let tight = Acceptance {
        fisher_threshold: Some(1e-300),
        hessian_range: Some([-1e-300, 1e-300]),
        ..Acceptance::default()
    };
    let model = CurvatureModel::new(tight, Granularity::Token, Semantics::PAPER).unwrap();
    let mut scene = Scene::full(&mut Rng(6), DIMS, 1.0);
    scene.batch.hidden[0] = f32::NAN;
    for optimizer in [SGD, ADAM] {
        let assessment = scene.assess(&model, &optimizer, 0.0);
        assert_eq!(assessment.token_mask[0], 0);
        assert!(assessment.token_mask[1..].iter().all(|&x| x == 1));
        assert_eq!(
            assessment.rejected,
            Rejections {
                not_finite: 1,
                total: 1,
                ..Rejections::default()
            }
        );
    }
}

/// Ways to spoil the token at a flat position.
const POISONS: [fn(&mut Scene, usize); 12] = [
    |scene, at| scene.batch.hidden[at * 18 + 17] = f32::NAN,
    |scene, at| scene.batch.hidden[at * 18] = f32::NEG_INFINITY,
    |scene, at| scene.batch.topk_logits[at * 3 + 1] = f32::NAN,
    |scene, at| scene.batch.topk_logits[at * 3 + 2] = f32::NEG_INFINITY,
    |scene, at| scene.batch.action_logits[at] = f32::NAN,
    |scene, at| scene.batch.action_logits[at] = f32::INFINITY,
    |scene, at| scene.batch.advantages[at] = f32::NAN,
    |scene, at| scene.derivatives[at] = f32::NAN,
    |scene, at| scene.derivatives[at] = f32::INFINITY,
    |scene, at| scene.batch.logsumexp[at] = f32::NAN,
    |scene, at| scene.batch.logsumexp[at] = f32::INFINITY,
    |scene, at| scene.batch.logsumexp[at] = f32::NEG_INFINITY,
];

/// Number of the poisons that the paper's model reads; they come first.
const READ_BY_THE_PAPER: usize = 7;

#[test]
fn a_token_with_non_finite_data_is_rejected_and_never_enters_the_state() {
    for (semantics, granularity, optimizer) in all() {
        let read = if semantics == Semantics::PAPER {
            READ_BY_THE_PAPER
        } else {
            POISONS.len()
        };
        for (index, poison) in POISONS[..read].iter().enumerate() {
            let mut spoilt = Scene::full(&mut Rng(132), DIMS, 0.7);
            poison(&mut spoilt, 5);
            // The same data as padding, which is not read.
            let mut without = spoilt.clone();
            without.batch.mask[5] = 0;
            let mut models = [(); 2].map(|()| seasoned(semantics, granularity, &optimizer));
            let [got, expected] =
                [&spoilt, &without].map(|scene| scene.assess(&models[0], &optimizer, 0.1));
            assert!(
                [&got.m_f, &got.m_h, &got.kl, &got.surrogate]
                    .iter()
                    .all(|x| x[5].is_nan()),
                "poison {index}"
            );
            assert_eq!(
                (got.tokens, got.rejected.not_finite, got.rejected.total),
                (12, 1, 1),
                "poison {index}"
            );
            assert_eq!(
                (&got.token_mask, got.certificate),
                (&expected.token_mask, expected.certificate)
            );
            let others = |x: &Assessment| {
                shifts(x)
                    .enumerate()
                    .filter(|(at, _)| at % 12 != 5)
                    .collect::<Vec<_>>()
            };
            assert_eq!(others(&got), others(&expected), "poison {index}");
            spoilt.commit(&mut models[0], &optimizer);
            without.commit(&mut models[1], &optimizer);
            assert_eq!(models[0].save().unwrap(), models[1].save().unwrap());
        }
    }
}

#[test]
fn extreme_scales_stay_finite() {
    let scales = [
        (1e-30, 1e-30),
        (1e-30, 1e30),
        (1e30, 1e-30),
        (1e30, 1e30),
        (3e38, 3e38),
        (1e-45, 1.0),
    ];
    for (semantics, granularity, optimizer) in all() {
        for (hidden, signal) in scales {
            let (mut model, mut rng) = (model(semantics, granularity), Rng(133));
            for _ in 0..3 {
                let mut scene = Scene::full(&mut rng, DIMS, 0.7);
                scene.batch.hidden.iter_mut().for_each(|x| *x *= hidden);
                scene.derivatives.fill(signal);
                scene.batch.advantages.fill(signal);
                let got = scene.assess(&model, &optimizer, 1e-3);
                assert!(
                    shifts(&got).all(|x| x.is_finite()),
                    "{hidden} {signal}: {got:?}"
                );
                assert_eq!(got.token_mask, scene.batch.mask);
                scene.commit(&mut model, &optimizer);
            }
            let after = Scene::full(&mut rng, DIMS, 0.7).assess(&model, &optimizer, 1e-3);
            assert!(
                shifts(&after).all(|x| x.is_finite()),
                "{hidden} {signal}: {after:?}"
            );
        }
    }
}

/// Above 1e7 the logsumexp is rounded to more than the logits differ by: the policy is anything
/// then, but not undefined.
#[test]
fn logits_of_any_scale_make_a_policy() {
    for (granularity, scale) in GRANULARITIES
        .into_iter()
        .flat_map(|x| [1e-30, 1e4, 1e9, 1e30, 1e37].map(|y| (x, y)))
    {
        for seed in 135..140 {
            let mut scene = Scene::full(&mut Rng(seed), DIMS, 0.7);
            let Scene { batch, .. } = &mut scene;
            batch
                .topk_logits
                .iter_mut()
                .chain(&mut batch.action_logits)
                .for_each(|x| *x *= scale);
            for at in 0..12 {
                let largest = batch.topk_logits[at * 3];
                batch.logsumexp[at] = (f64::from(largest) / f64::from(0.7f32)) as f32;
            }
            let got = scene.assess(&model(Semantics::EXACT, granularity), &SGD, 1e-3);
            assert!(shifts(&got).all(|x| x.is_finite()), "{scale}: {got:?}");
            assert_eq!(got.token_mask, scene.batch.mask);
        }
    }
}

/// Lanes of 32, tiles of 64, and what is left over.
#[test]
fn widths_of_all_kinds_agree_with_narrow_ones() {
    for width in [1, 31, 32, 33, 63, 64, 65, 129] {
        let narrow = Scene::full(&mut Rng(134), Dims(2, 3, 3, width, 7), 0.7);
        let mut wide = narrow.clone();
        // Columns of zeros add nothing.
        wide.batch.dims.3 = width + 70;
        wide.batch.hidden = narrow
            .batch
            .hidden
            .chunks(width)
            .flat_map(|h| [h, &[0.0; 70]].concat())
            .collect();
        for (granularity, optimizer) in GRANULARITIES
            .into_iter()
            .flat_map(|x| OPTIMIZERS.map(|y| (x, y)))
        {
            let [got, expected] = [&wide, &narrow].map(|scene| {
                let mut model = model(Semantics::EXACT, granularity);
                scene.commit(&mut model, &optimizer);
                shifts(&scene.assess(&model, &optimizer, 0.01)).collect::<Vec<f32>>()
            });
            assert_close(
                &format!("width {width}"),
                &got,
                &fixture::wide(&expected),
                2e-6,
            );
        }
    }
}

/// Ways to get a batch's description wrong.
const MISTAKES: [for<'a> fn(&mut LastLayer<'a>); 10] = [
    |x| x.width = 0,
    |x| x.k = 8,
    |x| x.vocab_size = 0,
    device::shorten_hidden,
    device::shorten_logits,
    |x| x.action_ids = &[],
    |x| x.completions = usize::MAX,
    |x| x.group_size = 0,
    |x| x.group_size = 2,
    |x| x.vocab_size = 6,
];

#[test]
fn names_mistakes_in_the_batch() {
    let mut scene = Scene::full(&mut Rng(12), DIMS, 1.0);
    let Scene { batch, .. } = &mut scene;
    batch
        .topk_ids
        .iter_mut()
        .chain(&mut batch.action_ids)
        .for_each(|id| *id %= 6);
    batch.action_ids[9] = 6;
    let said = MISTAKES.map(|change| {
        let mut step = scene.step(&ADAM, 0.1);
        change(&mut step.batch);
        open_model()
            .prepare(&step, &scene.batch.mask)
            .unwrap_err()
            .to_string()
    });
    assert_eq!(
        include_str!("mistakes_in_the_batch.txt")
            .lines()
            .collect::<Vec<_>>(),
        said
    );
}

#[test]
fn names_mistakes_in_the_settings() {
    let scene = Scene::full(&mut Rng(13), DIMS, 1.0);
    let mask = &scene.batch.mask;
    let complaint = |policy: Policy, optimizer: OptimizerModel, lr: f64, mask: &[u8]| {
        let scene = Scene {
            policy,
            ..scene.clone()
        };
        open_model()
            .prepare(&scene.step(&optimizer, lr), mask)
            .unwrap_err()
            .to_string()
    };
    let refused = |acceptance| {
        CurvatureModel::new(acceptance, Granularity::Token, Semantics::PAPER)
            .unwrap_err()
            .to_string()
    };
    let said = [
        complaint(
            Policy {
                temperature: 0.0,
                ..POLICY
            },
            ADAM,
            0.1,
            mask,
        ),
        complaint(
            Policy {
                top_k: Some(0),
                ..POLICY
            },
            ADAM,
            0.1,
            mask,
        ),
        complaint(POLICY, OptimizerModel { beta2: 1.0, ..ADAM }, 0.1, mask),
        complaint(POLICY, OptimizerModel { eps: 0.0, ..ADAM }, 0.1, mask),
        complaint(
            POLICY,
            OptimizerModel {
                weight_decay: -0.1,
                ..ADAM
            },
            0.1,
            mask,
        ),
        complaint(
            POLICY,
            OptimizerModel {
                weight_decay: f64::NAN,
                ..ADAM
            },
            0.1,
            mask,
        ),
        complaint(
            POLICY,
            OptimizerModel {
                weight_decay: f64::INFINITY,
                ..ADAM
            },
            0.1,
            mask,
        ),
        complaint(POLICY, ADAM, f64::NAN, mask),
        complaint(POLICY, ADAM, 0.1, &mask[1..]),
        refused(Acceptance {
            fisher_threshold: Some(f64::NAN),
            ..Acceptance::default()
        }),
        refused(Acceptance {
            hessian_range: Some([0.1, -0.1]),
            ..Acceptance::default()
        }),
    ];
    assert_eq!(
        include_str!("mistakes_in_the_settings.txt")
            .lines()
            .collect::<Vec<_>>(),
        said
    );
}
