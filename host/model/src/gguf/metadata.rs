//! The metadata of a GGUF file by key.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use candle_core::quantized::gguf_file::Value;
use serde_json::{Map, Value as Json, json};

use crate::family::shown;

/// The values of the metadata. Getters return `None` for an absent key, and an error for a value of
/// another type.
pub(super) struct Metadata(HashMap<String, Value>);

impl Metadata {
    pub(super) fn new(values: HashMap<String, Value>) -> Self {
        Self(values)
    }

    /// Refuses files that are not a complete model.
    pub(super) fn check_kind(&self) -> Result<()> {
        let kind = self.text("general.type")?.unwrap_or("model");
        ensure!(
            kind == "model",
            "`general.type` is `{kind}`, only `model` is supported \
             (use the file of the whole model)"
        );
        let parts = self.number("split.count")?.unwrap_or(1);
        ensure!(
            parts <= 1,
            "it is one of {parts} files that hold a model together \
             (merge them with `llama-gguf-split --merge`)"
        );
        Ok(())
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>> {
        self.get(key, "a text", |value| {
            value.to_string().ok().map(String::as_str)
        })
    }

    /// The text under `key`. An absent key is an error.
    pub(super) fn needed(&self, key: &str) -> Result<&str> {
        self.text(key)?.with_context(|| missing(key))
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<u64>> {
        self.get(key, "a whole number", |value| scalar(value).as_u64())
    }

    pub(super) fn switch(&self, key: &str) -> Result<Option<bool>> {
        self.get(key, "true or false", |value| value.to_bool().ok())
    }

    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<&str>>> {
        self.list(key, "a list of texts", |value| {
            value.to_string().ok().map(String::as_str)
        })
    }

    pub(super) fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>> {
        self.list(key, "a list of numbers", |value| scalar(value).as_f64())
    }

    /// Values whose keys begin with `prefix`, by the rest of the key.
    pub(super) fn under(&self, prefix: &str) -> Map<String, Json> {
        let named = self
            .0
            .iter()
            .filter_map(|(key, value)| Some((key.strip_prefix(prefix)?.to_owned(), scalar(value))));
        named.collect()
    }

    fn list<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>> {
        self.get(key, wanted, |value| {
            value.to_vec().ok()?.iter().map(&read).collect()
        })
    }

    /// The value under `key`, in the form that `read` gives it; `None` if the key is absent.
    fn get<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.0.get(key) else {
            return Ok(None);
        };
        read(value).map(Some).with_context(|| {
            format!(
                "`{key}` is `{}`, expected {wanted} (fetch the file again)",
                shown(&scalar(value))
            )
        })
    }
}

/// The message for a key that a file must have.
pub(super) fn missing(key: &str) -> String {
    format!("`{key}` is missing (fetch the file again)")
}

/// A value as JSON; a list becomes its length.
fn scalar(value: &Value) -> Json {
    match value {
        Value::U8(number) => json!(number),
        Value::I8(number) => json!(number),
        Value::U16(number) => json!(number),
        Value::I16(number) => json!(number),
        Value::U32(number) => json!(number),
        Value::I32(number) => json!(number),
        Value::U64(number) => json!(number),
        Value::I64(number) => json!(number),
        Value::F32(number) => shortest(*number),
        Value::F64(number) => json!(number),
        Value::Bool(switch) => json!(switch),
        Value::String(text) => json!(text),
        Value::Array(values) => json!(format!("a list of {} values", values.len())),
    }
}

/// The shortest decimal that rounds to this f32, such as 0.1 in place of 0.10000000149.
pub(super) fn shortest(number: f32) -> Json {
    json!(number.to_string().parse::<f64>().ok())
}
