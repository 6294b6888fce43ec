//! Small shell programs: their answers and their ends.

use std::path::Path;

use capo_plugin::RewardHandle;
use capo_plugin::testing::{self, RolloutFixture};
use insta::assert_snapshot;

use super::*;

/// A reward with a script of `sh` and further keys.
fn shell(script: &str, keys: &str) -> RewardHandle {
    let command = serde_json::to_string(&["sh", "-c", script]).unwrap();
    testing::reward::<External>(&format!("command = {command}\n{keys}")).unwrap()
}

fn rewards(script: &str, keys: &str, texts: &[&str]) -> Vec<f32> {
    RolloutFixture::new(texts)
        .score(&mut shell(script, keys))
        .unwrap()
        .rewards
}

fn error(script: &str, keys: &str) -> String {
    RolloutFixture::new(&["a", "b", "c"])
        .score(&mut shell(script, keys))
        .unwrap_err()
        .to_string()
}

/// Answers each line with the length of its `completion_ids`.
const COUNTS: &str =
    r#"while read -r l; do l=${l#*ids\":[}; IFS=,; set -- ${l%%]*}; echo $#; IFS=' '; done"#;

#[test]
fn answers_in_order_or_by_id() {
    assert_eq!(rewards(COUNTS, "", &["abc", "a", "ab"]), [3.0, 1.0, 2.0]);
    let objects = r#"while read -r line; do echo '{"reward": 0.5, "note": "x"}'; done"#;
    assert_eq!(rewards(objects, "", &["a", "b"]), [0.5, 0.5]);
    let unjudged = r#"read -r a; echo null; read -r b; echo '{"reward": null}'; read -r c; echo 1; cat > /dev/null"#;
    assert_eq!(rewards(unjudged, "", &["a", "b", "c"]), [0.0, 0.0, 1.0]);
    let backwards = r#"read -r a; read -r b; echo '{"id": 1, "reward": 2}'; echo '{"reward": -1, "id": 0}'; cat > /dev/null"#;
    assert_eq!(rewards(backwards, "", &["a", "b"]), [-1.0, 2.0]);
}

#[test]
fn several_processes_share_each_rollout() {
    let mut reward = shell(
        "n=0; while read -r line; do n=$((n+1)); echo $n; done",
        "concurrency = 2",
    );
    let fixture = RolloutFixture::new(&["a", "b", "c", "d", "e"]);
    assert_eq!(
        fixture.score(&mut reward).unwrap().rewards,
        [1.0, 2.0, 3.0, 1.0, 2.0]
    );
    assert_eq!(
        fixture.score(&mut reward).unwrap().rewards,
        [4.0, 5.0, 6.0, 3.0, 4.0]
    );
}

