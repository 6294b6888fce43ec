//! Components that take too much time or memory, or that end the process: there is an error message
//! if possible, and the run can go on.

use std::os::unix::process::ExitStatusExt;

use insta::assert_snapshot;
use tests::Folder;

use crate::misbehaviour::{self, Point, clean, committed, committed_with};
use crate::{FOUR_STEPS, ONE_STEP};

const ONE_SECOND: &str = "--set train.component_timeout=1";

/// The settings of a run whose mask commits `sin` in its third step.
fn settings(sin: &str) -> String {
    misbehaviour::settings(Point::Mask, sin)
}

#[test]
fn ends_a_call_that_does_not_return() {
    assert_snapshot!(committed_with(Point::Mask, "hang", ONE_SECOND), @"the run stopped after step 2 (go on with `host train --resume run`): component `misbehave.mask`: `mask` did not come back within 1 s (the limit is `train.component_timeout`; 0 waits without one)");
    assert_snapshot!(committed_with(Point::Mask, "hang_in_save", ONE_SECOND), @"the run stopped after step 3 (`host train --resume run` goes on from the checkpoint of step 2): component `misbehave.mask`: `save` did not come back within 1 s (the limit is `train.component_timeout`; 0 waits without one)");
    assert_snapshot!(committed_with(Point::Reward, "hang", ONE_SECOND), @"the run stopped after step 2 (go on with `host train --resume run`): component `misbehave.reward`: `score` did not come back within 1 s (the limit is `train.component_timeout`; 0 waits without one)");
    assert_snapshot!(committed_with(Point::Environment, "hang", ONE_SECOND), @"the run stopped after step 2 (go on with `host train --resume run`): component `misbehave.environment`: `respond` did not come back within 1 s (the limit is `train.component_timeout`; 0 waits without one)");
}

#[test]
fn ends_a_creation_that_does_not_return() {
    let folder = Folder::new();
    let outcome = folder.host(&format!(
        "train {} {ONE_SECOND}",
        settings("hang_on_creation")
    ));
    assert_snapshot!(outcome.failed(), @"component `misbehave.mask`: `create` did not come back within 1 s (the limit is `train.component_timeout`; 0 waits without one)");
    assert!(
        !folder.path().join("runs").exists(),
        "nothing is written before all is open"
    );
}

#[test]
fn a_time_limit_changes_nothing_else() {
    let folder = Folder::new();
    let off = folder.train(
        "off",
        &format!("{} --set train.component_timeout=0", settings("none")),
    );
    off.assert_same(clean(Point::Mask));
}

/// The error output of a run that `sin` ends with this signal. Resumed without the sin, the run
/// must end like one that never had it.
fn ended_by(sin: &str, signal: i32) -> String {
    let folder = Folder::new();
    let output = folder
        .command(&format!("train --output-dir run {}", settings(sin)))
        .output()
        .unwrap();
    assert_eq!(output.status.signal(), Some(signal), "{output:?}");
    assert_eq!(
        folder.run_dir("run").checkpoints().last(),
        Some(&2),
        "{sin}"
    );
    let said = folder.outcome(output).stderr;
    folder
        .env("MISBEHAVE_OFF", "1")
        .resume("run")
        .assert_same(clean(Point::Mask));
    said
}

