//! Completions, groups and batches as subsets, which are rejected as a whole.

use capo_core::{
    Acceptance, Assessment, CurvatureModel, Granularity, OptimizerModel, Rejections, Semantics,
};

use super::fixture::{ADAM, Dims, OPEN, Rng, SGD, model};
use super::scene::Scene;

const DIMS: Dims = Dims(6, 4, 3, 18, 7);
const RATE: f64 = 0.1;

/// Assessment of a batch by a model with some history.
fn assess(
    scene: &Scene,
    acceptance: Acceptance,
    granularity: Granularity,
    optimizer: &OptimizerModel,
) -> Assessment {
    let (mut model, mut rng) = (
        CurvatureModel::new(acceptance, granularity, Semantics::PAPER).unwrap(),
        Rng(3),
    );
    for _ in 0..3 {
        Scene::full(&mut rng, DIMS, 1.0).commit(&mut model, optimizer);
    }
    scene.assess(&model, optimizer, RATE)
}

#[test]
fn subsets_are_rejected_as_a_whole_and_counted_by_token() {
    let mut scene = Scene::full(&mut Rng(29), DIMS, 1.0);
    scene.batch.mask[3] = 0;
    for granularity in [
        Granularity::Completion,
        Granularity::Group,
        Granularity::Batch,
    ] {
        let span = scene.batch.span(granularity);
        let m_f = assess(&scene, OPEN, granularity, &ADAM).m_f;
        let largest = m_f.iter().copied().fold(0.0, f32::max);
        let fisher_threshold = Some(0.9999 * f64::from(largest));
        let got = assess(
            &scene,
            Acceptance {
                fisher_threshold,
                ..OPEN
            },
            granularity,
            &ADAM,
        );
        let expected: Vec<u8> = (0..24)
            .map(|at| scene.batch.mask[at] * u8::from(m_f[at] < largest))
            .collect();
        assert_eq!((&got.token_mask, &got.m_f), (&expected, &m_f));
        let count = m_f.iter().filter(|&&x| x == largest).count();
        assert!(
            count == span || count == span - 1,
            "{count} tokens of one subset of {span}"
        );
        assert_eq!(
            got.rejected,
            Rejections {
                fisher: count,
                total: count,
                ..Rejections::default()
            }
        );
    }
}

#[test]
fn a_non_finite_shift_rejects_its_whole_subset() {
    let mut scene = Scene::full(&mut Rng(30), DIMS, 1.0);
    scene.batch.hidden[4 * 18..8 * 18]
        .iter_mut()
        .for_each(|x| *x *= 1e30);
    let got = scene.assess(
        &model(Semantics::PAPER, Granularity::Completion),
        &SGD,
        1e150,
    );
    let expected: Vec<u8> = (0..24).map(|at| u8::from(at / 4 != 1)).collect();
    assert_eq!(got.token_mask, expected);
    assert!(
        got.m_f
            .iter()
            .zip(&got.token_mask)
            .all(|(m_f, &keep)| m_f.is_nan() == (keep == 0))
    );
    assert_eq!(
        got.rejected,
        Rejections {
            not_finite: 4,
            total: 4,
            ..Rejections::default()
        }
    );
}
