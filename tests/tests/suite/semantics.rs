//! The curvature mask's presets and options in whole runs: they train, resume bit for bit, and
//! replay with the same decisions.

use tests::run_dir::tensors;
use tests::{Folder, RunDir};

use crate::replay::{dumped, tokens_and_dropped};

/// Six steps of two micro-batches with rollouts that are used twice, so that ratios differ from 1.
const SIX_STEPS: &str = "--plugin libcapo.so --set train.max_steps=6 --set eval.num_prompts=0 --set train.save_steps=0 \
    --set train.per_device_train_batch_size=24 --set train.num_iterations=2";

fn mask(settings: &str) -> String {
    settings
        .split_whitespace()
        .map(|setting| format!(" --set mask.0.{setting}"))
        .collect()
}

/// Trains whole, and stopped half-way and resumed; replays the batches; returns the whole run.
fn check(settings: &str, more: &str) -> (Folder, RunDir) {
    let folder = Folder::new();
    let args = format!("{SIX_STEPS}{}{more}", mask(settings));
    let whole = folder.train("whole", &format!("{args} --dump-batches dump"));
    folder.train("resumed", &format!("{args} --stop-after 3"));
    folder.resume("resumed").assert_same_files(&whole);

    let replayed = folder.host(&format!(
        "replay --plugin libcapo.so --config whole/config.toml --out out{}",
        dumped(6)
    ));
    replayed.succeeded();
    let (shifts, rates) = (
        whole.metric("capo.curvature/m_f/max"),
        whole.metric("mask/rejection_rate"),
    );
    for ((batch, m_f), rate) in dumped(6).split_whitespace().zip(&shifts).zip(rates) {
        let found = tensors(&folder.path().join(batch.replace("dump", "out")));
        let largest = found["capo.curvature/m_f"]
            .iter()
            .copied()
            .fold(0.0, f32::max);
        assert_eq!(f64::from(largest), *m_f, "{settings}");
        assert!(found["capo.curvature/kl"].iter().all(|&kl| kl >= 0.0));
        let (tokens, dropped) = tokens_and_dropped(&folder, batch, "out");
        assert!(
            (dropped / tokens - rate).abs() < 1e-12,
            "{settings}: {dropped} of {tokens} against {rate}"
        );
    }
    assert_eq!(whole.metric("step_skipped"), [0.0; 6]);
    assert!(whole.metric("grad_norm").iter().all(|norm| *norm > 0.0));
    assert!(
        whole
            .metrics()
            .iter()
            .flat_map(|line| line.values())
            .all(|value| !value.is_null())
    );
    assert!(
        shifts[1..].iter().all(|&m_f| m_f > 0.0),
        "{settings}: {shifts:?}"
    );
    (folder, whole)
}

#[test]
fn exact_shifts_equal_the_divergence() {
    let both = " --set train.second_moment=kept_and_rejected";
    let (_folder, run) = check(
        "semantics=exact fisher_threshold=1e-6 hessian_threshold=1e-3",
        both,
    );
    assert!(
        run.metric("capo.curvature/rejection_rate")
            .iter()
            .any(|&rate| rate > 0.0)
    );
    // With exact shifts, m_F is the divergence.
    assert_eq!(
        run.metric("capo.curvature/m_f/max"),
        run.metric("capo.curvature/kl/max")
    );
    assert_eq!(
        run.metric("capo.curvature/m_h/max"),
        run.metric("capo.curvature/surrogate/max")
    );
}

#[test]
fn rounded_moments_change_the_authors_shifts() {
    let (_folder, run) = check(
        "semantics=authors state_dtype=bf16 granularity=completion fisher_threshold=1e-6",
        "",
    );
    let other = Folder::new();
    let plain = other.train(
        "run",
        &format!(
            "{SIX_STEPS}{}",
            mask("semantics=authors granularity=completion")
        ),
    );
    let m_f = "capo.curvature/m_f/max";
    assert_ne!(run.metric(m_f)[5], plain.metric(m_f)[5], "rounding shows");
}

#[test]
fn the_trainers_own_moments() {
    let (_folder, run) = check("semantics=exact moments=host", "");
    assert!(
        run.metric("capo.curvature/rows")
            .iter()
            .all(|&rows| rows == 0.0),
        "the mask keeps none"
    );
    let (_folder, own) = check("semantics=exact", "");
    let of = |run: &RunDir| run.metric("capo.curvature/m_f_p90")[5];
    let ratio = of(&run) / of(&own);
    // The host's moments come from the head's full, clipped gradient, the mask's own from the kept
    // rows.
    assert!((0.1..10.0).contains(&ratio), "{ratio}");
    assert_ne!(ratio, 1.0);
}

#[test]
fn shifts_include_the_decay_of_weights() {
    let decayed = " --set train.weight_decay=10.0";
    let (_folder, run) = check("", decayed);
    let (_folder, without) = check("optimizer=adam", decayed);
    let m_f = "capo.curvature/m_f/max";
    assert_ne!(run.metric(m_f)[3], without.metric(m_f)[3]);
}

#[test]
fn computes_the_terms_of_the_theorem() {
    let (_folder, run) = check("granularity=batch semantics=exact", "");
    let last = |name: &str| run.metric(&format!("capo.curvature/theorem_{name}"))[5];
    assert!(last("step_norm") > 0.0 && last("hessian_bound") > 0.0 && last("gap") > 0.0);
    assert_eq!(
        last("holds"),
        f64::from(u8::from(
            last("omega") > 0.0 && last("omega") >= last("gap")
        ))
    );
}
