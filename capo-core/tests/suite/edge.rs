//! The corners: degenerate supports and batches, non-finite and extreme data, refused inputs.

use capo_core::{
    Acceptance, CurvatureModel, Granularity, LastLayer, OptimizerModel, Policy, Rejections, Semantics, Step,
};

use super::dense::Optimizer;
use super::device;
use super::fixture::{ADAM, Batch, Dims, GRANULARITIES, POLICY, Rng, SGD, open_model, open_model_of, reorder};

const DIMS: Dims = Dims(3, 4, 3, 18, 7);

/// A token model with thresholds.
fn bounded(acceptance: Acceptance) -> CurvatureModel {
    CurvatureModel::new(acceptance, Granularity::Token, Semantics::PAPER).unwrap()
}

/// A model with some history.
fn seasoned(optimizer: &OptimizerModel) -> CurvatureModel {
    let (mut model, mut rng) = (open_model(), Rng(3));
    for _ in 0..3 {
        let batch = Batch::full(&mut rng, DIMS);
        batch.commit(&mut model, &POLICY, optimizer, &batch.mask);
    }
    model
}

#[test]
fn zero_advantage_moves_by_momentum_alone() {
    let mut batch = Batch::full(&mut Rng(1), DIMS);
    batch.advantages.fill(0.0);
    let sgd = batch.assess(&open_model(), &POLICY, &SGD, 0.1);
    assert!(sgd.m_f.iter().chain(&sgd.m_h).all(|&x| x == 0.0));
    let adam = batch.assess(&seasoned(&ADAM), &POLICY, &ADAM, 0.1);
    assert!(adam.m_f.iter().all(|&x| x > 0.0));
    assert!(adam.m_h.iter().all(|&x| x == 0.0));

    // Such a step counts, decays every row and gives no row moments.
    let mut model = open_model();
    batch.commit(&mut model, &POLICY, &ADAM, &batch.mask);
    assert_eq!((model.steps(), model.rows()), (1, 0));
}

