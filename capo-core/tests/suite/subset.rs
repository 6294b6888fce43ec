//! Completions, groups and batches as subsets: their corners, and how they relate to each other and to tokens.

use capo_core::{Acceptance, Assessment, CurvatureModel, Granularity, OptimizerModel, Rejections, Semantics};

use super::fixture::{ADAM, Batch, Dims, GRANULARITIES, OPEN, POLICY, Rng, SGD, assert_close, open_model_of, reorder};

const DIMS: Dims = Dims(6, 4, 3, 18, 7);
const RATE: f64 = 0.1;

fn grouped(mut batch: Batch, group_size: usize) -> Batch {
    batch.group_size = group_size;
    batch
}

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
    let batch = grouped(batch, 6);
    assert_eq!(both(&batch, Granularity::Group), both(&batch, Granularity::Batch));
}

#[test]
fn a_batch_as_subset_has_the_shifts_of_the_batch() {
    let batch = Batch::full(&mut Rng(21), DIMS);
    let model = open_model_of(Granularity::Batch);
    for optimizer in [SGD, ADAM] {
        let assessment = batch.assess(&model, &POLICY, &optimizer, RATE);
        let shift = batch.shift(&model, &POLICY, &optimizer, RATE);
        assert!(assessment.m_f.iter().all(|&m_f| m_f == shift.m_f as f32));
        assert!(assessment.m_h.iter().all(|&m_h| m_h == shift.m_h as f32));
        assert_eq!(shift.tokens, 24);
    }
}

#[test]
fn completions_of_one_token_are_tokens() {
    let batch = Batch::full(&mut Rng(22), Dims(8, 1, 3, 18, 7));
    let tokens = both(&batch, Granularity::Token);
    for (completion, token) in both(&batch, Granularity::Completion).iter().zip(tokens) {
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        // The token path of Adam adds up in `f32`.
        assert_close("m_f", &completion.m_f, &wide(&token.m_f), 1e-6);
        assert_close("m_h", &completion.m_h, &wide(&token.m_h), 1e-6);
    }
}

#[test]
fn a_subset_sees_nothing_of_the_others() {
    let batch = grouped(Batch::full(&mut Rng(23), DIMS), 2);
    for granularity in [Granularity::Token, Granularity::Completion, Granularity::Group] {
        let span = batch.span(granularity);
        let mut other = grouped(Batch::full(&mut Rng(24), DIMS), 2);
        let size = span * DIMS.3;
        other.hidden[..size].copy_from_slice(&batch.hidden[..size]);
        other.topk_ids[..span * 3].copy_from_slice(&batch.topk_ids[..span * 3]);
        other.topk_logits[..span * 3].copy_from_slice(&batch.topk_logits[..span * 3]);
        other.action_ids[..span].copy_from_slice(&batch.action_ids[..span]);
        other.action_logits[..span].copy_from_slice(&batch.action_logits[..span]);
        other.advantages[..span].copy_from_slice(&batch.advantages[..span]);
        for (got, expected) in both(&other, granularity).iter().zip(both(&batch, granularity)) {
            assert_eq!((&got.m_f[..span], &got.m_h[..span]), (&expected.m_f[..span], &expected.m_h[..span]));
            assert_ne!(got.m_f[span..], expected.m_f[span..]);
        }
    }
}

#[test]
fn permuting_subsets_permutes_the_assessment() {
    let batch = grouped(Batch::random(&mut Rng(25), DIMS), 2);
    let cases = [(Granularity::Completion, [3, 0, 4, 1, 5, 2]), (Granularity::Group, [4, 5, 0, 1, 2, 3])];
    for (granularity, order) in cases {
        let permuted = both(&batch.reordered(&order), granularity);
        for (got, plain) in permuted.iter().zip(both(&batch, granularity)) {
            assert_eq!(got.m_f, reorder(&plain.m_f, &order));
            assert_eq!(got.m_h, reorder(&plain.m_h, &order));
            assert_eq!(got.keep, reorder(&plain.keep, &order));
        }
    }
}

#[test]
fn completions_within_a_group_commute() {
    let batch = grouped(Batch::full(&mut Rng(26), DIMS), 3);
    let order = [2, 0, 1, 3, 5, 4];
    let permuted = both(&batch.reordered(&order), Granularity::Group);
    for (got, plain) in permuted.iter().zip(both(&batch, Granularity::Group)) {
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        assert_close("m_f", &got.m_f, &wide(&plain.m_f), 1e-6);
        assert_close("m_h", &got.m_h, &wide(&plain.m_h), 1e-6);
    }
}

#[test]
fn an_empty_completion_adds_nothing_to_its_group() {
    let mut batch = grouped(Batch::full(&mut Rng(27), DIMS), 3);
    batch.mask[4..8].fill(0);
    batch.hidden[4 * 18..8 * 18].fill(f32::NAN); // never read on padding
    // The first group without its second completion, and a last group that is empty altogether.
    let pairs = grouped(batch.reordered(&[0, 2, 3, 4, 1, 1]), 2);
    for (got, expected) in both(&batch, Granularity::Group).iter().zip(both(&pairs, Granularity::Group)) {
        assert_eq!((got.m_f[0], got.m_h[0]), (expected.m_f[0], expected.m_h[0]));
        assert_eq!((got.tokens, got.rejected), (20, Rejections::default()));
        assert_eq!((&got.keep, &got.m_f[4..8]), (&batch.mask, &[0.0; 4][..]));
        assert_eq!((expected.tokens, expected.rejected), (16, Rejections::default()));
        assert_eq!((&expected.keep, &expected.m_f[16..]), (&pairs.mask, &[0.0; 8][..]));
    }
}

#[test]
fn a_token_with_non_finite_data_is_left_out_of_its_subset() {
    let clean = grouped(Batch::full(&mut Rng(28), DIMS), 2);
    let (mut spoilt, mut without) = (clean.clone(), clean.clone());
    spoilt.hidden[5 * 18] = f32::NAN;
    without.mask[5] = 0;
    for granularity in GRANULARITIES {
        for (got, expected) in both(&spoilt, granularity).iter().zip(both(&without, granularity)) {
            assert!(got.m_f[5].is_nan() && got.m_h[5].is_nan());
            assert_eq!((&got.m_f[..5], &got.m_f[6..]), (&expected.m_f[..5], &expected.m_f[6..]), "{granularity:?}");
            assert_eq!((&got.m_h[..5], &got.m_h[6..]), (&expected.m_h[..5], &expected.m_h[6..]), "{granularity:?}");
            assert_eq!(got.keep, without.mask);
            assert_eq!(
                (got.tokens, got.rejected),
                (24, Rejections { not_finite: 1, total: 1, ..Rejections::default() })
            );
        }
    }
}

#[test]
fn subsets_are_rejected_as_a_whole_and_counted_by_token() {
    let mut batch = grouped(Batch::full(&mut Rng(29), DIMS), 2);
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
    let model = open_model_of(Granularity::Completion);
    let got = batch.assess(&model, &POLICY, &SGD, 1e150);
    let expected: Vec<u8> = (0..24).map(|at| u8::from(at / 4 != 1)).collect();
    assert_eq!(got.keep, expected);
    assert!(got.m_f.iter().zip(&got.keep).all(|(m_f, &keep)| m_f.is_nan() == (keep == 0)));
    assert_eq!(got.rejected, Rejections { not_finite: 4, total: 4, ..Rejections::default() });
}
