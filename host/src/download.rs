//! Downloads models from the Hugging Face Hub into its cache on this machine, for `host download`.
//! Nothing else opens a socket.
//!
//! The cache has the layout of the Hub's own clients. Contents are under `blobs/` by their hashes,
//! and `snapshots/COMMIT/` has links to them. `refs/` is written last, so a model is found only
//! once it is complete.

use std::env;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use capo_system::{files, folders};
use host_data::TOOL_USE_FILE;
use host_model::{INDEX_FILE, hub};
use serde::Deserialize;
use ureq::http::Response;
use ureq::typestate::WithoutBody;
use ureq::{Agent, Body, RequestBuilder};

const HUB: &str = "https://huggingface.co";
/// Bytes per write.
const PIECE: usize = 1 << 16;
const MOST_REDIRECTS: usize = 10;
/// Default timeout in seconds, for connecting and for waiting on data. `HF_HUB_DOWNLOAD_TIMEOUT`
/// overrides it.
const PATIENCE: u64 = 60;

fn patience() -> u64 {
    let said = env::var("HF_HUB_DOWNLOAD_TIMEOUT")
        .ok()
        .and_then(|seconds| seconds.trim().parse().ok());
    said.filter(|seconds| *seconds > 0).unwrap_or(PATIENCE)
}

/// The Hub's answer about a model.
#[derive(Deserialize)]
struct Model {
    /// The model's current id; the Hub may have renamed it.
    id: String,
    /// Hash of the commit.
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
}

/// A model whose files are to be downloaded.
pub struct Download {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    /// The model's folder in the cache.
    folder: PathBuf,
    revision: String,
    model: Model,
}

impl Download {
    /// Asks the Hub for the files of the model `id` at `revision`: a branch, a tag or a commit.
    pub fn ask(id: &str, revision: &str) -> Result<Self> {
        ensure!(
            hub::is_id(id),
            "`{id}` is no id of a model (give one as in `Qwen/Qwen2.5-0.5B`)"
        );
        let is_plain = revision
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
        let has_parts = revision
            .split('/')
            .all(|part| !part.is_empty() && !part.starts_with('.'));
        ensure!(
            is_plain && has_parts,
            "`{revision}` is no revision (give a branch, a tag or a commit)"
        );
        let cache =
            hub::cache().context("there is no place for the Hub's cache (set `HF_HOME`)")?;
        let endpoint = env::var("HF_ENDPOINT")
            .ok()
            .filter(|endpoint| !endpoint.is_empty());
        let endpoint = endpoint
            .as_deref()
            .unwrap_or(HUB)
            .trim_end_matches('/')
            .to_owned();
        let config = Agent::config_builder().http_status_as_error(false);
        let patience = Some(Duration::from_secs(patience()));
        let config = config
            .timeout_connect(patience)
            .timeout_recv_response(patience)
            .timeout_per_read(patience);
        let agent = config.build().new_agent();
        let token = hub::token();
        let folder = cache.join(hub::folder_name(id));
        let url = format!(
            "{endpoint}/api/models/{id}/revision/{}?blobs=true",
            revision.replace('/', "%2F")
        );
        let mut answer = get(&agent, &url, token.as_deref(), None)?;
        ensure_given(&answer, id, revision, &endpoint, token.is_some())?;
        let text = answer.body_mut().read_to_string();
        let text = text.map_err(|error| failed(error, format!("`{endpoint}` breaks off")))?;
        let mut model: Model = serde_json::from_str(&text).with_context(|| {
            format!("`{endpoint}` answers what the Hub would not (is `HF_ENDPOINT` right?)")
        })?;
        ensure!(
            hub::is_id(&model.id) && is_hash(&model.sha),
            "`{endpoint}` answers with the commit `{}`",
            model.sha
        );
        let names: Vec<String> = model
            .siblings
            .iter()
            .map(|file| file.rfilename.clone())
            .collect();
        model
            .siblings
            .retain(|file| is_needed(&file.rfilename, &names));
        if !model
            .siblings
            .iter()
            .any(|file| file.rfilename.ends_with(".safetensors"))
        {
            let quantized = names
                .iter()
                .any(|name| name.to_lowercase().ends_with(".gguf"));
            let other = if quantized {
                "it has GGUF files: fetch one of them, and give its path as the model"
            } else {
                "choose a model that has"
            };
            bail!("`{id}` has no weights in `.safetensors` files ({other})");
        }
        Ok(Self {
            agent,
            endpoint,
            token,
            folder,
            revision: revision.to_owned(),
            model,
        })
    }

