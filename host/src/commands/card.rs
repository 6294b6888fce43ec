//! The model card of an exported model: its base, its training and its measurements.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use host_model::{ModelFiles, embedded};
use toml::Value;

use crate::report::found::Lines;
use crate::run::{METRICS_FILE, provenance, settings};

/// Metrics that a card shows first, before those of benchmarks.
const FIRST: [&str; 4] = ["eval_accuracy", "eval_reward", "reward", "entropy"];

/// Settings, by section, that a card shows besides the components.
const SETTINGS: [(&str, &str); 7] = [
    ("train", "per_device_train_batch_size"),
    ("train", "gradient_accumulation_steps"),
    ("rollout", "num_generations"),
    ("rollout", "max_completion_length"),
    ("train", "learning_rate"),
    ("train", "lr_scheduler_type"),
    ("train", "seed"),
];

/// The text of `README.md` for the model of the run in `dir` after `step`.
pub(super) fn of_run(dir: &Path, step: u64) -> Result<String> {
    // The settings of the last step: a resume at this checkpoint may have changed them for the
    // steps after it.
    let text = provenance::settings_at(dir, step.saturating_sub(1))?;
    let settings = settings::read(&text)?;
    let from = settings
        .get("model")
        .and_then(|model| model.get("model_name_or_path"))
        .and_then(Value::as_str);
    let from = from
        .with_context(|| format!("the settings of `{}` name no model", dir.display()))?
        .to_owned();
    let license = embedded::model_files(&from).ok().as_ref().and_then(license);
    let mut card = head(&from, license.as_deref());
    let name = short(&from);
    let method = settings
        .get("recipe")
        .and_then(Value::as_str)
        .map_or(String::new(), |recipe| format!(" of {recipe}"));
    let _ = write!(
        card,
        "# {name} after step {step}{method}\n\n| setting | value |\n|---|---|\n"
    );
    for point in [
        "environment",
        "advantage",
        "objective",
        "mask",
        "weight",
        "step_control",
        "reward",
    ] {
        let ids = ids(settings.get(point));
        if !ids.is_empty() {
            let _ = writeln!(card, "| {point} | {} |", ids.join(", "));
        }
    }
    for (section, key) in SETTINGS {
        if let Some(value) = settings.get(section).and_then(|section| section.get(key)) {
            let _ = writeln!(card, "| {key} | {} |", value.to_string().trim_matches('"'));
        }
    }
    let metrics = metrics(&dir.join(METRICS_FILE), step)?;
    if !metrics.is_empty() {
        let _ = write!(card, "\n| after step {step} | value |\n|---|---|\n");
        for (metric, value) in metrics {
            let _ = writeln!(card, "| {metric} | {value:.4} |");
        }
    }
    let mut paths = Vec::new();
    collect_paths(&Value::Table(settings), &mut paths);
    let text = paths.iter().fold(text, |text, path| {
        text.replace(&quoted(path), &quoted(&short(path)))
    });
    let _ = write!(card, "\n## Settings\n\n```toml\n{}\n```\n", text.trim_end());
    Ok(card)
}

/// The text as a string in TOML.
fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

/// The YAML header of a model card, which the Hub reads.
fn head(from: &str, license: Option<&str>) -> String {
    let mut head = String::from(
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- \
         reinforcement-learning\n",
    );
    // A path on one machine means nothing on another.
    if let Some(id) = base_id(from) {
        let _ = writeln!(head, "base_model: {id}");
    }
    if let Some(license) = license {
        let _ = writeln!(head, "license: {license}");
    }
    head + "---\n\n"
}

/// Ids of the components at a point, from one table or a list of tables.
fn ids(point: Option<&Value>) -> Vec<String> {
    let tables = match point {
        Some(Value::Array(tables)) => tables.iter().collect(),
        Some(table) => vec![table],
        None => Vec::new(),
    };
    tables
        .into_iter()
        .filter_map(|table| Some(format!("`{}`", table.get("use")?.as_str()?)))
        .collect()
}

