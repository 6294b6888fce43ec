//! The tables of settings in the documentation are those that the settings' own fields make.
//!
//! `CAPO_WRITE_TABLES=1 cargo test --workspace --test suite settings_page` writes them into the
//! pages.

use std::env;
use std::fs;

use host::config::{self, BenchmarkConfig, Setting, Settings};
use tests::artifacts::workspace;
use toml::Value;

const PAGES: [&str; 2] = ["configs/README.md", "configs/names.md"];
const BEGIN: &str = "<!-- table: ";
const END: &str = "\n<!-- end of the table -->";

/// The table with this name in a page, which names a kind and perhaps sections.
fn table(name: &str) -> String {
    let (kind, sections) = name.split_once(' ').unwrap_or((name, ""));
    let of_sections =
        || config::settings().filter(|(section, _)| sections.split(' ').any(|one| one == *section));
    let (head, rows): (_, Vec<String>) = match kind {
        "settings" => (
            SETTINGS,
            of_sections().map(|(_, one)| row(one.name, one)).collect(),
        ),
        "benchmark" => (
            SETTINGS,
            BenchmarkConfig::SETTINGS
                .iter()
                .map(|one| row(one.name, one))
                .collect(),
        ),
        "sft" => {
            let of = |(section, settings): (&str, &'static [Setting])| {
                let rows = settings
                    .iter()
                    .map(|one| row(&format!("{section}.{}", one.name), one));
                rows.collect::<Vec<_>>()
            };
            (
                SETTINGS,
                host::sft::sections().into_iter().flat_map(of).collect(),
            )
        }
        "trl" => (TRL, trl(&of_sections().collect::<Vec<_>>())),
        "verl" => (VERL, config::settings().filter_map(verl).collect()),
        _ => panic!("no table is called `{name}`"),
    };
    format!("{head}\n{}", rows.join("\n"))
}

const SETTINGS: &str = "| key | default | values | meaning |\n|---|---|---|---|";

fn row(name: &str, setting: &Setting) -> String {
    format!(
        "| `{name}` | {} | {} | {} |",
        default(setting),
        values(setting),
        setting.about
    )
}

fn default(setting: &Setting) -> String {
    let text = match setting.default() {
        _ if setting.required => return "required".to_owned(),
        Some(Value::String(text)) if !text.is_empty() => format!("`{text}`"),
        Some(Value::Float(number)) => format!("{number:?}").trim_end_matches(".0").to_owned(),
        Some(value @ (Value::Integer(_) | Value::Boolean(_))) => value.to_string(),
        _ => return setting.unset.to_owned(),
    };
    format!("{text} {}", setting.unit).trim_end().to_owned()
}

fn values(setting: &Setting) -> String {
    let expected = setting.expected();
    let (is_whole, words) = match expected.as_str() {
        "u64" | "usize" => (true, "whole number"),
        "f64" | "f32" => (false, "number"),
        "a boolean" => (false, "`true` or `false`"),
        "a sequence" => (false, "list"),
        "a map" => (false, "table"),
        "" => (false, "text"),
        names => (false, names),
    };
    let limits = setting.limits(is_whole, None);
    limits.map_or(words.to_owned(), |limits| {
        limits.replace("finite, ", "").replace("finite and ", "")
    })
}

const TRL: &str = "| TRL | here | what differs |\n|---|---|---|";

/// The settings that TRL has too; those with its name and meaning share a row per section.
fn trl(settings: &[(&str, &Setting)]) -> Vec<String> {
    let is_same = |setting: &Setting| setting.trl == [setting.name] && setting.differs.is_empty();
    let quoted = |names: &[&str]| format!("`{}`", names.join("`, `"));
    let mut sections: Vec<&str> = settings.iter().map(|(section, _)| *section).collect();
    sections.dedup();
    let same = |section: &&str| {
        let of = settings
            .iter()
            .filter(|(of, setting)| of == section && is_same(setting));
        let names: Vec<&str> = of.map(|(_, setting)| setting.name).collect();
        (!names.is_empty()).then(|| format!("| {} | the same in `[{section}]` | |", quoted(&names)))
    };
    let others = settings
        .iter()
        .filter(|(_, setting)| !setting.trl.is_empty() && !is_same(setting));
    let other = |(section, setting): &(&str, &Setting)| {
        format!(
            "| {} | `{section}.{}` | {} |",
            quoted(setting.trl),
            setting.name,
            setting.differs
        )
        .replace("|  |", "| |")
    };
    sections
        .iter()
        .filter_map(same)
        .chain(others.map(other))
        .collect()
}

const VERL: &str = "| verl | here |\n|---|---|";

fn verl((section, setting): (&str, &Setting)) -> Option<String> {
    let names = (!setting.verl.is_empty()).then(|| setting.verl.join("`, `"))?;
    Some(format!("| `{names}` | `{section}.{}` |", setting.name))
}

/// The page with the tables as they should be.
fn written(page: &str) -> String {
    let mut parts = page.split(BEGIN);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once(" -->").expect("a table's name has an end");
        let (_, rest) = rest.split_once(END).expect("a table has an end");
        text += &format!("{BEGIN}{name} -->\n\n{}\n{END}{rest}", table(name));
    }
    text
}

#[test]
fn the_tables_of_settings_are_those_of_their_fields() {
    for name in PAGES {
        let path = workspace().join(name);
        let page = tests::text(&path);
        let (written, tables) = (written(&page), page.matches(BEGIN).count());
        assert!(tables > 0, "{name} has no table of settings");
        if env::var_os("CAPO_WRITE_TABLES").is_some() {
            fs::write(&path, written).unwrap();
        } else {
            let stale = written.lines().find(|line| !page.contains(line));
            assert!(
                page == written,
                "{name} is older than the settings (CAPO_WRITE_TABLES=1 writes it): {stale:?}"
            );
        }
    }
}

#[test]
fn every_setting_of_a_run_is_described() {
    let sections = config::sections().map(|(section, _)| section);
    let page = tests::text(&workspace().join("configs/README.md"));
    for (section, setting) in config::settings() {
        assert!(
            setting.about.ends_with('.'),
            "`{section}.{}` has no sentence",
            setting.name
        );
        assert!(
            !setting.about.contains('|') && !setting.differs.contains('|'),
            "`{}` ends its cell",
            setting.name
        );
    }
    for section in sections {
        assert!(
            page.contains(&format!("{BEGIN}settings {section} -->")),
            "no table of `[{section}]`"
        );
    }
}