    /// Total size of all files, bytes. A file whose size the Hub does not state counts as 0.
    pub fn size(&self) -> u64 {
        self.model
            .siblings
            .iter()
            .filter_map(|file| file.size)
            .fold(0, u64::saturating_add)
    }

    /// Downloads the files that the cache lacks. Calls `progress` with each file's name and the
    /// number of bytes that are present. Returns the folder of the snapshot.
    pub fn fetch(&self, mut progress: impl FnMut(&str, u64)) -> Result<PathBuf> {
        let snapshot = self.folder.join("snapshots").join(&self.model.sha);
        let blobs = self.folder.join("blobs");
        for folder in [&snapshot, &blobs] {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make `{}`", folder.display()))?;
        }
        for Sibling {
            rfilename: name,
            size,
        } in &self.model.siblings
        {
            let blob = self
                .fetch_file(name, *size, &blobs, &mut |bytes| progress(name, bytes))
                .with_context(|| {
                    format!(
                        "`{name}` was not fetched whole (run the command again; it goes on from \
                 there)"
                    )
                })?;
            let link = snapshot.join(name);
            if link.symlink_metadata().is_ok() {
                fs::remove_file(&link)
                    .with_context(|| format!("cannot replace `{}`", link.display()))?;
            }
            if let Some(parent) = link.parent() {
                fs::create_dir_all(parent)
                    .with_context(|| format!("cannot make `{}`", parent.display()))?;
            }
            // A file in a folder of the snapshot is one folder further from the blobs.
            let up = "../".repeat(name.matches('/').count());
            symlink(Path::new(&format!("{up}../../blobs")).join(blob), &link)
                .with_context(|| format!("cannot make the link `{}`", link.display()))?;
        }
        if self.revision != self.model.sha {
            let reference = self.folder.join("refs").join(&self.revision);
            let refs = reference.parent().unwrap_or(&self.folder);
            fs::create_dir_all(refs).context("cannot make `refs`")?;
            folders::sweep(refs);
            files::write_atomic(&reference, self.model.sha.as_bytes())?;
        }
        Ok(snapshot)
    }