#[test]
fn a_certain_token_moves_nothing() {
    let mut batch = Batch::full(&mut Rng(2), DIMS);
    let only = Policy { top_k: Some(1), ..POLICY };
    for at in 0..batch.mask.len() {
        batch.action_ids[at] = batch.topk_ids[at * DIMS.2];
    }
    for optimizer in [SGD, ADAM] {
        let assessment = batch.assess(&seasoned(&optimizer), &only, &optimizer, 0.1);
        assert!(assessment.m_f.iter().chain(&assessment.m_h).all(|&x| x == 0.0), "{assessment:?}");
        assert_eq!(assessment.keep, batch.mask);
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
    let rest = (-30.0f64).exp() / (1.0 + (-30.0f64).exp());
    let m_h = batch.assess(&open_model(), &POLICY, &SGD, 1.0).m_h[0];
    assert!((f64::from(m_h) / (2.0 * rest * rest) - 1.0).abs() < 1e-6, "{m_h}");
}

#[test]
fn an_action_outside_the_top_k_joins_the_support() {
    let mut batch = Batch::full(&mut Rng(4), DIMS);
    let inside = |batch: &Batch, at: usize| batch.topk_ids[at * 3..][..3].contains(&batch.action_ids[at]);
    assert!((0..12).any(|at| inside(&batch, at)) && (0..12).any(|at| !inside(&batch, at)));
    let before = batch.assess(&open_model(), &POLICY, &ADAM, 0.1);
    // Its logit counts there, and only there.
    batch.action_logits.iter_mut().for_each(|x| *x += 0.5);
    let after = batch.assess(&open_model(), &POLICY, &ADAM, 0.1);
    for at in 0..12 {
        assert_eq!(before.m_h[at] == after.m_h[at], inside(&batch, at), "token {at}");
    }
}

#[test]
fn nothing_to_assess() {
    let mut batch = Batch::full(&mut Rng(5), DIMS);
    batch.mask.fill(0);
    batch.hidden.fill(f32::NAN); // never read on padding
    batch.topk_ids.fill(u32::MAX);
    for batch in [batch, Batch::empty(Dims(0, 4, 3, 18, 7)), Batch::empty(Dims(3, 0, 3, 18, 7))] {
        let mut model = seasoned(&ADAM);
        let state = model.save().unwrap();
        let assessment = batch.assess(&model, &POLICY, &ADAM, 0.1);
        assert!(assessment.m_f.iter().chain(&assessment.m_h).all(|&x| x == 0.0));
        assert!(assessment.keep.iter().all(|&x| x == 0));
        assert_eq!((assessment.tokens, assessment.rejected), (0, Rejections::default()));
        let shift = batch.shift(&model, &POLICY, &ADAM, 0.1);
        assert_eq!((shift.m_f, shift.m_h, shift.tokens), (0.0, 0.0, 0));
        batch.commit(&mut model, &POLICY, &ADAM, &batch.mask);
        assert_eq!(model.save().unwrap(), state, "no accepted token is no step");
    }
}

#[test]
fn sgd_has_no_state() {
    let model = seasoned(&SGD);
    assert_eq!((model.steps(), model.rows()), (0, 0));
}

#[test]
fn learning_rate_zero_accepts_everything_finite() {
    let tight =
        Acceptance { fisher_threshold: Some(1e-300), hessian_range: Some([-1e-300, 1e-300]), ..Acceptance::default() };
    let mut batch = Batch::full(&mut Rng(6), DIMS);
    batch.hidden[0] = f32::NAN;
    for optimizer in [SGD, ADAM] {
        let assessment = batch.assess(&bounded(tight), &POLICY, &optimizer, 0.0);
        assert_eq!(assessment.keep[0], 0);
        assert!(assessment.keep[1..].iter().all(|&x| x == 1));
        assert_eq!(assessment.rejected, Rejections { not_finite: 1, total: 1, ..Rejections::default() });
    }
}

#[test]
fn thresholds_are_strict_and_counted() {
    let batch = Batch::full(&mut Rng(7), DIMS);
    // Bounds in the gap between two tokens, so that rounding cannot decide.
    let (m_f, m_h) = Optimizer::new(SGD, DIMS).assess(&batch, &POLICY, 0.25);
    let middle = |x: &[f64]| {
        let mut x = x.to_vec();
        x.sort_by(f64::total_cmp);
        0.5 * (x[5] + x[6])
    };
    let (fisher, high) = (middle(&m_f), middle(&m_h));
    let passes = |acceptance| {
        let assessment = batch.assess(&bounded(acceptance), &POLICY, &SGD, 0.25);
        let rejected = assessment.keep.iter().filter(|&&x| x == 0).count();
        assert_eq!((assessment.rejected.total, assessment.tokens), (rejected, 12));
        (assessment.keep, assessment.rejected)
    };
    let off = Acceptance::default();
    let (keep, by) = passes(Acceptance { fisher_threshold: Some(fisher), ..off });
    assert!(keep.iter().zip(&m_f).all(|(&keep, &x)| (keep == 1) == (x < fisher)));
    assert_eq!((by.fisher, by.hessian), (6, 0));
    let (keep, by) = passes(Acceptance { hessian_range: Some([f64::NEG_INFINITY, high]), ..off });
    assert!(keep.iter().zip(&m_h).all(|(&keep, &x)| (keep == 1) == (x < high)));
    assert_eq!((by.fisher, by.hessian), (0, 6));
    let (keep, _) = passes(Acceptance { hessian_range: Some([high, f64::INFINITY]), ..off });
    assert!(keep.iter().zip(&m_h).all(|(&keep, &x)| (keep == 1) == (x > high)));
    // A shift of exactly 0 is on the bound, not inside.
    let mut still = batch.clone();
    still.advantages.fill(0.0);
    let model = bounded(Acceptance { hessian_range: Some([0.0, 1.0]), ..off });
    assert_eq!(still.assess(&model, &POLICY, &SGD, 0.25).rejected.hessian, 12);
}

/// Ways to spoil the token at a flat position.
const POISONS: [fn(&mut Batch, usize); 6] = [
    |batch, at| batch.hidden[at * 18 + 17] = f32::NAN,
    |batch, at| batch.hidden[at * 18] = f32::INFINITY,
    |batch, at| batch.topk_logits[at * 3 + 1] = f32::NAN,
    |batch, at| batch.topk_logits[at * 3] = f32::NEG_INFINITY,
    |batch, at| batch.action_logits[at] = f32::INFINITY,
    |batch, at| batch.advantages[at] = f32::NAN,
];

#[test]
fn a_token_with_non_finite_data_is_rejected_and_never_enters_the_state() {
    for optimizer in [SGD, ADAM] {
        for poison in POISONS {
            let clean = Batch::full(&mut Rng(8), DIMS);
            let mut spoilt = clean.clone();
            poison(&mut spoilt, 5);
            let mut without = clean.clone();
            without.mask[5] = 0;

            let mut models = [seasoned(&optimizer), seasoned(&optimizer)];
            let [got, expected] = [&spoilt, &without].map(|batch| batch.assess(&models[0], &POLICY, &optimizer, 0.1));
            assert!(got.m_f[5].is_nan() && got.m_h[5].is_nan());
            assert_eq!((got.tokens, got.rejected.not_finite, got.rejected.total), (12, 1, 1));
            assert_eq!(got.keep, expected.keep);
            assert_eq!((&got.m_f[6..], &got.m_h[..5]), (&expected.m_f[6..], &expected.m_h[..5]));
            assert_eq!(
                spoilt.shift(&models[0], &POLICY, &optimizer, 0.1),
                without.shift(&models[0], &POLICY, &optimizer, 0.1)
            );

            spoilt.commit(&mut models[0], &POLICY, &optimizer, &spoilt.mask);
            without.commit(&mut models[1], &POLICY, &optimizer, &without.mask);
            assert_eq!(models[0].save().unwrap(), models[1].save().unwrap());
        }
    }
}

#[test]
fn extreme_scales_stay_finite() {
    let scales = [(1e-30, 1e-30), (1e-30, 1e30), (1e30, 1e-30), (1e30, 1e30), (3e38, 3e38), (1e-45, 1.0)];
    for (optimizer, granularity) in [SGD, ADAM].into_iter().flat_map(|x| GRANULARITIES.map(|y| (x, y))) {
        for (hidden, advantage) in scales {
            let (mut model, mut rng) = (open_model_of(granularity), Rng(9));
            for _ in 0..3 {
                let mut batch = Batch::full(&mut rng, DIMS);
                batch.hidden.iter_mut().for_each(|x| *x *= hidden);
                batch.advantages.iter_mut().for_each(|x| *x = x.signum() * advantage);
                let assessment = batch.assess(&model, &POLICY, &optimizer, 1e-3);
                assert!(
                    assessment.m_f.iter().chain(&assessment.m_h).all(|x| x.is_finite()),
                    "{hidden} {advantage}: {assessment:?}"
                );
                assert_eq!(assessment.keep, batch.mask);
                let shift = batch.shift(&model, &POLICY, &optimizer, 1e-3);
                assert!(shift.m_f.is_finite() && shift.m_h.is_finite(), "{hidden} {advantage}: {shift:?}");
                batch.commit(&mut model, &POLICY, &optimizer, &batch.mask);
            }
        }
    }
}

#[test]
fn permuting_completions_permutes_the_assessment() {
    let batch = Batch::random(&mut Rng(10), Dims(5, 4, 3, 18, 7));
    let order = [3, 0, 4, 1, 2];
    let permuted = batch.reordered(&order);
    for optimizer in [SGD, ADAM] {
        let model = seasoned(&optimizer);
        let (got, plain) =
            (permuted.assess(&model, &POLICY, &optimizer, 0.1), batch.assess(&model, &POLICY, &optimizer, 0.1));
        assert_eq!(got.m_f, reorder(&plain.m_f, &order));
        assert_eq!(got.m_h, reorder(&plain.m_h, &order));
        assert_eq!(got.keep, reorder(&plain.keep, &order));
    }
}

#[test]
fn the_column_limit_is_a_narrower_batch() {
    let batch = Batch::full(&mut Rng(11), DIMS);
    let narrow = |x: &[u32]| x.chunks(3).flat_map(|x| x[..2].to_vec()).collect::<Vec<_>>();
    let logits = batch.topk_logits.chunks(3).flat_map(|x| x[..2].to_vec()).collect();
    let narrower =
        Batch { dims: Dims(3, 4, 2, 18, 7), topk_ids: narrow(&batch.topk_ids), topk_logits: logits, ..batch.clone() };
    let limited = batch.assess(&open_model(), &Policy { top_k: Some(2), ..POLICY }, &ADAM, 0.1);
    assert_eq!(limited, narrower.assess(&open_model(), &POLICY, &ADAM, 0.1));
    assert_eq!(
        batch.assess(&open_model(), &Policy { top_k: Some(9), ..POLICY }, &ADAM, 0.1),
        batch.assess(&open_model(), &POLICY, &ADAM, 0.1)
    );
}

/// One way to get a batch's description wrong, and the sentence that answers it.
type Mistake = (for<'a> fn(&mut LastLayer<'a>), &'static str);

const MISTAKES: [Mistake; 10] = [
    (|x| x.width = 0, "`width` is 0, expected at least 1 (pass the last layer's input width)"),
    (|x| x.k = 8, "`k` is 8, expected 1 to the vocabulary size 7 (keep that many logits per token)"),
    (|x| x.vocab_size = 0, "`vocab_size` is 0, expected 1 to 2^32 (ids are 32-bit)"),
    (
        device::shorten_hidden,
        "`hidden` has 215 entries, expected 3 x 4 x 18 for `[B, T, D]` (check the batch's dimensions)",
    ),
    (
        device::shorten_logits,
        "`topk_logits` has 3 entries, expected 3 x 4 x 3 for `[B, T, K]` (check the batch's dimensions)",
    ),
    (|x| x.action_ids = &[], "`action_ids` has 0 entries, expected 3 x 4 for `[B, T]` (check the batch's dimensions)"),
    (
        |x| x.completions = usize::MAX,
        "`hidden` has 216 entries, expected 18446744073709551615 x 4 x 18 for `[B, T, D]` (check the batch's dimensions)",
    ),
    (
        |x| x.group_size = 0,
        "`group_size` is 0, expected a divisor of the 3 completions (pass the completions per prompt)",
    ),
    (
        |x| x.group_size = 2,
        "`group_size` is 2, expected a divisor of the 3 completions (pass the completions per prompt)",
    ),
    (
        |x| x.vocab_size = 6,
        "token 1 of completion 2 has id 6, expected below the vocabulary size 6 (check `topk_ids`, `action_ids`)",
    ),
];

#[test]
fn mistakes_in_the_batch_are_named() {
    let mut batch = Batch::full(&mut Rng(12), DIMS);
    batch.topk_ids.iter_mut().chain(&mut batch.action_ids).for_each(|id| *id %= 6);
    batch.action_ids[9] = 6;
    for (change, sentence) in MISTAKES {
        let mut view = batch.view();
        change(&mut view);
        let step = Step { batch: view, ..batch.step(&POLICY, &ADAM, 0.1) };
        let result = open_model().prepare(&step, &batch.mask);
        assert_eq!(result.unwrap_err().to_string(), sentence);
    }
}

#[test]
fn mistakes_in_the_settings_are_named() {
    let batch = Batch::full(&mut Rng(13), DIMS);
    let complaint = |policy: Policy, optimizer: OptimizerModel, lr: f64, mask: &[u8]| {
        let result = open_model().prepare(&batch.step(&policy, &optimizer, lr), mask);
        result.unwrap_err().to_string()
    };
    let cold = complaint(Policy { temperature: 0.0, ..POLICY }, ADAM, 0.1, &batch.mask);
    assert_eq!(
        cold,
        "sampling temperature is `0`, expected a finite number above 0 (greedy sampling has no policy gradient)"
    );
    let none = complaint(Policy { top_k: Some(0), ..POLICY }, ADAM, 0.1, &batch.mask);
    assert_eq!(none, "`top_k` is 0, expected at least 1 (leave it out for no limit)");
    let beta = complaint(POLICY, OptimizerModel { beta2: 1.0, ..ADAM }, 0.1, &batch.mask);
    assert_eq!(beta, "adam's `beta2` is 1, expected at least 0 and below 1 (0.999 is usual)");
    let eps = complaint(POLICY, OptimizerModel { eps: 0.0, ..ADAM }, 0.1, &batch.mask);
    assert_eq!(eps, "adam's `eps` is 0, expected a finite number above 0 (1e-8 is usual)");
    let rate = complaint(POLICY, ADAM, f64::NAN, &batch.mask);
    assert_eq!(
        rate,
        "`learning_rate` is NaN, expected a finite number of at least 0 (pass the rate of the coming step)"
    );
    let mask = complaint(POLICY, ADAM, 0.1, &batch.mask[1..]);
    assert_eq!(mask, "`mask` has 11 entries, expected 3 x 4 for `[B, T]` (check the batch's dimensions)");

    let refused =
        |acceptance| CurvatureModel::new(acceptance, Granularity::Token, Semantics::PAPER).unwrap_err().to_string();
    assert_eq!(
        refused(Acceptance { fisher_threshold: Some(f64::NAN), ..Acceptance::default() }),
        "`fisher_threshold` is NaN, expected above 0 (leave it out to switch it off)"
    );
    assert_eq!(
        refused(Acceptance { hessian_range: Some([0.1, -0.1]), ..Acceptance::default() }),
        "`hessian_range` is [0.1, -0.1], expected a low end below the high end (leave it out to switch it off)"
    );
}
