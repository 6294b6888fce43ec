//! Completions, groups and batches as subsets: how they relate to each other, and that they are rejected as a whole.

use capo_core::{Acceptance, Assessment, CurvatureModel, Granularity, OptimizerModel, Rejections, Semantics};

use super::fixture::{ADAM, Batch, Dims, OPEN, POLICY, Rng, SGD, model};

const DIMS: Dims = Dims(6, 4, 3, 18, 7);
const RATE: f64 = 0.1;

/// Assessment of a batch by a model with some history.
fn assess(batch: &Batch, acceptance: Acceptance, granularity: Granularity, optimizer: &OptimizerModel) -> Assessment {
    let (mut model, mut rng) = (CurvatureModel::new(acceptance, granularity, Semantics::PAPER).unwrap(), Rng(3));
    for _ in 0..3 {
        let earlier = Batch::full(&mut rng, DIMS);
        earlier.commit(&mut model, &POLICY, optimizer, &earlier.mask);
    }
    batch.assess(&model, &POLICY, optimizer, RATE)
}

/// As `assess`, accepting everything finite, with SGD and Adam.
fn both(batch: &Batch, granularity: Granularity) -> [Assessment; 2] {
    [SGD, ADAM].map(|optimizer| assess(batch, OPEN, granularity, &optimizer))
}

#[test]
fn groups_of_one_are_completions_and_one_group_is_the_batch() {
    let batch = Batch::random(&mut Rng(20), DIMS);
    assert_eq!(both(&batch, Granularity::Group), both(&batch, Granularity::Completion));
    let batch = Batch { group_size: 6, ..batch };
    assert_eq!(both(&batch, Granularity::Group), both(&batch, Granularity::Batch));
}

#[test]
fn subsets_are_rejected_as_a_whole_and_counted_by_token() {
    let mut batch = Batch { group_size: 2, ..Batch::full(&mut Rng(29), DIMS) };
    batch.mask[3] = 0;
    for granularity in [Granularity::Completion, Granularity::Group, Granularity::Batch] {
        let span = batch.span(granularity);
        let m_f = assess(&batch, OPEN, granularity, &ADAM).m_f;
        let largest = m_f.iter().copied().fold(0.0, f32::max);
        let fisher_threshold = Some(0.9999 * f64::from(largest));
        let got = assess(&batch, Acceptance { fisher_threshold, ..OPEN }, granularity, &ADAM);
        let expected: Vec<u8> = (0..24).map(|at| batch.mask[at] * u8::from(m_f[at] < largest)).collect();
        assert_eq!((&got.keep, &got.m_f), (&expected, &m_f));
        let count = m_f.iter().filter(|&&x| x == largest).count();
        assert!(count == span || count == span - 1, "{count} tokens of one subset of {span}");
        assert_eq!(got.rejected, Rejections { fisher: count, total: count, ..Rejections::default() });
    }
}

#[test]
fn a_shift_that_is_not_finite_rejects_its_whole_subset() {
    let mut batch = Batch::full(&mut Rng(30), DIMS);
    batch.hidden[4 * 18..8 * 18].iter_mut().for_each(|x| *x *= 1e30);
    let got = batch.assess(&model(Semantics::PAPER, Granularity::Completion), &POLICY, &SGD, 1e150);
    let expected: Vec<u8> = (0..24).map(|at| u8::from(at / 4 != 1)).collect();
    assert_eq!(got.keep, expected);
    assert!(got.m_f.iter().zip(&got.keep).all(|(m_f, &keep)| m_f.is_nan() == (keep == 0)));
    assert_eq!(got.rejected, Rejections { not_finite: 4, total: 4, ..Rejections::default() });
}
