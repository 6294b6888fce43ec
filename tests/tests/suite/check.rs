//! `host check`: what ships is green, what misbehaves is named.

use std::fmt::Write;

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
    let args = format!("check libmisbehave.so --timeout 5 --set {component}.sin=\"{sin}\" --only {check}");
    let outcome = folder.host(&args);
    let lines = outcome.stdout.lines().skip_while(|line| !line.ends_with(&format!(" {component}")));
    let line =
        lines.skip(1).find(|line| line.starts_with(&format!("  {check} "))).unwrap_or_else(|| panic!("{outcome:#?}"));
    let bad = line.contains(" failed ") || line.contains(" crashed ");
    assert_eq!(outcome.code, Some(i32::from(bad)), "{outcome:#?}");
    redacted(&line.split_whitespace().collect::<Vec<_>>().join(" "))
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
    assert_snapshot!(green("--only creation --only save-load"), @"
    library built in

    reward exact_match
      creation            success  it is made from an empty table
      save-load           success  a resumed instance goes on with the same bits (0 bytes of state)

    advantage dr_grpo.advantage
      creation            success  it is made from an empty table
      save-load           success  a resumed instance goes on with the same bits (0 bytes of state)

    advantage grpo.advantage
      creation            success  it is made from an empty table
      save-load           success  a resumed instance goes on with the same bits (0 bytes of state)

    advantage reinforce.advantage
      creation            success  it is made from an empty table
      save-load           success  a resumed instance goes on with the same bits (0 bytes of state)

    objective dr_grpo.objective
      creation            success  it is made from an empty table
      save-load           success  a resumed instance goes on with the same bits (0 bytes of state)

    objective grpo.objective
      creation            success  it is made from an empty table
      save-load           success  a resumed instance goes on with the same bits (0 bytes of state)

    objective reinforce.objective
      creation            success  it is made from an empty table
      save-load           success  a resumed instance goes on with the same bits (0 bytes of state)

    checks: 14 success, 0 skipped, 0 warning, 0 failed, 0 crashed
    ");
    let _ = green("");
}

