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

impl DataFile {
    /// True if the file is in the folder of the file that names it.
    fn is_beside(&self) -> bool {
        Path::new(&self.filename).components().count() == 1 && !self.filename.starts_with('.')
    }
}

/// Finds the files at `path`, ordered by name.
pub fn find(path: &Path, wanted: Wanted<'_>) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        refuse(path, "a file", "configuration", wanted.config)?;
        refuse(path, "a file", "split", wanted.split)?;
        return Ok(vec![path.to_owned()]);
    }
    if path.join("dataset_dict.json").is_file() {
        return saved_splits(path, wanted);
    }
    if path.join("state.json").is_file() {
        return saved_split(path, wanted);
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
        "`{}` has no files of rows (their names end in {})",
        path.display(),
        listed(ENDINGS)
    );
    found.sort();
    let found = of_config(path, found, wanted)?;
    let found = of_split(path, found, wanted.split())?;
    Ok(found.into_iter().map(|file| path.join(file)).collect())
}

impl<'a> Wanted<'a> {
    fn split(&self) -> &'a str {
        self.split.unwrap_or(self.default_split)
    }
}

/// Refuses a part of `path`, which is `what`, that is asked for and cannot be there; `key` is the
/// kind of part.
fn refuse(path: &Path, what: &str, key: &str, part: Option<&str>) -> Result<()> {
    if let Some(part) = part {
        bail!(
            "`{}` is {what}, which has no {key} `{part}` \
             (name a folder that has it, or remove it)",
            path.display()
        );
    }
    Ok(())
}

/// The files of a split in a folder of `save_to_disk` that has several.
fn saved_splits(path: &Path, wanted: Wanted<'_>) -> Result<Vec<PathBuf>> {
    let what = "a folder of `save_to_disk`";
    refuse(path, what, "configuration", wanted.config)?;
    let split = wanted.split();
    let folder = path.join(split);
    let is_name = split.split('/').count() == 1 && !split.starts_with('.');
    if !folder.is_dir() || !is_name {
        let mut splits = BTreeSet::from_iter(entries(path)?);
        splits.retain(|name| path.join(name).join("state.json").is_file());
        bail!(
            "`{}` has no split `{split}` (it has {})",
            path.display(),
            listed(splits)
        );
    }
    saved(&folder, state(&folder)?)
}

/// The files of a folder of `save_to_disk` that has one split.
fn saved_split(path: &Path, wanted: Wanted<'_>) -> Result<Vec<PathBuf>> {
    let what = "a folder of `save_to_disk`";
    refuse(path, what, "configuration", wanted.config)?;
    let state = state(path)?;
    let own = state
        .split
        .as_deref()
        .and_then(|split| split.split('[').next());
    let what = match own {
        Some(own) => format!("one saved dataset, of the split `{own}`"),
        None => "one saved dataset".to_owned(),
    };
    let other = wanted.split.filter(|split| own != Some(split));
    refuse(path, &what, "split", other)?;
    saved(path, state)
}

/// Reads what `save_to_disk` wrote about the files of a folder.
fn state(folder: &Path) -> Result<State> {
    let path = folder.join("state.json");
    serde_json::from_slice(&files::read(&path)?)
        .with_context(|| format!("`{}` is not as `save_to_disk` writes it", path.display()))
}

/// Lists the files of a folder that `save_to_disk` wrote.
fn saved(folder: &Path, state: State) -> Result<Vec<PathBuf>> {
    let path = folder.join("state.json");
    let path = path.display();
    if let Some(file) = state.data_files.iter().find(|file| !file.is_beside()) {
        bail!(
            "`{path}` names the file `{}`, which is not beside it (save the dataset again)",
            file.filename
        );
    }
    ensure!(
        state.indices.is_none_or(|indices| indices.is_empty()),
        "`{path}` chooses rows by a file of indices \
         (call `flatten_indices` and save the dataset again)"
    );
    ensure!(
        !state.data_files.is_empty(),
        "`{path}` names no files (save the dataset again)"
    );
    Ok(state
        .data_files
        .into_iter()
        .map(|file| folder.join(file.filename))
        .collect())
}

/// Lists the names in a folder that are UTF-8 and not hidden.
fn entries(folder: &Path) -> Result<Vec<String>> {
    let cannot = format!("cannot list `{}`", folder.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).context(cannot.clone())? {
        let name = entry.context(cannot.clone())?.file_name().into_string();
        names.extend(name.ok().filter(|name| !name.starts_with('.')));
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
    let mut words = part.split(|c: char| "-._ ".contains(c) || c.is_ascii_digit());
    words.find_map(|word| {
        let (split, _) = SPLITS.iter().find(|(_, names)| names.contains(&word))?;
        Some(*split)
    })
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
    let mut named = found.clone();
    named.retain(|file| {
        stem(file).split('-').any(|part| part == split) || folders(file).any(|part| part == split)
    });
    if !named.is_empty() {
        return Ok(named);
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