#[test]
fn a_component_that_exits_leaves_a_resumable_run() {
    assert_snapshot!(ended_by("abort", 6).trim_end(), @r#"error: the run stopped after step 2 (go on with `host train --resume run`): component `misbehave.mask`: `mask` was running when the process was ended by SIGABRT: an abort, as of a panic in a library that was built with `panic = "abort"`"#);
    assert_snapshot!(ended_by("segfault", 11).trim_end(), @"error: the run stopped after step 2 (go on with `host train --resume run`): component `misbehave.mask`: `mask` was running when the process was ended by SIGSEGV: memory that is not its own, or a stack that is too deep");
    let said = ended_by("overflow", 6);
    assert!(said.starts_with("error: the run stopped after step 2 (go on with `host train --resume run`): component `misbehave.mask`: `mask` was running when the process was ended by SIGSEGV"), "{said}");
    assert!(
        said.contains("has overflowed its stack"),
        "the standard library has its say, too: {said}"
    );
    assert_eq!(
        said.lines()
            .filter(|line| line.starts_with("error: "))
            .count(),
        1,
        "{said}"
    );
    assert_snapshot!(committed(Point::Mask, "exit"), @"the run stopped after step 2 (go on with `host train --resume run`): component `misbehave.mask`: `mask` ended the process with `exit` (return an error in its place)");
}

#[test]
fn reports_a_drop_that_exits_or_does_not_return() {
    let dropped = |sin: &str| {
        let folder = Folder::new();
        folder.attempt("run", &format!("{} {ONE_SECOND}", settings(sin)))
    };
    assert_snapshot!(dropped("exit_in_drop").failed(), @"the run stopped after step 4 (go on with `host train --resume run`): component `misbehave.mask`: `drop` ended the process with `exit` (return an error in its place)");
    assert_snapshot!(dropped("hang_in_drop").failed(), @"the run stopped after step 4 (go on with `host train --resume run`): component `misbehave.mask`: `drop` did not come back within 1 s (the limit is `train.component_timeout`; 0 waits without one)");
    let aborted = dropped("abort_in_drop");
    assert_eq!(aborted.code, None, "{aborted:#?}");
    assert_snapshot!(aborted.stderr.trim_end(), @r#"error: the run stopped after step 4 (go on with `host train --resume run`): component `misbehave.mask`: `drop` was running when the process was ended by SIGABRT: an abort, as of a panic in a library that was built with `panic = "abort"`"#);
    // Here the run is refused for another reason, after the component was created.
    let other = "--set mask=[{use=\"misbehave.mask\",sin=\"exit_in_drop\"},{use=\"misbehave.mask\",sin=\"error_on_creation\"}]";
    assert_snapshot!(Folder::new().host(&format!("train --plugin libmisbehave.so {other} {FOUR_STEPS}")).failed(), @"component `misbehave.mask`: `drop` ended the process with `exit` (return an error in its place)");
}

#[test]
fn reports_a_plugins_thread_that_exits() {
    let folder = Folder::new();
    let outcome = folder.attempt(
        "run",
        &format!(
            "{} --set train.max_steps=100000",
            settings("exit_in_thread")
        ),
    );
    let sentence = outcome.failed();
    assert!(
        sentence.contains("ended the process with `exit`"),
        "{sentence}"
    );
}

#[test]
fn cuts_an_endless_sentence() {
    let sentence = committed(Point::Mask, "long_error");
    assert!(
        sentence.len() < 5000 && sentence.ends_with("e… (cut: 100000000 bytes in all)"),
        "{} bytes",
        sentence.len()
    );
}

#[test]
fn explains_limits_of_the_system() {
    let folder = Folder::new();
    let sizes = r#""vocab_size": 10000000, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "max_position_embeddings": 64"#;
    folder.write(
        "large/config.json",
        format!("{{\"model_type\": \"qwen2\", {sizes}}}"),
    );
    folder.write_tokenizer("large");
    let large = "train --set model.model_name_or_path=large --set model.fresh_weights=true --set eval.num_prompts=0";
    let refused = folder.host_after("ulimit -v 3000000", large).refused();
    assert!(
        refused.starts_with("a model of 640007360 weights takes 3.6 GiB of memory, and "),
        "{refused}"
    );
    // Loading fits into memory, but the first step does not. There is no estimate for this, but the
    // error is still a sentence.
    let little = folder.host_after("ulimit -v 1500000", "generate --model large 1+1=");
    assert!(
        little.code == Some(2) && little.stderr.starts_with("error: "),
        "{little:?}"
    );
    for kibibytes in [150_000, 250_000, 400_000, 800_000] {
        let outcome = folder.host_after(
            &format!("ulimit -v {kibibytes}"),
            &format!("train {ONE_STEP}"),
        );
        let told = outcome.stderr.starts_with("error: ") && !outcome.stderr.contains("panicked");
        assert!(outcome.code == Some(0) || told, "{kibibytes}: {outcome:?}");
    }
    let _ = folder
        .host_after("ulimit -s 64", &format!("train {ONE_STEP}"))
        .succeeded();
    let many = folder.env("RAYON_NUM_THREADS", "100000").host("plugins");
    assert_snapshot!(many.refused(), @"`RAYON_NUM_THREADS` is 100000 (it must be at most 4096; more threads than cores are of no use)");
}

#[test]
fn reports_a_component_that_ends_a_replay() {
    let folder = Folder::new();
    folder.train(
        "run",
        "--plugin libcapo.so --set train.max_steps=1 --set eval.num_prompts=0 --dump-batches dump",
    );
    let mask = "--plugin libmisbehave.so --set mask=[{use=\"misbehave.mask\",sin=\"exit\"}]";
    let outcome = folder.host(&format!(
        "replay dump/batch-000000.safetensors {mask} --out replayed"
    ));
    assert_snapshot!(outcome.failed(), @"component `misbehave.mask`: `mask` ended the process with `exit` (return an error in its place)");
}

#[test]
fn refuses_a_state_that_grows_without_bound() {
    let folder = Folder::new();
    let args = |point| {
        format!(
            "{} --set train.component_state_limit=2",
            misbehaviour::settings(point, "growing")
        )
    };
    let reward = folder.attempt("reward", &args(Point::Reward));
    assert_snapshot!(reward.failed(), @"the run stopped after step 3 (`host train --resume reward` goes on from the checkpoint of step 2): component `misbehave.reward`: its state takes 3 MiB, `train.component_state_limit` is 2 MiB (raise it, or set it to 0, where the component is meant to keep so much)");
    assert_eq!(folder.run_dir("reward").checkpoints(), [1, 2]);
    let outcome = folder.attempt("run", &args(Point::Mask));
    assert_snapshot!(outcome.failed(), @"the run stopped after step 3 (`host train --resume run` goes on from the checkpoint of step 2): component `misbehave.mask`: its state takes 3 MiB, `train.component_state_limit` is 2 MiB (raise it, or set it to 0, where the component is meant to keep so much)");
    assert_eq!(folder.run_dir("run").checkpoints(), [1, 2]);
    // A checkpoint by time that cannot be written does not end the run, and the one before it
    // stays.
    let by_time = "--set train.save_steps=0 --set train.save_minutes=0.0001";
    let outcome = folder.attempt("by_time", &format!("{} {by_time}", args(Point::Mask)));
    assert_eq!(folder.run_dir("by_time").checkpoints(), [2]);
    assert_snapshot!(outcome.stderr, @"
    warning: no checkpoint after step 3: component `misbehave.mask`: its state takes 3 MiB, `train.component_state_limit` is 2 MiB (raise it, or set it to 0, where the component is meant to keep so much)
    error: the run stopped after step 4 (`host train --resume by_time` goes on from the checkpoint of step 2): component `misbehave.mask`: its state takes 4 MiB, `train.component_state_limit` is 2 MiB (raise it, or set it to 0, where the component is meant to keep so much)
    ");
    // A higher limit accepts the state.
    folder.replace(
        "run/config.toml",
        "component_state_limit = 2",
        "component_state_limit = 0",
    );
    folder.said("train --resume run --allow-changed-config");
    assert_eq!(folder.run_dir("run").metrics().len(), 4);
}

#[test]
fn keeps_huge_numbers() {
    let folder = Folder::new();
    let run = folder.train("run", &settings("huge_records"));
    assert_eq!(run.metric("misbehave.mask/huge"), [1e300]);
}

#[test]
fn stops_showing_endless_warnings() {
    let folder = Folder::new();
    let outcome = folder
        .attempt("run", &settings("many_warnings"))
        .succeeded();
    assert_eq!(outcome.stderr.lines().count(), 101);
    assert_snapshot!(outcome.stderr.lines().last().unwrap(), @"warning: these were 100 different warnings of components; no more are shown");
}

#[test]
fn a_warning_is_one_line_and_is_shown_once() {
    let folder = Folder::new();
    let outcome = folder
        .attempt("run", &settings("warns_in_lines"))
        .succeeded();
    assert_snapshot!(outcome.stderr.trim_end(), @"warning: component `misbehave.mask`: one line and [31manother");
}

#[test]
fn treats_a_list_that_panics_as_empty() {
    let folder = Folder::new().env("MISBEHAVE_LISTED", "panic");
    let listed = folder.said("plugins --plugin libmisbehave.so");
    let (_, objective) = listed.split_once("misbehave.objective ").unwrap();
    assert_snapshot!(objective.lines().take(2).collect::<Vec<_>>().join("\n"), @"
    Policy gradient, and a sin.
                          no keys
    ");
}
