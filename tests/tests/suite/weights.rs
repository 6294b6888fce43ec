//! Weights in a run: a weight of 1 changes nothing, 0 rejects like a mask, and several weights
//! multiply.

use capo_loader::batch_file;
use tests::run_dir::tensors;
use tests::{Folder, RunDir};

use crate::{FOUR_STEPS, FROM_THE_FIRST_STEP};

/// The arguments of a run with these `[[weight]]` tables and masks of libmisbehave.so, which do
/// what their settings say.
fn told(weights: &[&str], masks: &[&str], extra: &str) -> String {
    let list = |section: &str, sins: &[&str]| {
        let tables: Vec<String> = sins
            .iter()
            .map(|sin| format!("{{use=\"misbehave.{section}\",sin=\"{sin}\"}}"))
            .collect();
        format!("--set {section}=[{}]", tables.join(","))
    };
    let lists = format!("{} {}", list("weight", weights), list("mask", masks));
    format!("--plugin libmisbehave.so {lists} --set train.save_steps=1 {FOUR_STEPS} {extra}")
}

/// A run with curvature weights and no mask.
const CURVATURE: &str = "--plugin libcapo.so --set mask=[] --weight capo.curvature-weight";

/// The first step of a warm-up has a rate of 0, but its gradient acts in later steps. Weights
/// therefore see the rate of these.
#[test]
fn weights_see_the_rates_of_the_coming_warm_up() {
    let folder = Folder::new();
    let warm = "--set train.lr_scheduler_type=linear --set train.warmup_ratio=0.5 --set train.learning_rate=1e-3";
    let run = |name: &str, more: &str| {
        folder.train(name, &format!("{CURVATURE} {FOUR_STEPS} {warm} {more}"))
    };
    let mean = |run: &RunDir| run.metric("capo.curvature-weight/weight/mean");
    let judged = run("judged", "--dump-batches dump");
    let own = run("own", "--set weight.0.learning_rate=step");
    assert!(mean(&judged)[0] < 0.9, "{:?}", mean(&judged));
    assert_eq!(mean(&own)[0], 1.0);
    assert!(judged.metric("grad_norm")[0] < 0.5 * own.metric("grad_norm")[0]);
    let rates: Vec<_> = (0..4)
        .map(|step| {
            batch_file::read(&folder.path().join("dump").join(batch_file::name(step)))
                .unwrap()
                .scalars
        })
        .map(|scalars| (scalars.optimizer.learning_rate, scalars.step_learning_rate))
        .collect();
    assert_eq!(
        rates,
        [
            (1e-3, Some(0.0)),
            (1e-3, Some(5e-4)),
            (1e-3, Some(1e-3)),
            (5e-4, Some(5e-4))
        ]
    );
    // A replay decides about a recorded batch as its run did.
    let replay =
        "replay --plugin libcapo.so --weight capo.curvature-weight --set mask=[] --out out";
    folder
        .host(&format!("{replay} dump/{}", batch_file::name(0)))
        .succeeded();
    let mut replayed =
        tensors(&folder.path().join("out").join(batch_file::name(0)))["weights"].clone();
    replayed.retain(|&weight| weight != 0.0);
    let replayed = replayed
        .iter()
        .map(|&weight| f64::from(weight))
        .sum::<f64>()
        / replayed.len() as f64;
    assert!((replayed - mean(&judged)[0]).abs() < 1e-6, "{replayed}");
}

#[test]
fn a_weight_of_one_changes_no_bit() {
    let folder = Folder::new();
    let plain = folder.train("plain", &told(&[], &["none"], ""));
    let ones = folder.train("ones", &told(&["none", "none"], &["none"], ""));
    assert_eq!(plain.weights(), ones.weights());
    assert_eq!(plain.metric("loss"), ones.metric("loss"));
    assert_eq!(ones.metric("misbehave.weight/mean"), [1.0; 4]);
    assert_eq!(ones.metric("misbehave.weight#2/below_one"), [0.0; 4]);
    assert_eq!(
        ones.metric("misbehave.weight/weighted_away_gradient_share"),
        [0.0; 4]
    );
}

