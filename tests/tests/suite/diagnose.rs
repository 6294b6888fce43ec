//! `host diagnose`, and the warnings of a run at work, which are made of the same checks.

use std::path::Path;

use insta::assert_snapshot;
use serde_json::{Map, Value, json};
use tests::{Folder, names};

/// A folder with the run that `tests/data/diagnose` has under `name`.
fn recorded(name: &str) -> Folder {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("data/diagnose/{name}.txt"));
    let text = std::fs::read_to_string(path).unwrap();
    let (settings, table) = text.split_once("\n\n").unwrap();
    let (names, rows) = table.split_once('\n').unwrap();
    let line = |row: &str| {
        let cells = names
            .split(' ')
            .zip(row.split(' '))
            .filter(|(_, cell)| *cell != "-");
        let value = |cell: &str| serde_json::from_str::<Value>(cell).unwrap();
        let line: Map<String, Value> = cells
            .map(|(name, cell)| (name.to_owned(), value(cell)))
            .collect();
        format!("{}\n", Value::Object(line))
    };
    let folder = Folder::new();
    folder.write(&format!("{name}/config.toml"), settings);
    folder.write(
        &format!("{name}/metrics.jsonl"),
        rows.lines().map(line).collect::<String>(),
    );
    folder
}

fn said(name: &str) -> String {
    recorded(name).said(&format!("diagnose {name}"))
}

/// Recorded runs whose outcome is known, including some that went well.
#[test]
fn diagnoses_the_recorded_runs() {
    let names = names(&Path::new(env!("CARGO_MANIFEST_DIR")).join("data/diagnose"));
    let said: Vec<String> = names
        .iter()
        .filter_map(|name| Some(said(name.strip_suffix(".txt")?)))
        .collect();
    assert_eq!(said.len(), 18);
    insta::assert_snapshot!("diagnose", said.join("\n"));
}

/// A mask that has nothing to reject, and a governor that is never needed.
const IDLE: &str = "--plugin libmasks.so --set recipe=dppo --plugin libgovernor.so --step-control governor.kl \
    --set step_control.0.target=1 --set warnings.idle_mask_steps=3 --set warnings.idle_control_steps=5 --set train.max_steps=7 \
    --set train.lr_scheduler_type=constant --set train.warmup_ratio=0 --set eval.num_prompts=0";

#[test]
fn warns_once_also_after_a_resume() {
    let folder = Folder::new();
    let whole = folder.attempt("whole", IDLE).succeeded();
    assert_snapshot!(whole.stderr, @"
    warning: step 3: `masks.dppo-tv` has rejected no token in 3 steps: the run is as without it (tighten `masks.dppo-tv`, whose keys `host plugins --verbose --plugin libmasks.so` lists, or leave it out; docs/masks.md)
    warning: step 5: `governor.kl` has shortened no step in 5: the run is as without it (lower its bound: `--set step_control.governor.kl.target=1e-1`, or leave it out; docs/stability.md)
    ");
    let first = folder
        .attempt("parts", &format!("{IDLE} --stop-after 4"))
        .succeeded();
    let second = folder.host("train --resume parts").succeeded();
    assert_eq!(first.stderr.clone() + &second.stderr, whole.stderr);
    assert_eq!(
        [first, second].map(|part| part.stderr.lines().count()),
        [1, 1]
    );
    let (whole, parts) = (folder.run_dir("whole"), folder.run_dir("parts"));
    whole.assert_same_files(&parts);
    let told = |name: &str| {
        whole
            .metrics()
            .iter()
            .position(|line| line.contains_key(name))
            .map(|place| place + 1)
    };
    let found: Value = serde_json::from_str(&folder.said("diagnose whole --json")).unwrap();
    let found = |at: usize, key: &str| &found[0]["findings"][at][key];
    for (at, (check, component)) in [
        (0, ("mask_idle", "masks.dppo-tv")),
        (1, ("control_idle", "governor.kl")),
    ] {
        let first = told(&format!("warnings/{check}/{component}"));
        let keys = ["check", "component", "first", "last"].map(|key| found(at, key).clone());
        assert_eq!(
            keys,
            [json!(check), json!(component), json!(first), json!(7)]
        );
    }
    folder.said("report whole --out report.html");
    let page = folder.text("report.html");
    let finding = "<b>after steps 3 to 7</b>: <code><span>masks.dppo-tv</span></code> has rejected no token in 3 steps";
    assert!(
        page.contains(&format!("<div class=\"finding info\"><p>{finding}")),
        "{page}"
    );
}

#[test]
fn a_limit_of_0_is_silence() {
    let folder = recorded("too-fast");
    let off = |folder: &Folder, key: &str| {
        let config = folder.path().join("too-fast/config.toml");
        let settings = std::fs::read_to_string(&config).unwrap();
        folder.write(
            "too-fast/config.toml",
            format!("{settings}\nwarnings.{key} = 0\n"),
        );
        folder.said("diagnose too-fast")
    };
    assert!(off(&folder, "reward_fall").contains("held_out_fell"));
    assert!(off(&folder, "held_out_fall").contains("no_signal"));
    assert!(off(&folder, "no_signal_steps").ends_with("     nothing that the checks know of\n"));
}