#[test]
fn a_line_has_these_fields() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lines");
    let script = format!(
        "while read -r line; do printf '%s\\n' \"$line\" >> {}; echo 0; done",
        file.display()
    );
    let fixture = RolloutFixture::new(&["a\n\"b\"", "é"])
        .columns(&[r#"{"level": "easy"}"#, "{}"])
        .truncated(&[false, true]);
    fixture
        .answers(&["4", ""])
        .groups_of(1)
        .step(7)
        .score(&mut shell(&script, ""))
        .unwrap();
    assert_snapshot!(std::fs::read_to_string(file).unwrap(), @r#"
    {"id":0,"group":0,"count":2,"step":7,"purpose":"training","prompt":"2+2=","completion":"a\n\"b\"","completion_ids":[97,10,34,98,34],"truncated":false,"answer":"4","columns":{"level":"easy"}}
    {"id":1,"group":1,"count":2,"step":7,"purpose":"training","prompt":"2+2=","completion":"é","completion_ids":[195,169],"truncated":true,"answer":null,"columns":{}}
    "#);
}

#[test]
fn sends_and_receives_more_than_a_pipe_holds() {
    let text = "x".repeat(20_000);
    let texts = vec![text.as_str(); 8];
    // The script reads no input before all is written, and writes much to standard error.
    let script = "head -c 300000 /dev/zero >&2; while read -r line; do echo 1; done";
    assert_eq!(rewards(script, "", &texts), vec![1.0; 8]);
}

#[test]
fn restarts_a_process_that_ends_up_to_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("mark");
    let mark = mark.display();
    let once = format!(
        "read -r l; echo 1; if [ ! -e {mark} ]; then : > {mark}; exit 3; fi; while read -r l; do echo 2; done"
    );
    // The beginning of a line is no answer.
    for once in [&once, &once.replace("exit", "printf 7; exit")] {
        assert_eq!(rewards(once, "", &["a", "b"]), [1.0, 2.0]);
        std::fs::remove_file(folder.path().join("mark")).unwrap();
    }
    assert_snapshot!(error(&once, "max_restarts = 0"), @"component `test.reward`: `sh` ended after 1 of 3 answers: exit status: 3 (started anew 0 times; `max_restarts`)");
    assert_snapshot!(error("read -r l; printf 1", "max_restarts = 0"), @"component `test.reward`: `sh` ended after 0 of 3 answers, in the middle of a line: exit status: 0 (started anew 0 times; `max_restarts`)");
    // The signal with which the trainer ends one that only closes its output says nothing of it.
    assert_snapshot!(error("read -r l; echo 1; exec >&-; sleep 1000", "max_restarts = 0"), @"component `test.reward`: `sh` closed its output, but did not end, after 1 of 3 answers (started anew 0 times; `max_restarts`)");
    assert_snapshot!(error("echo 'no such model' >&2; echo again >&2; exit 1", "max_restarts = 2"), @"component `test.reward`: `sh` ended after 0 of 3 answers: exit status: 1; its standard error ends with `no such model | again` (started anew 2 times; `max_restarts`)");
}

#[test]
fn ends_a_process_that_does_not_answer() {
    let keys = "timeout = 0.05\nmax_restarts = 0";
    assert_snapshot!(error("read -r l; echo 1; exec sleep 1000", keys), @"component `test.reward`: `sh` gave 1 of 3 answers in 0.05 seconds, `timeout` (started anew 0 times; `max_restarts`)");
}

/// Processes work at the same time, so waiting for one gives the next no more time.
#[test]
fn all_processes_have_the_same_deadline() {
    let script = r#"read -r l; case "$l" in *'"id":0'*) sleep 1.2;; *) sleep 2.6;; esac; echo 1; cat > /dev/null"#;
    let mut reward = shell(script, "concurrency = 2\ntimeout = 1.5\nmax_restarts = 0");
    let error = RolloutFixture::new(&["a", "b"])
        .score(&mut reward)
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("gave 0 of 1 answers in 1.5 seconds"),
        "{error}"
    );
}

