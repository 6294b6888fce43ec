//! The environment in which a chat template runs: that of transformers, with a limit on the work.

use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value, escape_formatter};

use super::{Date, json, methods};

pub(super) const NAME: &str = "chat";
/// Largest work for one conversation: the number of instructions, plus one for each 64 bytes that they produce.
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
    environment.set_formatter(|out, state, value| match json::float(value) {
        Some(float) => escape_formatter(out, state, &Value::from(float)),
        None => escape_formatter(out, state, value),
    });
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Refused(message)))
    });
    environment.add_function("strftime_now", move |format: &str| today.format(format));
    environment.add_filter("tojson", |value: &Value, positions: Rest<Value>, options: Kwargs| {
        json::dump(value, &positions, &options)
    });
    // In Python, strings, maps and undefined values can be iterated too.
    environment.add_test("sequence", |value: &Value| has_items(value) && value.kind() != ValueKind::Iterable);
    environment.add_test("iterable", has_items);
    // Line ends become `\n` as in Python, whatever the file has.
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    environment.add_template_owned(NAME, without_generation(&text))?;
    Ok(environment)
}

fn has_items(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), String | Seq | Map | Iterable | Undefined)
}

/// Rewrites `{% generation %}` blocks as blocks that the engine knows. They mark the assistant's text and do not change the output.
fn without_generation(text: &str) -> String {
    let mut changed = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        changed.push_str(before);
        let name = tag.trim_start_matches(['-', '+']).trim_start();
        let (known, other) =
            if name.starts_with("endgeneration") { ("endgeneration", "endwith") } else { ("generation", "with") };
        rest = match name.strip_prefix(known) {
            Some(end) if end.trim_start().trim_start_matches(['-', '+']).starts_with("%}") => {
                changed.push_str(&tag[..tag.len() - name.len()]);
                changed.push_str(other);
                end
            }
            _ => tag,
        };
    }
    changed + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_blocks_are_blocks_of_their_own() {
        let text = "a {%- generation -%} b {% endgeneration %}{% generations %}{{ '{%' }}{%+ endgeneration +%}";
        let expected = "a {%- with -%} b {% endwith %}{% generations %}{{ '{%' }}{%+ endwith +%}";
        assert_eq!(without_generation(text), expected);
    }
}
