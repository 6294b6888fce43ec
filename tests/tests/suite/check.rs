//! `host check`: what ships is green, what misbehaves is named, what is no plugin is refused.

use std::fmt::Write;
use std::path::Path;

use insta::assert_snapshot;
use serde_json::Value;
use tests::{Folder, Outcome, artifacts};

/// The report without what differs from machine to machine: `N` for every number of milliseconds.
fn redacted(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let is_time = |i: usize| words.get(i + 1).is_some_and(|next| next.trim_end() == "ms" || next.starts_with("ms\n"));
    let redact = |(i, word): (usize, &&str)| if is_time(i) { "N".to_owned() } else { (*word).to_owned() };
    words.iter().enumerate().map(redact).collect::<Vec<_>>().join(" ")
}

/// Checks that all is well, and returns the report.
fn green(args: &str) -> String {
    let outcome = Folder::new().host(&format!("check {args}")).succeeded();
    let summary = outcome.stdout.lines().last().unwrap();
    assert!(summary.ends_with("0 warning, 0 failed, 0 crashed"), "{}", outcome.stdout);
    redacted(&outcome.stdout)
}

/// The lines of `component` about `check` when it commits `sin`.
fn line(component: &str, sin: &str, check: &str) -> String {
    let folder = Folder::new();
    let args = format!("check libmisbehave.so --timeout 5 --set {component}.sin={sin} --only {check}");
    let outcome = folder.host(&args);
    let lines = outcome.stdout.lines().skip_while(|line| !line.ends_with(&format!(" {component}")));
    let line =
        lines.skip(1).find(|line| line.starts_with(&format!("  {check} "))).unwrap_or_else(|| panic!("{outcome:#?}"));
    let bad = line.contains(" failed ") || line.contains(" crashed ");
    assert_eq!(outcome.code, Some(i32::from(bad)), "{outcome:#?}");
    redacted(line.trim_start())
}

/// One line per sin and check.
fn lines(component: &str, pairs: &[(&str, &str)]) -> String {
    pairs.iter().fold(String::new(), |mut text, (sin, check)| {
        writeln!(text, "{sin}: {}", line(component, sin, check)).unwrap();
        text
    })
}

#[test]
fn the_shipped_plugins_are_green() {
    for plugin in ["libcapo.so", "libdrcapo.so", "libreincapo.so"] {
        let report = green(plugin);
        assert!(!report.contains("refuses its table"), "{report}");
    }
}

#[test]
fn what_is_built_in_is_green() {
    assert_snapshot!(green("--only creation --only save-load"), @"");
    let _ = green("");
}

#[test]
fn the_example_is_green_with_its_key_and_skipped_without() {
    let library = artifacts::example("dev").display().to_string();
    let report = green(&format!("{library} --set example.surprise-cap.max_nats=5"));
    assert!(!report.contains("refuses its table"), "{report}");
    let report = green(&library);
    let (_, mask) = report.split_once("\nmask ").unwrap();
    assert_snapshot!(mask.lines().take(8).collect::<Vec<_>>().join("\n"), @"");
}

#[test]
fn a_whole_report() {
    let folder = Folder::new();
    let sins = "--set misbehave.mask.sin=revive --set misbehave.advantage.sin=none";
    let outcome = folder.host(&format!("check libmisbehave.so {sins}"));
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    assert_snapshot!(redacted(&outcome.stdout), @"");
}

#[test]
fn advantages_and_objectives_that_break_a_rule() {
    let sins = [
        ("nan", "outputs-finite"),
        ("padding", "outputs-finite"),
        ("panic", "one-token"),
        ("unknown_input", "known-inputs"),
    ];
    assert_snapshot!(lines("misbehave.advantage", &sins), @"");
    let sins =
        [("nan_loss", "group-of-one"), ("padding_derivative", "outputs-finite"), ("unknown_reduction", "known-inputs")];
    assert_snapshot!(lines("misbehave.objective", &sins), @"");
}

#[test]
fn masks_that_break_a_rule() {
    let sins = [
        ("revive", "mask-clears-only"),
        ("seven", "outputs-finite"),
        ("short_tokens", "one-completion"),
        ("many_names", "one-token"),
        ("long_name", "one-token"),
        ("nan_records", "outputs-finite"),
        ("counts_calls", "deterministic"),
        ("counts_calls", "permutation"),
        ("reads_padding", "padding-content"),
        ("forgetful", "save-load"),
        ("stateful", "save-load"),
        ("stateful", "foreign-state"),
        ("growing", "foreign-state"),
        ("growing", "state-growth"),
        ("stdout", "stdout-quiet"),
        ("thread", "threads"),
    ];
    assert_snapshot!(lines("misbehave.mask", &sins), @"");
}

#[test]
fn masks_that_panic_or_do_not_come_back() {
    let sins = [
        ("panic", "group-of-one"),
        ("panic_in_step_end", "group-of-one"),
        ("panic_in_save", "save-load"),
        ("panic_in_load", "foreign-state"),
        ("panic_in_drop", "panics-contained"),
        ("panic_twice", "creation"),
        ("panic_on_creation", "creation"),
        ("panic_with_bomb", "one-token"),
        ("poisoned_lock", "one-token"),
        ("abort", "one-token"),
        ("exit", "one-token"),
        ("hang", "one-token"),
    ];
    assert_snapshot!(lines("misbehave.mask", &sins), @"");
}

#[test]
fn a_mask_that_never_comes_back_is_not_waited_for_again_and_again() {
    let folder = Folder::new();
    let outcome = folder.host("check libmisbehave.so --timeout 1 --set misbehave.mask.sin=hang");
    assert_eq!(outcome.stdout.matches("it did not come back within 1 s").count(), 2, "{}", outcome.stdout);
    assert!(outcome.stdout.contains("checks before it did not come back"), "{}", outcome.stdout);
}

