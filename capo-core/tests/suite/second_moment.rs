//! A second moment that remembers what was rejected, and tokens that weigh less than others.

use capo_core::{CurvatureModel, Granularity, OptimizerModel, Semantics, Weights};

use super::exact::weighted_side_by_side;
use super::fixture::{ADAM, ADAM_OF_BOTH, Dims, OPEN, Rng, assert_close, model};
use super::scene::{REDUCTIONS, Scene};

const DIMS: Dims = Dims(4, 3, 3, 9, 7);
const ADAMW_OF_BOTH: OptimizerModel = OptimizerModel {
    weight_decay: 0.1,
    ..ADAM_OF_BOTH
};

#[test]
fn weighted_commits_equal_the_dense_model() {
    let mut seed = 900;
    for moment_input in [Weights::TokenMean, Weights::Loss, Weights::RowMean] {
        for semantics in [
            Semantics {
                moment_input,
                ..Semantics::PAPER
            },
            Semantics {
                moment_input,
                ..Semantics::EXACT
            },
        ] {
            for reduction in REDUCTIONS {
                for (optimizer, counts_all) in
                    [(ADAM, false), (ADAM_OF_BOTH, false), (ADAMW_OF_BOTH, true)]
                {
                    seed += 1;
                    weighted_side_by_side(
                        semantics,
                        optimizer,
                        (seed, 5),
                        [0.0, 0.25, 0.7, 1.0],
                        &|rng| {
                            let mut scene = Scene {
                                reduction,
                                ..Scene::random(rng, DIMS, 0.7)
                            };
                            scene.counted = counts_all.then(|| scene.batch.mask.clone());
                            scene
                        },
                    );
                }
            }
        }
    }
}

/// Bytes of a saved state before its rows.
pub const HEADER: usize = 8 + 4 + 4 * 8 + 10;

/// Rows, first and second moments as saved.
pub type Rows = Vec<(u32, Vec<f64>, Vec<f64>)>;

pub fn rows(bytes: &[u8]) -> Rows {
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let (width, rows, header) = (number(20), number(36), HEADER);
    let floats = |half: usize, row: usize| {
        let start = header + rows * 12 + (half * rows + row) * width * 4;
        let own = bytes[start..start + width * 4].chunks(4);
        own.map(|x| f64::from(f32::from_le_bytes(x.try_into().unwrap())))
            .collect()
    };
    let id = |row: usize| u32::from_le_bytes(bytes[header + row * 4..][..4].try_into().unwrap());
    (0..rows)
        .map(|row| (id(row), floats(0, row), floats(1, row)))
        .collect()
}

/// Moments of `row` in `rows`, `[D]` each; 0 where there are none.
fn moments(rows: &Rows, row: u32, width: usize) -> (Vec<f64>, Vec<f64>) {
    let found = rows.iter().find(|(own, ..)| *own == row);
    found.map_or_else(
        || (vec![0.0; width], vec![0.0; width]),
        |(_, m, v)| (m.clone(), v.clone()),
    )
}

/// In the first step every preset's moments follow from those of two plain steps: of what was kept,
/// and of everything.
#[test]
fn the_squares_of_kept_and_rejected_are_added_in_every_preset() {
    let mut rng = Rng(970);
    for semantics in [Semantics::PAPER, Semantics::AUTHORS, Semantics::EXACT] {
        let acceptance = capo_core::Acceptance {
            fisher_threshold: Some(1.0),
            ..OPEN
        };
        let scene = Scene::full(&mut rng, DIMS, 1.0);
        let token_mask: Vec<u8> = scene
            .batch
            .mask
            .iter()
            .map(|&mask| mask * rng.below(2) as u8)
            .collect();
        let commit = |optimizer: &OptimizerModel, token_mask: &[u8]| {
            let mut model = CurvatureModel::new(acceptance, Granularity::Token, semantics).unwrap();
            model
                .commit(
                    &model
                        .prepare(&scene.step(optimizer, 0.1), &scene.batch.mask)
                        .unwrap(),
                    token_mask,
                )
                .unwrap();
            rows(&model.save().unwrap())
        };
        let kept = commit(&ADAM, &token_mask);
        let everything = commit(&ADAM, &scene.batch.mask);
        let both = commit(&ADAM_OF_BOTH, &token_mask);
        assert_eq!(
            both.len(),
            everything.len(),
            "rows that only rejected tokens touch have moments too"
        );
        let (mut got, mut expected) = (Vec::new(), Vec::new());
        for (row, m, v) in &both {
            let ((m_kept, _), (m_all, _)) = (
                moments(&kept, *row, m.len()),
                moments(&everything, *row, m.len()),
            );
            assert_eq!(m, &m_kept, "the first moment takes in what was kept");
            for ((v, k), all) in v.iter().zip(&m_kept).zip(&m_all) {
                let (k, all) = (k / (1.0 - ADAM.beta1), all / (1.0 - ADAM.beta1));
                got.push(*v as f32);
                expected.push((1.0 - ADAM.beta2) * (k * k + (all - k) * (all - k)));
            }
        }
        assert_close(&format!("{semantics:?}"), &got, &expected, 1e-6);
    }
}

#[test]
fn without_rejections_the_second_moment_is_plain_adams() {
    for semantics in [Semantics::PAPER, Semantics::AUTHORS, Semantics::EXACT] {
        let mut rng = Rng(980);
        let [mut plain, mut both] = [(); 2].map(|()| model(semantics, Granularity::Token));
        for _ in 0..3 {
            let scene = Scene::random(&mut rng, DIMS, 1.0);
            for (model, optimizer) in [(&mut plain, ADAM), (&mut both, ADAM_OF_BOTH)] {
                scene.commit(model, &optimizer);
            }
        }
        assert!(
            plain.save().unwrap() == both.save().unwrap(),
            "{semantics:?}"
        );
    }
}

#[test]
fn refuses_negative_and_non_finite_weights() {
    let scene = Scene::full(&mut Rng(995), DIMS, 1.0);
    let mut model = model(Semantics::PAPER, Granularity::Token);
    let prepared = model
        .prepare(&scene.step(&ADAM, 0.1), &scene.batch.mask)
        .unwrap();
    let before = model.save().unwrap();
    let mut refused = |weights: &[f32]| {
        model
            .commit_weighted(&prepared, weights)
            .unwrap_err()
            .to_string()
    };
    let mut weights = vec![1.0; 12];
    assert_eq!(
        refused(&weights[1..]),
        "`weights` has 11 entries, expected 4 x 3 for `[B, T]` (check the batch's dimensions)"
    );
    for (weight, shown) in [(-0.5, "-0.5"), (f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
        weights[5] = weight;
        let expected = format!("`weights` has {shown} at 5, expected finite numbers of at least 0");
        assert_eq!(refused(&weights), expected);
    }
    assert!(model.save().unwrap() == before);
}
