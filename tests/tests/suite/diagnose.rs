//! `host diagnose`, and the warnings of a run at work, which are made of the same checks.

use std::path::Path;

use insta::assert_snapshot;
use serde_json::{Map, Value, json};
use tests::Folder;

use crate::refused;

/// A folder with the run that `tests/data/diagnose` has under `name`.
fn recorded(name: &str) -> Folder {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("data/diagnose/{name}.txt"));
    let text = std::fs::read_to_string(path).unwrap();
    let (settings, table) = text.split_once("\n\n").unwrap();
    let (names, rows) = table.split_once('\n').unwrap();
    let line = |row: &str| {
        let cells = names.split(' ').zip(row.split(' ')).filter(|(_, cell)| *cell != "-");
        let value = |cell: &str| serde_json::from_str::<Value>(cell).unwrap();
        let line: Map<String, Value> = cells.map(|(name, cell)| (name.to_owned(), value(cell))).collect();
        format!("{}\n", Value::Object(line))
    };
    let folder = Folder::new();
    folder.write(&format!("{name}/config.toml"), settings);
    folder.write(&format!("{name}/metrics.jsonl"), rows.lines().map(line).collect::<String>());
    folder
}

fn said(name: &str) -> String {
    recorded(name).said(&format!("diagnose {name}"))
}

#[test]
fn runs_that_went_well_are_left_alone() {
    for name in ["healthy-grpo", "healthy-soft", "healthy-governed"] {
        let said = said(name);
        let (_, findings) = said.split_once('\n').unwrap();
        assert_eq!(findings, "     nothing that the checks know of\n", "{name}");
    }
}

