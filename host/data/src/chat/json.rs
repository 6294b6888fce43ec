//! Writes values as Python's `json.dumps` does.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::value::LongInteger;

struct Style {
    ascii: bool,
    sorted: bool,
    /// Indentation per level; `None` writes everything on one line.
    indent: Option<String>,
    item: String,
    key: String,
}

/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)` of
/// transformers, without escapes for HTML.
pub(super) fn dump(value: &Value, positions: &[Value], options: &Kwargs) -> Result<String, Error> {
    let ascii = argument(positions.first(), options, "ensure_ascii")?;
    let indent = argument(positions.get(1), options, "indent")?;
    let separators = argument(positions.get(2), options, "separators")?;
    let sorted = argument(positions.get(3), options, "sort_keys")?;
    options.assert_all_used()?;
    let indent = match indent.kind() {
        ValueKind::None | ValueKind::Undefined => None,
        ValueKind::String => indent.as_str().map(str::to_owned),
        _ => Some(" ".repeat(usize::try_from(i64::try_from(indent)?.clamp(0, 64)).unwrap_or(0))),
    };
    let mut style = Style {
        ascii: ascii.is_true(),
        sorted: sorted.is_true(),
        item: if indent.is_some() {
            ",".into()
        } else {
            ", ".into()
        },
        key: ": ".into(),
        indent,
    };
    if separators.is_true() {
        style.item = separators.get_item_by_index(0)?.to_string();
        style.key = separators.get_item_by_index(1)?.to_string();
    }
    let mut text = String::new();
    style.write(&mut text, value, 0)?;
    Ok(text)
}

/// An argument by its position, or else by its name.
fn argument(position: Option<&Value>, options: &Kwargs, name: &str) -> Result<Value, Error> {
    match position {
        Some(value) => Ok(value.clone()),
        None => Ok(options.get::<Option<Value>>(name)?.unwrap_or_default()),
    }
}

impl Style {
    fn write(&self, text: &mut String, value: &Value, level: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => text.push_str("null"),
            ValueKind::Bool => text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => text.push_str(&float(value).unwrap_or_else(|| value.to_string())),
            ValueKind::String => self.quote(text, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?;
                self.all(text, ['[', ']'], level, items, |text, item| {
                    self.write(text, &item, level + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort_by_key(ToString::to_string);
                }
                self.all(text, ['{', '}'], level, keys.into_iter(), |text, key| {
                    let mut name = String::new();
                    match key.as_str() {
                        Some(key) => name.push_str(key),
                        None => self.write(&mut name, &key, 0)?,
                    }
                    self.quote(text, &name);
                    text.push_str(&self.key);
                    self.write(text, &value.get_item(&key)?, level + 1)
                })?;
            }
            _ if let Some(LongInteger(digits)) = value.downcast_object_ref() => {
                text.push_str(digits)
            }
            kind => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("tojson cannot write what is {kind}"),
                ));
            }
        }
        Ok(())
    }

    /// Begins a line with its indentation, if there is one.
    fn begin_line(&self, text: &mut String, level: usize) {
        if let Some(indent) = &self.indent {
            text.push('\n');
            text.push_str(&indent.repeat(level));
        }
    }

    /// Writes items between brackets, each on its own line if there is an indentation.
    fn all(
        &self,
        text: &mut String,
        [open, close]: [char; 2],
        level: usize,
        items: impl Iterator<Item = Value>,
        mut write: impl FnMut(&mut String, Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        text.push(open);
        let mut any = false;
        for item in items {
            if any {
                text.push_str(&self.item);
            }
            any = true;
            self.begin_line(text, level + 1);
            write(text, item)?;
        }
        if any {
            self.begin_line(text, level);
        }
        text.push(close);
        Ok(())
    }

    fn quote(&self, text: &mut String, value: &str) {
        text.push('"');
        for c in value.chars() {
            match c {
                '"' => text.push_str("\\\""),
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                '\u{8}' => text.push_str("\\b"),
                '\u{c}' => text.push_str("\\f"),
                c if c < ' ' || (self.ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(text, "\\u{unit:04x}");
                    }
                }
                c => text.push(c),
            }
        }
        text.push('"');
    }
}

/// A float as Python writes it; `None` if the value is not a float.
pub(super) fn float(value: &Value) -> Option<String> {
    if value.kind() != ValueKind::Number || value.is_integer() {
        return None;
    }
    f64::try_from(value.clone()).ok().map(python_float)
}

/// The text of a float as Python writes it.
pub(crate) fn python_float(float: f64) -> String {
    match float {
        f64::INFINITY => return "Infinity".to_owned(),
        f64::NEG_INFINITY => return "-Infinity".to_owned(),
        _ if float.is_nan() => return "NaN".to_owned(),
        _ => {}
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if float == 0.0 || (-4..16).contains(&exponent) {
        let plain = float.to_string();
        return if plain.contains('.') {
            plain
        } else {
            plain + ".0"
        };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}
