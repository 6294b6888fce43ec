//! The rollout's context, which components get if they ask for it, and log-probabilities of a
//! sampler that differs from the trainer.

use capo_loader::batch_file;
use insta::assert_snapshot;
use safetensors::SafeTensors;
use tests::{Folder, RunDir};

use crate::FOUR_STEPS;
use crate::replay::{dumped, tokens_and_dropped};

fn settings(sin: &str, extra: &str) -> String {
    let mask = format!("mask=[{{use=\"misbehave.mask\",sin=\"{sin}\"}}]");
    format!("--plugin libmisbehave.so --set {mask} {FOUR_STEPS} {extra}")
}

fn train(extra: &str) -> (Folder, RunDir) {
    let folder = Folder::new();
    let run = folder.train("run", &settings("context", extra));
    (folder, run)
}

/// Settings with which sampler and trainer compute the same distribution.
const SAME: &str = "--set train.loss_temperature=0.9";

/// Metrics of the difference between sampler and trainer.
const MISMATCH: [&str; 4] = [
    "sampling/sampling_logp_difference/max",
    "sampling/importance_sampling_ratio/mean",
    "rollout_corr/k3_kl",
    "rollout_corr/chi2_seq",
];

#[test]
fn the_samplers_log_probabilities_are_its_own() {
    let folder = Folder::new();
    let train = |name: &str, extra: &str| {
        folder.train(name, &settings("context", &format!("{SAME} {extra}")))
    };
    let own = |run: &RunDir| run.metric("misbehave.mask/farthest");
    // The sampler draws from the distribution that the trainer computes, so both agree up to
    // rounding.
    let same = train("same", "");
    assert!(own(&same).iter().all(|far| *far < 1e-4), "{:?}", own(&same));
    train("said", "--set rollout.dtype=f32").assert_same(&same);
    // Asking for the context does not change the run. If nobody asks and both distributions are the
    // same, there are no metrics of their difference.
    let plain = folder.train("plain", &settings("none", SAME));
    assert_eq!(plain.weights(), same.weights());
    for name in MISMATCH {
        assert!(
            plain.metric(name).is_empty(),
            "{name} where sampler and trainer are one"
        );
    }
    // With truncation or another temperature, the log-probabilities differ.
    for extra in ["top_k=3", "top_p=0.8", "temperature=1.2"] {
        let run = train(extra, &format!("--set rollout.{extra}"));
        let [farthest, ratio] =
            [MISMATCH[0], "sampling/importance_sampling_ratio/max"].map(|name| run.metric(name));
        for farthest in [own(&run), farthest] {
            assert!(
                farthest.len() == 4 && farthest.iter().all(|far| *far > 1e-3),
                "{extra}: {farthest:?}"
            );
        }
        // Truncation gives the remaining tokens more probability. Otherwise no token gets more.
        let truncated = extra.starts_with("top");
        assert!(
            ratio.iter().all(|ratio| truncated == (*ratio < 1.001)),
            "{extra}: {ratio:?}"
        );
    }
    let bf16 = train("bf16", "--set train.dtype=bf16");
    assert!(
        own(&bf16).iter().all(|far| *far > 0.0 && *far < 1.0),
        "the sampler decodes in bf16 too, and sums in another order: {:?}",
        own(&bf16)
    );
    let rounded = train("rounded", "--set rollout.dtype=bf16");
    let farthest = rounded.metric(MISMATCH[0]);
    assert!(
        farthest.len() == 4 && farthest.iter().all(|far| (1e-3..1.0).contains(far)),
        "{farthest:?}"
    );
    for (ratio, k3) in rounded
        .metric(MISMATCH[1])
        .iter()
        .zip(rounded.metric(MISMATCH[2]))
    {
        assert!(
            (ratio - 1.0).abs() < 0.02 && (1e-9..1e-2).contains(&k3),
            "{ratio} {k3}"
        );
    }
}

#[test]
fn a_run_that_samples_in_bf16_goes_on_bit_for_bit() {
    let folder = Folder::new();
    let whole = folder.assert_resumes(
        &format!("{SAME} {FOUR_STEPS} --set rollout.dtype=bf16 --set train.save_steps=2"),
        [2],
    );
    let config = whole.text("config.toml");
    assert!(config.contains("dtype = \"bf16\""), "{config}");
}

#[test]
fn knows_its_age_and_its_prompts() {
    let (_folder, run) = train("--set train.num_iterations=2");
    assert_eq!(run.metric("misbehave.mask/age"), [0.0, 1.0, 0.0, 1.0]);
    assert_eq!(
        run.metric("misbehave.mask/first_prompt"),
        [0.0, 0.0, 6.0, 6.0]
    );
    // Two optimizer steps share a rollout: each sees its own part.
    let (_folder, parts) =
        train("--set train.per_device_train_batch_size=24 --set train.steps_per_generation=2");
    assert_eq!(parts.metric("misbehave.mask/age"), [0.0, 1.0, 0.0, 1.0]);
    assert_eq!(
        parts.metric("misbehave.mask/first_prompt"),
        [0.0, 3.0, 6.0, 9.0]
    );
}

#[test]
fn components_that_do_not_ask_get_nothing() {
    let folder = Folder::new();
    let outcome = folder.attempt("run", &settings("peek_context", ""));
    assert_snapshot!(outcome.failed().split_once("): ").unwrap().1, @"component `misbehave.mask`: `rollout_context` is not in this batch (return `Inputs::ROLLOUT_CONTEXT` from `inputs`)");
    folder.train("dumped", &settings("none", "--dump-batches dump"));
    let replayed = folder.host(&replay("peek_context", "dump/batch-000000.safetensors"));
    assert_snapshot!(replayed.refused(), @"component `misbehave.mask`: `rollout_context` is not in this batch (return `Inputs::ROLLOUT_CONTEXT` from `inputs`)");
}

