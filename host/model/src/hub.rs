//! Lookup of models and datasets in the local cache of the Hugging Face Hub, by id. Nothing is
//! downloaded here.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::config::CONFIG_FILE;

/// Folder of the newest snapshot of the model `id`, such as `Qwen/Qwen2.5-0.5B`; `None` if `id` is
/// not a model id or is not cached.
pub fn find(id: &str) -> Result<Option<PathBuf>> {
    cache().map_or(Ok(None), |cache| find_in(&cache, id))
}

/// Folder of the newest snapshot of the dataset `id`, such as `openai/gsm8k`; `None` as in
/// [`find`].
pub fn find_dataset(id: &str) -> Result<Option<PathBuf>> {
    cache().map_or(Ok(None), |cache| find_dataset_in(&cache, id))
}

/// The cache directory of the Hub's own clients, from the environment variables that they use.
pub fn cache() -> Option<PathBuf> {
    path("HF_HUB_CACHE")
        .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
        .or_else(|| Some(home()?.join("hub")))
}

/// The home directory of the Hub's own clients.
fn home() -> Option<PathBuf> {
    path("HF_HOME")
        .or_else(|| Some(path("XDG_CACHE_HOME")?.join("huggingface")))
        .or_else(|| Some(env::home_dir()?.join(".cache/huggingface")))
}

/// The path in the environment variable `name`; `None` if it is empty or not set.
fn path(name: &str) -> Option<PathBuf> {
    let value = env::var_os(name).filter(|value| !value.is_empty())?;
    let Some(text) = value.to_str() else {
        return Some(value.into());
    };
    let user = env::home_dir();
    Some(expanded(text, user.as_deref(), |name| env::var(name).ok()).into())
}

/// A variable with a value other than blanks.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// `path` with the home folder `user` in place of a leading `~`, and with the values of `$NAME` and
/// `${NAME}`; a name without a value stays. Source: `os.path.expandvars(os.path.expanduser(path))`
/// in `huggingface_hub.constants`.
fn expanded(path: &str, user: Option<&Path>, value: impl Fn(&str) -> Option<String>) -> String {
    let below = path
        .strip_prefix('~')
        .filter(|rest| rest.is_empty() || rest.starts_with('/'));
    let whole = below.zip(user).map_or_else(
        || path.to_owned(),
        |(rest, user)| format!("{}{rest}", user.display()),
    );
    let mut parts = whole.split('$');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = variable_name(part);
        match value(name) {
            Some(value) => text.extend([value.as_str(), rest]),
            None => text.extend(["$", part]),
        }
    }
    text
}

/// The name of the variable after a `$`, and the text after the name.
fn variable_name(text: &str) -> (&str, &str) {
    let braced = text.strip_prefix('{').and_then(|text| text.split_once('}'));
    braced.unwrap_or_else(|| {
        let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        text.split_at(end.unwrap_or(text.len()))
    })
}

/// The user's access token for the Hub: the one in the environment, else the one that `hf auth
/// login` stored.
pub fn token() -> Option<String> {
    let token = variable("HF_TOKEN")
        .or_else(|| variable("HUGGING_FACE_HUB_TOKEN"))
        .or_else(stored_token)?;
    Some(token.trim().to_owned()).filter(|token| !token.is_empty())
}

/// The text of the file in which the Hub's own clients store the token.
fn stored_token() -> Option<String> {
    let file = path("HF_TOKEN_PATH").or_else(|| Some(home()?.join("token")))?;
    fs::read_to_string(file).ok()
}

/// Name of a model's folder in the cache.
pub fn folder_name(id: &str) -> String {
    format!("models--{}", id.replace('/', "--"))
}

/// True if `name` may be an id: one or two names of letters, digits, `-`, `_` and `.`.
pub fn is_id(name: &str) -> bool {
    let mut parts = name.split('/');
    parts.clone().count() <= 2
        && parts.all(|part| {
            !part.is_empty()
                && !part.starts_with('.')
                && part
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        })
}

fn find_in(cache: &Path, id: &str) -> Result<Option<PathBuf>> {
    let fetch = format!("fetch it again with `host download {id}`");
    let Some(snapshot) = snapshot(&cache.join(folder_name(id)), id, &fetch)? else {
        return Ok(None);
    };
    ensure!(
        snapshot.join(CONFIG_FILE).is_file(),
        "`{}` has no `{CONFIG_FILE}` ({fetch})",
        snapshot.display()
    );
    Ok(Some(snapshot))
}

