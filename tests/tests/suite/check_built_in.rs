//! `host check` without a library: what comes with the trainer is green.

use insta::assert_snapshot;

use crate::check::green;

#[test]
fn what_is_built_in_is_green() {
    let report = green("--only creation --only save-load").replace("\n  ", " | ");
    let lines = report.lines().filter(|line| !line.is_empty());
    let lines: Vec<String> = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_snapshot!(lines.join("\n"), @"
    library built in
    reward command | creation skipped it refuses its table: missing field `command` (give its keys as `--set command.KEY=VALUE`) | save-load skipped the component could not be built
    reward exact_match | creation success it is made from an empty table | save-load success a resumed instance goes on with the same bits (0 bytes of state)
    reward format | creation success it is made from an empty table | save-load success a resumed instance goes on with the same bits (0 bytes of state)
    reward math | creation success it is made from an empty table | save-load success a resumed instance goes on with the same bits (0 bytes of state)
    reward number | creation success it is made from an empty table | save-load success a resumed instance goes on with the same bits (0 bytes of state)
    reward regex | creation skipped it refuses its table: missing field `pattern` (give its keys as `--set regex.KEY=VALUE`) | save-load skipped the component could not be built
    reward reward_model | creation skipped it refuses its table: missing field `model_name_or_path` (give its keys as `--set reward_model.KEY=VALUE`) | save-load skipped the component could not be built
    reward soft_overlong | creation skipped it refuses its table: missing field `soft_punish_cache` (give its keys as `--set soft_overlong.KEY=VALUE`) | save-load skipped the component could not be built
    advantage dr_grpo.advantage | creation success it is made from an empty table | save-load success a resumed instance goes on with the same bits (0 bytes of state)
    advantage grpo.advantage | creation success it is made from an empty table | save-load success a resumed instance goes on with the same bits (0 bytes of state)
    advantage reinforce.advantage | creation success it is made from an empty table | save-load success a resumed instance goes on with the same bits (0 bytes of state)
    advantage reinforce_plus_plus.advantage | creation success it is made from an empty table | save-load success a resumed instance goes on with the same bits (0 bytes of state)
    advantage rloo.advantage | creation success it is made from an empty table | save-load success a resumed instance goes on with the same bits (0 bytes of state)
    objective bnpo.objective | creation success it is made from an empty table | save-load success a resumed instance goes on with the same bits (0 bytes of state)
    objective cispo.objective | creation success it is made from an empty table | save-load success a resumed instance goes on with the same bits (0 bytes of state)
    objective dapo.objective | creation success it is made from an empty table | save-load success a resumed instance goes on with the same bits (0 bytes of state)
    objective dr_grpo.objective | creation success it is made from an empty table | save-load success a resumed instance goes on with the same bits (0 bytes of state)
    objective grpo.objective | creation success it is made from an empty table | save-load success a resumed instance goes on with the same bits (0 bytes of state)
    objective gspo.objective | creation success it is made from an empty table | save-load success a resumed instance goes on with the same bits (0 bytes of state)
    objective luspo.objective | creation success it is made from an empty table | save-load success a resumed instance goes on with the same bits (0 bytes of state)
    objective reinforce.objective | creation success it is made from an empty table | save-load success a resumed instance goes on with the same bits (0 bytes of state)
    objective rloo.objective | creation success it is made from an empty table | save-load success a resumed instance goes on with the same bits (0 bytes of state)
    objective sapo.objective | creation success it is made from an empty table | save-load success a resumed instance goes on with the same bits (0 bytes of state)
    objective vespo.objective | creation success it is made from an empty table | save-load success a resumed instance goes on with the same bits (0 bytes of state)
    not checked, for want of what the lines above ask for: command, regex, reward_model, soft_overlong
    checks: 40 success, 8 skipped, 0 warning, 0 failed, 0 crashed
    ");
    let _ = green("");
}