fn replay(sin: &str, batches: &str) -> String {
    format!(
        "replay --plugin libmisbehave.so --set mask=[{{use=\"misbehave.mask\",sin=\"{sin}\"}}] --out out {batches}"
    )
}

#[test]
fn a_replay_shows_the_context_of_the_training() {
    let folder = Folder::new();
    let run = folder.train(
        "run",
        &settings(
            "context",
            "--set train.num_iterations=2 --dump-batches dump",
        ),
    );
    folder.said(&replay("context", &dumped(4)));
    for (step, line) in run.metrics().iter().enumerate() {
        for name in ["age", "first_prompt", "farthest"] {
            let trained = line[&format!("misbehave.mask/{name}")].as_f64();
            assert_eq!(
                Some(recorded(&folder, step as u64, name)),
                trained,
                "step {step}, {name}"
            );
        }
    }
}

#[test]
fn the_samplers_top_tokens() {
    let folder = Folder::new();
    let number = |run: &RunDir, name: &str| run.metric(&format!("misbehave.mask/{name}"))[3];
    // First k covers the whole vocabulary, and then less.
    let whole = folder.train("whole", &settings("top_k", ""));
    assert!((number(&whole, "least") - 1.0).abs() < 1e-5);
    assert_eq!(
        (number(&whole, "k"), number(&whole, "found")),
        (15.0, tokens(&whole))
    );
    let two = folder.train(
        "two",
        &settings(
            "top_k",
            "--set train.last_layer_top_k=2 --dump-batches dump",
        ),
    );
    assert_eq!(number(&two, "k"), 2.0);
    assert!((0.2..0.999).contains(&number(&two, "least")) && number(&two, "found") < tokens(&two));
    assert_eq!(two.weights(), whole.weights());
    // The tokens that truncation left have a total probability of 1.
    let truncated = "--set rollout.top_k=3 --set train.last_layer_top_k=6 --set rollout.dtype=bf16";
    let truncated = folder.train("truncated", &settings("top_k", truncated));
    assert!((number(&truncated, "least") - 1.0).abs() < 1e-5);
    assert_eq!(
        (number(&truncated, "k"), number(&truncated, "found")),
        (6.0, tokens(&truncated))
    );
    folder.said(&replay("top_k", &dumped(4)));
    assert_eq!(recorded(&folder, 3, "least"), number(&two, "least"));
    // A context without the top tokens, as older files have it.
    let batch = batch_file::read(&folder.path().join(dumped(1).trim())).unwrap();
    let mut context = batch.context.clone().unwrap();
    context.data.set_top_k(0, Vec::new(), Vec::new());
    batch_file::write(
        &folder.path().join("old.safetensors"),
        &batch.view(),
        Some((&context.data, 0)),
    )
    .unwrap();
    assert_snapshot!(folder.refused(&replay("top_k", "old.safetensors")), @"batch file `old.safetensors`: component `misbehave.mask` asks for `sampler_top_k`, which it does not hold (record batches in a run with this component)");
}

/// Completion tokens of the last step, one rollout each.
fn tokens(run: &RunDir) -> f64 {
    48.0 * run.metric("completions/mean_length")[3]
}

/// Value that the mask recorded under `name` in the replay of step `step`.
fn recorded(folder: &Folder, step: u64, name: &str) -> f64 {
    let file = folder.bytes(&format!("out/{}", batch_file::name(step)));
    let (_, header) = SafeTensors::read_metadata(&file).unwrap();
    header.metadata().as_ref().unwrap()[&format!("misbehave.mask/{name}")]
        .parse()
        .unwrap()
}

#[test]
fn a_replay_rejects_the_same_tokens_as_the_training() {
    let folder = Folder::new();
    // Another temperature than the loss's, half of the rollout for each step.
    let parts = "--set train.per_device_train_batch_size=24 --set train.steps_per_generation=2 --set rollout.temperature=1.3";
    let run = folder.train(
        "run",
        &settings("mismatch", &format!("{parts} --dump-batches dump")),
    );
    let rates = run.metric("mask/rejection_rate");
    assert!(
        rates.iter().all(|rate| (0.01..0.9).contains(rate)),
        "{rates:?}"
    );
    folder.said(&replay("mismatch", &dumped(4)));
    for (batch, rate) in dumped(4).split_whitespace().zip(rates) {
        let (tokens, dropped) = tokens_and_dropped(&folder, batch, "out");
        assert!(
            (dropped / tokens - rate).abs() < 1e-12,
            "{batch}: {dropped} of {tokens} against {rate}"
        );
    }
}

#[test]
fn batches_always_hold_the_context() {
    let folder = Folder::new();
    folder.train("run", &format!("{FOUR_STEPS} --dump-batches dump"));
    folder.said(&replay("context", &dumped(4)));
    // Older files look like this.
    let batch = batch_file::read(&folder.path().join(dumped(1).trim())).unwrap();
    batch_file::write(&folder.path().join("old.safetensors"), &batch.view(), None).unwrap();
    folder.said(&replay("none", "old.safetensors"));
    assert_snapshot!(folder.refused(&replay("context", "old.safetensors")), @"batch file `old.safetensors`: component `misbehave.mask` asks for `rollout_context`, which it does not hold (record batches in a run with this component)");
}
