//! Finds the files of a dataset: one file, or those of a split in a folder from `save_to_disk`, the
//! Hub or the cache of `datasets`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use capo_system::files;
use serde::Deserialize;

/// Endings of the names of files that hold rows. JSON beside tables is taken for notes about them.
const ENDINGS: [&str; 5] = [TABLES[0], TABLES[1], "jsonl", "ndjson", JSON];
const TABLES: [&str; 2] = ["parquet", "arrow"];
const JSON: &str = "json";
/// Files of settings that `datasets` and the Hub's tools write beside rows.
const SETTINGS: [&str; 5] = [
    "dataset_info.json",
    "dataset_infos.json",
    "dataset_dict.json",
    "state.json",
    "config.json",
];
/// Largest depth of nested folders, and largest number of entries that are examined.
const DEEPEST: usize = 6;
const MOST: usize = 1 << 17;
/// The splits, each with the other names that `datasets` accepts for it.
const SPLITS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "dev", "val"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// The part of a folder to read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'a> {
    /// Name of the configuration, as on the Hub; `None` takes the only one.
    pub config: Option<&'a str>,
    /// Name of the split.
    pub split: Option<&'a str>,
    /// Name of the split if `split` is `None`.
    pub default_split: &'a str,
    /// Setting that names the configuration, in words.
    pub config_key: &'a str,
}

/// Contents of `state.json`, which `save_to_disk` writes.
#[derive(Deserialize)]
struct State {
    #[serde(rename = "_data_files")]
    data_files: Vec<DataFile>,
    #[serde(rename = "_indices_data_files", default)]
    indices: Option<Vec<DataFile>>,
    /// The split of a dataset that was loaded as one, such as `train`, or `train[:3]` for a part of
    /// it.
    #[serde(rename = "_split", default)]
    split: Option<String>,
}

#[derive(Deserialize)]
struct DataFile {
    filename: String,
}

/// Finds the files at `path`, ordered by name.
pub fn find(path: &Path, wanted: Wanted<'_>) -> Result<Vec<PathBuf>> {
    let shown = path.display();
    let refuse = |what: &str, key: &str, part: Option<&str>| match part {
        Some(part) => {
            bail!(
                "`{shown}` is {what}, which has no {key} `{part}` (name a folder that has it, or remove it)"
            )
        }
        None => Ok(()),
    };
    if !path.is_dir() {
        refuse("a file", "configuration", wanted.config)?;
        refuse("a file", "split", wanted.split)?;
        return Ok(vec![path.to_owned()]);
    }
    let split = wanted.split.unwrap_or(wanted.default_split);
    if path.join("dataset_dict.json").is_file() {
        refuse("a folder of `save_to_disk`", "configuration", wanted.config)?;
        let folder = path.join(split);
        ensure!(
            folder.is_dir() && split.split('/').count() == 1 && !split.starts_with('.'),
            "`{shown}` has no split `{split}` (it has {})",
            listed(
                entries(path)?
                    .iter()
                    .filter(|name| path.join(name).join("state.json").is_file())
                    .collect::<BTreeSet<_>>()
            )
        );
        return saved(&folder, state(&folder)?);
    }
    if path.join("state.json").is_file() {
        refuse("a folder of `save_to_disk`", "configuration", wanted.config)?;
        let state = state(path)?;
        let own = state
            .split
            .as_deref()
            .and_then(|split| split.split('[').next());
        let what = own.map_or("one saved dataset".to_owned(), |own| {
            format!("one saved dataset, of the split `{own}`")
        });
        refuse(
            &what,
            "split",
            wanted.split.filter(|split| own != Some(split)),
        )?;
        return saved(path, state);
    }
    let mut found = Vec::new();
    list(path, &mut PathBuf::new(), &mut found)?;
    if found
        .iter()
        .any(|file| TABLES.iter().any(|ending| ends_in(file, ending)))
    {
        found.retain(|file| !ends_in(file, JSON));
    }
    ensure!(
        !found.is_empty(),
        "`{shown}` has no files of rows (their names end in {})",
        listed(ENDINGS)
    );
    found.sort();
    let found = of_config(path, found, wanted)?;
    let found = of_split(path, found, split)?;
    Ok(found.into_iter().map(|file| path.join(file)).collect())
}

/// Reads what `save_to_disk` wrote about the files of a folder.
fn state(folder: &Path) -> Result<State> {
    let path = folder.join("state.json");
    let place = || format!("`{}` is not as `save_to_disk` writes it", path.display());
    serde_json::from_slice(&files::read(&path)?).with_context(place)
}

/// Lists the files of a folder that `save_to_disk` wrote.
fn saved(
    folder: &Path,
    State {
        data_files,
        indices,
        ..
    }: State,
) -> Result<Vec<PathBuf>> {
    let state = folder.join("state.json");
    let plain = |name: &str| Path::new(name).components().count() == 1 && !name.starts_with('.');
    if let Some(file) = data_files.iter().find(|file| !plain(&file.filename)) {
        bail!(
            "`{}` names the file `{}`, which is not beside it (save the dataset again)",
            state.display(),
            file.filename
        );
    }
    ensure!(
        indices.is_none_or(|indices| indices.is_empty()),
        "`{}` chooses rows by a file of indices (call `flatten_indices` and save the dataset again)",
        state.display()
    );
    ensure!(
        !data_files.is_empty(),
        "`{}` names no files (save the dataset again)",
        state.display()
    );
    Ok(data_files
        .into_iter()
        .map(|file| folder.join(file.filename))
        .collect())
}

