//! `host check`: shipped plugins pass, and components that misbehave are named.

use insta::assert_snapshot;
use serde_json::{Value, json};
use tests::{Folder, Outcome, artifacts, to_json_lines};

/// The report with `N` in place of every number of milliseconds, which differs from machine to
/// machine.
pub fn redacted(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let is_time = |i: usize| {
        words
            .get(i + 1)
            .is_some_and(|next| next.trim_end() == "ms" || next.starts_with("ms\n"))
    };
    let redact = |(i, word): (usize, &&str)| {
        if is_time(i) {
            "N".to_owned()
        } else {
            (*word).to_owned()
        }
    };
    words
        .iter()
        .enumerate()
        .map(redact)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Asserts that all checks pass, and returns the report.
fn green(args: &str) -> String {
    let outcome = Folder::new().host(&format!("check {args}")).succeeded();
    let summary = outcome.stdout.lines().last().unwrap();
    assert!(
        summary.ends_with("0 warning, 0 failed, 0 crashed"),
        "{}",
        outcome.stdout
    );
    redacted(&outcome.stdout)
}

#[test]
fn the_shipped_plugins_are_green() {
    for plugin in [
        "libcapo.so",
        "libdrcapo.so",
        "libreincapo.so",
        "libgovernor.so",
    ] {
        let report = green(plugin);
        assert!(!report.contains("refuses its table"), "{report}");
    }
}

#[test]
fn built_in_components_are_green() {
    green("");
    let report = green("--only creation --only save-load");
    let said =
        |check: &str, sentence: &str| report.matches(&format!("\n  {check} {sentence}")).count();
    let made = "           success  it is made from an empty table";
    let saved =
        "          success  a resumed instance goes on with the same bits (0 bytes of state)";
    assert_eq!(said("creation", made), said("save-load", saved));
    for (id, key) in [
        ("command", "command"),
        ("regex", "pattern"),
        ("reward_model", "model_name_or_path"),
        ("soft_overlong", "soft_punish_cache"),
    ] {
        let lacks = format!(
            "it refuses its table: key `{key}` is missing (give its keys as `--set {id}.KEY=VALUE`)"
        );
        assert!(
            report.contains(&format!(
                "\nreward {id}\n  creation            skipped  {lacks}\n"
            )),
            "{report}"
        );
    }
    let lines: Vec<&str> = report.lines().rev().take(3).collect();
    assert_snapshot!(lines.join("\n"), @"
    checks: 44 success, 10 skipped, 0 warning, 0 failed, 0 crashed

    not checked, for want of what the lines above ask for: command, regex, reward_model, soft_overlong
    ");
}

#[test]
fn the_published_masks_are_green_and_two_draw_at_random() {
    let report = Folder::new().said("check libmasks.so");
    let warnings: Vec<&str> = report
        .lines()
        .filter(|line| line.contains("  warning  "))
        .collect();
    let draws = |line: &&str| {
        line.starts_with("  permutation") && line.ends_with("(fine only where it draws at random)")
    };
    assert!(
        warnings.len() == 2 && warnings.iter().all(draws),
        "{report}"
    );
    assert!(!report.contains("refuses its table"), "{report}");
}

#[test]
#[ignore = "slow: it builds two plugins; .ci/long runs it"]
fn the_examples_are_green_with_their_keys_and_skipped_without() {
    let names = ["surprise-cap", "gspo"];
    let libraries = names.map(|name| artifacts::example(name, "dev").display().to_string());
    let report = green(&format!(
        "{} --set example.surprise-cap.max_nats=5",
        libraries.join(" ")
    ));
    assert!(!report.contains("refuses its table"), "{report}");
    let outcome = Folder::new().host(&format!("check {}", libraries[0]));
    assert_eq!(
        outcome.code,
        Some(1),
        "a component that could not be checked is no success: {outcome:#?}"
    );
    let report = redacted(&outcome.stdout);
    assert!(
        report.contains(
            "\nnot checked, for want of what the lines above ask for: example.surprise-cap\n"
        ),
        "{report}"
    );
    let (_, mask) = report.split_once("\nmask ").unwrap();
    assert_snapshot!(mask.lines().take(8).collect::<Vec<_>>().join("\n"));
}

/// The report with neighbouring checks of the same outcome joined into one line.
fn folded(report: &str) -> String {
    let said = |line: &str| {
        line.starts_with("  ")
            .then(|| line.get(22..).map(str::to_owned))
            .flatten()
    };
    let name = |line: &str| line[..22].trim().to_owned();
    let lines: Vec<&str> = report.lines().collect();
    let runs = lines.chunk_by(|one, other| said(one).is_some() && said(one) == said(other));
    let fold = |run: &[&str]| match run {
        [first, .., last] => format!(
            "  {} to {} ({}): {}",
            name(first),
            name(last),
            run.len(),
            &first[22..]
        ),
        _ => run.concat(),
    };
    runs.map(fold).collect::<Vec<_>>().join("\n")
}

#[test]
fn prints_a_whole_report() {
    let folder = Folder::new();
    let sins = "--set misbehave.mask.sin=revive --set misbehave.advantage.sin=none";
    let outcome = folder.host(&format!("check libmisbehave.so {sins}"));
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    let report = folded(&redacted(&outcome.stdout));
    let is_other = |section: &&str| {
        ["objective m", "weight m", "step_control m"]
            .iter()
            .any(|of| section.starts_with(of))
    };
    let (others, whole): (Vec<&str>, Vec<&str>) = report
        .split("\n\n")
        .filter(|section| !section.starts_with("environment m"))
        .partition(is_other);
    // A statement about one component without its keys holds for all.
    let (_, reward) = whole[1].split_once('\n').unwrap();
    let (reward, _) = reward.split_once("\n  group-of-one").unwrap();
    for (section, (point, skipped)) in
        others
            .iter()
            .zip([("objective", 19), ("weight", 21), ("control", 18)])
    {
        assert!(
            section.contains(&reward.replace("misbehave.reward", &format!("misbehave.{point}"))),
            "{section}"
        );
        let last = format!(
            "\n  known-inputs to call-time ({skipped}): skipped  the component could not be built"
        );
        assert!(section.ends_with(&last), "{section}");
    }
    assert_eq!(others.len(), 3);
    assert_snapshot!(whole.join("\n\n"));
}

#[test]
fn checks_a_reward_that_reads_its_own_columns() {
    let folder = Folder::new();
    let row = |i: u32| json!({"prompt": format!("{i}+1="), "answer": i + 1, "grade": i % 3});
    folder.write("rows.jsonl", to_json_lines((0..7).map(row)));
    let others = ["advantage", "objective", "mask"]
        .map(|point| format!("--set misbehave.{point}.sin=none"))
        .join(" ");
    let command = format!("check libmisbehave.so --set misbehave.reward.sin=grade {others}");
    let checked = |args: &str| folder.host(&format!("{command} {args}"));
    let reward = |outcome: Outcome| {
        let (_, reward) = outcome
            .stdout
            .split_once("reward misbehave.reward\n")
            .unwrap();
        redacted(reward.split_once("\n\n").unwrap().0)
    };
    // The report covers all components of the plugin, and one of them breaks a rule on purpose.
    let report = reward(checked("--rows rows.jsonl --fuzz 50"));
    assert!(
        report.lines().all(|line| line.contains(" success ")) && report.lines().count() == 24,
        "{report}"
    );
    // Statements about components at every point are not repeated here.
    let own = "group-of-one one-completion empty-completion odd-columns outputs-finite record-names permutation \
        evaluation key-values call-time fuzz";
    let is_own = |line: &&str| {
        own.split(' ')
            .any(|check| line.trim_start().starts_with(&format!("{check} ")))
    };
    assert_snapshot!(report.lines().filter(is_own).collect::<Vec<_>>().join("\n"));
    folder.write("rows.jsonl", "{\"prompt\": \"1+1=\", \"answer\": 2}\n");
    let outcome = checked("--rows rows.jsonl --only one-completion");
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    assert_snapshot!(reward(outcome), @"  one-completion      failed   a prompt's row has no column `grade` (the row has `answer`)");
    assert_snapshot!(checked("--rows none.jsonl").refused(), @"cannot read `none.jsonl`: No such file or directory (os error 2)");
    folder.write("rows.jsonl", "[]\n");
    assert_snapshot!(checked("--rows rows.jsonl").refused(), @"`rows.jsonl` holds no rows (give it at least one)");
}

#[test]
fn recipes_are_checked() {
    let outcome = Folder::new().host("check libbad_recipes.so --only recipes --only component-ids");
    assert_eq!(outcome.code, Some(1));
    assert_snapshot!(outcome.stdout);
}

#[test]
fn repeats_one_of_its_random_batches() {
    green("libcapo.so --only fuzz --fuzz 120 --seed 3");
    let folder = Folder::new();
    let sin = "--set misbehave.mask.sin=counts_calls";
    let outcome = folder.host(&format!(
        "check libmisbehave.so {sin} --only fuzz --fuzz 20 --seed 7"
    ));
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    let found = last_line(&outcome);
    assert_snapshot!(found, @"  fuzz                failed   B = 6, T = 1, G = 3: two fresh instances differ: `token_mask` is 0 and 1 at completion 0, token 0 (run it alone with `--reproduce misbehave.mask@7.0`)");
    let (_, name) = found.split_once("--reproduce ").unwrap();
    let name = name.trim_end_matches(['`', ')']);
    let again = folder.host(&format!("check libmisbehave.so {sin} --reproduce {name}"));
    assert_eq!((again.code, last_line(&again)), (Some(1), found.clone()));
    // The report names the case in which a component crashed.
    let sin = "--set misbehave.mask.sin=abort --set misbehave.mask.at_step=130";
    let outcome = folder.host(&format!(
        "check libmisbehave.so {sin} --only fuzz --fuzz 200 --seed 7"
    ));
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    assert_snapshot!(last_line(&outcome), @"  fuzz                crashed  its process was ended by signal 6 (SIGABRT) (run it alone with `--reproduce misbehave.mask@7.63`)");
}

/// The last line about a check that was done.
fn last_line(outcome: &Outcome) -> String {
    outcome
        .stdout
        .lines()
        .rfind(|line| line.starts_with("  ") && !line.contains("skipped"))
        .unwrap_or_else(|| panic!("{outcome:#?}"))
        .to_owned()
}

#[test]
fn reports_as_json() {
    let outcome = Folder::new().host("check libcapo.so --json").succeeded();
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let checks = report["libraries"][0]["checks"].as_array().unwrap();
    let [first, last] = [checks.first().unwrap(), checks.last().unwrap()];
    assert_eq!(first["check"], "entry-point");
    assert_eq!(
        (&first["component"], &first["point"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(
        (&last["component"], &last["point"]),
        (&"capo.curvature-weight".into(), &"weight".into())
    );
    assert_eq!(last["status"], "success");
    assert!(last["sentence"].is_string() && last["seconds"].is_f64());
    assert_eq!(report["summary"]["failed"], 0);
    let sum: u64 = report["summary"]
        .as_object()
        .unwrap()
        .values()
        .map(|count| count.as_u64().unwrap())
        .sum();
    assert_eq!(sum, checks.len() as u64);
}

#[test]
fn accepts_a_word_that_toml_takes_for_a_number() {
    let folder = Folder::new();
    let others = "--set misbehave.environment.sin=none --set misbehave.reward.sin=none --set misbehave.objective.sin=none --set misbehave.mask.sin=none \
        --set misbehave.weight.sin=none --set misbehave.control.sin=none";
    let checked = |sin: &str| {
        let args = format!(
            "check libmisbehave.so {others} --set misbehave.advantage.sin={sin} --only creation"
        );
        folder.said(&args)
    };
    assert_eq!(checked("nan"), checked("\"nan\""));
}

#[test]
fn the_checks_are_listed() {
    let listed = Folder::new().said("check --list");
    assert_eq!(listed.lines().count(), 39);
    assert!(
        listed
            .lines()
            .all(|line| line.split_whitespace().count() > 3),
        "{listed}"
    );
}
