//! `host check` on components and libraries that break a rule: which check says so, and how.

use std::fmt::Write;

use insta::assert_snapshot;
use tests::Folder;

use crate::check::redacted;
use crate::evolution::aborting;

/// The lines of `component` about `check` when it commits `sin`, and the others none.
fn line(component: &str, sin: &str, check: &str) -> String {
    let folder = Folder::new();
    let none = ["reward", "advantage", "objective", "mask", "weight", "control"]
        .map(|point| format!("--set misbehave.{point}.sin=none"));
    // Long enough for a process on a busy machine; a call that hangs takes all of it.
    let args =
        format!("check libmisbehave.so --timeout 10 {} --set {component}.sin={sin} --only {check}", none.join(" "));
    let outcome = folder.host(&args);
    let lines = outcome.stdout.lines().skip_while(|line| !line.ends_with(&format!(" {component}")));
    let line =
        lines.skip(1).find(|line| line.starts_with(&format!("  {check} "))).unwrap_or_else(|| panic!("{outcome:#?}"));
    let good = line.contains(" success ") || line.contains(" warning ");
    assert_eq!(outcome.code, Some(i32::from(!good)), "{outcome:#?}");
    redacted(&line.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// One line per sin and the check that finds it; `pairs` are separated by commas.
fn lines(component: &str, pairs: &str) -> String {
    pairs.split(", ").fold(String::new(), |mut text, pair| {
        let (sin, check) = pair.split_once(' ').unwrap();
        writeln!(text, "{sin}: {}", line(component, sin, check)).unwrap();
        text
    })
}

#[test]
fn advantages_and_objectives_that_break_a_rule() {
    let sins = "nan outputs-finite, padding rows-of-padding, panic one-token, unknown_input known-inputs, \
        reserved_name record-names, none key-values, none foreign-state";
    assert_snapshot!(lines("misbehave.advantage", sins), @"
    nan: outputs-finite failed the advantage is NaN at completion 0, token 0 (it must be finite)
    padding: rows-of-padding failed the advantage is 0.5 at completion 0, token 0, which is padding (leave padding at 0)
    panic: one-token failed panicked in `estimate`: estimate panics at step 0
    unknown_input: known-inputs failed it asks for inputs 0x10000000000, which this host does not know
    reserved_name: record-names failed recorded `reward`, which is the host's own number here (give it another name)
    none: key-values failed with `bucket = 0` it panicked in `estimate`: attempt to divide by zero (refuse the value in `validate`)
    none: foreign-state success foreign bytes are refused, and change nothing
    ");
    let sins = "nan_loss group-of-one, padding_derivative rows-of-padding, unknown_reduction known-inputs, \
        none gradients, coupled gradients, uncoupled gradients, wrong_sign gradients";
    assert_snapshot!(lines("misbehave.objective", sins), @"
    nan_loss: group-of-one failed the loss is NaN at completion 0, token 0 (it must be finite)
    padding_derivative: rows-of-padding failed the loss's derivative is 0.5 at completion 0, token 0, which is padding (leave padding at 0)
    unknown_reduction: known-inputs failed component `misbehave.objective` asks for reduction 9, which this host does not know (it knows 0 to 3; use a newer host)
    none: gradients success finite differences of the losses agree with it at 40 tokens
    coupled: gradients success finite differences of the losses agree with it at 40 tokens
    uncoupled: gradients failed `dloss_dlogp` is -0.1726 at completion 0, token 0, where the sum of that completion's losses changes by -0.8631 per nat (return the derivative of that sum, and losses that it is the derivative of)
    wrong_sign: gradients failed `dloss_dlogp` is 0.8632 at completion 0, token 0, where the sum of that completion's losses changes by -0.8632 per nat (return the derivative of that sum, and losses that it is the derivative of)
    ");
}

#[test]
fn rewards_that_break_a_rule() {
    let sins = "nan one-completion, infinity outputs-finite, short_tokens group-of-one, \
        reserved_name record-names, error one-completion, panic one-completion, \
        needs_text empty-completion, needs_level odd-columns, needs_level panics-contained, \
        grade deterministic, by_position permutation, forgetful save-load, panic_in_load foreign-state, \
        counts_evaluations evaluation, growing state-growth, hang one-completion";
    assert_snapshot!(lines("misbehave.reward", sins), @r#"
    nan: one-completion failed the reward is NaN at completion 0 (it must be finite)
    infinity: outputs-finite failed the reward is inf at completion 0 (it must be finite)
    short_tokens: group-of-one failed `record_tokens("short")` got 3 values for a batch of 4 completions (at this point one per completion)
    reserved_name: record-names failed recorded `mean`, which is the host's own number here (give it another name)
    error: one-completion skipped it refuses rows that are made up: score gives up (as it was told to) (give a dataset of its kind as `--rows FILE`)
    panic: one-completion failed panicked in `score`: score panics at step 0
    needs_text: empty-completion failed panicked in `score`: a text
    needs_level: odd-columns failed panicked in `score`: a level: PluginError { kind: ErrorKind(0), message: "a prompt's row has no column `level` (the row has no columns)" }
    needs_level: panics-contained warning on columns that are no JSON: panicked in `score`: a level: PluginError { kind: ErrorKind(0), message: "the prompt's row is not a JSON object: EOF while parsing a value at line 1 column 11" } (contained; return an error)
    grade: deterministic skipped it refuses rows that are made up: a prompt's row has no column `grade` (the row has `answer`, `level`) (give a dataset of its kind as `--rows FILE`)
    by_position: permutation warning with the groups in another order, at step 0, `reward` is 2 and 1 at completion 0 (fine only where it draws at random)
    forgetful: save-load failed after a load in mid-stream step 4 differs: `reward` is 0.5 and 0 at completion 0 (save all that later steps depend on)
    panic_in_load: foreign-state failed on 1 foreign bytes panicked in `load`: load panics (return an error)
    counts_evaluations: evaluation failed a rollout for evaluation changes its state (change state where `rollout.purpose` is `Purpose::TRAINING` alone)
    growing: state-growth warning its state grows with every step: 16777216, 33554432 and 67108864 bytes after 16, 32 and 64 steps
    hang: one-completion failed it did not come back within 10 s
    "#);
}

#[test]
fn masks_that_break_a_rule() {
    let sins = "revive mask-clears-only, seven outputs-finite, short_tokens one-completion, many_names one-token, \
        long_name one-token, nan_records outputs-finite, reserved_name record-names, \
        counts_calls deterministic, counts_calls permutation, none token-wise, \
        lies_token_wise token-wise, drops_equals token-wise, stateful token-wise, none sums-ranks, lies_sums_ranks sums-ranks, \
        sums_twice sums-ranks, reads_padding padding-content, forgetful save-load, \
        first_later permutation, saves_calls deterministic, stateful save-load, stateful foreign-state, \
        growing foreign-state, growing state-growth, stdout stdout-quiet, thread threads";
    assert_snapshot!(lines("misbehave.mask", sins), @r#"
    revive: mask-clears-only failed set `keep` to 1 at completion 0, token 0, where it was cleared (a mask may only clear)
    seven: outputs-finite failed wrote 7 into `keep` at completion 0, token 0 (entries are 0 or 1)
    short_tokens: one-completion failed `record_tokens("short")` got 6 values for a batch of 7 tokens (B · T, padding included)
    many_names: one-token failed recorded under more than 1000 names in one call, `name-1000` among them (give a number per token to `record_tokens`)
    long_name: one-token failed recorded under a name of 1000000 bytes, at most 200 are allowed
    nan_records: outputs-finite warning the record `nan` is not finite (it becomes null in the metrics)
    reserved_name: record-names failed recorded `rejection_rate`, which is the host's own number here (give it another name)
    counts_calls: deterministic failed two fresh instances differ on the same inputs, at step 0: `keep` is 0 and 1 at completion 0, token 0 (draw at random from `seed` and `step` alone)
    counts_calls: permutation warning with the groups in another order, at step 0, `keep` is 0 and 1 at completion 0, token 0 (fine only where it draws at random)
    none: token-wise success parts of a batch are decided as the whole is
    lies_token_wise: token-wise failed it gives 1 to completion 6, token 1 of a whole batch, and 0 where it sees a part, at step 0 (declare `TOKEN_WISE` only where each token is decided by itself)
    drops_equals: token-wise failed it gives 0 to completion 5, token 0 of a whole batch, and 1 where it sees a part, at step 0 (declare `TOKEN_WISE` only where each token is decided by itself)
    stateful: token-wise failed it saves another state where it saw the batch in parts, at step 0 (change state in `step_end` alone)
    none: sums-ranks success ranks with parts of a batch come to the state of the whole
    lies_sums_ranks: sums-ranks failed ranks 0 and 1 save different states after step 0 (declare `SUMS_RANKS` only where `step_end` brings them together)
    sums_twice: sums-ranks failed after 4 steps on ranks it gives 0 to completion 0, token 0, and 1 after the same on whole batches (a sum over ranks is of what the whole batch would add up)
    reads_padding: padding-content failed with other values in the padding `keep` is 1 and 0 at completion 0, token 0 (skip tokens whose `completion_mask` is 0)
    forgetful: save-load failed after a load in mid-stream step 4 differs: `keep` is 0 and 1 at completion 0, token 0 (save all that later steps depend on)
    first_later: permutation warning with the groups in another order, at step 1, `keep` is 0 and 1 at completion 0, token 0 (fine only where it draws at random)
    saves_calls: deterministic failed two fresh instances save different states after the same inputs, at step 0 (write what is kept in a fixed order)
    stateful: save-load success a resumed instance goes on with the same bits (7 bytes of state)
    stateful: foreign-state success foreign bytes are refused, and change nothing
    growing: foreign-state warning 2097159 foreign bytes are taken for its state (write what tells them apart)
    growing: state-growth warning its state grows with every step: 16777216, 33554432 and 67108864 bytes after 16, 32 and 64 steps
    stdout: stdout-quiet failed it wrote 22 bytes to standard output: "hello from the plugin\n" (use `ctx.warn`)
    thread: threads failed threads left: 1 after one instance, 2 after two (join them in `drop`)
    "#);
}

#[test]
#[ignore = "slow: it waits for what never comes; .ci/long runs it"]
fn masks_that_panic_or_do_not_come_back() {
    let sins = "panic group-of-one, panic_in_step_end group-of-one, panic_in_save save-load, \
        panic_in_load foreign-state, panic_in_drop panics-contained, panic_twice creation, \
        panic_on_creation creation, panic_with_bomb one-token, poisoned_lock one-token, abort one-token, \
        exit one-token, hang one-token";
    assert_snapshot!(lines("misbehave.mask", sins), @"
    panic: group-of-one failed panicked in `mask`: mask panics at step 0
    panic_in_step_end: group-of-one failed panicked in `step_end`: step_end panics at step 0
    panic_in_save: save-load failed panicked in `save`: save panics
    panic_in_load: foreign-state failed on 1 foreign bytes panicked in `load`: load panics (return an error)
    panic_in_drop: panics-contained warning it panicked where no call could answer, as in `drop`: drop panics
    panic_twice: creation failed panicked while it was created: inputs panics
    panic_on_creation: creation failed panicked while it was created: creation panics
    panic_with_bomb: one-token failed panicked in `mask`: no message
    poisoned_lock: one-token failed panicked in `mask`: called `Result::unwrap()` on an `Err` value: PoisonError { .. }
    abort: one-token crashed its process was ended by signal 6 (SIGABRT)
    exit: one-token crashed its process ended with exit code 0 before the check was over
    hang: one-token failed it did not come back within 10 s
    ");
}

/// The checks share a process, which the second one ends. The third has not run by then, and runs again alone.
#[test]
fn a_check_behind_a_crash_runs_again() {
    let none = ["reward", "advantage", "objective", "weight", "control"]
        .map(|point| format!("--set misbehave.{point}.sin=none"));
    let args = "--set misbehave.mask.sin=abort --set misbehave.mask.at_step=4 --only one-token --only outputs-finite \
        --only deterministic";
    let outcome = Folder::new().host(&format!("check libmisbehave.so {} {args}", none.join(" ")));
    let (_, mask) = outcome.stdout.split_once("\nmask misbehave.mask\n").unwrap();
    let lines = mask.lines().take(3).map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" "));
    assert_eq!(lines.collect::<Vec<_>>(), ["one-token success", "outputs-finite crashed", "deterministic success"]);
}

#[test]
fn a_library_whose_panics_abort() {
    let library = aborting().display().to_string();
    let folder = Folder::new();
    let checked = |max_nats: u32, only: &str| {
        let set = format!("--set example.surprise-cap.max_nats={max_nats}");
        folder.host(&format!("check {library} {set} {only}"))
    };
    let line = |report: &str, check: &str| {
        let line = report.lines().find(|line| line.starts_with(&format!("  {check} ")));
        line.unwrap_or_else(|| panic!("{report}")).to_owned()
    };
    let outcome = checked(5, "").succeeded();
    assert_snapshot!(line(&outcome.stdout, "panic-strategy"), @r#"  panic-strategy      warning  it was built with `panic = "abort"`: a panic ends the whole run (take that line out of its profile)"#);
    let outcome = checked(100, "--only one-token");
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    assert_snapshot!(line(&outcome.stdout, "one-token"), @r#"  one-token           crashed  a panic ended its process, as of a library built with `panic = "abort"`: far too many"#);
}

#[test]
#[ignore = "slow: it waits for what never comes; .ci/long runs it"]
fn a_mask_that_never_comes_back_is_not_waited_for_again_and_again() {
    let folder = Folder::new();
    let outcome = folder.host("check libmisbehave.so --timeout 10 --set misbehave.mask.sin=hang");
    assert_eq!(outcome.stdout.matches("it did not come back within 10 s").count(), 2, "{}", outcome.stdout);
    assert!(outcome.stdout.contains("checks before it did not come back"), "{}", outcome.stdout);
    let outcome = folder.host("check libmisbehave.so --timeout 10 --set misbehave.mask.sin=hang_on_creation");
    assert_eq!(outcome.stdout.matches("it did not come back within 10 s").count(), 1, "{}", outcome.stdout);
}

#[test]
fn a_range_with_an_end_that_is_refused() {
    let outcome = Folder::new().host("check libimpostor.so --only key-docs");
    let line = outcome.stdout.lines().find(|line| line.contains("key-docs")).unwrap().trim();
    assert_snapshot!(line, @"key-docs            failed   the range of key `limit` ends at 2.0, which it does not take: `limit` is 2 (use 0 to 1) (narrow the range)");
    assert_eq!(outcome.code, Some(1));
}

#[test]
fn a_library_that_misbehaves_while_it_is_loaded() {
    let with = |listed: &str| {
        let folder = Folder::new().env("MISBEHAVE_LISTED", listed);
        let outcome = folder.host("check libmisbehave.so --timeout 10 --only component-ids --only creation");
        assert_eq!(outcome.code, Some(1), "{outcome:#?}");
        outcome.stdout
    };
    let report = with("panic");
    let (_, objective) = report.split_once("\nobjective misbehave.objective\n").unwrap();
    assert_snapshot!(objective.lines().next().unwrap(), @"  creation            failed   panicked while it was created: the list panics");
    assert_snapshot!(report.lines().last().unwrap(), @"checks: 1 success, 5 skipped, 0 warning, 1 failed, 0 crashed");
    assert_snapshot!(with("abort"), @"
    library BUILD/libmisbehave.so
      entry-point         crashed  its process was ended by signal 6 (SIGABRT)

    checks: 0 success, 0 skipped, 0 warning, 0 failed, 1 crashed
    ");
    assert_snapshot!(with("hang"), @"
    library BUILD/libmisbehave.so
      entry-point         failed   it did not come back within 10 s

    checks: 0 success, 0 skipped, 0 warning, 1 failed, 0 crashed
    ");
}