fn find_dataset_in(cache: &Path, id: &str) -> Result<Option<PathBuf>> {
    let folder = cache.join(format!("datasets--{}", id.replace('/', "--")));
    let fetch = format!("fetch it again with `hf download --repo-type dataset {id}`");
    let Some(snapshot) = snapshot(&folder, id, &fetch)? else {
        return Ok(None);
    };
    ensure!(
        snapshot.is_dir(),
        "`{}` is missing ({fetch})",
        snapshot.display()
    );
    Ok(Some(snapshot))
}

/// The newest snapshot of `id` in its folder; `None` if there is none. `fetch` is the way out that
/// errors about a damaged cache name.
fn snapshot(folder: &Path, id: &str, fetch: &str) -> Result<Option<PathBuf>> {
    if !is_id(id) || !folder.is_dir() {
        return Ok(None);
    }
    let reference = folder.join("refs/main");
    let hash = fs::read_to_string(&reference)
        .with_context(|| format!("cannot read `{}` ({fetch})", reference.display()))?;
    let hash = hash.trim();
    if hash.is_empty() || !hash.chars().all(|c| c.is_ascii_alphanumeric()) {
        bail!("`{}` names no snapshot ({fetch})", reference.display());
    }
    Ok(Some(folder.join("snapshots").join(hash)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_ids_from_other_names() {
        for id in ["Qwen/Qwen2.5-0.5B", "gpt2", "a/b_c"] {
            assert!(is_id(id), "{id}");
        }
        for other in [
            "",
            "/",
            "a/",
            "/a",
            "a/b/c",
            "../a",
            "a/..",
            "./a",
            "a b",
            "embedded:tiny-arithmetic",
        ] {
            assert!(!is_id(other), "{other}");
        }
    }

    #[test]
    fn expands_paths_as_python_does() {
        let value = |name: &str| (name == "X_1").then(|| "x".to_owned());
        for (path, expected) in [
            ("~", "/u"),
            ("~/a", "/u/a"),
            ("~a/~", "~a/~"),
            ("/$X_1/b", "/x/b"),
            ("${X_1}b$X_1", "xbx"),
            ("$X_12/$$X_1/${Y}/$", "$X_12/$x/${Y}/$"),
        ] {
            assert_eq!(
                expanded(path, Some(Path::new("/u")), value),
                expected,
                "{path}"
            );
        }
    }

    #[test]
    fn finds_the_newest_snapshot() {
        let cache = tempfile::tempdir().unwrap();
        let found = |id: &str| find_in(cache.path(), id).map_err(|error| format!("{error:#}"));
        assert_eq!(found("org/model"), Ok(None));
        let folder = cache.path().join("models--org--model");
        fs::create_dir_all(folder.join("refs")).unwrap();
        assert!(
            found("org/model")
                .unwrap_err()
                .contains("`host download org/model`")
        );
        for reference in ["../../x", ""] {
            fs::write(folder.join("refs/main"), reference).unwrap();
            assert!(
                found("org/model")
                    .unwrap_err()
                    .contains("names no snapshot")
            );
        }
        fs::write(folder.join("refs/main"), "0123abc\n").unwrap();
        assert!(
            found("org/model")
                .unwrap_err()
                .contains("has no `config.json`")
        );
        let snapshot = folder.join("snapshots/0123abc");
        fs::create_dir_all(&snapshot).unwrap();
        fs::write(snapshot.join("config.json"), "{}").unwrap();
        assert_eq!(found("org/model"), Ok(Some(snapshot)));
        assert_eq!(found("org/model/.."), Ok(None));
    }

    #[test]
    fn finds_datasets_in_their_own_folders() {
        let cache = tempfile::tempdir().unwrap();
        let found =
            |id: &str| find_dataset_in(cache.path(), id).map_err(|error| format!("{error:#}"));
        assert_eq!(found("openai/gsm8k"), Ok(None));
        let folder = cache.path().join("datasets--openai--gsm8k");
        fs::create_dir_all(folder.join("refs")).unwrap();
        fs::write(folder.join("refs/main"), "abc").unwrap();
        assert!(
            found("openai/gsm8k")
                .unwrap_err()
                .contains("`hf download --repo-type dataset openai/gsm8k`")
        );
        fs::create_dir_all(folder.join("snapshots/abc")).unwrap();
        assert_eq!(
            found("openai/gsm8k"),
            Ok(Some(folder.join("snapshots/abc")))
        );
    }
}