#[test]
fn the_examples_are_green_with_their_keys_and_skipped_without() {
    let names = ["surprise-cap", "top-entropy", "ratio-range", "truncated", "probability-floor"];
    let libraries = names.map(|name| artifacts::example(name, "dev").display().to_string());
    let keys = "--set example.surprise-cap.max_nats=5 --set example.probability-floor.min_probability=0.01";
    let report = green(&format!("{} {keys}", libraries.join(" ")));
    assert!(!report.contains("refuses its table"), "{report}");
    let report = green(&libraries[0]);
    let (_, mask) = report.split_once("\nmask ").unwrap();
    assert_snapshot!(mask.lines().take(8).collect::<Vec<_>>().join("\n"), @"
    example.surprise-cap
      creation            skipped  it refuses its table: missing field `max_nats` (give its keys as `--set example.surprise-cap.KEY=VALUE`)
      empty-config        success  it says what is missing: missing field `max_nats`
      unknown-key         success  it is refused with a sentence
      wrong-type          success  it is refused with a sentence, under each key
      malformed-config    success  text that is no table is refused with a sentence
      known-inputs        skipped  the component could not be built
      group-of-one        skipped  the component could not be built
    ");
}

#[test]
fn a_whole_report() {
    let folder = Folder::new();
    let sins = "--set misbehave.mask.sin=revive --set misbehave.advantage.sin=none";
    let outcome = folder.host(&format!("check libmisbehave.so {sins}"));
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    assert_snapshot!(redacted(&outcome.stdout), @"
    library BUILD/libmisbehave.so
      entry-point         success  it loads and offers 1 reward, 1 advantage, 1 objective, 1 mask
      load-time           success  it loads in N ms
      unknown-extensions  success  ids that do not exist are answered with none
      component-ids       success  well formed and unique
      recipes             success  it carries none

    reward misbehave.reward
      creation            skipped  it refuses its table: missing field `sin` (give its keys as `--set misbehave.reward.KEY=VALUE`)
      empty-config        success  it says what is missing: missing field `sin`
      unknown-key         success  it is refused with a sentence
      wrong-type          success  it is refused with a sentence, under each key
      malformed-config    success  text that is no table is refused with a sentence
      group-of-one        skipped  the component could not be built
      one-completion      skipped  the component could not be built
      empty-completion    skipped  the component could not be built
      odd-columns         skipped  the component could not be built
      outputs-finite      skipped  the component could not be built
      deterministic       skipped  the component could not be built
      permutation         skipped  the component could not be built
      save-load           skipped  the component could not be built
      evaluation          skipped  the component could not be built
      foreign-state       skipped  the component could not be built
      state-growth        skipped  the component could not be built
      panics-contained    skipped  the component could not be built
      threads             skipped  the component could not be built
      stdout-quiet        skipped  the component could not be built
      call-time           skipped  the component could not be built

    advantage misbehave.advantage
      creation            success  it is made from the keys given
      empty-config        success  it says what is missing: missing field `sin`
      unknown-key         success  it is refused with a sentence
      wrong-type          success  it is refused with a sentence, under each key
      malformed-config    success  text that is no table is refused with a sentence
      known-inputs        success  this host has all that it asks for
      group-of-one        success  it takes groups of one completion
      one-token           success  it takes completions of one token
      one-completion      success  it takes one completion alone
      rows-of-padding     success  it takes completions that are all padding
      outputs-finite      success  all finite, and zero on padding, on 9 batches
      deterministic       success  two fresh instances give the same bits
      permutation         success  groups in another order give the same outputs in that order
      padding-content     success  outputs and records do not depend on it
      save-load           success  a resumed instance goes on with the same bits (0 bytes of state)
      foreign-state       success  foreign bytes are refused, and change nothing
      state-growth        success  0, 0 and 0 bytes after 16, 32 and 64 steps
      panics-contained    success  calls that no host makes do not make it panic
      threads             success  none is left
      stdout-quiet        success  nothing was written to standard output
      call-time           success  N ms for 16 completions of 32 tokens

    objective misbehave.objective
      creation            skipped  it refuses its table: missing field `sin` (give its keys as `--set misbehave.objective.KEY=VALUE`)
      empty-config        success  it says what is missing: missing field `sin`
      unknown-key         success  it is refused with a sentence
      wrong-type          success  it is refused with a sentence, under each key
      malformed-config    success  text that is no table is refused with a sentence
      known-inputs        skipped  the component could not be built
      group-of-one        skipped  the component could not be built
      one-token           skipped  the component could not be built
      one-completion      skipped  the component could not be built
      rows-of-padding     skipped  the component could not be built
      outputs-finite      skipped  the component could not be built
      deterministic       skipped  the component could not be built
      permutation         skipped  the component could not be built
      padding-content     skipped  the component could not be built
      save-load           skipped  the component could not be built
      foreign-state       skipped  the component could not be built
      state-growth        skipped  the component could not be built
      panics-contained    skipped  the component could not be built
      threads             skipped  the component could not be built
      stdout-quiet        skipped  the component could not be built
      call-time           skipped  the component could not be built

    mask misbehave.mask
      creation            success  it is made from the keys given
      empty-config        success  it says what is missing: missing field `sin`
      unknown-key         success  it is refused with a sentence
      wrong-type          success  it is refused with a sentence, under each key
      malformed-config    success  text that is no table is refused with a sentence
      known-inputs        success  this host has all that it asks for
      group-of-one        failed   set `keep` to 1 at completion 1, token 3, where it was cleared (a mask may only clear)
      one-token           failed   the batch has no entry 0
      one-completion      failed   set `keep` to 1 at completion 0, token 5, where it was cleared (a mask may only clear)
      rows-of-padding     failed   set `keep` to 1 at completion 0, token 0, where it was cleared (a mask may only clear)
      outputs-finite      failed   set `keep` to 1 at completion 1, token 3, where it was cleared (a mask may only clear)
      mask-clears-only    failed   set `keep` to 1 at completion 0, token 0, where it was cleared (a mask may only clear)
      deterministic       failed   set `keep` to 1 at completion 1, token 3, where it was cleared (a mask may only clear)
      permutation         failed   set `keep` to 1 at completion 1, token 3, where it was cleared (a mask may only clear)
      padding-content     failed   set `keep` to 1 at completion 1, token 3, where it was cleared (a mask may only clear)
      save-load           failed   set `keep` to 1 at completion 1, token 3, where it was cleared (a mask may only clear)
      foreign-state       failed   set `keep` to 1 at completion 1, token 3, where it was cleared (a mask may only clear)
      state-growth        failed   set `keep` to 1 at completion 1, token 3, where it was cleared (a mask may only clear)
      panics-contained    success  calls that no host makes do not make it panic
      threads             failed   set `keep` to 1 at completion 1, token 3, where it was cleared (a mask may only clear)
      stdout-quiet        failed   set `keep` to 1 at completion 1, token 3, where it was cleared (a mask may only clear)
      call-time           failed   the batch has no entry 0

    checks: 41 success, 33 skipped, 0 warning, 15 failed, 0 crashed
    ");
}

#[test]
fn advantages_and_objectives_that_break_a_rule() {
    let sins = [
        ("nan", "outputs-finite"),
        ("padding", "rows-of-padding"),
        ("panic", "one-token"),
        ("unknown_input", "known-inputs"),
    ];
    assert_snapshot!(lines("misbehave.advantage", &sins), @"
    nan: outputs-finite failed the advantage is NaN at completion 0, token 0 (it must be finite)
    padding: rows-of-padding failed the advantage is 0.5 at completion 0, token 0, which is padding (leave padding at 0)
    panic: one-token failed panicked in `estimate`: estimate panics at step 0
    unknown_input: known-inputs failed it asks for inputs 0x10000000000, which this host does not know
    ");
    let sins = [
        ("nan_loss", "group-of-one"),
        ("padding_derivative", "rows-of-padding"),
        ("unknown_reduction", "known-inputs"),
    ];
    assert_snapshot!(lines("misbehave.objective", &sins), @"
    nan_loss: group-of-one failed the loss is NaN at completion 0, token 0 (it must be finite)
    padding_derivative: rows-of-padding failed the loss's derivative is 0.5 at completion 0, token 0, which is padding (leave padding at 0)
    unknown_reduction: known-inputs failed component `misbehave.objective` asks for reduction 9, which this host does not know (it knows 0 to 2; use a newer host)
    ");
}

#[test]
fn rewards_that_break_a_rule() {
    let sins = [
        ("nan", "one-completion"),
        ("infinity", "outputs-finite"),
        ("short_tokens", "group-of-one"),
        ("error", "one-completion"),
        ("panic", "one-completion"),
        ("needs_text", "empty-completion"),
        ("needs_level", "odd-columns"),
        ("needs_level", "panics-contained"),
        ("grade", "deterministic"),
        ("by_position", "permutation"),
        ("forgetful", "save-load"),
        ("panic_in_load", "foreign-state"),
        ("counts_evaluations", "evaluation"),
        ("growing", "state-growth"),
        ("hang", "one-completion"),
    ];
    assert_snapshot!(lines("misbehave.reward", &sins), @r#"
    nan: one-completion failed the reward is NaN at completion 0 (it must be finite)
    infinity: outputs-finite failed the reward is inf at completion 0 (it must be finite)
    short_tokens: group-of-one failed `record_tokens("short")` got 3 values for a batch of 4 completions (at this point one per completion)
    error: one-completion skipped it refuses rows that are made up: score gives up (as it was told to) (give a dataset of its kind as `--rows FILE`)
    panic: one-completion failed panicked in `score`: score panics at step 0
    needs_text: empty-completion failed panicked in `score`: a text
    needs_level: odd-columns failed panicked in `score`: a level: PluginError { kind: ErrorKind(0), message: "a prompt's row has no column `level` (the row has no columns)" }
    needs_level: panics-contained warning on columns that are no JSON: panicked in `score`: a level: PluginError { kind: ErrorKind(0), message: "the prompt's row is not a JSON object: EOF while parsing a value at line 1 column 11" } (contained; return an error)
    grade: deterministic skipped it refuses rows that are made up: a prompt's row has no column `grade` (the row has `answer`, `level`) (give a dataset of its kind as `--rows FILE`)
    by_position: permutation warning with the groups in another order `reward` is 2 and 1 at completion 0 (fine only where it draws at random)
    forgetful: save-load failed after a load in mid-stream step 4 differs: `reward` is 0.5 and 0 at completion 0 (save all that later steps depend on)
    panic_in_load: foreign-state failed on 1 foreign bytes panicked in `load`: load panics (return an error)
    counts_evaluations: evaluation failed a rollout for evaluation changes its state (change state where `rollout.purpose` is `Purpose::TRAINING` alone)
    growing: state-growth warning its state grows with every step: 16777216, 33554432 and 67108864 bytes after 16, 32 and 64 steps
    hang: one-completion failed it did not come back within 5 s
    "#);
}

#[test]
fn a_reward_that_reads_columns_of_its_own() {
    let folder = Folder::new();
    let row = |i: u32| format!("{{\"prompt\": \"{i}+1=\", \"answer\": {}, \"grade\": {}}}\n", i + 1, i % 3);
    folder.write("rows.jsonl", (0..7).map(row).collect::<String>());
    let checked = |args: &str| folder.host(&format!("check libmisbehave.so --set misbehave.reward.sin=grade {args}"));
    let reward = |outcome: Outcome| {
        let (_, reward) = outcome.stdout.split_once("reward misbehave.reward\n").unwrap();
        redacted(reward.split_once("\n\n").unwrap().0)
    };
    assert_snapshot!(reward(checked("--rows rows.jsonl --fuzz 50").succeeded()), @"
    creation            success  it is made from the keys given
    empty-config        success  it says what is missing: missing field `sin`
    unknown-key         success  it is refused with a sentence
    wrong-type          success  it is refused with a sentence, under each key
    malformed-config    success  text that is no table is refused with a sentence
    group-of-one        success  it takes groups of one completion
    one-completion      success  it takes one completion alone
    empty-completion    success  it takes completions without a character
    odd-columns         success  rows of any shape are taken, or refused with a sentence (9 were)
    outputs-finite      success  all finite, on 7 rollouts
    deterministic       success  two fresh instances give the same bits
    permutation         success  groups in another order give the same outputs in that order
    save-load           success  a resumed instance goes on with the same bits (0 bytes of state)
    evaluation          success  rollouts for evaluation change nothing
    foreign-state       success  foreign bytes are refused, and change nothing
    state-growth        success  0, 0 and 0 bytes after 16, 32 and 64 steps
    panics-contained    success  calls that no host makes do not make it panic
    threads             success  none is left
    stdout-quiet        success  nothing was written to standard output
    call-time           success  N ms for 16 completions
    fuzz                success  50 random inputs of seed 0, 50 refused with a sentence
    ");
    folder.write("rows.jsonl", "{\"prompt\": \"1+1=\", \"answer\": 2}\n");
    let outcome = checked("--rows rows.jsonl --only one-completion");
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    assert_snapshot!(reward(outcome), @"  one-completion      failed   a prompt's row has no column `grade` (the row has `answer`)");
    assert_snapshot!(checked("--rows none.jsonl").refused(), @"cannot read `none.jsonl`: No such file or directory (os error 2)");
    folder.write("rows.jsonl", "[]\n");
    assert_snapshot!(checked("--rows rows.jsonl").refused(), @"bad row at line 1 of `rows.jsonl`: expected a JSON object, found a list");
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
    assert_snapshot!(lines("misbehave.mask", &sins), @r#"
    revive: mask-clears-only failed set `keep` to 1 at completion 0, token 0, where it was cleared (a mask may only clear)
    seven: outputs-finite failed wrote 7 into `keep` at completion 0, token 0 (entries are 0 or 1)
    short_tokens: one-completion failed `record_tokens("short")` got 6 values for a batch of 7 tokens (B · T, padding included)
    many_names: one-token failed recorded under more than 1000 names in one call, `name-1000` among them (give a number per token to `record_tokens`)
    long_name: one-token failed recorded under a name of 1000000 bytes, at most 200 are allowed
    nan_records: outputs-finite warning the record `nan` is not finite (it becomes null in the metrics)
    counts_calls: deterministic failed two fresh instances differ on the same inputs, at step 0: `keep` is 0 and 1 at completion 0, token 0 (draw at random from `seed` and `step` alone)
    counts_calls: permutation warning with the groups in another order `keep` is 0 and 1 at completion 0, token 0 (fine only where it draws at random)
    reads_padding: padding-content failed with other values in the padding `keep` is 1 and 0 at completion 0, token 0 (skip tokens whose `completion_mask` is 0)
    forgetful: save-load failed after a load in mid-stream step 4 differs: `keep` is 0 and 1 at completion 0, token 0 (save all that later steps depend on)
    stateful: save-load success a resumed instance goes on with the same bits (7 bytes of state)
    stateful: foreign-state success foreign bytes are refused, and change nothing
    growing: foreign-state warning 2097159 foreign bytes are taken for its state (write what tells them apart)
    growing: state-growth warning its state grows with every step: 16777216, 33554432 and 67108864 bytes after 16, 32 and 64 steps
    stdout: stdout-quiet failed it wrote 22 bytes to standard output: "hello from the plugin\n" (use `ctx.warn`)
    thread: threads failed threads left: 1 after one instance, 2 after two (join them in `drop`)
    "#);
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
    assert_snapshot!(lines("misbehave.mask", &sins), @"
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
    hang: one-token failed it did not come back within 5 s
    ");
}

#[test]
fn a_mask_that_never_comes_back_is_not_waited_for_again_and_again() {
    let folder = Folder::new();
    let outcome = folder.host("check libmisbehave.so --timeout 1 --set misbehave.mask.sin=hang");
    assert_eq!(outcome.stdout.matches("it did not come back within 1 s").count(), 2, "{}", outcome.stdout);
    assert!(outcome.stdout.contains("checks before it did not come back"), "{}", outcome.stdout);
    let outcome = folder.host("check libmisbehave.so --timeout 1 --set misbehave.mask.sin=hang_on_creation");
    assert_eq!(outcome.stdout.matches("it did not come back within 1 s").count(), 1, "{}", outcome.stdout);
}

#[test]
fn recipes_are_checked() {
    let outcome = Folder::new().host("check libbad_recipes.so --only recipes --only component-ids");
    assert_eq!(outcome.code, Some(1));
    assert_snapshot!(outcome.stdout, @"
    library BUILD/libbad_recipes.so
      component-ids       warning  it offers no component (call `register!`)
      recipes             failed   recipe `garbled` is not TOML: line 1: unclosed table, expected `]`

    checks: 0 success, 0 skipped, 1 warning, 1 failed, 0 crashed
    ");
}

#[test]
fn random_batches_and_one_of_them_again() {
    let _ = green("libcapo.so --only fuzz --fuzz 120 --seed 3");
    let folder = Folder::new();
    let sin = "--set misbehave.mask.sin=counts_calls";
    let outcome = folder.host(&format!("check libmisbehave.so {sin} --only fuzz --fuzz 20 --seed 7"));
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    let found = last_line(&outcome);
    assert_snapshot!(found, @"  fuzz                failed   B = 2, T = 7, G = 2: two fresh instances differ: `keep` is 0 and 1 at completion 0, token 0 (run it alone with `--reproduce misbehave.mask@7.0`)");
    let (_, name) = found.split_once("--reproduce ").unwrap();
    let name = name.trim_end_matches(['`', ')']);
    let again = folder.host(&format!("check libmisbehave.so {sin} --reproduce {name}"));
    assert_eq!((again.code, last_line(&again)), (Some(1), found.clone()));
    // A crash names its case too, from the grave.
    let sin = "--set misbehave.mask.sin=abort --set misbehave.mask.at_step=120";
    let outcome = folder.host(&format!("check libmisbehave.so {sin} --only fuzz --fuzz 200 --seed 7"));
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    assert_snapshot!(last_line(&outcome), @"  fuzz                crashed  its process was ended by signal 6 (SIGABRT) (run it alone with `--reproduce misbehave.mask@7.113`)");
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
    assert_snapshot!(folder.host("check libcapo.so --only permutations").refused(), @"there is no check `permutations` (did you mean `permutation`?)");
    assert_snapshot!(folder.host("check libcapo.so --set capo.curvatur.fisher_threshold=1").refused(), @"`--set capo.curvatur.fisher_threshold=1` names no component (write `--set COMPONENT.KEY=VALUE` with one of `capo.advantage`, `capo.objective`, `capo.curvature`)");
    assert_snapshot!(folder.host("check libcapo.so --reproduce capo.curvature").refused(), @"`--reproduce capo.curvature` is no case (write `COMPONENT@SEED.CASE`, as `--fuzz` printed it)");
    assert_snapshot!(folder.host("check libcapo.so --reproduce capo.curvatur@1.2").refused(), @"`--reproduce` names `capo.curvatur`, which the library does not offer (did you mean `capo.curvature`?)");
    assert_snapshot!(folder.host("check libnone.so").refused().split(';').next().unwrap(), @"plugin `libnone.so` was not found");
}

#[test]
fn the_checks_are_listed() {
    let listed = Folder::new().host("check --list").succeeded().stdout;
    assert_eq!(listed.lines().count(), 31);
    assert!(listed.lines().all(|line| line.split_whitespace().count() > 3), "{listed}");
}
