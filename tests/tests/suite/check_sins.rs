//! `host check` on components and libraries that break a rule: which check says so, and how.

use std::fmt::Write;

use insta::assert_snapshot;
use tests::Folder;

use crate::check::redacted;
use crate::evolution::aborting;

/// The lines of the report about `check` of a `component` that commits `sin`. Other components must
/// have no such lines.
fn line(component: &str, sin: &str, check: &str) -> String {
    let folder = Folder::new();
    let none = [
        "environment",
        "reward",
        "advantage",
        "objective",
        "mask",
        "weight",
        "control",
    ]
    .map(|point| format!("--set misbehave.{point}.sin=none"));
    // This limit is long enough for a process on a busy machine. A call that hangs takes all of it.
    let args = format!(
        "check libmisbehave.so --timeout 10 {} --set {component}.sin={sin} --only {check}",
        none.join(" ")
    );
    let outcome = folder.host(&args);
    let lines = outcome
        .stdout
        .lines()
        .skip_while(|line| !line.ends_with(&format!(" {component}")));
    let line = lines
        .skip(1)
        .find(|line| line.starts_with(&format!("  {check} ")))
        .unwrap_or_else(|| panic!("{outcome:#?}"));
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
    assert_snapshot!(lines("misbehave.advantage", sins));
    let sins = "nan_loss group-of-one, padding_derivative rows-of-padding, unknown_reduction known-inputs, \
        none gradients, coupled gradients, uncoupled gradients, wrong_sign gradients";
    assert_snapshot!(lines("misbehave.objective", sins));
}

#[test]
fn rewards_that_break_a_rule() {
    let sins = "nan one-completion, infinity outputs-finite, short_tokens group-of-one, \
        reserved_name record-names, error one-completion, panic one-completion, \
        needs_text empty-completion, needs_level odd-columns, needs_level panics-contained, \
        grade deterministic, by_position permutation, forgetful save-load, panic_in_load foreign-state, \
        counts_evaluations evaluation, growing state-growth, hang one-completion";
    assert_snapshot!(lines("misbehave.reward", sins));
}

#[test]
fn environments_that_break_a_rule() {
    let sins = "nan outputs-finite, infinity outputs-finite, panic one-completion, error empty-completion, \
        stateful save-load, panic_in_load foreign-state, growing state-growth, none deterministic";
    assert_snapshot!(lines("misbehave.environment", sins));
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
    assert_snapshot!(lines("misbehave.mask", sins));
}

#[test]
#[ignore = "slow: it waits for what never comes; .ci/long runs it"]
fn masks_that_panic_or_do_not_come_back() {
    let sins = "panic group-of-one, panic_in_step_end group-of-one, panic_in_save save-load, \
        panic_in_load foreign-state, panic_in_drop panics-contained, panic_twice creation, \
        panic_on_creation creation, panic_with_bomb one-token, poisoned_lock one-token, abort one-token, \
        exit one-token, hang one-token";
    assert_snapshot!(lines("misbehave.mask", sins));
}

/// The checks share a process, which the second check ends. The third check has not run by then,
/// and gets a process of its own.
#[test]
fn runs_checks_again_after_a_crash() {
    let none = ["reward", "advantage", "objective", "weight", "control"]
        .map(|point| format!("--set misbehave.{point}.sin=none"));
    let args = "--set misbehave.mask.sin=abort --set misbehave.mask.at_step=4 --only one-token --only outputs-finite \
        --only deterministic";
    let outcome = Folder::new().host(&format!("check libmisbehave.so {} {args}", none.join(" ")));
    let (_, mask) = outcome
        .stdout
        .split_once("\nmask misbehave.mask\n")
        .unwrap();
    let lines = mask.lines().take(3).map(|line| {
        line.split_whitespace()
            .take(2)
            .collect::<Vec<_>>()
            .join(" ")
    });
    assert_eq!(
        lines.collect::<Vec<_>>(),
        [
            "one-token success",
            "outputs-finite crashed",
            "deterministic success"
        ]
    );
}

#[test]
fn reports_a_library_whose_panics_abort() {
    let library = aborting().display().to_string();
    let folder = Folder::new();
    let checked = |max_nats: u32, only: &str| {
        let set = format!("--set example.surprise-cap.max_nats={max_nats}");
        folder.host(&format!("check {library} {set} {only}"))
    };
    let line = |report: &str, check: &str| {
        let line = report
            .lines()
            .find(|line| line.starts_with(&format!("  {check} ")));
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
    assert_eq!(
        outcome
            .stdout
            .matches("it did not come back within 10 s")
            .count(),
        2,
        "{}",
        outcome.stdout
    );
    assert!(
        outcome
            .stdout
            .contains("checks before it did not come back"),
        "{}",
        outcome.stdout
    );
    let outcome =
        folder.host("check libmisbehave.so --timeout 10 --set misbehave.mask.sin=hang_on_creation");
    assert_eq!(
        outcome
            .stdout
            .matches("it did not come back within 10 s")
            .count(),
        1,
        "{}",
        outcome.stdout
    );
}

#[test]
fn reports_a_range_whose_end_is_refused() {
    let outcome = Folder::new().host("check libimpostor.so --only key-docs");
    let line = outcome
        .stdout
        .lines()
        .find(|line| line.contains("key-docs"))
        .unwrap()
        .trim();
    assert_snapshot!(line, @"key-docs            failed   the range of key `limit` ends at 2.0, which it does not take: `limit` is 2 (it must be between 0 and 1) (narrow the range)");
    assert_eq!(outcome.code, Some(1));
}

#[test]
fn reports_a_library_that_misbehaves_while_it_is_loaded() {
    let with = |listed: &str| {
        let folder = Folder::new().env("MISBEHAVE_LISTED", listed);
        let outcome =
            folder.host("check libmisbehave.so --timeout 10 --only component-ids --only creation");
        assert_eq!(outcome.code, Some(1), "{outcome:#?}");
        outcome.stdout
    };
    let report = with("panic");
    let (_, objective) = report
        .split_once("\nobjective misbehave.objective\n")
        .unwrap();
    assert_snapshot!(objective.lines().next().unwrap(), @"  creation            failed   panicked while it was created: the list panics");
    assert_snapshot!(report.lines().last().unwrap(), @"checks: 1 success, 6 skipped, 0 warning, 1 failed, 0 crashed");
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
