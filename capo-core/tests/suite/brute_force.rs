//! The paper's model against the dense one.

use capo_core::{Granularity, OptimizerModel, Policy, Semantics, UntouchedRows};

use super::exact::side_by_side;
use super::fixture::{ADAM, ADAM_OF_BOTH, Dims, Rng, SGD, assert_close, open_model};
use super::scene::Scene;
use super::whole::{Optimizer, Whole};

const PAPER: Semantics = Semantics::PAPER;
const SHAPES: [Dims; 6] = [
    Dims(3, 4, 3, 5, 7),
    Dims(2, 3, 1, 17, 4),
    Dims(2, 2, 5, 1, 5),
    Dims(4, 1, 2, 16, 9),
    Dims(1, 3, 6, 33, 8),
    Dims(6, 3, 2, 7, 6),
];

/// The limit on columns is at times above K.
#[test]
fn the_papers_preset_equals_the_dense_model() {
    let cases = [
        (SGD, 1.0, None),
        (SGD, 0.7, Some(2)),
        (ADAM, 1.0, None),
        (ADAM, 1.6, Some(3)),
        (ADAM_OF_BOTH, 1.0, None),
    ];
    for (dims, (optimizer, temperature, top_k)) in
        SHAPES.into_iter().flat_map(|x| cases.map(|y| (x, y)))
    {
        let policy = Policy { temperature, top_k };
        side_by_side(PAPER, optimizer, (17, 6), &|rng| Scene {
            policy,
            ..Scene::random(rng, dims, 1.0)
        });
    }
}

#[test]
fn adam_without_momentum_and_with_a_tiny_eps() {
    for adam in [
        OptimizerModel {
            beta1: 0.0,
            beta2: 0.0,
            eps: 1e-3,
            ..ADAM
        },
        OptimizerModel { eps: 1e-25, ..ADAM },
    ] {
        side_by_side(PAPER, adam, (18, 4), &|rng| {
            Scene::random(rng, SHAPES[0], 1.0)
        });
    }
}

/// Large vocabulary, small supports: most rows are untouched for many steps. They must decay as in
/// dense Adam, or rest as they were.
#[test]
fn rows_touched_irregularly_decay_as_in_dense_adam_or_rest() {
    for (untouched_rows, steps) in [(UntouchedRows::Decay, 120), (UntouchedRows::Freeze, 30)] {
        for adam in [ADAM, ADAM_OF_BOTH] {
            let semantics = Semantics {
                untouched_rows,
                ..PAPER
            };
            side_by_side(semantics, adam, (37, steps), &|rng| {
                Scene::random(rng, Dims(1, 2, 2, 3, 40), 1.0)
            });
        }
    }
}

#[test]
fn gradients_of_any_scale_agree_with_the_dense_model() {
    let dims = Dims(2, 3, 3, 34, 6);
    for (hidden, advantage) in [
        (1.0, 1e12),
        (1.0, 1e20),
        (1e10, 1e10),
        (1e10, 1e-10),
        (1e-10, 1e10),
        (1e-8, 1e-8),
    ] {
        let (mut rng, mut model) = (Rng(5), open_model());
        let mut whole = Whole {
            semantics: PAPER,
            optimizer: Optimizer::new(ADAM, dims),
        };
        for _ in 0..3 {
            let mut scene = Scene::full(&mut rng, dims, 1.0);
            scene.batch.hidden.iter_mut().for_each(|x| *x *= hidden);
            scene
                .batch
                .advantages
                .iter_mut()
                .for_each(|a| *a *= advantage);
            let (got, expected) = (
                scene.assess(&model, &ADAM, 0.1),
                whole.assess(&scene, 0.1, Granularity::Token).into_iter(),
            );
            let (m_f, m_h): (Vec<f64>, Vec<f64>) = expected.map(|x| (x.m_f, x.m_h)).unzip();
            assert_close(
                &format!("m_f at {hidden:e}, {advantage:e}"),
                &got.m_f,
                &m_f,
                3e-6,
            );
            assert_close(
                &format!("m_h at {hidden:e}, {advantage:e}"),
                &got.m_h,
                &m_h,
                3e-6,
            );
            scene.commit(&mut model, &ADAM);
            whole.commit(&scene, &scene.batch.mask);
        }
    }
}
