//! The tables of settings, of TRL's names and of metrics in the documentation are those that the
//! code makes.
//!
//! `CAPO_WRITE_TABLES=1 cargo test --workspace --test suite settings_page` writes them into the
//! pages.

use std::env;
use std::fs;

use host::config::names::{self, Here, Text};
use host::config::{self, BenchmarkConfig, Expected, Setting, Settings};
use tests::artifacts::workspace;
use toml::Value;

const PAGES: [&str; 2] = ["configs/README.md", "configs/names.md"];
const BEGIN: &str = "<!-- table: ";
const END: &str = "\n<!-- end of the table -->";

/// The table with this name in a page. The name is a kind of table, perhaps with sections.
fn table(name: &str) -> String {
    let (kind, sections) = name.split_once(' ').unwrap_or((name, ""));
    let of_sections: Vec<(&str, &Setting)> = config::settings()
        .filter(|(section, _)| sections.split(' ').any(|one| one == *section))
        .collect();
    let (head, rows): (String, Vec<String>) = match kind {
        "settings" => (
            SETTINGS.to_owned(),
            of_sections
                .iter()
                .map(|(_, one)| row(one.name, one))
                .collect(),
        ),
        "benchmark" => (
            SETTINGS.to_owned(),
            BenchmarkConfig::SETTINGS
                .iter()
                .map(|one| row(one.name, one))
                .collect(),
        ),
        "sft" => (
            SETTINGS.to_owned(),
            host::sft::sections()
                .iter()
                .flat_map(|(section, settings)| {
                    settings
                        .iter()
                        .map(move |one| row(&format!("{section}.{}", one.name), one))
                })
                .collect(),
        ),
        "trl" => (TRL.to_owned(), trl(&of_sections)),
        "names" => foreign(sections),
        "verl" => (
            VERL.to_owned(),
            config::settings()
                .filter_map(|(section, setting)| verl(section, setting))
                .collect(),
        ),
        "metrics" => (METRICS.to_owned(), metrics()),
        _ => panic!("no table is called `{name}`"),
    };
    format!("{head}\n{}", rows.join("\n"))
}

const METRICS: &str = "| name | meaning |\n|---|---|";

fn metrics() -> Vec<String> {
    host::metrics::table::METRICS
        .iter()
        .map(|row| format!("| {} | {} |", quoted(row.names), row.meaning))
        .collect()
}

/// The head and the rows of what TRL has and a run's settings do not.
fn foreign(name: &str) -> (String, Vec<String>) {
    let table = names::TABLES
        .iter()
        .find(|table| table.table == name)
        .unwrap_or_else(|| panic!("no table of names is called `{name}`"));
    let head = format!("| {} | here | what differs |\n|---|---|---|", table.from);
    let rows = table.rows.iter().map(|row| {
        let called = match row.called {
            "" => quoted(row.names),
            words => words.to_owned(),
        };
        let here = match row.here {
            Here::SameIn { section, more } => format!("the same in `[{section}]`{more}"),
            Here::Other(here) => Text::markdown(here),
            Here::Nothing => String::new(),
        };
        let differs = Text::markdown(row.differs);
        format!("| {called} | {here} | {differs} |").replace("|  |", "| |")
    });
    (head, rows.collect())
}

fn quoted(names: &[&str]) -> String {
    format!("`{}`", names.join("`, `"))
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
    let words = match &expected {
        Expected::Names([one, two]) => format!("`{one}` or `{two}`"),
        Expected::Names(names) => quoted(names),
        Expected::Text => "text".to_owned(),
        Expected::Type(serdes) => match serdes.as_str() {
            "u64" | "usize" => "whole number",
            "f64" | "f32" => "number",
            "a boolean" => "`true` or `false`",
            "a sequence" => "list",
            "a map" => "table",
            other => other,
        }
        .to_owned(),
    };
    let is_whole = words == "whole number";
    setting.limits(is_whole, None).map_or(words, |limits| {
        limits.replace("finite, ", "").replace("finite and ", "")
    })
}

const TRL: &str = "| TRL | here | what differs |\n|---|---|---|";

/// The settings that TRL also has. Settings with TRL's name and meaning share one row per section.
fn trl(settings: &[(&str, &Setting)]) -> Vec<String> {
    let mut sections: Vec<&str> = settings.iter().map(|(section, _)| *section).collect();
    sections.dedup();
    let mut rows = Vec::new();
    for section in sections {
        let names: Vec<&str> = settings
            .iter()
            .filter(|(of, setting)| *of == section && is_same(setting))
            .map(|(_, setting)| setting.name)
            .collect();
        if !names.is_empty() {
            rows.push(format!(
                "| {} | the same in `[{section}]` | |",
                quoted(&names)
            ));
        }
    }
    for (section, setting) in settings {
        let Setting {
            name, trl, differs, ..
        } = setting;
        if !trl.is_empty() && !is_same(setting) {
            let row = format!("| {} | `{section}.{name}` | {differs} |", quoted(trl));
            rows.push(row.replace("|  |", "| |"));
        }
    }
    rows
}

/// True if a setting has TRL's name and meaning.
fn is_same(setting: &Setting) -> bool {
    setting.trl == [setting.name] && setting.differs.is_empty()
}

const VERL: &str = "| verl | here |\n|---|---|";

fn verl(section: &str, setting: &Setting) -> Option<String> {
    let Setting { name, verl, .. } = setting;
    (!verl.is_empty()).then(|| format!("| {} | `{section}.{name}` |", quoted(verl)))
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
fn tables_of_pages_agree_with_the_code() {
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
                "{name} is older than the code (CAPO_WRITE_TABLES=1 writes it): {stale:?}"
            );
        }
    }
}

#[test]
fn describes_every_setting_of_a_run() {
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