#[test]
fn a_weight_of_zero_rejects_like_a_mask() {
    for denominator in ["kept", "original"] {
        let folder = Folder::new();
        let extra = format!("--set train.mask_denominator={denominator}");
        let masked = folder.train("masked", &told(&[], &["reject_half"], &extra));
        let weighed = folder.train("weighed", &told(&["zero_half"], &[], &extra));
        assert_eq!(masked.weights(), weighed.weights(), "{denominator}");
        assert_eq!(
            masked.metric("mask/rejection_rate"),
            weighed.metric("mask/rejection_rate")
        );
        let away = weighed.metric("misbehave.weight/weighted_away_gradient_share");
        assert_eq!(
            masked.metric("misbehave.mask/rejected_gradient_share"),
            away
        );
    }
}

#[test]
fn weights_multiply_and_scale_the_loss_but_not_the_count() {
    let folder = Folder::new();
    let plain = folder.train("plain", &told(&[], &[], ""));
    let one = folder.train("one", &told(&["half", "double"], &[], ""));
    assert_eq!(plain.weights(), one.weights());
    let half = folder.train("half", &told(&["half"], &[], "--stop-after 1"));
    assert_eq!(half.metric("loss")[0], 0.5 * plain.metric("loss")[0]);
    assert_eq!(
        half.metric("grad_norm")[0],
        0.5 * plain.metric("grad_norm")[0]
    );
    assert_eq!(half.metric("misbehave.weight/mean"), [0.5]);
    assert_eq!(half.metric("misbehave.weight/below_one"), [1.0]);
    let away = half.metric("misbehave.weight/weighted_away_gradient_share")[0];
    assert!((away - 0.75).abs() < 1e-12, "{away}");
}

#[test]
fn a_resumed_run_goes_on_with_the_same_bits() {
    let folder = Folder::new();
    let whole = folder.assert_resumes(&told(&["stateful", "half"], &["stateful"], ""), 1..4);
    assert_eq!(whole.metric("misbehave.weight/calls"), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn curvature_weights_move_no_token_further_than_their_bound() {
    let folder = Folder::new();
    let run = folder.train(
        "run",
        &format!("{CURVATURE} {FROM_THE_FIRST_STEP} {FOUR_STEPS} --dump-batches batches"),
    );
    let means = run.metric("capo.curvature-weight/mean");
    assert!(
        means.iter().all(|mean| (0.0..1.0).contains(mean)),
        "{means:?}"
    );
    assert_eq!(run.metric("mask/rejection_rate"), [0.0; 4]);
    // A replay computes the same weights, and each follows from its token's shift.
    let batches = "batches/batch-000000.safetensors batches/batch-000001.safetensors";
    let outcome = folder
        .host(&format!("replay {CURVATURE} --out replayed {batches}"))
        .succeeded();
    assert!(
        outcome.stdout.contains("mean weight 0."),
        "{}",
        outcome.stdout
    );
    let tensors = tests::run_dir::tensors(&folder.path().join("replayed/batch-000000.safetensors"));
    let (weights, m_f, token_mask) = (
        &tensors["weights"],
        &tensors["capo.curvature-weight/m_f"],
        &tensors["token_mask"],
    );
    for ((weight, m_f), keep) in weights.iter().zip(m_f).zip(token_mask) {
        let expected = if *keep == 0.0 {
            0.0
        } else {
            (1e-6_f64 / f64::from(*m_f)).sqrt().min(1.0) as f32
        };
        assert_eq!(*weight, expected, "{m_f}");
    }
    let sum: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
    let mean = sum / token_mask.iter().map(|&keep| f64::from(keep)).sum::<f64>();
    assert!((mean - means[0]).abs() < 1e-9, "{mean} {}", means[0]);
}

#[test]
fn sweeps_thresholds_of_weights_like_those_of_masks() {
    let folder = Folder::new();
    folder.train(
        "run",
        &format!("{CURVATURE} {FOUR_STEPS} --dump-batches batches"),
    );
    let sweep = "--sweep weight.0.fisher_threshold=1e-8..1e-2:3 batches/batch-000000.safetensors";
    let outcome = folder
        .host(&format!("replay {CURVATURE} {sweep}"))
        .succeeded();
    insta::assert_snapshot!(outcome.stdout.trim_end());
}
