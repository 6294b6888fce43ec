//! The tables of REFERENCE.md and the classes of Python's batch are those that the table of a
//! batch's fields makes.
//!
//! `CAPO_WRITE_TABLES=1 cargo test -p capo-plugin --test pages` writes them.

use std::path::Path;
use std::{env, fs};

use capo_plugin::fields::{Dtype, Extent, FIELDS, Field, Value};
use capo_plugin::{Batch, Dims, Inputs, OptimizerInfo, OptimizerKind};

/// Python's arguments without a name, in order; all others need their names.
const POSITIONAL: [&str; 4] = ["completion_ids", "completion_mask", "logps", "advantages"];
/// Longest line of Python's source.
const WIDTH: usize = 120;

/// Compares the file `path` of the checkout with what `update` makes of it, or writes it.
fn check(path: &str, update: impl FnOnce(&str) -> String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    let Ok(text) = fs::read_to_string(&path) else {
        // The published crate has no Python package beside it.
        return;
    };
    let expected = update(&text);
    if env::var_os("CAPO_WRITE_TABLES").is_some() {
        fs::write(&path, expected).unwrap();
        return;
    }
    let shown = path.display();
    assert!(
        text == expected,
        "{shown} is older than the table of fields (CAPO_WRITE_TABLES=1 writes it)"
    );
}

/// `text` with `lines` in place of those from the first that starts with `from` up to the next that
/// starts with `to`.
fn replaced(text: &str, from: &str, to: &str, lines: &[String]) -> String {
    let start = format!("\n{from}");
    let start = text
        .find(&start)
        .unwrap_or_else(|| panic!("no line starts with `{from}`"))
        + 1;
    let end = format!("\n{to}");
    let end = text[start..]
        .find(&end)
        .unwrap_or_else(|| panic!("no line starts with `{to}`"));
    let end = start + end + 1;
    format!("{}{}\n{}", &text[..start], lines.join("\n"), &text[end..])
}

/// The shape of an array, such as `[B, T]`.
fn shape(field: &Field) -> String {
    let letter = |extent: &Extent| format!("{extent:?}");
    let letters: Vec<String> = field.shape.iter().map(letter).collect();
    format!("[{}]", letters.join(", "))
}

#[test]
fn reference_has_the_tables() {
    check("capo-plugin/REFERENCE.md", |text| {
        let mut fields = vec![
            "| field | type | what it is |".to_owned(),
            "|---|---|---|".to_owned(),
        ];
        let of_batch = |field: &&Field| field.rust != "Tensor" && !field.name.starts_with("vocab");
        for field in FIELDS.iter().filter(of_batch) {
            fields.push(row_of_field(field));
        }
        let mut inputs = vec![
            "| flag | field | what it is |".to_owned(),
            "|---|---|---|".to_owned(),
        ];
        for part in Inputs::OF_BATCH {
            let sentence = part.about.trim();
            inputs.push(format!(
                "| `{}` | `{}` | {sentence} |",
                part.name, part.field
            ));
        }
        let end = "<!-- end of the table -->";
        let text = replaced(text, "| field | type |", end, &fields);
        replaced(&text, "| flag | field |", "| `ALIGNMENT`", &inputs)
    });
}

fn row_of_field(field: &Field) -> String {
    let mut kind = format!("`{}`", field.rust);
    if !field.shape.is_empty() {
        kind += &format!(", `{}`", shape(field));
    }
    if !field.unit.is_empty() {
        kind += &format!(", {}", field.unit);
    }
    let about = field.sentence();
    format!("| `{}` | {kind} | {about} |", field.name)
}

#[test]
fn python_has_the_fields() {
    check("python/capo_rl/batch.py", |text| {
        let mut text = text.to_owned();
        for class in [
            "LastLayer",
            "OptimizerState",
            "Losses",
            "Progress",
            "Sampling",
        ] {
            let fields: Vec<&Field> = FIELDS.iter().filter(|field| field.class == class).collect();
            text = with_class(&text, class, &fields);
        }
        with_arrays_of_batch(&text)
    });
}

