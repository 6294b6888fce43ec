//! Values of JSON as a chat template's engine has them.

use std::fmt;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Object, ObjectRepr};

use crate::exact::{Json, is_integer};

/// An integer beyond the 128 bits of the engine, as its digits. A template can write it, and not
/// compute with it.
#[derive(Debug)]
pub(super) struct LongInteger(pub(super) String);

impl Object for LongInteger {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The engine's value for a value of JSON.
pub(super) fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => of_number(number),
        Json::Text(text) => Value::from(text.as_str()),
        Json::List(values) => values.iter().map(value).collect(),
        Json::Object(values) => Value::from_pairs(
            values
                .iter()
                .map(|(key, inner)| (Value::from(key.as_str()), value(inner))),
        ),
    }
}

fn of_number(number: &str) -> Value {
    if !is_integer(number) {
        // The text is a number, so it can be read.
        return Value::from(number.parse::<f64>().unwrap_or(f64::NAN));
    }
    match (number.parse::<i64>(), number.parse::<i128>()) {
        (Ok(integer), _) => Value::from(integer),
        (_, Ok(integer)) => Value::from(integer),
        _ => Value::from_object(LongInteger(number.to_owned())),
    }
}
