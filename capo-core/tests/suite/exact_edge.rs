//! The corners of `Semantics::EXACT`: degenerate supports, non-finite and extreme data.

use capo_core::{Assessment, CurvatureModel, Granularity, OptimizerModel, Rejections, Semantics};

use super::fixture::{ADAM, Batch, Dims, GRANULARITIES, OPEN, Rng, SGD, assert_close};
use super::scene::Scene;

const DIMS: Dims = Dims(3, 4, 3, 18, 7);
const ADAMW: OptimizerModel = OptimizerModel { weight_decay: 0.1, ..ADAM };
const OPTIMIZERS: [OptimizerModel; 3] = [SGD, ADAM, ADAMW];

/// A model with some history; a group is the whole batch.
fn seasoned(granularity: Granularity, optimizer: &OptimizerModel) -> CurvatureModel {
    let (mut model, mut rng) = (CurvatureModel::new(OPEN, granularity, Semantics::EXACT).unwrap(), Rng(3));
    for _ in 0..3 {
        let scene = Scene::full(&mut rng, DIMS, 0.7);
        commit(&mut model, &scene, optimizer);
    }
    model
}

fn commit(model: &mut CurvatureModel, scene: &Scene, optimizer: &OptimizerModel) {
    model.commit(&model.prepare(&scene.step(optimizer, 0.1), &scene.batch.mask).unwrap(), &scene.batch.mask).unwrap();
}

fn assess(model: &CurvatureModel, scene: &Scene, optimizer: &OptimizerModel, lr: f64) -> Assessment {
    model.assess(&model.prepare(&scene.step(optimizer, lr), &scene.batch.mask).unwrap()).unwrap()
}

fn shifts(assessment: &Assessment) -> impl Iterator<Item = f32> {
    let Assessment { m_f, m_h, kl, surrogate, .. } = assessment;
    [m_f, m_h, kl, surrogate].into_iter().flatten().copied()
}

/// Keeps one logit, that of the sampled token, with this probability.
fn single(probability: f64) -> Scene {
    let mut scene = Scene::full(&mut Rng(130), Dims(3, 4, 1, 18, 7), 0.7);
    for at in 0..12 {
        scene.batch.action_ids[at] = scene.batch.topk_ids[at];
        scene.batch.action_logits[at] = scene.batch.topk_logits[at];
        scene.batch.logsumexp[at] =
            (f64::from(scene.batch.topk_logits[at]) / f64::from(0.7f32) - probability.ln()) as f32;
    }
    scene
}

#[test]
fn a_certain_token_moves_nothing() {
    for (granularity, optimizer) in GRANULARITIES.into_iter().flat_map(|x| OPTIMIZERS.map(|y| (x, y))) {
        let mut scene = single(1.0);
        // Rounded down or not, the logsumexp leaves next to nothing for the other rows.
        scene.batch.logsumexp.iter_mut().for_each(|x| *x = x.next_down());
        let got = assess(&seasoned(granularity, &optimizer), &scene, &optimizer, 0.1);
        assert!(shifts(&got).all(|x| x == 0.0), "{got:?}");
        assert_eq!(got.keep, scene.batch.mask);
    }
}

/// The rest of the vocabulary stands still: a policy over two outcomes, whose logit moves by `x`.
#[test]
fn one_kept_logit_is_a_coin() {
    let scene = single(0.4);
    let model = CurvatureModel::new(OPEN, Granularity::Token, Semantics::EXACT).unwrap();
    let got = assess(&model, &scene, &SGD, 0.1);
    let (mut kl, mut surrogate) = (vec![], vec![]);
    for at in 0..12 {
        let p =
            (f64::from(scene.batch.topk_logits[at]) / f64::from(0.7f32) - f64::from(scene.batch.logsumexp[at])).exp();
        let signal = -f64::from(scene.derivatives[at]);
        let squared: f64 = scene.batch.hidden[at * 18..][..18].iter().map(|&h| f64::from(h).powi(2)).sum();
        let x = 0.1 * signal * (1.0 - p) * squared / f64::from(0.7f32).powi(2);
        let moved = p * x.exp() / (1.0 - p + p * x.exp());
        kl.push(p * (p / moved).ln() + (1.0 - p) * ((1.0 - p) / (1.0 - moved)).ln());
        surrogate.push(signal * (moved / p - 1.0));
    }
    assert_close("kl", &got.m_f, &kl, 1e-6);
    assert_close("surrogate", &got.m_h, &surrogate, 1e-6);
}