/// Replaces the attributes of a class that has only fields of the table.
fn with_class(text: &str, class: &str, fields: &[&Field]) -> String {
    let start = text
        .find(&format!("\nclass {class}:"))
        .expect("the class is in the file");
    let (before, own) = text.split_at(start);
    let docs: Vec<String> = fields.iter().flat_map(|field| doc(field)).collect();
    let mut lines: Vec<String> = fields.iter().map(|field| attribute(field)).collect();
    lines.push("\n".to_owned());
    let first = format!("        {}: ", fields[0].name);
    let own = replaced(own, &first, "    \"\"\"", &docs);
    let first = format!("    {}: ", fields[0].name);
    let rest = if own[1..].contains("\n@dataclass") {
        "@dataclass"
    } else {
        "#:"
    };
    format!("{before}{}", replaced(&own, &first, rest, &lines))
}

/// Replaces the arrays of `Batch`, which has further attributes.
fn with_arrays_of_batch(text: &str) -> String {
    let is_own = |field: &&Field| field.class == "Batch" && !field.shape.is_empty();
    let all: Vec<&Field> = FIELDS.iter().filter(is_own).collect();
    let mut docs = Vec::new();
    let mut lines = Vec::new();
    for name in POSITIONAL {
        let field = Field::named(name).unwrap();
        docs.extend(doc(field));
        lines.push(attribute(field));
    }
    lines.push("    _: dataclasses.KW_ONLY".to_owned());
    for field in all
        .into_iter()
        .filter(|field| !POSITIONAL.contains(&field.name))
    {
        docs.extend(doc(field));
        lines.push(attribute(field));
    }
    let text = replaced(
        text,
        "        completion_ids: ",
        "        group_size: ",
        &docs,
    );
    replaced(&text, "    completion_ids: ", "    group_size: ", &lines)
}

/// The lines about a field in the description of its class.
fn doc(field: &Field) -> Vec<String> {
    let mut text = format!("        {}: ", field.name);
    if !field.shape.is_empty() {
        text += &format!("`{}`", shape(field));
        let unit = if field.dtype == Dtype::U32 {
            "integers"
        } else {
            field.unit
        };
        if !unit.is_empty() {
            text += &format!(", {unit}");
        }
        text += ": ";
    }
    text += field.sentence();
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.trim_start().split(' ') {
        let indent = if lines.is_empty() { 8 } else { 12 };
        if indent + line.len() + 1 + word.len() > WIDTH {
            lines.push(format!("{}{line}", " ".repeat(indent)));
            line.clear();
        }
        line += if line.is_empty() { "" } else { " " };
        line += word;
    }
    let indent = if lines.is_empty() { 8 } else { 12 };
    lines.push(format!("{}{line}", " ".repeat(indent)));
    lines
}

/// The field as an attribute of a dataclass.
fn attribute(field: &Field) -> String {
    let name = field.name;
    let left_out_by_python = ["rewards", "advantages"].contains(&name);
    if !field.shape.is_empty() {
        let is_required =
            field.required && !left_out_by_python || ["losses", "dloss_dlogp"].contains(&name);
        let kind = if is_required {
            "Array"
        } else {
            "Array | None = None"
        };
        return format!("    {name}: {kind}");
    }
    if name == "max_completion_length" {
        return format!("    {name}: int | None = None");
    }
    match default(name) {
        Some(Value::Whole(number)) if field.class != "LastLayer" => {
            format!("    {name}: int = {number}")
        }
        Some(Value::Single(number)) => format!("    {name}: float = {number:?}"),
        _ => format!("    {name}: int"),
    }
}

/// The value of a scalar that is left out.
fn default(name: &str) -> Option<Value<'static>> {
    let dims = Dims {
        completions: 0,
        tokens: 0,
        group_size: 1,
    };
    let optimizer = OptimizerInfo {
        kind: OptimizerKind::SGD,
        learning_rate: 0.0,
        beta1: 0.0,
        beta2: 0.0,
        eps: 0.0,
        weight_decay: 0.0,
        max_grad_norm: 0.0,
        steps_taken: 0,
    };
    Batch::new(dims, optimizer).value(name)
}
