//! Calls of tools in a model's text, in the format of its chat template, and their arguments against a tool's schema.

use anyhow::{anyhow, ensure};
use serde_json::{Map, Value};

/// How a chat template writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFormat {
    /// `<tool_call>{"name": .., "arguments": {..}}</tool_call>`, any number of times: Hermes, Qwen.
    Hermes,
    /// A text that is one object `{"name": .., "parameters": {..}}`: Llama 3.
    Llama3,
}

/// A tool that a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Name of the tool.
    pub name: String,
    /// The function's schema, as templates get it: `{"type": "function", "function": {"name": .., "description": .., "parameters": {..}}}`.
    schema: Value,
    /// The schema as text, with its keys in their order.
    pub(super) text: String,
}

/// A call, or the sentence about one that cannot be made.
pub type Call = Result<(String, Map<String, Value>), String>;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const PYTHON: &str = "<|python_tag|>";

/// The texts round a call, which are special tokens of some tokenizers.
pub(super) const MARKS: [&str; 3] = [OPEN, CLOSE, PYTHON];

impl CallFormat {
    /// The format of a template, from the text that it makes of a call up to the call's only argument; `None` if that is in no known one.
    pub(super) fn of(written: &str) -> Option<Self> {
        // The description of the tools may have the same words.
        let call = &written[written.floor_char_boundary(written.len().saturating_sub(200))..];
        let at = |word: &str| call.rfind(word);
        match (at("\"arguments\""), at("\"parameters\"")) {
            (arguments, parameters) if arguments > parameters => at(OPEN).map(|_| Self::Hermes),
            (_, parameters) => parameters.and(at("\"name\"")).map(|_| Self::Llama3),
        }
    }

    /// The calls in a turn, in their order, of these tools.
    pub fn calls(self, text: &str, tools: &[Tool]) -> Vec<Call> {
        let (texts, key): (Vec<&str>, _) = match self {
            Self::Hermes => {
                let after = text.split(OPEN).skip(1);
                (after.map(|call| call.split(CLOSE).next().unwrap_or(call)).collect(), "arguments")
            }
            Self::Llama3 => {
                let text = text.trim().trim_start_matches(PYTHON).trim();
                (if text.starts_with('{') { vec![text] } else { Vec::new() }, "parameters")
            }
        };
        texts.into_iter().map(|text| call(text, key, tools)).collect()
    }
}

fn call(text: &str, key: &str, tools: &[Tool]) -> Call {
    let value: Value =
        serde_json::from_str(text.trim()).map_err(|error| format!("the call is not valid JSON: {error}"))?;
    let Value::Object(mut call) = value else { return Err("the call is not a JSON object".into()) };
    let Some(Value::String(name)) = call.remove("name") else { return Err("the call has no `name`".into()) };
    let Some(tool) = tools.iter().find(|tool| tool.name == name) else {
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        return Err(format!("there is no tool `{name}` (there are: {})", names.join(", ")));
    };
    let arguments = match call.remove(key) {
        Some(Value::Object(arguments)) => arguments,
        None => Map::new(),
        Some(_) => return Err(format!("`{key}` of `{name}` is not a JSON object")),
    };
    let parameters = &tool.schema["function"]["parameters"];
    check(&Value::Object(arguments.clone()), parameters, "").map_err(|error| format!("`{name}`: {error}"))?;
    Ok((name, arguments))
}

impl Tool {
    /// The tools of these schemas.
    pub fn parse_all(schemas: &[String]) -> anyhow::Result<Vec<Self>> {
        let mut tools: Vec<Self> = Vec::new();
        for (number, text) in schemas.iter().enumerate() {
            let tool = Self::parse(text)
                .map_err(|error| anyhow!("the schema of tool {} is no schema: {error}", number + 1))?;
            ensure!(
                tools.iter().all(|other| other.name != tool.name),
                "two tools have the name `{}` (give each its own)",
                tool.name
            );
            tools.push(tool);
        }
        Ok(tools)
    }

