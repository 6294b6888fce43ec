//! Advice about an unknown key: the setting that another section or another trainer calls so, or
//! what configs/names.md has in its place.

use super::names::{self, Here, Text};
use super::{Setting, sections, settings};

/// Error message about the key `typed` of `[section]`, whose keys are `known`.
pub(super) fn unknown_key(section: &str, typed: &str, known: &[&str]) -> String {
    match advice(typed).filter(|_| is_of_a_run(section, known)) {
        Some(advice) => format!("unknown key `{typed}` ({advice})"),
        None => capo_plugin::unknown_key(typed, known),
    }
}

/// True if `known` are the keys of a run's section. `host sft` has sections of the same names with
/// fewer keys.
fn is_of_a_run(section: &str, known: &[&str]) -> bool {
    sections().iter().any(|(name, settings)| {
        *name == section && settings.iter().all(|setting| known.contains(&setting.name))
    })
}

/// Error message about the section `typed`, which may be a key outside of its section; the sections
/// are `known`.
pub(super) fn unknown_section(typed: &str, known: &[&str]) -> String {
    match advice(typed) {
        Some(advice) => format!("unknown key `{typed}` ({advice})"),
        None => capo_plugin::unknown_key(typed, known),
    }
}

/// Where the setting `typed` is, or what has its effect.
pub(super) fn advice(typed: &str) -> Option<String> {
    if let Some((section, _)) = settings().find(|(_, setting)| setting.name == typed) {
        return Some(is_in(section, typed, ""));
    }
    let same: Vec<String> = settings()
        .filter(|(_, setting): &(&str, &Setting)| setting.is_called(typed))
        .map(|(section, setting)| format!("`{section}.{}`", setting.name))
        .collect();
    if !same.is_empty() {
        return Some(format!("here: {}; configs/names.md", same.join(", ")));
    }
    let foreign = names::find(typed)?;
    Some(match foreign.here {
        Here::SameIn { section, more } => is_in(section, typed, more),
        Here::Other(here) => format!("here: {}; configs/names.md", Text::plain(here)),
        Here::Nothing => format!("{}; configs/names.md", Text::plain(foreign.differs)),
    })
}

fn is_in(section: &str, key: &str, more: &str) -> String {
    format!("it is in `[{section}]`: `{section}.{key}`{more}")
}

#[cfg(test)]
mod tests {
    use capo_loader::registry::Registry;

    use super::*;

    /// The places that hints and tables name exist.
    #[test]
    fn every_name_of_trl_has_a_place_or_a_reason() {
        let registry = Registry::open(&[]).unwrap();
        let offers = registry.offers();
        let foreign = names::TABLES
            .iter()
            .flat_map(|table| table.rows)
            .flat_map(|row| row.names.iter().copied());
        let own = settings().flat_map(|(_, setting)| setting.trl.iter().copied());
        let names: Vec<&str> = foreign.chain(own).collect();
        assert!(names.len() > 130, "{} names", names.len());
        for name in names {
            let advice = advice(name).unwrap_or_else(|| panic!("nothing is said of `{name}`"));
            for (section, key) in advice
                .split(['`', ' '])
                .filter_map(|word| word.split_once('.'))
            {
                let is_there = match section {
                    "advantage" | "objective" => offers
                        .iter()
                        .any(|offer| offer.keys.iter().any(|known| known.name == key)),
                    _ if sections().iter().all(|(known, _)| *known != section) => true,
                    _ => settings().any(|(known, setting)| (known, setting.name) == (section, key)),
                };
                assert!(is_there, "`{name}`: no `{section}.{key}`: {advice}");
            }
        }
    }
}