/// Lists the names in a folder that are UTF-8 and not hidden.
fn entries(folder: &Path) -> Result<Vec<String>> {
    let cannot = || format!("cannot list `{}`", folder.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(cannot)? {
        names.extend(
            entry
                .with_context(cannot)?
                .file_name()
                .into_string()
                .ok()
                .filter(|name| !name.starts_with('.')),
        );
        ensure!(
            names.len() <= MOST,
            "`{}` has more than {MOST} entries (name a folder of data)",
            folder.display()
        );
    }
    Ok(names)
}

/// Collects the files of rows below `root`, as paths relative to it.
fn list(root: &Path, below: &mut PathBuf, found: &mut Vec<PathBuf>) -> Result<()> {
    for name in entries(&root.join(&below))? {
        below.push(&name);
        let path = root.join(&below);
        if path.is_dir() {
            if below.components().count() < DEEPEST {
                list(root, below, found)?;
            }
        } else if ENDINGS.iter().any(|ending| ends_in(&path, ending))
            && !SETTINGS.contains(&name.as_str())
        {
            found.push(below.clone());
        }
        below.pop();
    }
    ensure!(
        found.len() <= MOST,
        "`{}` has more than {MOST} files (name a folder of data)",
        root.display()
    );
    Ok(())
}

fn ends_in(file: &Path, ending: &str) -> bool {
    file.extension().is_some_and(|found| found == ending)
}

/// The folders that contain a file, outermost first.
fn folders(file: &Path) -> impl Iterator<Item = &str> {
    file.parent()
        .into_iter()
        .flat_map(Path::iter)
        .filter_map(|part| part.to_str())
}

/// Name of the configuration that has the file's folder to itself; `None` if there is no such
/// folder.
fn config_of(file: &Path) -> Option<&str> {
    folders(file).find(|part| *part != "data" && word(part).is_none())
}

fn of_config(root: &Path, found: Vec<PathBuf>, wanted: Wanted<'_>) -> Result<Vec<PathBuf>> {
    let configs: BTreeSet<&str> = found.iter().filter_map(|file| config_of(file)).collect();
    let chosen = match wanted.config {
        Some(wanted) => {
            let there = found
                .iter()
                .any(|file| folders(file).any(|part| part == wanted));
            ensure!(
                there,
                "`{}` has no configuration `{wanted}` (it has {})",
                root.display(),
                if configs.is_empty() {
                    "none".to_owned()
                } else {
                    listed(configs)
                }
            );
            return Ok(found
                .into_iter()
                .filter(|file| folders(file).any(|part| part == wanted))
                .collect());
        }
        None if found.iter().any(|file| config_of(file).is_none()) => None,
        None if configs.len() == 1 => configs.first().map(|config| (*config).to_owned()),
        None => bail!(
            "`{}` has several configurations: {} (choose one with {})",
            root.display(),
            listed(configs),
            wanted.config_key
        ),
    };
    Ok(found
        .into_iter()
        .filter(|file| config_of(file) == chosen.as_deref())
        .collect())
}

/// The split that a part of a path names in one of its words.
fn word(part: &str) -> Option<&'static str> {
    let words = |c: char| "-._ ".contains(c) || c.is_ascii_digit();
    let split = |word: &str| {
        SPLITS
            .iter()
            .find(|(_, names)| names.contains(&word))
            .map(|(split, _)| *split)
    };
    part.split(words).find_map(split)
}

fn stem(file: &Path) -> &str {
    file.file_stem()
        .and_then(|stem| stem.to_str())
        .unwrap_or_default()
}

/// The split of a file, by its name, else by the innermost folder that names a split.
fn split_of(file: &Path) -> Option<&'static str> {
    word(stem(file)).or_else(|| folders(file).filter_map(word).last())
}

fn of_split(root: &Path, found: Vec<PathBuf>, split: &str) -> Result<Vec<PathBuf>> {
    let names_it = |file: &Path| {
        stem(file).split('-').any(|part| part == split) || folders(file).any(|part| part == split)
    };
    if found.iter().any(|file| names_it(file)) {
        return Ok(found.into_iter().filter(|file| names_it(file)).collect());
    }
    let splits: BTreeSet<&str> = found.iter().filter_map(|file| split_of(file)).collect();
    // If no file names a split, all files belong to the first split.
    let all = splits.is_empty() && split == SPLITS[0].0;
    let found: Vec<PathBuf> = found
        .into_iter()
        .filter(|file| all || split_of(file) == Some(split))
        .collect();
    ensure!(
        !found.is_empty(),
        "`{}` has no split `{split}` (it has {})",
        root.display(),
        if splits.is_empty() {
            "`train`".to_owned()
        } else {
            listed(splits)
        }
    );
    Ok(found)
}

fn listed<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    let names: Vec<String> = names
        .into_iter()
        .take(20)
        .map(|name| format!("`{}`", name.as_ref()))
        .collect();
    names.join(", ")
}