    /// Downloads one file unless it is cached; `listed` is its size if the Hub lists it. Returns
    /// its name under `blobs`.
    fn fetch_file(
        &self,
        name: &str,
        listed: Option<u64>,
        blobs: &Path,
        progress: &mut dyn FnMut(u64),
    ) -> Result<String> {
        let Self {
            agent,
            endpoint,
            model,
            ..
        } = self;
        let url = format!("{endpoint}/{}/resolve/{}/{name}", model.id, model.sha);
        let (etag, size) = said(agent, &url, self.token.as_deref())?;
        let blob = blobs.join(&etag);
        if blob.is_file() {
            progress(fs::metadata(&blob)?.len());
            return Ok(etag);
        }
        let size = size
            .or(listed)
            .with_context(|| format!("`{url}` does not say how many bytes it has"))?;
        let partial = blobs.join(format!("{etag}.incomplete"));
        let mut file = files::open_plain(
            &partial,
            OpenOptions::new().create(true).read(true).append(true),
        )
        .with_context(|| format!("cannot write `{}`", partial.display()))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                bail!("another process is fetching it (wait for that one)")
            }
            other => other?,
        }
        progress(file.metadata()?.len());
        // An interrupted transfer is resumed once, from where it stopped.
        if self.fetch_rest(&url, &mut file, size, progress)?.is_some()
            && let Some(broken) = self.fetch_rest(&url, &mut file, size, progress)?
        {
            return Err(broken);
        }
        // A shorter name is no SHA-256, and is not compared.
        if file.metadata()?.len() > size
            || (etag.len() == 64 && files::sha256_of(&partial)? != etag)
        {
            fs::remove_file(&partial)?;
            bail!("what came is not what the Hub said, and was thrown away");
        }
        file.sync_all()?;
        fs::rename(&partial, &blob)?;
        Ok(etag)
    }

    /// Downloads the rest of a file of `size` bytes, and at most one byte more. Returns the error
    /// that broke the connection, if any.
    fn fetch_rest(
        &self,
        url: &str,
        file: &mut File,
        size: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<anyhow::Error>> {
        let mut length = file.metadata()?.len();
        if length >= size {
            return Ok(None);
        }
        let mut answer = match get(
            &self.agent,
            url,
            self.token.as_deref(),
            (length > 0).then_some(length),
        ) {
            Ok(answer) => answer,
            Err(broken) => return Ok(Some(broken)),
        };
        match answer.status().as_u16() {
            206 => {}
            200 => {
                file.set_len(0)?;
                length = 0;
            }
            status => bail!("`{url}` answers {status}"),
        }
        let mut reader = answer.body_mut().as_reader().take(size + 1 - length);
        let mut piece = vec![0; PIECE];
        loop {
            match reader.read(&mut piece) {
                Ok(0) => break,
                Ok(read) => {
                    file.write_all(&piece[..read]).context("the disk refuses")?;
                    progress(read as u64);
                    length += read as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    let broken = format!("the connection broke after {length} of {size} bytes");
                    return Ok(Some(failed(error.into(), broken)));
                }
            }
        }
        let is_short = length < size;
        Ok(is_short.then(|| anyhow!("the connection broke after {length} of {size} bytes")))
    }
}

/// True if a file is needed: weights, settings, or parts of a tokenizer. `names` are the names of
/// all files.
fn is_needed(name: &str, names: &[String]) -> bool {
    if name == TOOL_USE_FILE {
        return true;
    }
    let is_plain = name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if name.starts_with('.') || !is_plain {
        return false;
    }
    match name.rsplit_once('.') {
        // Weights in the layout of the model's authors may stand beside the usual ones; they are
        // not needed.
        Some((_, "safetensors")) => {
            let has_usual = names
                .iter()
                .any(|name| name == "model.safetensors" || name == INDEX_FILE);
            name.starts_with("model") || !has_usual
        }
        Some((_, "json" | "jinja")) => true,
        _ => ["merges.txt", "vocab.txt", "tokenizer.model"].contains(&name),
    }
}

fn is_hash(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

/// The file's hash, which names its contents, and its size if the server states it.
fn said(agent: &Agent, url: &str, token: Option<&str>) -> Result<(String, Option<u64>)> {
    let answer = prepared(agent.head(url), token)
        .call()
        .map_err(|error| failed(error, format!("cannot reach `{url}`")))?;
    let status = answer.status().as_u16();
    ensure!((200..400).contains(&status), "`{url}` answers {status}");
    // Large files are stored elsewhere, and the redirecting response has a content length of its
    // own.
    let etag = header(&answer, "x-linked-etag")
        .or_else(|| header(&answer, "etag"))
        .unwrap_or_default();
    let etag = etag.trim_start_matches("W/").trim_matches('"').to_owned();
    ensure!(
        is_hash(&etag),
        "`{url}` names no contents: its `etag` is `{etag}`"
    );
    let length = if status < 300 {
        header(&answer, "content-length")
    } else {
        None
    };
    let size = header(&answer, "x-linked-size")
        .or(length)
        .and_then(|size| size.parse().ok());
    Ok((etag, size))
}

fn header<'a>(answer: &'a Response<Body>, name: &str) -> Option<&'a str> {
    answer.headers().get(name)?.to_str().ok()
}

