//! configs/README.md has every setting, each with its default, and no others.

use std::collections::BTreeMap;

use tests::Folder;
use tests::artifacts::workspace;

/// Settings without which there is no run, and those that the embedded model is too small for.
const NEEDED: &str = r#"
[model]
model_name_or_path = "embedded:tiny-arithmetic"
[data]
dataset_name = "embedded:arithmetic"
max_prompt_length = 16
[rollout]
max_completion_length = 24
[advantage]
use = "grpo.advantage"
[objective]
use = "grpo.objective"
[[reward]]
use = "exact_match"
"#;

/// Settings that stand for a component, as the page names them; a run has the component instead.
const ALIASES: [&str; 4] = [
    "train.mask_truncated_completions",
    "train.top_entropy_quantile",
    "train.off_policy_mask_threshold",
    "vllm_importance_sampling_...",
];

/// Cells of the page's tables by key. A line with several keys has their defaults in order, or one for all.
fn on_the_page(page: &str) -> BTreeMap<String, String> {
    let mut section = None;
    let mut found = BTreeMap::new();
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            let name = heading.strip_prefix("`[").and_then(|rest| rest.split_once(']')).map(|(name, _)| name);
            section = name.map(str::to_owned);
        }
        let (Some(section), Some(row)) = (&section, line.strip_prefix("| `")) else { continue };
        let mut cells = row.split(" | ");
        let (keys, default) = (cells.next().unwrap(), cells.next().unwrap());
        let keys: Vec<_> = keys.split(", ").map(|key| key.trim_matches(['`', '[', ']'])).collect();
        let defaults: Vec<_> = default.split(", ").collect();
        for (place, key) in keys.iter().enumerate() {
            let name = if key.contains('.') { (*key).to_owned() } else { format!("{section}.{key}") };
            let default = if defaults.len() == keys.len() { defaults[place] } else { default };
            found.insert(name, default.trim_matches('`').to_owned());
        }
    }
    found
}

/// Equal texts, or equal numbers.
fn is_equal(shown: &str, value: &str) -> bool {
    shown == value || shown.parse::<f64>().is_ok_and(|shown| value.parse() == Ok(shown))
}

#[test]
fn the_page_has_the_settings_of_a_run_and_their_defaults() {
    let page = on_the_page(&tests::text(&workspace().join("configs/README.md")));
    let folder = Folder::new();
    folder.write("run.toml", NEEDED);
    let text = folder.said("train --config run.toml --dry-run");
    let settings = text.split_once("its settings, in full:\n").unwrap().1;
    let (_, absent) = settings.split_once("# not set: ").unwrap();
    let needed: toml::Table = NEEDED.parse().unwrap();
    let settings: toml::Table = settings.parse().unwrap();
    let absent: Vec<_> = absent.trim().split(", ").collect();
    let (mut missing, mut wrong) = (Vec::new(), Vec::new());
    missing.extend(absent.iter().filter(|name| !page.contains_key(**name)).map(|name| (*name).to_owned()));
    let exists = |name: &str| {
        let (section, key) = name.split_once('.').unwrap();
        absent.contains(&name) || settings.get(section).is_some_and(|section| section.get(key).is_some())
    };
    let unknown: Vec<_> = page.keys().filter(|name| !exists(name) && !ALIASES.contains(&name.as_str())).collect();
    for (section, keys) in &settings {
        let toml::Value::Table(keys) = keys else { continue };
        for (key, value) in keys {
            let name = format!("{section}.{key}");
            if needed.get(section).is_some_and(|section| section.get(key).is_some()) {
                continue;
            }
            let value = match value {
                toml::Value::String(text) => text.clone(),
                toml::Value::Table(table) if table.is_empty() => "none".to_owned(),
                other => other.to_string(),
            };
            match page.get(&name) {
                None => missing.push(name),
                Some(shown) if is_equal(shown, &value) => {}
                Some(shown) => wrong.push(format!("{name}: {shown} on the page, {value} in a run")),
            }
        }
    }
    assert_eq!((missing, wrong, unknown), Default::default());
}