#[test]
fn nothing_to_assess() {
    let mut padded = Scene::full(&mut Rng(131), DIMS, 0.7);
    padded.batch.mask.fill(0);
    // Never read on padding.
    padded.batch.hidden.fill(f32::NAN);
    padded.batch.logsumexp.fill(f32::NAN);
    padded.derivatives.fill(f32::NAN);
    padded.batch.topk_ids.fill(u32::MAX);
    let empty = |dims: Dims| Scene {
        batch: Batch { group_size: 1, ..Batch::empty(dims) },
        derivatives: vec![],
        counted: Some(vec![]),
        ..padded.clone()
    };
    for scene in [empty(Dims(0, 4, 3, 18, 7)), empty(Dims(3, 0, 3, 18, 7)), padded.clone()] {
        for (granularity, optimizer) in GRANULARITIES.into_iter().flat_map(|x| OPTIMIZERS.map(|y| (x, y))) {
            let mut model = seasoned(granularity, &optimizer);
            let state = model.save().unwrap();
            let got = assess(&model, &scene, &optimizer, 0.1);
            assert!(shifts(&got).all(|x| x == 0.0) && got.keep.iter().all(|&x| x == 0));
            assert_eq!((got.tokens, got.rejected), (0, Rejections::default()));
            commit(&mut model, &scene, &optimizer);
            assert_eq!(model.save().unwrap(), state);
        }
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

#[test]
fn a_token_with_non_finite_data_is_rejected_and_never_enters_the_state() {
    for (granularity, optimizer) in GRANULARITIES.into_iter().flat_map(|x| OPTIMIZERS.map(|y| (x, y))) {
        for (index, poison) in POISONS.into_iter().enumerate() {
            let clean = Scene::full(&mut Rng(132), DIMS, 0.7);
            let (mut spoilt, mut without) = (clean.clone(), clean);
            poison(&mut spoilt, 5);
            without.batch.mask[5] = 0;
            let mut models = [seasoned(granularity, &optimizer), seasoned(granularity, &optimizer)];
            let [got, expected] = [&spoilt, &without].map(|scene| assess(&models[0], scene, &optimizer, 0.1));
            assert!([&got.m_f, &got.m_h, &got.kl, &got.surrogate].iter().all(|x| x[5].is_nan()), "poison {index}");
            assert_eq!((got.tokens, got.rejected.not_finite, got.rejected.total), (12, 1, 1), "poison {index}");
            assert_eq!((&got.keep, got.certificate), (&expected.keep, expected.certificate));
            let others = |x: &Assessment| shifts(x).enumerate().filter(|(at, _)| at % 12 != 5).collect::<Vec<_>>();
            assert_eq!(others(&got), others(&expected), "poison {index}");
            commit(&mut models[0], &spoilt, &optimizer);
            commit(&mut models[1], &without, &optimizer);
            assert_eq!(models[0].save().unwrap(), models[1].save().unwrap());
        }
    }
}

#[test]
fn extreme_scales_stay_finite() {
    let scales = [(1e-30, 1e-30), (1e-30, 1e30), (1e30, 1e-30), (1e30, 1e30), (3e38, 3e38), (1e-45, 1.0)];
    for (granularity, optimizer) in GRANULARITIES.into_iter().flat_map(|x| OPTIMIZERS.map(|y| (x, y))) {
        for (hidden, derivative) in scales {
            let mut model = CurvatureModel::new(OPEN, granularity, Semantics::EXACT).unwrap();
            let mut rng = Rng(133);
            for _ in 0..3 {
                let mut scene = Scene::full(&mut rng, DIMS, 0.7);
                scene.batch.hidden.iter_mut().for_each(|x| *x *= hidden);
                scene.derivatives.iter_mut().for_each(|x| *x = derivative);
                let got = assess(&model, &scene, &optimizer, 1e-3);
                assert!(shifts(&got).all(|x| x.is_finite()), "{hidden} {derivative}: {got:?}");
                assert_eq!(got.keep, scene.batch.mask);
                commit(&mut model, &scene, &optimizer);
            }
            let after = assess(&model, &Scene::full(&mut rng, DIMS, 0.7), &optimizer, 1e-3);
            assert!(shifts(&after).all(|x| x.is_finite()), "{hidden} {derivative}: {after:?}");
        }
    }
}

/// Above 1e7 the logsumexp is rounded to more than the logits differ by: the policy is anything then, but not undefined.
#[test]
fn logits_of_any_scale_make_a_policy() {
    for (granularity, scale) in GRANULARITIES.into_iter().flat_map(|x| [1e-30, 1e4, 1e9, 1e30, 1e37].map(|y| (x, y))) {
        for seed in 135..140 {
            let mut scene = Scene::full(&mut Rng(seed), DIMS, 0.7);
            let Scene { batch, .. } = &mut scene;
            batch.topk_logits.iter_mut().chain(&mut batch.action_logits).for_each(|x| *x *= scale);
            for at in 0..12 {
                let largest = batch.topk_logits[at * 3];
                batch.logsumexp[at] = (f64::from(largest) / f64::from(0.7f32)) as f32;
            }
            let model = CurvatureModel::new(OPEN, granularity, Semantics::EXACT).unwrap();
            let got = assess(&model, &scene, &SGD, 1e-3);
            assert!(shifts(&got).all(|x| x.is_finite()), "{scale}: {got:?}");
            assert_eq!(got.keep, scene.batch.mask);
        }
    }
}

/// Lanes of 32, tiles of 64, and what is left over.
#[test]
fn widths_of_all_kinds_agree_with_narrow_ones() {
    for width in [1, 31, 32, 33, 63, 64, 65, 129] {
        let mut scene = Scene::full(&mut Rng(134), Dims(2, 3, 3, width, 7), 0.7);
        let narrow = scene.clone();
        // Columns of zeros add nothing.
        scene.batch.dims.3 = width + 70;
        scene.batch.hidden = narrow.batch.hidden.chunks(width).flat_map(|h| [h, &[0.0; 70]].concat()).collect();
        for (granularity, optimizer) in GRANULARITIES.into_iter().flat_map(|x| OPTIMIZERS.map(|y| (x, y))) {
            let run = |scene: &Scene| {
                let mut model = CurvatureModel::new(OPEN, granularity, Semantics::EXACT).unwrap();
                commit(&mut model, scene, &optimizer);
                assess(&model, scene, &optimizer, 0.01)
            };
            let (wide, plain) = (run(&scene), run(&narrow));
            let expected: Vec<f64> = shifts(&plain).map(f64::from).collect();
            assert_close(&format!("width {width}"), &shifts(&wide).collect::<Vec<_>>(), &expected, 2e-6);
        }
    }
}
