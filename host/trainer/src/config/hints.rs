//! Advice about an unknown key: where the setting is that another section or another trainer calls
//! so, or what configs/names.md has in its place.

use super::{Setting, sections, settings};

/// The page with the names of TRL's that are no settings here.
const NAMES: &str = include_str!("../../../../configs/names.md");

/// Error message about the key `typed` of `[section]`, whose keys are `known`.
pub(super) fn unknown_key(section: &str, typed: &str, known: &[&str]) -> String {
    // `host sft` has other sections than a run.
    let is_run = |(name, settings): (&str, &[Setting])| {
        name == section && settings.iter().all(|setting| known.contains(&setting.name))
    };
    let advice = if sections().into_iter().any(is_run) {
        advice(typed)
    } else {
        None
    };
    advice.map_or_else(
        || capo_plugin::unknown_key(typed, known),
        |advice| format!("unknown key `{typed}` ({advice})"),
    )
}

/// Error message about the section `typed`, which may be a key outside of its section; the sections
/// are `known`.
pub(super) fn unknown_section(typed: &str, known: &[&str]) -> String {
    let advice = advice(typed).map(|advice| format!("unknown key `{typed}` ({advice})"));
    advice.unwrap_or_else(|| capo_plugin::unknown_key(typed, known))
}

/// Where the setting `typed` is, or what has its effect.
pub(super) fn advice(typed: &str) -> Option<String> {
    let at =
        |section: &str, more: &str| format!("it is in `[{section}]`: `{section}.{typed}`{more}");
    if let Some((section, _)) = settings().find(|(_, setting)| setting.name == typed) {
        return Some(at(section, ""));
    }
    let is_called = |setting: &Setting| {
        let verl = setting
            .verl
            .iter()
            .filter_map(|path| path.rsplit('.').next());
        setting
            .trl
            .iter()
            .copied()
            .chain(verl)
            .any(|name| name == typed)
    };
    let same: Vec<String> = settings()
        .filter(|(_, setting)| is_called(setting))
        .map(|(section, setting)| format!("`{section}.{}`", setting.name))
        .collect();
    if !same.is_empty() {
        return Some(format!("here: {}; configs/names.md", same.join(", ")));
    }
    let [_, here, differs] = rows().find(|[names, ..]| {
        names
            .split('`')
            .skip(1)
            .step_by(2)
            .any(|name| name == typed)
    })?;
    Some(
        match (
            here,
            here.strip_prefix("the same in `[")
                .and_then(|rest| rest.split_once("]`")),
        ) {
            (_, Some((section, more))) => at(section, more),
            ("", None) => format!("{}; configs/names.md", plain(differs)),
            (here, None) => format!("here: {}; configs/names.md", plain(here)),
        },
    )
}

/// The rows of the tables: TRL's names, what is here, what differs.
fn rows() -> impl Iterator<Item = [&'static str; 3]> {
    let row = |line: &'static str| {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        Some([cells.next()?, cells.next()?, cells.next()?])
    };
    NAMES.lines().filter_map(row)
}

/// The text without the addresses of its links.
fn plain(text: &str) -> String {
    let Some((before, after)) = text.split_once("](") else {
        return text.to_owned();
    };
    let (before, word) = before.rsplit_once('[').unwrap_or((before, ""));
    format!(
        "{before}{word}{}",
        plain(after.split_once(')').map_or("", |(_, rest)| rest))
    )
}

#[cfg(test)]
mod tests {
    use capo_loader::registry::Registry;

    use super::*;

    /// Names in the tables are those of the hints; the places that they name exist.
    #[test]
    fn every_name_of_the_tables_has_a_place_or_a_reason() {
        let registry = Registry::open(&[]).unwrap();
        let offered = |key: &str| {
            registry
                .offers()
                .iter()
                .any(|offer| offer.keys.iter().any(|known| known == key))
        };
        let is_name = |name: &&str| {
            name.chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        };
        let names: Vec<&str> = rows()
            .flat_map(|[names, ..]| names.split('`').skip(1).step_by(2))
            .filter(is_name)
            .collect();
        assert!(names.len() > 130, "{} names", names.len());
        for name in names {
            let advice = advice(name).unwrap_or_else(|| panic!("nothing is said of `{name}`"));
            for (section, key) in advice
                .split(['`', ' '])
                .filter_map(|word| word.split_once('.'))
            {
                let is_there = match section {
                    "advantage" | "objective" => offered(key),
                    _ if sections().iter().all(|(known, _)| *known != section) => true,
                    _ => settings().any(|(known, setting)| (known, setting.name) == (section, key)),
                };
                assert!(is_there, "`{name}`: no `{section}.{key}`: {advice}");
            }
        }
    }
}
