//! The switches of [`Semantics`], one by one: what each changes, and what it leaves as in the paper.

use capo_core::{
    Assessment, CurvatureAverage, CurvatureModel, EmptyState, Feature, Granularity, MomentUpdate, OptimizerModel,
    OutsideAction, Policy, RejectedBatch, Semantics, StateDtype, Temperature, UntouchedRows, Weights,
};

use super::fixture::{ADAM, Batch, Dims, GRANULARITIES, OPEN, POLICY, Rng, SGD, model};

const DIMS: Dims = Dims(4, 3, 3, 18, 7);
const PAPER: Semantics = Semantics::PAPER;
const RATE: f64 = 0.1;

const NEXT: Semantics = Semantics { feature: Feature::Next, ..PAPER };
const TOP_K: Semantics = Semantics { temperature: Temperature::One, outside_action: OutsideAction::LeaveOut, ..PAPER };
const ROW_MEAN: Semantics = Semantics { subset_weights: Weights::RowMean, moment_input: Weights::RowMean, ..PAPER };
const FREEZE: Semantics = Semantics { untouched_rows: UntouchedRows::Freeze, ..PAPER };
const COUNTS: Semantics = Semantics { rejected_batch: RejectedBatch::Counts, ..PAPER };
const COMPLETION_MEAN: Semantics = Semantics { curvature_average: CurvatureAverage::CompletionMean, ..PAPER };
const RAW_GRADIENT: Semantics = Semantics { empty_state: EmptyState::RawGradient, ..PAPER };

/// Assessment of a batch by a model without history.
fn fresh(batch: &Batch, granularity: Granularity, semantics: Semantics, optimizer: &OptimizerModel) -> Assessment {
    batch.assess(&model(semantics, granularity), &POLICY, optimizer, RATE)
}

#[test]
fn the_next_feature_is_the_paper_on_shifted_features() {
    let batch = Batch::random(&mut Rng(40), DIMS);
    let mut shifted = batch.clone();
    for (row, own) in shifted.hidden.chunks_mut(3 * 18).zip(batch.hidden.chunks(3 * 18)) {
        row[..2 * 18].copy_from_slice(&own[18..]); // the last position keeps its own
    }
    for (granularity, optimizer) in GRANULARITIES.into_iter().flat_map(|x| [(x, SGD), (x, ADAM)]) {
        let run = |batch: &Batch, semantics| {
            let mut model = model(semantics, granularity);
            batch.commit(&mut model, &POLICY, &optimizer, &batch.mask);
            (batch.assess(&model, &POLICY, &optimizer, RATE), model.rows())
        };
        assert_eq!(run(&batch, NEXT), run(&shifted, PAPER));
        assert_ne!(run(&batch, NEXT), run(&batch, PAPER));
    }
}

#[test]
fn the_next_feature_of_a_short_completion_may_lie_in_padding() {
    let mut batch = Batch::full(&mut Rng(41), DIMS);
    batch.mask[2] = 0;
    batch.hidden[2 * 18] = f32::NAN;
    let got = fresh(&batch, Granularity::Token, NEXT, &SGD);
    assert_eq!((got.keep[1], got.rejected.not_finite, got.rejected.total), (0, 1, 1));
    assert_eq!(fresh(&batch, Granularity::Token, PAPER, &SGD).rejected.total, 0);
}

#[test]
fn top_k_knows_neither_the_temperature_nor_the_logit_of_the_action() {
    let batch = Batch::full(&mut Rng(42), DIMS);
    let mut spoilt = batch.clone();
    spoilt.action_logits.fill(f32::NAN);
    let top_k = model(TOP_K, Granularity::Token);
    let hot = batch.assess(&top_k, &Policy { temperature: 3.0, ..POLICY }, &ADAM, RATE);
    assert_eq!(hot, spoilt.assess(&top_k, &POLICY, &ADAM, RATE));
    let paper = fresh(&batch, Granularity::Token, PAPER, &ADAM);
    for at in 0..12 {
        let inside = batch.topk_ids[at * 3..][..3].contains(&batch.action_ids[at]);
        assert_eq!(hot.m_h[at] == paper.m_h[at], inside, "token {at}");
    }
}

