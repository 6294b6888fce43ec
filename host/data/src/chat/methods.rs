//! Methods of Python's strings, lists and dicts, beyond those of `minijinja-contrib`.

use std::sync::LazyLock;

use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;
use regex::Regex;

/// True for what Python takes for white space: four control characters more than Rust.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

pub(super) fn call(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let more = match (value.kind(), value.as_str()) {
        (_, Some(text)) => of_text(text, method, args)?,
        (ValueKind::Map, _) if method == "copy" => from_args(args).map(|()| Some(value.clone()))?,
        (ValueKind::Seq, _) => of_list(value, method, args)?,
        _ => None,
    };
    match more {
        Some(result) => Ok(result),
        None => pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn of_text(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "strip" if args.is_empty() => Value::from(text.trim_matches(is_space)),
        "lstrip" if args.is_empty() => Value::from(text.trim_start_matches(is_space)),
        "rstrip" if args.is_empty() => Value::from(text.trim_end_matches(is_space)),
        "split" if args.is_empty() => text
            .split(is_space)
            .filter(|part| !part.is_empty())
            .map(Value::from)
            .collect(),
        "splitlines" => {
            let (keeps_ends,): (Option<bool>,) = from_args(args)?;
            lines(text, keeps_ends.unwrap_or(false))
                .into_iter()
                .map(Value::from)
                .collect()
        }
        "partition" => {
            let (sign,): (&str,) = from_args(args)?;
            match text.split_once(sign) {
                Some((before, after)) => tuple([before, sign, after]),
                None => tuple([text, "", ""]),
            }
        }
        "rpartition" => {
            let (sign,): (&str,) = from_args(args)?;
            match text.rsplit_once(sign) {
                Some((before, after)) => tuple([before, sign, after]),
                None => tuple(["", "", text]),
            }
        }
        "rsplit" => {
            let (sign, most): (&str, Option<usize>) = from_args(args)?;
            let mut parts: Vec<&str> = text
                .rsplitn(most.map_or(usize::MAX, |most| most + 1), sign)
                .collect();
            parts.reverse();
            parts.into_iter().map(Value::from).collect()
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "index" => {
            let (what,): (&str,) = from_args(args)?;
            let at = text.find(what).ok_or_else(|| not_there("substring"))?;
            Value::from(text[..at].chars().count())
        }
        "casefold" => from_args(args).map(|()| Value::from(text.to_lowercase()))?,
        "swapcase" => {
            from_args(args).map(|()| Value::from(text.chars().map(swapped).collect::<String>()))?
        }
        _ => return Ok(None),
    }))
}

fn tuple(parts: [&str; 3]) -> Value {
    Value::from(Tuple::from(parts.map(Value::from)))
}

/// The lines of a text, with or without their ends, of which Python knows ten.
fn lines(text: &str, keeps_ends: bool) -> Vec<&str> {
    static END: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"\r\n|[\n\r\x0b\x0c\x1c-\x1e\u{85}\u{2028}\u{2029}]")
            .expect("the pattern is a constant")
    });
    let mut lines = Vec::new();
    let mut from = 0;
    for end in END.find_iter(text) {
        lines.push(&text[from..if keeps_ends { end.end() } else { end.start() }]);
        from = end.end();
    }
    lines.extend(Some(&text[from..]).filter(|rest| !rest.is_empty()));
    lines
}

fn of_list(list: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "index" => {
            let (what,): (&Value,) = from_args(args)?;
            Value::from(
                list.try_iter()?
                    .position(|item| item == *what)
                    .ok_or_else(|| not_there("item"))?,
            )
        }
        "copy" => from_args(args).map(|()| list.clone())?,
        _ => return Ok(None),
    }))
}

fn swapped(c: char) -> char {
    if c.is_uppercase() {
        c.to_lowercase().next().unwrap_or(c)
    } else {
        c.to_uppercase().next().unwrap_or(c)
    }
}

fn not_there(what: &str) -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("`index` finds no such {what}"),
    )
}
