//! `--set section.key=value`: parsing it, and setting the value at its path.

use anyhow::{Result, bail};
use capo_loader::{ComponentConfig, component_names};
use toml::{Table, Value};

use super::read::list;

/// Largest number of parts of a dotted key: a table that is nested too deeply cannot even be
/// dropped.
const MOST_PARTS: usize = 16;

/// Parses a `--set` into key and value.
pub fn parse_set(text: &str) -> Result<(String, Value)> {
    let Some((path, value)) = text.split_once('=') else {
        bail!("`--set {text}` has no `=` (write `--set section.key=value`)");
    };
    if path.split('.').count() > MOST_PARTS {
        bail!(
            "`--set {}...` names a key of more than {MOST_PARTS} parts (write `--set \
             section.key=value`)",
            &path[..path.floor_char_boundary(60)]
        );
    }
    // A bare word is a string, as in `--set train.lr_scheduler_type=constant`.
    let value = format!("v = {value}")
        .parse::<Table>()
        .ok()
        .and_then(|mut table| table.remove("v"));
    let value = value.unwrap_or_else(|| Value::String(text[path.len() + 1..].to_owned()));
    Ok((path.trim().to_owned(), value))
}

/// Sets `value` at the dotted `path`.
pub fn set(table: &mut Table, path: &str, value: Value) -> Result<()> {
    let mut parents: Vec<&str> = path.split('.').collect();
    if parents.contains(&"") {
        bail!("`--set {path}=...` has an empty key (write `--set section.key=value`)");
    }
    let last = parents.pop().unwrap_or_default();
    let mut here = table;
    let mut parts = parents.into_iter().peekable();
    while let Some(part) = parts.next() {
        let next = here
            .entry(part)
            .or_insert_with(|| Value::Table(Table::new()));
        here = match next {
            Value::Table(inner) => inner,
            Value::Array(items) => {
                let index = parts.next().unwrap_or_default();
                let count = items.len();
                let item = index
                    .parse::<usize>()
                    .ok()
                    .and_then(|index| items.get_mut(index));
                match item {
                    Some(Value::Table(inner)) => inner,
                    _ if count == 0 => bail!("`--set {path}=...`: `{part}` has no entries"),
                    _ => bail!(
                        "`--set {path}=...`: `{part}` has entries 0 to {} (write `--set \
                         {part}.0.key=value`)",
                        count - 1
                    ),
                }
            }
            _ => bail!("`--set {path}=...`: `{part}` is a value, not a section"),
        };
    }
    here.insert(last.to_owned(), value);
    Ok(())
}

/// Replaces the component id in `path` by its number among the entries of `section`.
///
/// `mask.advdecay.mask.quantile` becomes `mask.0.quantile` if that mask comes first. So does
/// `mask.advdecay.quantile` if no other id begins with `advdecay.`.
pub(super) fn numbered(table: &Table, section: &str, path: &str) -> Result<String> {
    let Some(rest) = path
        .strip_prefix(section)
        .and_then(|rest| rest.strip_prefix('.'))
    else {
        return Ok(path.to_owned());
    };
    let entries = match table.get(section) {
        None => &[][..],
        Some(Value::Array(entries)) => entries,
        Some(_) => return Ok(path.to_owned()),
    };
    if entries.is_empty() {
        let advice = match section {
            "reward" => "name one in a config".to_owned(),
            _ => format!("add one with `--{} ID`", section.replace('_', "-")),
        };
        let what = section.replace('_', " ");
        bail!(
            "`--set {path}=...`: this run has no {what} ({advice}; `host plugins --plugin LIB` \
             lists those of a plugin)"
        );
    }
    if rest.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(path.to_owned());
    }
    let names = names(entries);
    let whole = names
        .iter()
        .enumerate()
        .filter_map(|(index, name)| Some((index, key_of(rest, name)?)));
    // The longest name, in case one name begins with another.
    if let Some((index, key)) = whole.max_by_key(|(index, _)| names[*index].len()) {
        return Ok(format!("{section}.{index}.{key}"));
    }
    let mut by_vendor = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let vendor = name.split('.').next().unwrap_or_default();
        if let Some(key) = key_of(rest, vendor) {
            by_vendor.push((index, key));
        }
    }
    match by_vendor[..] {
        [(index, key)] => Ok(format!("{section}.{index}.{key}")),
        [] => bail!(
            "`--set {path}=...`: no {} is called so (there are {}; write `--set \
             {section}.{}.KEY=VALUE` or `--set {section}.0.KEY=VALUE`)",
            section.replace('_', " "),
            list(&names.iter().map(String::as_str).collect::<Vec<_>>()),
            names[0]
        ),
        _ => {
            let several: Vec<&str> = by_vendor
                .iter()
                .map(|(index, _)| names[*index].as_str())
                .collect();
            bail!(
                "`--set {path}=...` may mean {} (write the whole name)",
                list(&several)
            )
        }
    }
}

/// The part of `rest` after `name.`.
fn key_of<'r>(rest: &'r str, name: &str) -> Option<&'r str> {
    rest.strip_prefix(name)?
        .strip_prefix('.')
        .filter(|_| !name.is_empty())
}

/// Names of the entries in reports: `ID`, or `ID#2` for the second use of a component.
fn names(entries: &[Value]) -> Vec<String> {
    let mut components = Vec::new();
    for entry in entries {
        let id = entry.get("use").and_then(Value::as_str);
        components.push(ComponentConfig {
            id: id.unwrap_or_default().to_owned(),
            table: Table::new(),
        });
    }
    component_names(&components)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbered form of `path` among masks with these ids, or the error message.
    fn of(ids: &[&str], path: &str) -> String {
        let masks = ids
            .iter()
            .map(|id| format!("[[mask]]\nuse = \"{id}\"\n"))
            .collect::<String>();
        numbered(&masks.parse().unwrap(), "mask", path).unwrap_or_else(|error| error.to_string())
    }

    #[test]
    fn finds_entries_by_name() {
        let ids = [
            "capo.curvature",
            "advdecay.mask",
            "a.cap",
            "a.cap.two",
            "advdecay.mask",
        ];
        assert_eq!(of(&ids, "mask.3.key"), "mask.3.key");
        assert_eq!(of(&ids, "mask"), "mask");
        assert_eq!(
            of(&ids, "mask.capo.curvature.semantics.feature"),
            "mask.0.semantics.feature"
        );
        assert_eq!(
            of(&ids, "mask.capo.fisher_threshold"),
            "mask.0.fisher_threshold"
        );
        assert_eq!(of(&ids, "mask.advdecay.mask.quantile"), "mask.1.quantile");
        assert_eq!(of(&ids, "mask.advdecay.mask#2.quantile"), "mask.4.quantile");
        assert_eq!(of(&ids, "mask.a.cap.two.key"), "mask.3.key");
        assert_eq!(of(&ids, "mask.a.cap.key"), "mask.2.key");
    }

    #[test]
    fn refuses_unknown_names() {
        let ids = ["advdecay.mask", "advdecay.other"];
        assert_eq!(
            of(&ids, "mask.advdecay.quantile"),
            "`--set mask.advdecay.quantile=...` may mean `advdecay.mask`, `advdecay.other` (write \
             the whole name)"
        );
        assert_eq!(
            of(&ids, "mask.adv.quantile"),
            "`--set mask.adv.quantile=...`: no mask is called so (there are `advdecay.mask`, \
             `advdecay.other`; write `--set mask.advdecay.mask.KEY=VALUE` or `--set \
             mask.0.KEY=VALUE`)"
        );
    }
}