#[test]
fn a_reward_that_fell_and_why() {
    assert_snapshot!(said("too-fast"), @"
    too-fast: finished after step 75 of 75, reward 0.273 -> 0.000, held-out accuracy 50.80% -> 0.78%, best 50.80% after step 0
      1. after 32 of steps 39 to 75: the mean reward of 10 steps fell from 0.273, after step 10, to 0.017
         try `train.learning_rate=3.3e-4`, a third, or limit each step: `--plugin libgovernor.so --step-control governor.kl`
         docs/stability.md, check `reward_fell`
    ");
    assert_snapshot!(said("mask-undone"), @"
    mask-undone: finished after step 100 of 100, reward 0.517 -> 0.273, held-out accuracy 50.80% -> 36.70%, best 63.30% after step 25
      1. after 30 of steps 60 to 97: the mean reward of 10 steps fell from 0.529, after step 32, to 0.248
         try `train.learning_rate=1.0e-4`, a third, or limit each step: `--plugin libgovernor.so --step-control governor.kl`
         docs/stability.md, check `reward_fell`
      2. after 30 of steps 60 to 97: masks took 91% of the squared gradient; Adam's second moment shrank with it, so that the steps stayed as long
         set `train.second_moment=kept_and_rejected`
         docs/stability.md, check `mask_undone`
    ");
}

#[test]
fn steps_that_teach_nothing() {
    assert_snapshot!(said("all-rejected"), @"
    all-rejected: finished after step 10 of 10, reward 0.000 -> 0.000, held-out accuracy 0.00% -> 0.00%, best 0.00% after step 0
      1. after steps 3 to 10: every token was rejected in the last 3 steps, so that nothing is learned
         loosen `masks.truncated`, which rejected most
         docs/masks.md, check `all_rejected`
      2. after step 10: the length limit cut off 100% of the completions of the last 10 steps, which end without an answer
         raise `rollout.max_completion_length`
         docs/masks.md, check `cut_off`
      3. after step 10: the completions of each prompt earned alike in the last 10 steps, 0.000 on average (0.000 in the first step), so that rewards taught nothing
         try easier or harder prompts, more `rollout.num_generations`, or `rollout.filter_groups=true`; where they earned more before, a lower `train.learning_rate`
         docs/objectives.md, check `no_signal`
    ");
    assert_snapshot!(said("no-signal"), @"
    no-signal: finished after step 30 of 30, reward 0.000 -> 0.000, held-out accuracy 0.00% -> 0.00%, best 0.00% after step 0
      1. after steps 10 to 30: the completions of each prompt earned alike in the last 10 steps, 0.000 on average (0.000 in the first step), so that rewards taught nothing
         try easier or harder prompts, more `rollout.num_generations`, or `rollout.filter_groups=true`; where they earned more before, a lower `train.learning_rate`
         docs/objectives.md, check `no_signal`
    ");
    assert_snapshot!(said("entropy-gone"), @"
    entropy-gone: finished after step 75 of 75, reward -0.443 -> -0.042
      1. after steps 23 to 75: the policy is sure of every token: entropy 9.7e-3 nats in the last 10 steps, and 98% of completions teach nothing
         stop here where the answers are right, else begin again with `train.entropy_coef` above 0 or a lower rate
         docs/first-real-run.md, check `entropy_gone`
      2. after steps 24 to 75: the completions of each prompt earned alike in the last 10 steps, -0.042 on average (-0.479 in the first step), so that rewards taught nothing
         try easier or harder prompts, more `rollout.num_generations`, or `rollout.filter_groups=true`; where they earned more before, a lower `train.learning_rate`
         docs/objectives.md, check `no_signal`
    ");
    assert_snapshot!(said("cut-off"), @"
    cut-off: finished after step 30 of 30, reward 0.250 -> 0.231, held-out accuracy 22.70% -> 25.00%, best 25.00% after step 30
      1. after steps 10 to 30: the length limit cut off 62% of the completions of the last 10 steps, which end without an answer
         raise `rollout.max_completion_length`, or drop them: `--plugin libmasks.so --mask masks.truncated`
         docs/masks.md, check `cut_off`
    ");
}

#[test]
fn components_that_do_too_much() {
    assert_snapshot!(said("mask-rejects-much"), @"
    mask-rejects-much: finished after step 20 of 20, reward 0.523 -> 0.475, held-out accuracy 50.80% -> 49.20%, best 50.80% after step 0
      1. after steps 5 to 20: `capo.curvature` rejected 28% of the tokens of the last 5 steps
         raise `mask.capo.curvature.fisher_threshold`, or lower `train.learning_rate`
         docs/first-real-run.md, check `mask_rejects_much`
    ");
    assert_snapshot!(said("weights-small"), @"
    weights-small: finished after step 75 of 75, reward 0.519 -> 0.502, held-out accuracy 50.80% -> 50.80%, best 50.80% after step 0
      1. after steps 20 to 75: `capo.curvature-weight` let tokens count 0.02 on average in the last 20 steps, so that little is learned
         raise `weight.capo.curvature-weight.fisher_threshold`, tenfold at first
         docs/first-real-run.md, check `weights_small`
    ");
    assert_snapshot!(said("adapter-bound"), @"
    adapter-bound: finished after step 75 of 75, reward 0.519 -> 0.502, held-out accuracy 50.80% -> 50.80%, best 50.80% after step 0
      1. after steps 20 to 75: `capo.curvature-weight` let tokens count 0.01 on average in the last 20 steps, so that little is learned
         set `weight.capo.curvature-weight.fisher_threshold` to `auto`: the default was found on whole models, and an adapter's m_F are larger
         docs/first-real-run.md, check `weights_small`
    ");
    assert_snapshot!(said("governor-tight"), @"
    governor-tight: finished after step 75 of 75, reward 0.550 -> 0.690, held-out accuracy 50.80% -> 98.40%, best 98.40% after step 75
      1. after steps 50 to 75: `governor.kl` left 0.8% of the length of the last 50 steps: the rate is far above what its target allows
         lower `train.learning_rate`, or, where the reward hardly rises, raise `step_control.governor.kl.target`
         docs/first-real-run.md, check `steps_held_back`
    ");
}

#[test]
fn components_that_do_nothing() {
    assert_snapshot!(said("mask-idle"), @"
    mask-idle: finished after step 30 of 30, reward 0.612 -> 0.677, held-out accuracy 50.80% -> 92.20%, best 92.20% after step 30
      1. after steps 20 to 30: `masks.dppo-tv` has rejected no token in 20 steps: the run is as without it
         tighten `masks.dppo-tv`, whose keys `host plugins --verbose` lists, or leave it out
         docs/masks.md, check `mask_idle`
    ");
    assert_snapshot!(said("governor-idle"), @"
    governor-idle: finished after step 75 of 75, reward 0.615 -> 0.683, held-out accuracy 50.80% -> 96.90%, best 96.90% after step 75
      1. after steps 50 to 75: `governor.kl` has shortened no step in 50: the run is as without it
         lower `step_control.governor.kl.target`, or leave it out
         docs/first-real-run.md, check `control_idle`
    ");
}

#[test]
fn a_step_that_went_far() {
    assert_snapshot!(said("kl-jump"), @"
    kl-jump: finished after step 160 of 160, reward 0.625 -> 0.679, held-out accuracy 50.80% -> 97.70%, best 97.70% after step 150
      1. after step 156: this step moved the policy by 1.5e-2 nats per token, 114 times the median of the steps before at this rate
         should the reward fall after it: try `train.learning_rate=3.3e-5`, a third, or limit each step: `--plugin libgovernor.so --step-control governor.kl`
         docs/stability.md, check `kl_jump`
    ");
}

/// A mask that has nothing to act on, and a governor that is never needed.
const IDLE: &str = "--plugin libmasks.so --set recipe=dppo --plugin libgovernor.so --step-control governor.kl \
    --set step_control.0.target=1 --set warnings.idle_mask_steps=3 --set warnings.idle_control_steps=5 --set train.max_steps=7 \
    --set train.lr_scheduler_type=constant --set train.warmup_ratio=0 --set eval.num_prompts=0";

#[test]
fn a_warning_is_told_once_and_a_resume_goes_on_counting() {
    let folder = Folder::new();
    let whole = folder.attempt("whole", IDLE).succeeded();
    assert_snapshot!(whole.stderr, @"
    warning: step 3: `masks.dppo-tv` has rejected no token in 3 steps: the run is as without it (tighten `masks.dppo-tv`, whose keys `host plugins --verbose` lists, or leave it out; docs/masks.md)
    warning: step 5: `governor.kl` has shortened no step in 5: the run is as without it (lower `step_control.governor.kl.target`, or leave it out; docs/first-real-run.md)
    ");
    let first = folder.attempt("parts", &format!("{IDLE} --stop-after 4")).succeeded();
    let second = folder.host("train --resume parts").succeeded();
    assert_eq!(first.stderr.clone() + &second.stderr, whole.stderr);
    assert_eq!([first, second].map(|part| part.stderr.lines().count()), [1, 1]);
    let (whole, parts) = (folder.run_dir("whole"), folder.run_dir("parts"));
    whole.assert_same_files(&parts);
    let told = |name: &str| whole.metrics().iter().position(|line| line.contains_key(name)).map(|place| place + 1);
    let found: Value = serde_json::from_str(&folder.said("diagnose whole --json")).unwrap();
    let found = |at: usize, key: &str| &found[0]["findings"][at][key];
    for (at, (check, component)) in [(0, ("mask_idle", "masks.dppo-tv")), (1, ("control_idle", "governor.kl"))] {
        let first = told(&format!("warnings/{check}/{component}"));
        let keys = ["check", "component", "first", "last"].map(|key| found(at, key).clone());
        assert_eq!(keys, [json!(check), json!(component), json!(first), json!(7)]);
    }
    folder.said("report whole --out report.html");
    let page = folder.text("report.html");
    assert!(page.contains("whole, after steps 3 to 7: <code>masks.dppo-tv</code> has rejected no token in 3 steps"));
}

#[test]
fn a_limit_of_0_is_silence() {
    let folder = recorded("too-fast");
    let off = |folder: &Folder, key: &str| {
        let config = folder.path().join("too-fast/config.toml");
        let settings = std::fs::read_to_string(&config).unwrap();
        folder.write("too-fast/config.toml", format!("{settings}\nwarnings.{key} = 0\n"));
        folder.said("diagnose too-fast")
    };
    assert!(off(&folder, "reward_fall").contains("no_signal"));
    assert!(off(&folder, "no_signal_steps").ends_with("     nothing that the checks know of\n"));
}

#[test]
fn limits_that_cannot_be_are_refused() {
    let refused = |set: &str| refused(&format!("--set warnings.{set}"));
    assert_snapshot!(refused("reward_fall=1.5"), @"the settings of `--set` do not fit together: `warnings.reward_fall` is 1.5 (it must be between 0 and 1)");
    assert_snapshot!(refused("kl_ratio=-1"), @"the settings of `--set` do not fit together: `warnings.kl_ratio` is -1 (it must be finite, 0 or more)");
    assert_snapshot!(refused("no_signal_steps=1000"), @"the settings of `--set` do not fit together: `warnings.no_signal_steps` is 1000 (it must be between 0 and 256)");
    assert_snapshot!(refused("entrpy=1"), @"`[warnings]` of `--set`: unknown key `entrpy` (did you mean `entropy`?)");
}