/// A request with the user's token that follows no redirect.
fn prepared(
    request: RequestBuilder<WithoutBody>,
    token: Option<&str>,
) -> RequestBuilder<WithoutBody> {
    let request = request
        .config()
        .max_redirects(0)
        .max_redirects_will_error(false)
        .build();
    let request = request.header("Accept-Encoding", "identity");
    match token {
        Some(token) => request.header("Authorization", format!("Bearer {token}")),
        None => request,
    }
}

/// The response after all redirects. They are followed here, because the client would first read
/// each body, which may be endless.
fn get(agent: &Agent, url: &str, token: Option<&str>, from: Option<u64>) -> Result<Response<Body>> {
    let mut place = url.to_owned();
    for _ in 0..=MOST_REDIRECTS {
        // The token is sent to no other host.
        let mut request = prepared(
            agent.get(&place),
            token.filter(|_| origin(&place) == origin(url)),
        );
        if let Some(from) = from {
            request = request.header("Range", format!("bytes={from}-"));
        }
        let answer = request
            .call()
            .map_err(|error| failed(error, format!("cannot reach `{place}`")))?;
        let next = answer
            .headers()
            .get("location")
            .filter(|_| answer.status().is_redirection());
        let Some(next) = next.and_then(|next| next.to_str().ok()) else {
            return Ok(answer);
        };
        place = if next.starts_with('/') {
            format!("{}{next}", origin(&place))
        } else {
            next.to_owned()
        };
    }
    bail!("`{url}` leads from place to place (more than {MOST_REDIRECTS} times)")
}

/// The scheme and the host of a URL.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    url[host..]
        .find(['/', '?', '#'])
        .map_or(url, |end| &url[..host + end])
}

/// Converts `error`; the message `happened` is its context.
fn failed(error: ureq::Error, happened: String) -> anyhow::Error {
    match error {
        ureq::Error::Timeout(_) => {
            anyhow!(
                "{happened}: nothing came for {} s (`HF_HUB_DOWNLOAD_TIMEOUT` sets the limit)",
                patience()
            )
        }
        other => anyhow::Error::new(other.into_io()).context(happened),
    }
}

/// Turns an HTTP status other than 200 into an error that explains it.
fn ensure_given(
    answer: &Response<Body>,
    id: &str,
    revision: &str,
    endpoint: &str,
    token: bool,
) -> Result<()> {
    match answer.status().as_u16() {
        200 => Ok(()),
        401 | 403 if token => {
            bail!(
                "`{endpoint}` does not give `{id}` to the owner of this token (ask for access at \
                 `{endpoint}/{id}`)"
            )
        }
        401 | 403 => bail!(
            "`{endpoint}` gives `{id}` to nobody without a token: there is no such model, or one \
             has to ask for it (accept its terms at `{endpoint}/{id}`, and set `HF_TOKEN`)"
        ),
        404 => bail!("`{endpoint}` has no model `{id}` with the revision `{revision}`"),
        429 => bail!("`{endpoint}` was asked too often (wait, or set `HF_TOKEN`)"),
        status => bail!("`{endpoint}` answers {status} when asked for `{id}` (try again later)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_and_nothing_else() {
        let sharded = [
            "model-00001-of-00002.safetensors",
            host_model::INDEX_FILE,
            "consolidated.safetensors",
        ];
        let sharded = sharded.map(str::to_owned);
        let needed = |name: &str| is_needed(name, &sharded);
        for name in [
            "model-00001-of-00002.safetensors",
            "config.json",
            "chat_template.jinja",
            TOOL_USE_FILE,
            "merges.txt",
            "tokenizer.model",
        ] {
            assert!(needed(name), "{name}");
        }
        for name in [
            "consolidated.safetensors",
            "pytorch_model.bin",
            "README.md",
            ".gitattributes",
            "onnx/model.json",
            "../config.json",
            "notes.txt",
        ] {
            assert!(!needed(name), "{name}");
        }
        assert!(is_needed(
            "adapter_model.safetensors",
            &["adapter_model.safetensors".to_owned()]
        ));
    }
}
