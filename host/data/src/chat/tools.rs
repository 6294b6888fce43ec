//! Tools that a model may call, and the check of arguments against a tool's schema.

use std::collections::BTreeSet;

use anyhow::{anyhow, ensure};

use crate::exact::Json;

/// A tool that a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Name of the tool.
    pub name: String,
    /// The function's schema, as templates get it:
    /// `{"type": "function", "function": {"name": .., "description": .., "parameters": {..}}}`.
    schema: Json,
}

impl Tool {
    /// The tools of these schemas.
    pub fn parse_all(schemas: &[String]) -> anyhow::Result<Vec<Self>> {
        let mut tools: Vec<Self> = Vec::new();
        for (number, text) in schemas.iter().enumerate() {
            let tool = Self::parse(text).map_err(|error| {
                anyhow!("the schema of tool {} is no schema: {error}", number + 1)
            })?;
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
        let written = Json::parse(text).map_err(|error| format!("not valid JSON: {error}"))?;
        let schema = match written.get("function") {
            Some(_) => written,
            None => {
                let whole = [("type", Json::from("function")), ("function", written)];
                Json::Object(
                    whole
                        .map(|(key, value)| (key.to_owned(), value))
                        .into_iter()
                        .collect(),
                )
            }
        };
        let function = schema.get("function").unwrap_or(&Json::Null);
        let Some(name) = function
            .get("name")
            .and_then(Json::text)
            .filter(|name| !name.is_empty())
        else {
            return Err("the function has no `name`".into());
        };
        let parameters = function.get("parameters").unwrap_or(&Json::Null);
        let is_object = parameters.get("type").and_then(Json::text) == Some("object");
        if *parameters != Json::Null && !is_object {
            return Err(format!(
                "`parameters` of `{name}` is not a schema of type `object`"
            ));
        }
        Ok(Self {
            name: name.to_owned(),
            schema,
        })
    }

    /// The function's schema, as templates get it.
    pub(super) fn schema(&self) -> &Json {
        &self.schema
    }

    /// Compares arguments, which are an object, with the schema.
    pub(super) fn check(&self, arguments: &Json) -> Result<(), String> {
        let parameters = self
            .schema
            .get("function")
            .and_then(|function| function.get("parameters"));
        check(arguments, parameters.unwrap_or(&Json::Null), "")
    }
}

/// Compares a value with the part of JSON Schema that describes arguments: types, alternatives,
/// properties, items, values.
fn check(value: &Json, schema: &Json, place: &str) -> Result<(), String> {
    // transformers and OpenAPI write an optional value so.
    if *value == Json::Null && schema.get("nullable") == Some(&Json::Bool(true)) {
        return Ok(());
    }
    let types = types(schema);
    if !types.is_empty() && !types.iter().any(|name| value.is_a(name)) {
        return Err(format!(
            "{} must be of type {}, not {value}",
            named(place),
            types.join(" or ")
        ));
    }
    if let Some(Json::List(values)) = schema.get("enum")
        && !values.iter().any(|other| other.is(value))
    {
        let values: Vec<String> = values.iter().map(Json::to_string).collect();
        return Err(format!(
            "{} must be one of {}, not {value}",
            named(place),
            values.join(", ")
        ));
    }
    if let Some(only) = schema.get("const").filter(|only| !only.is(value)) {
        return Err(format!("{} must be {only}, not {value}", named(place)));
    }
    for part in schema.get("allOf").map_or(&[][..], Json::list) {
        check(value, part, place)?;
    }
    check_alternatives(value, schema, place)?;
    if let (Json::List(values), Some(items)) = (value, schema.get("items")) {
        for (index, value) in values.iter().enumerate() {
            check(value, items, &format!("{place}[{index}]"))?;
        }
    }
    check_properties(value, schema, place)
}

/// A place in the arguments, for messages.
fn named(place: &str) -> String {
    if place.is_empty() {
        "the arguments".to_owned()
    } else {
        format!("`{place}`")
    }
}

/// The place of a property of the value at `place`.
fn property(place: &str, name: &str) -> String {
    if place.is_empty() {
        name.to_owned()
    } else {
        format!("{place}.{name}")
    }
}

/// Checks that the value fits one of the alternatives, if there are any. The error is that of the
/// last alternative that has the value's type.
fn check_alternatives(value: &Json, schema: &Json, place: &str) -> Result<(), String> {
    for key in ["anyOf", "oneOf"] {
        let alternatives = schema.get(key).map_or(&[][..], Json::list);
        let mut wrong = None;
        for alternative in alternatives {
            match check(value, alternative, place) {
                Ok(()) => {
                    wrong = None;
                    break;
                }
                Err(error) => {
                    let is_of_its_type = types(alternative).iter().any(|name| value.is_a(name));
                    wrong = if is_of_its_type || wrong.is_none() {
                        Some(error)
                    } else {
                        wrong
                    };
                }
            }
        }
        wrong.map_or(Ok(()), Err)?;
    }
    Ok(())
}

fn check_properties(value: &Json, schema: &Json, place: &str) -> Result<(), String> {
    let Json::Object(values) = value else {
        return Ok(());
    };
    let properties = schema.get("properties").and_then(Json::object);
    for name in schema
        .get("required")
        .map_or(&[][..], Json::list)
        .iter()
        .filter_map(Json::text)
    {
        if !values.contains_key(name) {
            return Err(format!(
                "the argument `{}` is missing",
                property(place, name)
            ));
        }
    }
    for (name, value) in values {
        let own = properties.and_then(|properties| properties.get(name));
        match (own, schema.get("additionalProperties")) {
            (Some(schema), _) | (None, Some(schema @ Json::Object(_))) => {
                check(value, schema, &property(place, name))?
            }
            (None, Some(Json::Bool(true))) => {}
            // In JSON Schema an object may have further properties. A function has no further
            // arguments, unless its schema names none at all.
            (None, None) if !place.is_empty() || properties.is_none() => {}
            (None, _) => {
                return Err(format!("there is no argument `{}`", property(place, name)));
            }
        }
    }
    Ok(())
}

/// The types that a schema allows, with `null` if it is `nullable`; empty if it allows all types.
fn types(schema: &Json) -> Vec<&str> {
    let mut all: Vec<&str> = match schema.get("type") {
        Some(Json::Text(name)) => vec![name],
        Some(Json::List(names)) => names.iter().filter_map(Json::text).collect(),
        _ => {
            let alternatives = ["anyOf", "oneOf"]
                .into_iter()
                .find_map(|key| schema.get(key))
                .map_or(&[][..], Json::list);
            let each: Vec<Vec<&str>> = alternatives.iter().map(types).collect();
            if each.iter().any(Vec::is_empty) {
                Vec::new()
            } else {
                each.concat()
            }
        }
    };
    if !all.is_empty() && schema.get("nullable") == Some(&Json::Bool(true)) {
        all.push("null");
    }
    let mut seen = BTreeSet::new();
    all.retain(|name| seen.insert(*name));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_not_a_schema() {
        for (text, expected) in [
            ("{", "not valid JSON"),
            ("{}", "no `name`"),
            (
                r#"{"type": "function", "function": {"name": ""}}"#,
                "no `name`",
            ),
            (
                r#"{"name": "f", "parameters": {"a": "integer"}}"#,
                "not a schema of type `object`",
            ),
        ] {
            assert!(Tool::parse(text).unwrap_err().contains(expected), "{text}");
        }
    }

    #[test]
    fn arguments_are_compared_with_the_schema() {
        let properties = r#"{
            "optional": {"type": "integer", "nullable": true},
            "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "listed": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string", "enum": ["all"]}]},
            "long": {"enum": [123456789012345678901, "x"]},
            "only": {"const": 1},
            "place": {"type": "object", "properties": {"zip": {"type": "integer"}}, "required": ["zip"]},
            "closed": {"type": "object", "properties": {}, "additionalProperties": false},
            "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
            "both": {"allOf": [{"type": "number"}, {"enum": [1, 2]}]}
        }"#;
        let text = format!(
            r#"{{"name": "f", "parameters": {{"type": "object", "properties": {properties}}}}}"#
        );
        let tool = Tool::parse(&text).unwrap();
        let found = |arguments: &str| {
            tool.check(&Json::parse(arguments).unwrap())
                .err()
                .unwrap_or_default()
        };
        for fits in [
            r#"{"optional": null, "either": null, "listed": ["a"], "long": 123456789012345678901, "only": 1.0}"#,
            r#"{"optional": 123456789012345678901234567890, "either": 2, "listed": "all", "long": "x"}"#,
            r#"{"place": {"zip": 1, "town": "x"}, "closed": {}, "counts": {"a": 1}, "both": 2}"#,
        ] {
            assert_eq!(found(fits), "", "{fits}");
        }
        for (wrong, expected) in [
            (
                r#"{"optional": "1"}"#,
                "`optional` must be of type integer or null, not \"1\"",
            ),
            (
                r#"{"either": 1.5}"#,
                "`either` must be of type integer or null, not 1.5",
            ),
            (
                r#"{"listed": ["a", 1]}"#,
                "`listed[1]` must be of type string, not 1",
            ),
            (
                r#"{"listed": "one"}"#,
                "`listed` must be one of \"all\", not \"one\"",
            ),
            (
                r#"{"long": 123456789012345678902}"#,
                "`long` must be one of 123456789012345678901, \"x\", not 123456789012345678902",
            ),
            (r#"{"only": 2}"#, "`only` must be 1, not 2"),
            (
                r#"{"place": {"zip": "1"}}"#,
                "`place.zip` must be of type integer, not \"1\"",
            ),
            (r#"{"place": {}}"#, "the argument `place.zip` is missing"),
            (r#"{"closed": {"a": 1}}"#, "there is no argument `closed.a`"),
            (
                r#"{"counts": {"a": 0.5}}"#,
                "`counts.a` must be of type integer, not 0.5",
            ),
            (r#"{"both": 3}"#, "`both` must be one of 1, 2, not 3"),
            (r#"{"other": 3}"#, "there is no argument `other`"),
        ] {
            assert_eq!(found(wrong), expected, "{wrong}");
        }
    }
}
