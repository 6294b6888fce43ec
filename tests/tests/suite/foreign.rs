//! `host check` on a plugin that misbehaves while it is loaded.

use insta::assert_snapshot;
use tests::Folder;

#[test]
fn a_library_that_misbehaves_while_it_is_loaded() {
    let with = |listed: &str| {
        let folder = Folder::new().env("MISBEHAVE_LISTED", listed);
        let outcome = folder.host("check libmisbehave.so --timeout 10 --only component-ids --only creation");
        (outcome.code, outcome.stdout)
    };
    let (code, report) = with("panic");
    assert_eq!(code, Some(1));
    assert_snapshot!(report, @"
    library BUILD/libmisbehave.so
      component-ids       success  well formed and unique

    reward misbehave.reward
      creation            skipped  it refuses its table: missing field `sin` (give its keys as `--set misbehave.reward.KEY=VALUE`)

    advantage misbehave.advantage
      creation            skipped  it refuses its table: missing field `sin` (give its keys as `--set misbehave.advantage.KEY=VALUE`)

    objective misbehave.objective
      creation            failed   panicked while it was created: the list panics

    mask misbehave.mask
      creation            skipped  it refuses its table: missing field `sin` (give its keys as `--set misbehave.mask.KEY=VALUE`)

    weight misbehave.weight
      creation            skipped  it refuses its table: missing field `sin` (give its keys as `--set misbehave.weight.KEY=VALUE`)

    step_control misbehave.control
      creation            skipped  it refuses its table: missing field `sin` (give its keys as `--set misbehave.control.KEY=VALUE`)

    not checked, for want of what the lines above ask for: misbehave.advantage, misbehave.control, misbehave.mask, misbehave.reward, misbehave.weight

    checks: 1 success, 5 skipped, 0 warning, 1 failed, 0 crashed
    ");
    assert_snapshot!(with("abort").1, @"
    library BUILD/libmisbehave.so
      entry-point         crashed  its process was ended by signal 6 (SIGABRT)

    checks: 0 success, 0 skipped, 0 warning, 0 failed, 1 crashed
    ");
    assert_snapshot!(with("hang").1, @"
    library BUILD/libmisbehave.so
      entry-point         failed   it did not come back within 10 s

    checks: 0 success, 0 skipped, 0 warning, 1 failed, 0 crashed
    ");
}