    /// The tool of a schema as text, with or without the object round the function.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parse =
            |text: &str| serde_json::from_str::<Value>(text).map_err(|error| format!("not valid JSON: {error}"));
        let text = match parse(text)?.get("function") {
            Some(_) => text.to_owned(),
            None => format!("{{\"type\": \"function\", \"function\": {text}}}"),
        };
        let schema = parse(&text)?;
        let function = &schema["function"];
        let Some(name) = function["name"].as_str().filter(|name| !name.is_empty()) else {
            return Err("the function has no `name`".into());
        };
        let parameters = &function["parameters"];
        if !parameters.is_null() && parameters["type"] != "object" {
            return Err(format!("`parameters` of `{name}` is not a schema of type `object`"));
        }
        Ok(Self { name: name.to_owned(), schema, text })
    }
}

/// Compares a value with the part of JSON Schema that describes arguments: types, properties, items, values.
fn check(value: &Value, schema: &Value, place: &str) -> Result<(), String> {
    let named = || if place.is_empty() { "the arguments".to_owned() } else { format!("`{place}`") };
    let types: Vec<&str> = match &schema["type"] {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if !types.is_empty() && !types.iter().any(|name| is_a(value, name)) {
        return Err(format!("{} must be of type {}, not {value}", named(), types.join(" or ")));
    }
    if let Value::Array(values) = &schema["enum"]
        && !values.contains(value)
    {
        let values: Vec<String> = values.iter().map(Value::to_string).collect();
        return Err(format!("{} must be one of {}, not {value}", named(), values.join(", ")));
    }
    if let (Value::Array(values), items @ Value::Object(_)) = (value, &schema["items"]) {
        for (index, value) in values.iter().enumerate() {
            check(value, items, &format!("{place}[{index}]"))?;
        }
    }
    let (Value::Object(values), Value::Object(properties)) = (value, &schema["properties"]) else { return Ok(()) };
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !values.contains_key(name) {
            return Err(format!("the argument `{name}` is missing"));
        }
    }
    for (name, value) in values {
        match properties.get(name) {
            Some(schema) => check(value, schema, name)?,
            None if schema["additionalProperties"] == true => {}
            None => return Err(format!("there is no argument `{name}`")),
        }
    }
    Ok(())
}

fn is_a(value: &Value, name: &str) -> bool {
    match name {
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MULTIPLY: &str = r#"{"name": "multiply", "parameters": {"type": "object", "required": ["a", "b"],
        "properties": {"a": {"type": "integer"}, "b": {"type": ["integer", "null"]}, "how": {"enum": ["fast", "slow"]}}}}"#;

    #[test]
    fn calls_are_read_and_compared_with_the_schema() {
        let tools = [Tool::parse(MULTIPLY).unwrap()];
        let hermes =
            |call: &str| CallFormat::Hermes.calls(&format!("I think.\n<tool_call>\n{call}\n</tool_call>"), &tools);
        let cases: Vec<&str> = include_str!("../../tests/data/calls.txt").lines().map(str::trim).collect();
        for case in cases.chunks(2) {
            let found = hermes(case[0]).remove(0).map(|(_, arguments)| Value::Object(arguments).to_string());
            assert_eq!(found.unwrap_or_else(|error| format!("refused: {error}")), case[1], "{}", case[0]);
        }
        let llama =
            CallFormat::Llama3.calls(r#"<|python_tag|>{"name": "multiply", "parameters": {"a": 1, "b": 1}}"#, &tools);
        assert_eq!(llama.len(), 1);
        assert!(llama[0].is_ok());
        assert_eq!(CallFormat::Llama3.calls("It is 6.", &tools), []);
        assert_eq!(CallFormat::Hermes.calls("It is 6.", &tools), []);
        let two = "<tool_call>{\"name\": \"multiply\", \"arguments\": {\"a\": 1, \"b\": 2}}</tool_call><tool_call>{";
        let two: Vec<bool> = CallFormat::Hermes.calls(two, &tools).iter().map(Result::is_ok).collect();
        assert_eq!(two, [true, false], "a turn that was cut off");
    }

    #[test]
    fn what_is_no_schema_says_why() {
        for (text, expected) in [
            ("{", "not valid JSON"),
            ("{}", "no `name`"),
            (r#"{"type": "function", "function": {"name": ""}}"#, "no `name`"),
            (r#"{"name": "f", "parameters": {"a": "integer"}}"#, "not a schema of type `object`"),
        ] {
            assert!(Tool::parse(text).unwrap_err().contains(expected), "{text}");
        }
    }
}
