//! Calls as models write them, with what is wrong in them.

use super::*;

const TOOLS: [&str; 2] = [
    r#"{"name": "search", "parameters": {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "nullable": true}}}}"#,
    r#"{"name": "multiply", "parameters": {"type": "object", "required": ["a", "b"],
        "properties": {"a": {"type": "integer"}, "b": {"type": ["integer", "null"]}, "how": {"enum": ["fast", "slow"]}}}}"#,
];

fn tools() -> Vec<Tool> {
    TOOLS.map(|text| Tool::parse(text).unwrap()).to_vec()
}

/// The calls of a turn, one a line: `search{..}`, or the tool and the error that stands for its
/// result.
fn read(format: CallFormat, turn: &str, thoughts: &Thoughts) -> String {
    let shown = |call: Result<Call, Unmade>| match call {
        Ok(Call { name, arguments }) => name + &arguments,
        Err(Unmade { tool, error }) => format!("{tool}: {error}"),
    };
    format
        .calls(turn, &tools(), thoughts)
        .into_iter()
        .map(shown)
        .collect::<Vec<_>>()
        .join("\n")
}

fn hermes(turn: &str) -> String {
    read(CallFormat::Hermes, turn, &Thoughts::default())
}

fn llama(turn: &str) -> String {
    read(CallFormat::Llama3, turn, &Thoughts::default())
}

#[test]
fn calls_are_read_and_compared_with_the_schema() {
    let cases: Vec<&str> = include_str!("../../../tests/data/calls.txt")
        .lines()
        .map(str::trim)
        .collect();
    for case in cases.chunks(2) {
        let turn = format!("I think.\n<tool_call>\n{}\n</tool_call>", case[0]);
        assert_eq!(hermes(&turn), case[1], "{}", case[0]);
    }
}

#[test]
fn a_call_ends_where_its_json_ends() {
    for (turn, expected) in [
        ("It is 6.", ""),
        (
            r#"<tool_call>{"name": "search", "arguments": {"query": "</tool_call> <tool_call> <think>"}}</tool_call>"#,
            r#"search{"query":"</tool_call> <tool_call> <think>"}"#,
        ),
        (
            "<tool_call>{\"name\": \"search\"}</tool_call>\n<tool_call>{\"name\": \"multiply\", \"arguments\": {\"a\": 1, \"b\": 2}}</tool_call>",
            "search{}\nmultiply{\"a\":1,\"b\":2}",
        ),
        // A turn that was cut off, behind a call and in one.
        ("<tool_call>{\"name\": \"search\"}", "search{}"),
        (
            "<tool_call>{\"name\": \"search\"}</tool_call><tool_call>{\"name",
            "search{}\nsearch: the call is not valid JSON: EOF while parsing a string at line 1 column 6",
        ),
        (
            "<tool_call>{\"name\": search}</tool_call><tool_call>{\"name\": \"search\"}</tool_call>",
            "search: the call is not valid JSON: expected value at line 1 column 10\nsearch{}",
        ),
        (
            "<tool_call>{\"name\": \"search\"} {\"name\": \"search\"}</tool_call>",
            "search: the call is not valid JSON: behind its end stands `{\"name\": \"search\"}`",
        ),
    ] {
        assert_eq!(hermes(turn), expected, "{turn}");
    }
    let nested = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    let call = |value: &str| {
        hermes(&format!(
            "<tool_call>{{\"name\": \"search\", \"arguments\": {{\"query\": {value}}}}}</tool_call>"
        ))
    };
    assert!(
        call(&nested(50)).starts_with("search: `search`: `query` must be of type string, not [[[")
    );
    let deep = "search: the call is not valid JSON: lists and objects are nested more than 120 levels deep";
    assert_eq!(call(&nested(100_000)), deep);
}

#[test]
fn ignores_calls_in_thoughts() {
    const CALL: &str = r#"<tool_call>{"name": "search", "arguments": {}}</tool_call>"#;
    let brackets = Thoughts::with("[THINK]", "[/THINK]", false);
    let open = Thoughts::with("<thinking>", "</thinking>", true);
    let think = Thoughts::default();
    for (thoughts, turn, expected) in [
        (
            &think,
            format!("<think>\nI could {CALL} but no.\n</think>\n\nNothing to do."),
            "",
        ),
        (
            &think,
            format!("<think>{{\"name\": ...}} <tool_call>...</think>{CALL}"),
            "search{}",
        ),
        (
            &think,
            format!("<think>a</think>{CALL}<think>b{CALL}</think>{CALL}"),
            "search{}\nsearch{}",
        ),
        (
            &think,
            format!("I could {CALL} but no.</think>Nothing."),
            "",
        ),
        (
            &think,
            format!("<think>a</think>{CALL}</think>"),
            "search{}",
        ),
        (&think, format!("<think>{CALL}"), ""),
        (&brackets, format!("[THINK]{CALL}[/THINK]"), ""),
        (&brackets, format!("[THINK]a[/THINK]{CALL}"), "search{}"),
        (&open, format!("{CALL}</thinking>"), ""),
        (&open, format!("a</thinking>{CALL}"), "search{}"),
        (&open, format!("a{CALL}"), ""),
    ] {
        assert_eq!(
            read(CallFormat::Hermes, &turn, thoughts),
            expected,
            "{turn}"
        );
    }
    let call = r#"{"name": "search", "parameters": {}}"#;
    assert_eq!(llama(&format!("<think>{call}</think>\n{call}")), "search{}");
    assert_eq!(llama(&format!("<think>{call}")), "");
    assert_eq!(
        llama(r#"{"name": "search", "parameters": {"query": "</think>"}}"#),
        r#"search{"query":"</think>"}"#
    );
}

#[test]
fn an_object_is_a_call_if_it_has_the_keys_of_one() {
    for (turn, expected) in [
        ("It is 6.", ""),
        (r#"{"answer": 42}"#, ""),
        (r#"{"answer": "#, ""),
        (r#"{"name": "Ada", "born": 1815}"#, ""),
        (
            r#"{"name": "search", "parameters": {"query": "x"}}"#,
            r#"search{"query":"x"}"#,
        ),
        (
            r#"<|python_tag|>{"name": "search", "arguments": {"query": "x"}}"#,
            r#"search{"query":"x"}"#,
        ),
        (
            r#"{"type": "function", "name": "search", "parameters": {}}"#,
            "search{}",
        ),
        (r#"{"name": "search"}"#, "search{}"),
        (
            "{\"name\": \"search\", \"parameters\": {}}; {\"name\": \"search\", \"parameters\": {\"limit\": 1}}\n{\"name\": \"search\"}",
            "search{}\nsearch{\"limit\":1}\nsearch{}",
        ),
        (
            r#"{"name": "search", "parameters": {"query": x}}"#,
            "search: the call is not valid JSON: expected value at line 1 column 44",
        ),
        (
            r#"{"name": "search", "parameters": {}} I call it."#,
            "search{}\nsearch: the call is not valid JSON: behind its end stands `I call it.`",
        ),
        (
            r#"{"name": "find", "parameters": {}}"#,
            "search: there is no tool `find` (there are: search, multiply)",
        ),
    ] {
        assert_eq!(llama(turn), expected, "{turn}");
    }
}
