//! Small shell programs: their answers and their ends.

use std::time::Duration;

use capo_plugin::testing::{self, Records};
use capo_plugin::{EnvironmentHandle, Episode, Observation};
use insta::assert_snapshot;

use super::*;

/// An environment with a script of `sh`, which reads a line into `l`; `e` is the number of its
/// episode.
fn shell(tools: &str, begin: &str, respond: &str, keys: &str) -> EnvironmentHandle {
    let script = format!(
        r#"while read -r l; do e=${{l#*episode\":}}; e=${{e%%[,\}}]*}}; case $l in *ask\":\"tools*) {tools};; *ask\":\"begin*) {begin};; *) {respond};; esac; done"#
    );
    let command = serde_json::to_string(&["sh", "-c", &script]).unwrap();
    testing::environment::<External>(&format!("command = {command}\n{keys}")).unwrap()
}

const TOOLS: &str = r#"echo '{"tools": []}'"#;
const BEGIN: &str = r#"echo "{\"episode\": $e, \"message\": \"in $e\"}""#;
const RESPOND: &str =
    r#"echo "{\"episode\": $e, \"messages\": [{\"content\": \"$e\"}], \"reward\": 0.5}""#;

/// Begins three episodes, and waits for the observations of a turn of each.
fn play(
    environment: &mut EnvironmentHandle,
    turns: usize,
) -> Result<Vec<Observation>, PluginError> {
    let records = &mut Records::default();
    environment.tools()?;
    let begun = environment.begin(
        records,
        &Episodes::new((0..3).map(|number| Episode::new(number, "p")).collect()),
    )?;
    assert_eq!(begun, ["in 0", "in 1", "in 2"]);
    let mut all = Vec::new();
    for number in 0..turns {
        let turn = |episode| {
            let mut turn = Turn::new(episode, "t");
            turn.number = number;
            turn
        };
        let turns: Vec<Turn<'_>> = (0..3).map(turn).collect();
        let mut said = environment.respond(records, &turns)?;
        while said.len() < 3 {
            thread::sleep(Duration::from_millis(1));
            said.extend(environment.respond(records, &[])?);
        }
        all.extend(said);
    }
    Ok(all)
}

fn error(tools: &str, begin: &str, respond: &str, keys: &str) -> String {
    play(&mut shell(tools, begin, respond, keys), 2)
        .unwrap_err()
        .to_string()
}

#[test]
fn several_copies_play_episodes_in_any_order() {
    let late =
        format!("p=$q; q=$e; [ -n \"$p\" ] && {{ a=$e; e=$p; {RESPOND}; e=$a; {RESPOND}; q=; }}");
    for (respond, keys) in [
        (RESPOND, ""),
        (RESPOND, "workers = 2"),
        (RESPOND, "workers = 5\ndeterministic = true"),
    ] {
        let mut said = play(&mut shell(TOOLS, BEGIN, respond, keys), 2).unwrap();
        said.sort_by_key(|observation| observation.episode);
        let said: Vec<&str> = said
            .iter()
            .map(|observation| observation.messages[0].content.as_str())
            .collect();
        assert_eq!(said, ["0", "0", "1", "1", "2", "2"], "{keys}");
    }
    // Answers in another order than that of the questions.
    let mut pairs = shell(TOOLS, BEGIN, &late, "");
    pairs.tools().unwrap();
    let records = &mut Records::default();
    pairs
        .begin(
            records,
            &Episodes::new(vec![Episode::new(0, ""), Episode::new(1, "")]),
        )
        .unwrap();
    let mut said = pairs
        .respond(records, &[Turn::new(1, ""), Turn::new(0, "")])
        .unwrap();
    while said.len() < 2 {
        said.extend(pairs.respond(records, &[]).unwrap());
    }
    assert_eq!(
        said.iter()
            .map(|observation| observation.episode)
            .collect::<Vec<_>>(),
        [1, 0]
    );
}