#[test]
fn errors_name_wrong_answers() {
    assert_snapshot!(error("while read -r l; do echo NaN; done", ""), @"component `test.reward`: `sh`: its answer 1 is `NaN` (it must be a number, or an object with `reward` and perhaps `id`)");
    assert_snapshot!(error("while read -r l; do echo; done", ""), @"component `test.reward`: `sh`: its answer 1 is `` (it must be a number, or an object with `reward` and perhaps `id`)");
    assert_snapshot!(error("while read -r l; do echo 1e39; done", ""), @"component `test.reward`: `sh`: its answer 1 is `1e39` (a reward lies between -3.4028235e38 and 3.4028235e38)");
    assert_snapshot!(error("while read -r l; do echo '{\"id\": 3, \"reward\": 1}'; done", ""), @"component `test.reward`: `sh`: its answer 1 has the `id` 3 (use those that were asked for, each once)");
    assert_snapshot!(error("while read -r l; do echo '{\"id\": 0, \"reward\": 1}'; done", ""), @"component `test.reward`: `sh`: its answer 2 has the `id` 0 (use those that were asked for, each once)");
    assert_snapshot!(error("while read -r l; do echo '{\"score\": 1}'; done", ""), @r#"component `test.reward`: `sh`: its answer 1 is `{"score": 1}` (it must be a number, or an object with `reward` and perhaps `id`)"#);
}

#[test]
fn refuses_surplus_answers() {
    let twice = "while read -r l; do echo 1; echo 0; done";
    // Surplus answers from a program that has read all lines first, written quickly and slowly.
    let all = "for i in 1 2 3 4 5 6; do read -r l; done; for i in 1 2 3 4 5 6; do";
    let (quick, slow) = (
        format!("{all} echo 1; echo 0; done"),
        format!("{all} sleep 0.1; echo 1; echo 0; done"),
    );
    for script in [
        twice,
        &quick,
        &slow,
        "exec yes 1",
        "cat > /dev/null & exec yes 1",
    ] {
        let mut reward = shell(script, "");
        let error = RolloutFixture::new(&["a"; 6])
            .score(&mut reward)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("gave an answer too many, ")
                || error.contains(" before it had read 6 lines"),
            "{script}: {error}"
        );
    }
    let early = error("read -r l; echo 1; echo 2; echo 3; sleep 1000", "");
    assert_snapshot!(early, @"component `test.reward`: `sh` gave 3 answers before it had read 3 lines (write one for each)");
}

#[test]
fn late_surplus_answers_prevent_a_checkpoint() {
    let mut reward = shell("read -r l; echo 1; sleep 0.2; echo 2; cat > /dev/null", "");
    assert_eq!(
        RolloutFixture::new(&["a"])
            .score(&mut reward)
            .unwrap()
            .rewards,
        [1.0]
    );
    let error = std::iter::repeat_with(|| reward.save())
        .find_map(Result::err)
        .unwrap();
    assert_snapshot!(error.to_string(), @"component `test.reward`: `sh` gave an answer too many, `2` (write one line for each line)");
}

/// True if a process runs. A zombie, which waits to be reaped by its parent, does not run.
fn runs(id: i64) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(id.to_string()).join("stat"))
        .unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}

#[test]
fn the_whole_process_group_ends_with_the_reward() {
    let mut reward = shell(
        "sleep 1000 & read -r l; echo $!; read -r l; echo $$; sleep 1000",
        "",
    );
    let ids = RolloutFixture::new(&["a", "b"])
        .score(&mut reward)
        .unwrap()
        .rewards;
    assert!(ids.iter().all(|id| runs(*id as i64)));
    drop(reward);
    // The leader has been reaped; the other processes have been told to end.
    assert!(
        !Path::new("/proc")
            .join((ids[1] as i64).to_string())
            .exists()
    );
    while runs(ids[0] as i64) {
        std::thread::yield_now();
    }
}

#[test]
fn refuses_bad_keys() {
    let refused = |keys: &str| testing::reward::<External>(keys).err().unwrap().to_string();
    assert_snapshot!(refused("command = []"), @r#"`command` is empty (give a program and its arguments, `["./grade", "--fast"]`)"#);
    assert_snapshot!(refused("command = [\"./no-such-program\"]"), @"`command` names `./no-such-program`, which is not a file that can be run (give its path, or a name in `PATH`)");
    assert_snapshot!(refused("command = [\"no-such-program\"]"), @"`command` names `no-such-program`, which is not a file that can be run (give its path, or a name in `PATH`)");
    assert_snapshot!(refused("command = [\"sh\"]\ntimeout = 0"), @"`timeout` is 0 (it must be at least 0.001)");
    assert_snapshot!(refused("command = [\"sh\"]\nconcurrency = 0"), @"`concurrency` is 0 (it must be at least 1)");
    assert_snapshot!(refused("command = \"sh\""), @r#"`command` is "sh" (give a list of strings)"#);
}
