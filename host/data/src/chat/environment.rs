//! The environment in which a chat template runs, as transformers has it, with a limit on the work.

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, escape_formatter, filters};
use regex::{Captures, Regex};

use super::{Date, json, methods};

pub(super) const NAME: &str = "chat";
/// Name of the filter that makes a text a list.
const CHARACTERS: &str = "_characters";
/// Largest work for one conversation: the number of instructions, plus one for each 64 bytes that
/// they produce.
pub(super) const STEPS: u64 = 1 << 19;

/// The message that a template passed to `raise_exception`.
#[derive(Debug)]
pub(super) struct Refused(pub(super) String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// An environment with one template, in which the date is `today`.
pub(super) fn with_template(text: &str, today: Date) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    environment.set_syntax(syntax.trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_fuel(Some(STEPS));
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, state, value| escape_formatter(out, state, &shown(value)));
    environment.add_filter("string", |state: &State, value: &Value| {
        filters::string(state, &shown(value))
    });
    environment.add_filter("trim", |text: String, set: Option<String>| match set {
        None => text.trim_matches(methods::is_space).to_owned(),
        Some(set) => text.trim_matches(|c| set.contains(c)).to_owned(),
    });
    environment.add_filter(CHARACTERS, |value: Value| match value.as_str() {
        Some(text) => text.chars().map(Value::from).collect(),
        None => value,
    });
    environment.add_function(
        "raise_exception",
        |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message.clone())
                .with_source(Refused(message)))
        },
    );
    environment.add_function("strftime_now", move |format: &str| today.format(format));
    environment.add_filter(
        "tojson",
        |value: &Value, positions: Rest<Value>, options: Kwargs| {
            json::dump(value, &positions, &options)
        },
    );
    // In Python, strings, maps and undefined values can be iterated too.
    environment.add_test("sequence", |value: &Value| {
        has_items(value) && value.kind() != ValueKind::Iterable
    });
    environment.add_test("iterable", has_items);
    // Line ends become `\n` as in Python, whatever the file has.
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    environment.add_template_owned(NAME, rewritten(&text).into_owned())?;
    Ok(environment)
}

/// A float as Python prints it; any other value unchanged.
fn shown(value: &Value) -> Value {
    json::float(value).map_or_else(
        || value.clone(),
        |float| Value::from(float.replace("Infinity", "inf").replace("NaN", "nan")),
    )
}

fn has_items(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), String | Seq | Map | Iterable | Undefined)
}

/// Rewrites tags that the engine does not know, or reads in another way than Jinja2.
///
/// A `generation` block marks the assistant's text and does not change the output. The engine does
/// not count the characters of a text, so loops go over lists. It takes white space from the ends
/// of raw text, which becomes a string. Comments and strings stay as they are.
fn rewritten(text: &str) -> Cow<'_, str> {
    static TAG: LazyLock<Regex> = LazyLock::new(|| {
        let string = r#" '(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*" "#;
        let part = format!(r#"(?: {string} | \( (?: {string} | [^()'"] )* \) | [^()'"] )"#);
        let pattern = format!(
            r#"(?xs) \{{\# .*? \#\}} | \{{\{{ (?: {string} | [^'"] )*? \}}\}}
            | \{{% (?<before> [-+]? ) \s* raw \s* (?<left> -? ) %\}}
              (?<raw> .*? )
              \{{% (?<right> [-+]? ) \s* endraw \s* (?<after> [-+]? ) %\}}
            | (?<open> \{{% [-+]? \s* (?:end)? ) generation (?<close> \s* [-+]? %\}} )
            | (?<loop> \{{% [-+]? \s* for \s [^'"%]+? \s in ) \b (?<values> {part}+? )
              (?<rest> \s (?:if|recursive) \b {part}*? | \s* ) (?<end> [-+]? %\}} )"#
        );
        Regex::new(&pattern).expect("the pattern is a constant")
    });
    TAG.replace_all(text, |tag: &Captures<'_>| {
        match (tag.name("open"), tag.name("loop")) {
            (Some(_), _) => format!("{}with{}", &tag["open"], &tag["close"]),
            _ if tag.name("raw").is_some() => {
                let text = tag["raw"]
                    .trim_start_matches(|c: char| &tag["left"] == "-" && methods::is_space(c));
                // The indentation of the last tag does not belong to the text.
                let bare = text.trim_end_matches([' ', '\t']);
                let text = match &tag["right"] {
                    "-" => text.trim_end_matches(methods::is_space),
                    "" if bare.ends_with('\n') => bare,
                    _ => text,
                };
                let text = serde_json::Value::from(text);
                format!(
                    "{{%{} with %}}{{{{ {text} }}}}{{% endwith {}%}}",
                    &tag["before"], &tag["after"]
                )
            }
            (_, Some(_)) => format!(
                "{} ({})|{CHARACTERS}{} {}",
                &tag["loop"], &tag["values"], &tag["rest"], &tag["end"]
            ),
            _ => tag[0].to_owned(),
        }
    })
}
