//! The switches of [`Semantics`], one by one: what each changes, and what it leaves as in the
//! paper.

use capo_core::{
    Assessment, CurvatureAverage, CurvatureModel, EmptyState, Feature, Granularity, MomentUpdate,
    OptimizerModel, OutsideAction, Policy, RejectedBatch, Semantics, StateDtype, Temperature,
    UntouchedRows, Weights,
};

use super::fixture::{ADAM, Dims, OPEN, POLICY, Rng, SGD, model};
use super::scene::Scene;

const DIMS: Dims = Dims(4, 3, 3, 18, 7);
const PAPER: Semantics = Semantics::PAPER;
const RATE: f64 = 0.1;

const NEXT: Semantics = Semantics {
    feature: Feature::Next,
    ..PAPER
};
const TOP_K: Semantics = Semantics {
    temperature: Temperature::One,
    outside_action: OutsideAction::LeaveOut,
    ..PAPER
};
const ROW_MEAN: Semantics = Semantics {
    subset_weights: Weights::RowMean,
    moment_input: Weights::RowMean,
    ..PAPER
};
const FREEZE: Semantics = Semantics {
    untouched_rows: UntouchedRows::Freeze,
    ..PAPER
};
const COUNTS: Semantics = Semantics {
    rejected_batch: RejectedBatch::Counts,
    ..PAPER
};
const COMPLETION_MEAN: Semantics = Semantics {
    curvature_average: CurvatureAverage::CompletionMean,
    ..PAPER
};
const RAW_GRADIENT: Semantics = Semantics {
    empty_state: EmptyState::RawGradient,
    ..PAPER
};

/// Assessment of a batch by a model without history.
fn fresh(
    scene: &Scene,
    granularity: Granularity,
    semantics: Semantics,
    optimizer: &OptimizerModel,
) -> Assessment {
    scene.assess(&model(semantics, granularity), optimizer, RATE)
}

#[test]
fn the_next_feature_of_a_short_completion_may_lie_in_padding() {
    let mut scene = Scene::full(&mut Rng(41), DIMS, 1.0);
    scene.batch.mask[2] = 0;
    scene.batch.hidden[2 * 18] = f32::NAN;
    let got = fresh(&scene, Granularity::Token, NEXT, &SGD);
    assert_eq!(
        (
            got.token_mask[1],
            got.rejected.not_finite,
            got.rejected.total
        ),
        (0, 1, 1)
    );
    assert_eq!(
        fresh(&scene, Granularity::Token, PAPER, &SGD)
            .rejected
            .total,
        0
    );
}

#[test]
fn top_k_knows_neither_the_temperature_nor_the_logit_of_the_action() {
    let scene = Scene {
        policy: POLICY,
        ..Scene::full(&mut Rng(42), DIMS, 1.0)
    };
    let hot = Scene {
        policy: Policy {
            temperature: 3.0,
            ..POLICY
        },
        ..scene.clone()
    };
    let mut spoilt = scene.clone();
    spoilt.batch.action_logits.fill(f32::NAN);
    let hot = fresh(&hot, Granularity::Token, TOP_K, &ADAM);
    assert_eq!(hot, fresh(&spoilt, Granularity::Token, TOP_K, &ADAM));
    let paper = fresh(&scene, Granularity::Token, PAPER, &ADAM);
    let Scene { batch, .. } = &scene;
    for at in 0..12 {
        let inside = batch.topk_ids[at * 3..][..3].contains(&batch.action_ids[at]);
        assert_eq!(hot.m_h[at] == paper.m_h[at], inside, "token {at}");
    }
}

#[test]
fn a_rejected_batch_counts_and_moves_nothing_else() {
    let scene = Scene::full(&mut Rng(49), DIMS, 1.0);
    let none = vec![0; scene.batch.mask.len()];
    let run = |semantics| {
        let mut model = model(semantics, Granularity::Token);
        scene.commit_kept(&mut model, &ADAM, &none);
        let start = (model.steps(), model.rows());
        scene.commit(&mut model, &ADAM);
        let before = model.save().unwrap();
        scene.commit_kept(&mut model, &ADAM, &none);
        (start, before, model.save().unwrap(), model.steps())
    };
    let (start, before, after, steps) = run(PAPER);
    assert_eq!((start, steps), ((0, 0), 1));
    assert_eq!(before, after);
    let (start, before, after, steps) = run(Semantics {
        untouched_rows: UntouchedRows::Freeze,
        ..COUNTS
    });
    assert_eq!((start, steps), ((1, 0), 3));
    // All but the counter, at byte 28, and the checksum.
    assert_eq!(
        (&before[36..before.len() - 4], before[28]),
        (&after[36..after.len() - 4], 2)
    );
    assert_eq!(run(COUNTS).3, 3);
    // SGD has no counter.
    let mut sgd = model(COUNTS, Granularity::Token);
    scene.commit_kept(&mut sgd, &SGD, &none);
    assert_eq!(sgd.steps(), 0);
}

#[test]
fn refuses_state_of_other_semantics() {
    let matters = [
        ("feature", NEXT),
        (
            "temperature",
            Semantics {
                temperature: Temperature::One,
                ..PAPER
            },
        ),
        (
            "outside_action",
            Semantics {
                outside_action: OutsideAction::LeaveOut,
                ..PAPER
            },
        ),
        ("moment_input", ROW_MEAN),
        (
            "moment_update",
            Semantics {
                moment_update: MomentUpdate::WithThresholds,
                ..PAPER
            },
        ),
        ("untouched_rows", FREEZE),
        ("rejected_batch", COUNTS),
        (
            "state_dtype",
            Semantics {
                state_dtype: StateDtype::Bf16,
                ..PAPER
            },
        ),
    ];
    let saved = model(PAPER, Granularity::Token).save().unwrap();
    for (key, semantics) in matters {
        let mut model = model(semantics, Granularity::Token);
        let before = model.save().unwrap();
        let sentence = model.load(&saved).unwrap_err().to_string();
        assert!(
            sentence.starts_with(&format!("curvature state was made with `{key}` = `")),
            "{sentence}"
        );
        assert_eq!(model.save().unwrap(), before);
    }
    // These change proposals, not moments.
    for semantics in [
        COMPLETION_MEAN,
        RAW_GRADIENT,
        Semantics {
            subset_weights: Weights::RowMean,
            ..PAPER
        },
    ] {
        model(semantics, Granularity::Token).load(&saved).unwrap();
    }
    assert_eq!(
        model(NEXT, Granularity::Token)
            .load(&saved)
            .unwrap_err()
            .to_string(),
        "curvature state was made with `feature` = `aligned`, this model has `next` (set it as it was, or start without a state)"
    );
}

#[test]
fn the_authors_have_no_groups() {
    let refused = CurvatureModel::new(OPEN, Granularity::Group, Semantics::AUTHORS)
        .unwrap_err()
        .to_string();
    assert_eq!(
        refused,
        "`granularity` is `group`, which the authors' semantics do not have (choose `token`, `completion` or `batch`, or the paper's semantics)"
    );
}