/// The Hub id of a model that was named by its id, or by the path of its snapshot.
fn base_id(name: &str) -> Option<String> {
    let folder = Path::new(name)
        .components()
        .find_map(|part| part.as_os_str().to_str()?.strip_prefix("models--"));
    folder.map(|folder| folder.replacen("--", "/", 1))
}

/// A model's or a file's name without the folders of one machine: the id of a snapshot, else the
/// last part of a path.
fn short(path: &str) -> String {
    base_id(path)
        .or_else(|| Some(Path::new(path).file_name()?.to_str()?.to_owned()))
        .unwrap_or_else(|| path.to_owned())
}

/// Adds the absolute paths among the settings to `paths`.
fn collect_paths(value: &Value, paths: &mut Vec<String>) {
    match value {
        Value::String(text) if Path::new(text).is_absolute() && text.matches('/').count() > 1 => {
            paths.push(text.clone())
        }
        Value::Array(values) => values.iter().for_each(|value| collect_paths(value, paths)),
        Value::Table(table) => table.values().for_each(|value| collect_paths(value, paths)),
        _ => {}
    }
}

/// The license in the base model's own card; `None` if the card names none.
fn license(base: &ModelFiles) -> Option<String> {
    let card = base
        .contains("README.md")
        .then(|| base.read("README.md").ok())
        .flatten()?;
    let text = String::from_utf8(card.into_owned()).ok()?;
    let (head, _) = text.strip_prefix("---\n")?.split_once("\n---")?;
    let license = head
        .lines()
        .find_map(|line| line.strip_prefix("license:"))?
        .trim();
    let is_plain = license
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    (is_plain && !license.is_empty()).then(|| license.to_owned())
}

/// Metrics of the run at a step: those of [`FIRST`], then those of evaluations. Empty if the step
/// has no line.
fn metrics(path: &Path, step: u64) -> Result<Vec<(String, f64)>> {
    let lines = Lines::read(path)?;
    let Some((_, line)) = lines.rows().find(|(found, _)| *found == step) else {
        return Ok(Vec::new());
    };
    let evals = line
        .keys()
        .map(String::as_str)
        .filter(|name| name.starts_with("eval/"));
    Ok(FIRST
        .into_iter()
        .chain(evals)
        .filter_map(|name| Some((name.to_owned(), *line.get(name)?)))
        .filter(|(_, value)| !value.is_nan())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_named_by_their_ids() {
        let snapshot = "/home/a/.cache/huggingface/hub/models--Qwen--Qwen2.5-0.5B/snapshots/0123";
        assert_eq!(base_id(snapshot).as_deref(), Some("Qwen/Qwen2.5-0.5B"));
        assert_eq!(base_id("embedded:tiny-arithmetic"), None);
    }

    #[test]
    fn a_card_has_no_path_of_this_machine() {
        let folder = tempfile::tempdir().unwrap();
        let settings = |model: &str, rows: &str| {
            format!(
                "[model]\nmodel_name_or_path = \"{model}\"\n\n[data]\ndataset_name = \
                 [\"{rows}\", \"hub/name\"]\nsystem_prompt = \"/no_think\""
            )
        };
        let given = settings("/home/me/models--a--b/snapshots/1", "/home/me/x.jsonl");
        provenance::start(folder.path(), Vec::new(), given).unwrap();
        std::fs::write(folder.path().join(METRICS_FILE), "").unwrap();
        let card = of_run(folder.path(), 1).unwrap();
        assert!(
            card.contains(&settings("a/b", "x.jsonl")) && !card.contains("/home"),
            "{card}"
        );
    }

    #[test]
    fn a_license_is_what_the_base_says() {
        let folder = tempfile::tempdir().unwrap();
        let files = ModelFiles::Directory(folder.path().to_owned());
        assert_eq!(license(&files), None);
        let says = |text: &str| {
            std::fs::write(folder.path().join("README.md"), text).unwrap();
            license(&files)
        };
        assert_eq!(
            says("---\ntags: []\nlicense: apache-2.0\n---\n# Model\n").as_deref(),
            Some("apache-2.0")
        );
        assert_eq!(says("# Model\nlicense: mit\n"), None);
        assert_eq!(says("---\nlicense: [a, b]\n---\n"), None);
    }
}