#[test]
fn ignores_null_fields() {
    let respond = r#"echo "{\"episode\": $e, \"turn\": null, \"messages\": [{\"content\": \"$e\", \"role\": null, \"name\": null}], \"ended\": null, \"reward\": null, \"metrics\": {\"a\": 1, \"b\": null}}""#;
    let all = r#"echo "{\"episode\": $e, \"messages\": null, \"metrics\": null}""#;
    let of_first = |respond: &str| {
        let mut said = play(
            &mut shell(r#"echo '{"tools": null}'"#, BEGIN, respond, ""),
            1,
        )
        .unwrap();
        said.sort_by_key(|observation| observation.episode);
        said.remove(0)
    };
    let turn = Turn::new(0, "");
    assert_eq!(
        of_first(respond),
        Observation::of(&turn).say("0").metric("a", 1.0)
    );
    assert_eq!(of_first(all), Observation::of(&turn));
}

#[test]
fn errors_say_what_a_program_did_wrong() {
    let answers = |line: &str| error(TOOLS, BEGIN, &format!("echo '{line}'"), "");
    let told = [
        answers("{"),
        answers(r#"{"episode": 7}"#),
        answers(r#"{"episode": 0, "turn": 4}"#),
        answers(r#"{"episode": 0, "message": ""}"#),
        error(
            TOOLS,
            BEGIN,
            r#"echo "{\"episode\": $e, \"reward\": 1e308}""#,
            "",
        ),
        error(TOOLS, BEGIN, "exec >&-; sleep 1000", ""),
        answers(r#"{"episode": 0, "rewards": 1}"#),
        error(TOOLS, BEGIN, &format!("{RESPOND}; {RESPOND}"), ""),
        error(TOOLS, "echo \"{\\\"episode\\\": $e}\"", RESPOND, ""),
        error("echo 1", BEGIN, RESPOND, ""),
        error(TOOLS, BEGIN, "echo no luck >&2; exit 3", ""),
        error(TOOLS, BEGIN, "head -c 2000000 /dev/zero; cat", ""),
        error(TOOLS, BEGIN, "exec sleep 1000", "timeout = 0.1"),
        error(
            TOOLS,
            BEGIN,
            "exit 3",
            "deterministic = true\nmax_restarts = 2",
        ),
    ];
    assert_snapshot!(told.join("\n"));
    let other = "[ -e $0.no ]; echo \"{\\\"episode\\\": $e, \\\"reward\\\": $$}\"; case $l in *turn\\\":1*) exit 1;; esac";
    let other = error(TOOLS, BEGIN, other, "deterministic = true");
    assert!(other.contains(
        " before the program was started anew (a program with `deterministic = true` answers alike)"
    ));
}

#[test]
fn restarts_a_deterministic_program_without_losing_anything() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("mark");
    let mark = mark.display();
    // The program ends once before it answers the second turn of episode 1, once is silent, and
    // once ends in its answer.
    let ends = format!(
        "case $l in *episode\\\":1*turn\\\":1*) if [ ! -e {mark} ]; then : > {mark}; exit 1; fi;; esac; {RESPOND}"
    );
    let hangs = ends.replace("exit 1", "exec sleep 1000");
    let breaks_off = ends.replace("exit 1", "printf '{\"episode'; exit 1");
    let mut expected = play(&mut shell(TOOLS, BEGIN, RESPOND, ""), 3).unwrap();
    expected.sort_by_key(|observation| observation.episode);
    for script in [ends, hangs, breaks_off] {
        let _ = std::fs::remove_file(folder.path().join("mark"));
        let mut said = play(
            &mut shell(TOOLS, BEGIN, &script, "deterministic = true\ntimeout = 0.3"),
            3,
        )
        .unwrap();
        said.sort_by_key(|observation| observation.episode);
        assert_eq!(said, expected);
    }
}

#[test]
fn replaces_half_of_a_surrogate_pair() {
    // Python's `json.dumps` writes a byte that is no text so.
    let respond = r#"echo "{\"episode\": $e, \"messages\": [{\"content\": \"caf\\udce9\"}]}""#;
    let said = play(&mut shell(TOOLS, BEGIN, respond, ""), 1).unwrap();
    assert_eq!(said[0].messages[0].content, "caf\u{fffd}");
}

#[test]
fn arguments_keep_their_digits() {
    let mut turn = Turn::new(0, "t");
    let arguments = "{\"a\":\n123456789012345678901234567890,\"b\":1e400}".to_owned();
    turn.calls = vec![capo_plugin::ToolCall {
        name: "f".into(),
        arguments,
    }];
    let line = String::from_utf8(line::respond(&turn)).unwrap();
    let expected = r#"{"ask":"respond","calls":[{"arguments":{"a": 123456789012345678901234567890,"b":1e400},"name":"f"}],"episode":0,"is_last":false,"text":"t","turn":0}"#;
    assert_eq!(line, expected.to_owned() + "\n");
}