#[test]
fn row_means_are_token_means_where_all_tokens_touch_all_rows() {
    let batch = Batch::full(&mut Rng(43), Dims(4, 3, 7, 18, 7));
    for (granularity, optimizer) in GRANULARITIES.into_iter().flat_map(|x| [(x, SGD), (x, ADAM)]) {
        let row_mean = fresh(&batch, granularity, ROW_MEAN, &optimizer);
        assert_eq!(row_mean, fresh(&batch, granularity, PAPER, &optimizer));
    }
}

#[test]
fn an_empty_state_proposes_the_gradient() {
    let batch = Batch::full(&mut Rng(48), DIMS);
    for granularity in GRANULARITIES {
        let raw = RAW_GRADIENT;
        assert_eq!(fresh(&batch, granularity, raw, &ADAM), fresh(&batch, granularity, PAPER, &SGD));
        let decayed = OptimizerModel { weight_decay: 0.5, ..ADAM };
        assert_eq!(fresh(&batch, granularity, raw, &decayed), fresh(&batch, granularity, PAPER, &SGD));
        let after = |semantics| {
            let mut model = model(semantics, granularity);
            batch.commit(&mut model, &POLICY, &ADAM, &batch.mask);
            batch.assess(&model, &POLICY, &ADAM, RATE)
        };
        assert_eq!(after(raw), after(PAPER));
    }
}

#[test]
fn a_rejected_batch_counts_and_moves_nothing_else() {
    let batch = Batch::full(&mut Rng(49), DIMS);
    let none = vec![0; batch.mask.len()];
    let run = |semantics| {
        let mut model = model(semantics, Granularity::Token);
        batch.commit(&mut model, &POLICY, &ADAM, &none);
        let start = (model.steps(), model.rows());
        batch.commit(&mut model, &POLICY, &ADAM, &batch.mask);
        let before = model.save().unwrap();
        batch.commit(&mut model, &POLICY, &ADAM, &none);
        (start, before, model.save().unwrap(), model.steps())
    };
    let (start, before, after, steps) = run(PAPER);
    assert_eq!((start, steps), ((0, 0), 1));
    assert_eq!(before, after);
    let (start, before, after, steps) = run(Semantics { untouched_rows: UntouchedRows::Freeze, ..COUNTS });
    assert_eq!((start, steps), ((1, 0), 3));
    // All but the counter, at byte 28, and the checksum.
    assert_eq!((&before[36..before.len() - 4], before[28]), (&after[36..after.len() - 4], 2));
    assert_eq!(run(COUNTS).3, 3);
    // SGD has no counter.
    let mut sgd = model(COUNTS, Granularity::Token);
    batch.commit(&mut sgd, &POLICY, &SGD, &none);
    assert_eq!(sgd.steps(), 0);
}

#[test]
fn state_of_other_moments_is_refused() {
    let matters = [
        ("feature", NEXT),
        ("temperature", Semantics { temperature: Temperature::One, ..PAPER }),
        ("outside_action", Semantics { outside_action: OutsideAction::LeaveOut, ..PAPER }),
        ("moment_input", ROW_MEAN),
        ("moment_update", Semantics { moment_update: MomentUpdate::WithThresholds, ..PAPER }),
        ("untouched_rows", FREEZE),
        ("rejected_batch", COUNTS),
        ("state_dtype", Semantics { state_dtype: StateDtype::Bf16, ..PAPER }),
    ];
    let saved = model(PAPER, Granularity::Token).save().unwrap();
    for (key, semantics) in matters {
        let mut model = model(semantics, Granularity::Token);
        let before = model.save().unwrap();
        let sentence = model.load(&saved).unwrap_err().to_string();
        assert!(sentence.starts_with(&format!("curvature state was made with `{key}` = `")), "{sentence}");
        assert_eq!(model.save().unwrap(), before);
    }
    // These change proposals, not moments.
    for semantics in [COMPLETION_MEAN, RAW_GRADIENT, Semantics { subset_weights: Weights::RowMean, ..PAPER }] {
        model(semantics, Granularity::Token).load(&saved).unwrap();
    }
    assert_eq!(
        model(NEXT, Granularity::Token).load(&saved).unwrap_err().to_string(),
        "curvature state was made with `feature` = `aligned`, this model has `next` (set it as it was, or start without a state)"
    );
}

#[test]
fn the_authors_have_no_groups() {
    let refused = CurvatureModel::new(OPEN, Granularity::Group, Semantics::AUTHORS).unwrap_err().to_string();
    assert_eq!(
        refused,
        "`granularity` is `group`, which the authors' semantics do not have (choose `token`, `completion` or `batch`, or the paper's semantics)"
    );
}