#[test]
fn a_library_that_misbehaves_while_it_is_loaded() {
    let with = |listed: &str| {
        let folder = Folder::new().env("MISBEHAVE_LISTED", listed);
        let outcome = folder.host("check libmisbehave.so --timeout 2 --only component-ids --only creation");
        (outcome.code, redacted(&outcome.stdout))
    };
    let (code, report) = with("panic");
    assert_eq!(code, Some(1));
    assert_snapshot!(report, @"");
    assert_snapshot!(with("abort").1, @"");
    assert_snapshot!(with("hang").1, @"");
}

#[test]
fn recipes_are_checked() {
    let outcome = Folder::new().host("check libbad_recipes.so --only recipes --only component-ids");
    assert_eq!(outcome.code, Some(1));
    assert_snapshot!(outcome.stdout, @"");
}

#[test]
fn random_batches_and_one_of_them_again() {
    let _ = green("libcapo.so --only fuzz --fuzz 120 --seed 3");
    let folder = Folder::new();
    let sin = "--set misbehave.mask.sin=counts_calls";
    let outcome = folder.host(&format!("check libmisbehave.so {sin} --only fuzz --fuzz 20 --seed 7"));
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    let found = last_line(&outcome);
    assert_snapshot!(found, @"");
    let (_, name) = found.split_once("--reproduce ").unwrap();
    let name = name.trim_end_matches(['`', ')']);
    let again = folder.host(&format!("check libmisbehave.so {sin} --reproduce {name}"));
    assert_eq!((again.code, last_line(&again)), (Some(1), found.clone()));
    // A crash names its case too, from the grave.
    let sin = "--set misbehave.mask.sin=abort --set misbehave.mask.at_step=STEP";
    let outcome = folder.host(&format!("check libmisbehave.so {sin} --only fuzz --fuzz 200 --seed 7"));
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    assert_snapshot!(last_line(&outcome), @"");
}

/// The last line about a check.
fn last_line(outcome: &Outcome) -> String {
    outcome.stdout.lines().rfind(|line| line.starts_with("  ")).unwrap_or_else(|| panic!("{outcome:#?}")).to_owned()
}

#[test]
fn as_json() {
    let outcome = Folder::new().host("check libcapo.so --json").succeeded();
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let checks = report["libraries"][0]["checks"].as_array().unwrap();
    let [first, last] = [checks.first().unwrap(), checks.last().unwrap()];
    assert_eq!(first["check"], "entry-point");
    assert_eq!((&first["component"], &first["point"]), (&Value::Null, &Value::Null));
    assert_eq!((&last["component"], &last["point"]), (&"capo.curvature".into(), &"mask".into()));
    assert_eq!(last["status"], "success");
    assert!(last["sentence"].is_string() && last["seconds"].is_f64());
    assert_eq!(report["summary"]["failed"], 0);
    let sum: u64 = report["summary"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(sum, checks.len() as u64);
}

#[test]
fn what_cannot_be_asked() {
    let folder = Folder::new();
    assert_snapshot!(folder.host("check libcapo.so --only permutations").refused(), @"");
    assert_snapshot!(folder.host("check libcapo.so --set capo.curvatur.fisher_threshold=1").refused(), @"");
    assert_snapshot!(folder.host("check libcapo.so --reproduce capo.curvature").refused(), @"");
    assert_snapshot!(folder.host("check libcapo.so --reproduce capo.curvatur@1.2").refused(), @"");
    assert_snapshot!(folder.host("check libnone.so").refused().split(';').next().unwrap(), @"");
}

#[test]
fn the_checks_are_listed() {
    let listed = Folder::new().host("check --list").succeeded().stdout;
    assert_eq!(listed.lines().count(), 28);
    assert!(listed.lines().all(|line| line.split_whitespace().count() > 3), "{listed}");
}

/// A file of this name in a fresh folder, for `host check` and `host train --plugin`; their one sentence.
fn foreign(make: impl Fn(&Path)) -> String {
    let folder = Folder::new();
    make(&folder.path().join("libforeign.so"));
    let checked = folder.host("check ./libforeign.so").refused();
    assert_eq!(folder.host("train --plugin ./libforeign.so").refused(), checked);
    assert!(!folder.path().join("runs").exists(), "nothing is written before all is open");
    checked
}

#[test]
fn files_that_are_no_plugins() {
    let write = |bytes: &'static [u8]| foreign(move |path| std::fs::write(path, bytes).unwrap());
    assert_snapshot!(write(b"just text, and not much of it\n"), @"");
    assert_snapshot!(write(b""), @"");
    // The header of a 32-bit library, and nothing behind it.
    let mut header = [0_u8; 52];
    header[..7].copy_from_slice(b"\x7fELF\x01\x01\x01");
    (header[16], header[18], header[20], header[40]) = (3, 3, 1, 52);
    assert_snapshot!(foreign(|path| std::fs::write(path, header).unwrap()), @"");
    assert_snapshot!(foreign(|path| std::fs::create_dir(path).unwrap()), @"");
}

#[test]
fn a_library_of_the_system() {
    let places = [
        "/lib/x86_64-linux-gnu/libm.so.6",
        "/lib/aarch64-linux-gnu/libm.so.6",
        "/lib64/libm.so.6",
        "/usr/lib/libm.so.6",
    ];
    let Some(libm) = places.into_iter().find(|path| Path::new(path).exists()) else {
        eprintln!("SKIPPED: no libm.so.6 in {places:?}");
        return;
    };
    assert_snapshot!(foreign(|path| std::os::unix::fs::symlink(libm, path).unwrap()).split_once("libm.so.6").unwrap().1, @"");
}
