//! Batch files: the batch of one optimizer step as a safetensors file, for replay, tests and bug
//! reports.
//!
//! Tensors have the names and shapes of [`Batch`]. Scalars are in the string metadata, with
//! `optimizer` as JSON. The rollout's context is under `context/`. A SHA-256 in the metadata covers
//! the whole file, so that a flipped bit is noticed.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use capo_plugin::{Batch, ContextData, Denominator, Dims, OptimizerInfo, OptimizerKind, Reduction};
use serde::{Deserialize, Serialize};

use crate::arrays::{Array, Owned, ids};
use crate::context;
use crate::recorded::{RecordedBatch, RecordedLayer, RecordedState};
use crate::tensor_file::{TensorFile, serialized};
use capo_system::files::{self, sha256_hex};
use capo_system::folders;

/// The optimizer's settings in the metadata.
#[derive(Serialize, Deserialize)]
struct Optimizer {
    kind: String,
    learning_rate: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    #[serde(default)]
    weight_decay: f64,
    #[serde(default)]
    max_grad_norm: f64,
    steps_taken: u64,
}

/// Update rules by their names in files and settings.
pub const OPTIMIZERS: [(&str, OptimizerKind); 4] = [
    ("sgd", OptimizerKind::SGD),
    ("adam", OptimizerKind::ADAM),
    ("adamw", OptimizerKind::ADAMW),
    (
        "adamw_kept_and_rejected",
        OptimizerKind::ADAMW_KEPT_AND_REJECTED,
    ),
];

/// Name of the file of optimizer step `step`.
pub fn name(step: u64) -> String {
    format!("batch-{step:06}.safetensors")
}

/// The step whose file is called `file`; `None` for any other name.
pub fn step(file: &str) -> Option<u64> {
    let step = file
        .strip_prefix("batch-")?
        .strip_suffix(".safetensors")?
        .parse()
        .ok()?;
    (name(step) == file).then_some(step)
}

/// Refuses a folder for the batches of a run that is not empty, unless the run's file `note` says
/// that it has written there before.
///
/// # Errors
///
/// When the folder cannot be taken.
pub fn check_folder(dir: &Path, note: Option<&Path>) -> Result<()> {
    let unused = match fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == ErrorKind::NotFound,
    };
    let is_own = |note: &Path| {
        path_of(dir).is_ok_and(|path| files::bytes(note).is_ok_and(|noted| noted == path))
    };
    let own = note.map_or("", |_| ", and not the one with this run's batches");
    ensure!(
        unused || note.is_some_and(is_own),
        "`--dump-batches {}` is no empty folder{own} (choose another)",
        dir.display()
    );
    Ok(())
}

/// The path of the batches' folder, as a run notes it.
fn path_of(dir: &Path) -> std::io::Result<Vec<u8>> {
    Ok(dir.canonicalize()?.into_os_string().into_encoded_bytes())
}

/// Prepares the folder `dir` for the batches of a run from step `from` on, and notes it in the
/// run's file `note`. Batches of these steps are removed, because they will be written again.
/// Leftovers of an interrupted process are removed too.
///
/// # Errors
///
/// When [`check_folder`] refuses the folder, or the disk reports an error.
pub fn prepare_folder(dir: &Path, from: u64, note: &Path) -> Result<()> {
    check_folder(dir, Some(note))?;
    let shown = dir.display();
    fs::create_dir_all(dir).with_context(|| format!("cannot make the folder `{shown}`"))?;
    folders::clean(dir)?;
    for entry in fs::read_dir(dir).with_context(|| format!("cannot list `{shown}`"))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.and_then(step).is_some_and(|found| found >= from) {
            fs::remove_file(&path)
                .with_context(|| format!("cannot remove `{}`", path.display()))?;
        }
    }
    files::write_atomic(note, &path_of(dir)?)
}

/// Writes a batch whose arrays are in host memory, with its rollout's context and age if there is
/// one. The file appears whole or not at all.
///
/// # Errors
///
/// When an array is on a device, or the disk reports an error.
pub fn write(path: &Path, batch: &Batch<'_>, context: Option<(&ContextData, u64)>) -> Result<()> {
    let (b, t) = (batch.dims.completions as usize, batch.dims.tokens as usize);
    let mut arrays = BTreeMap::from([
        ("rewards", Array::new(batch.rewards, &[b])),
        ("completion_ids", Array::new(batch.completion_ids, &[b, t])),
        (
            "completion_mask",
            Array::new(batch.completion_mask, &[b, t]),
        ),
        ("truncated", Array::new(batch.truncated, &[b])),
    ]);
    arrays.extend(
        batch
            .per_token()
            .map(|(name, values)| (name, Array::new(values, &[b, t]))),
    );
    for (name, tensor) in batch.tensors() {
        arrays.insert(name, Array::of(&tensor)?);
    }
    let mut metadata = metadata(batch)?;
    if let Some((data, age)) = context {
        arrays.extend(context::arrays(data, batch.dims));
        metadata.extend(context::metadata(data, age)?);
    }
    let checksum = [
        (CHECKSUM.0, CHECKSUM.1.to_owned()),
        (SHA256, UNWRITTEN.to_owned()),
    ];
    metadata.extend(checksum.map(|(name, value)| (name.to_owned(), value)));
    let mut bytes = serialized(arrays, &metadata)?;
    let place = place_of_checksum(&bytes).context("the file has no place for its checksum")?;
    let sha256 = sha256_hex(&bytes);
    bytes[place].copy_from_slice(sha256.as_bytes());
    files::write_atomic(path, &bytes)
}

/// The metadata entry that says that the file has a checksum. It is separate from the checksum's
/// own entry: a flipped bit in the name of a single entry would make the file look like one of
/// another program, which has no checksum.
const CHECKSUM: (&str, &str) = ("checksum", "sha256");
/// The metadata entry of the checksum, and its placeholder value while it is computed.
const SHA256: &str = "sha256";
const UNWRITTEN: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Byte range of the checksum in the file; `None` for a file without one.
fn place_of_checksum(bytes: &[u8]) -> Option<Range<usize>> {
    let entry = format!("\"{SHA256}\":\"");
    let header = bytes
        .get(..8)
        .map(|length| u64::from_le_bytes(length.try_into().expect("eight bytes")))?;
    let header = bytes.get(8..)?.get(..usize::try_from(header).ok()?)?;
    let start = 8
        + header
            .windows(entry.len())
            .position(|window| window == entry.as_bytes())?
        + entry.len();
    let place = start..start + UNWRITTEN.len();
    bytes.get(place.clone()).map(|_| place)
}

/// Refuses bytes that do not match their checksum. A file of another program need not have one.
fn check_sum(bytes: &[u8], file: &TensorFile<'_>) -> Result<()> {
    let (marked, summed) = (file.text(CHECKSUM.0), file.text(SHA256));
    if marked.is_err() && summed.is_err() {
        return Ok(());
    }
    let place = place_of_checksum(bytes).filter(|_| marked.is_ok_and(|kind| kind == CHECKSUM.1));
    let place =
        place.context("it is damaged: its checksum is no longer there (record the batch again)")?;
    let mut unwritten = bytes.to_vec();
    unwritten[place.clone()].copy_from_slice(UNWRITTEN.as_bytes());
    ensure!(
        sha256_hex(&unwritten).as_bytes() == &bytes[place],
        "it is damaged: its bytes are not those of its checksum (copy it anew, or record the batch again)"
    );
    Ok(())
}

fn metadata(batch: &Batch<'_>) -> Result<BTreeMap<String, String>> {
    let kind = OPTIMIZERS
        .iter()
        .find(|(_, kind)| *kind == batch.optimizer.kind)
        .map_or("unknown", |(name, _)| name);
    let OptimizerInfo {
        learning_rate,
        beta1,
        beta2,
        eps,
        weight_decay,
        max_grad_norm,
        steps_taken,
        ..
    } = batch.optimizer;
    let kind = kind.to_owned();
    let optimizer = Optimizer {
        kind,
        learning_rate,
        beta1,
        beta2,
        eps,
        weight_decay,
        max_grad_norm,
        steps_taken,
    };
    let mut scalars = vec![
        ("group_size", batch.dims.group_size.to_string()),
        ("step", batch.step.to_string()),
        ("max_steps", batch.max_steps.to_string()),
        ("iteration", batch.iteration.to_string()),
        ("seed", batch.seed.to_string()),
        (
            "max_completion_length",
            batch.max_completion_length.to_string(),
        ),
        (
            "sampling_temperature",
            batch.sampling_temperature.to_string(),
        ),
        ("sampling_top_k", batch.sampling_top_k.to_string()),
        ("sampling_top_p", batch.sampling_top_p.to_string()),
        ("loss_temperature", batch.loss_temperature.to_string()),
        ("reduction", batch.reduction.0.to_string()),
        ("denominator", batch.denominator.0.to_string()),
        ("optimizer", serde_json::to_string(&optimizer)?),
    ];
    scalars.extend(
        batch
            .step_learning_rate
            .map(|rate| ("step_learning_rate", rate.to_string())),
    );
    scalars.extend(
        batch
            .last_layer
            .map(|last| ("vocab_size", last.vocab_size.to_string())),
    );
    Ok(scalars
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect())
}

/// Reads a batch from a file.
///
/// # Errors
///
/// When the file is not a batch. The message has its path and the part that is missing or has the
/// wrong shape.
pub fn read(path: &Path) -> Result<RecordedBatch> {
    let bytes = files::read(path)?;
    parse(&bytes).with_context(|| format!("`{}` is not a batch file", path.display()))
}

fn parse(bytes: &[u8]) -> Result<RecordedBatch> {
    let file = TensorFile::parse(bytes)?;
    check_sum(bytes, &file)?;
    let [b, t] = file.shape("completion_mask")?[..] else {
        bail!("`completion_mask` is not [B, T]")
    };
    ensure!(
        b > 0 && t > 0,
        "it has {b} completions of {t} tokens (a step has at least one of each)"
    );
    let group_size: u64 = file.scalar("group_size")?;
    ensure!(
        group_size > 0 && (b as u64).is_multiple_of(group_size),
        "`group_size` {group_size} does not divide the {b} completions"
    );
    let dims = Dims {
        completions: b as u64,
        tokens: t as u64,
        group_size,
    };
    let bt: &[usize] = &[b, t];
    let truncated = if file.has("truncated") {
        file.bits("truncated", &[b])?
    } else {
        vec![0; b]
    };
    let (losses, dloss_dlogp) = (
        file.optional("losses", bt)?,
        file.optional("dloss_dlogp", bt)?,
    );
    let (losses, dloss_dlogp) = losses.zip(dloss_dlogp).unzip();
    let batch = RecordedBatch {
        scalars: scalars(&file, dims)?,
        completion_ids: ids("completion_ids", &file.shaped("completion_ids", bt)?)?,
        completion_mask: file.bits("completion_mask", bt)?,
        truncated,
        rewards: file.floats("rewards", &[b])?,
        advantages: file.floats("advantages", bt)?,
        logps: file.floats("logps", bt)?,
        losses,
        dloss_dlogp,
        old_logps: file.optional("old_logps", bt)?,
        ref_logps: file.optional("ref_logps", bt)?,
        entropy: file.optional("entropy", bt)?,
        last_layer: if file.has("hidden") {
            Some(last_layer(&file, b, t)?)
        } else {
            None
        },
        optimizer_state: optimizer_state(&file)?,
        context: context::read(&file, dims)?,
    };
    batch.check()?;
    Ok(batch)
}

fn last_layer(file: &TensorFile<'_>, b: usize, t: usize) -> Result<RecordedLayer> {
    let last = |name: &str| -> Result<usize> {
        file.shape(name)?
            .last()
            .copied()
            .with_context(|| format!("`{name}` is a scalar"))
    };
    let (width, k) = (last("hidden")?, last("topk_ids")?);
    ensure!(
        width > 0 && k > 0,
        "`hidden` has {width} columns and `topk_ids` {k} (both have at least one)"
    );
    let topk_ids = ids("topk_ids", &file.shaped("topk_ids", &[b, t, k])?)?;
    Ok(RecordedLayer {
        hidden: file.owned("hidden", &[b, t, width])?,
        topk_ids: Owned::new(topk_ids, &[b, t, k]),
        topk_logits: file.owned("topk_logits", &[b, t, k])?,
        logsumexp: file.owned("logsumexp", &[b, t])?,
        action_logits: file.owned("action_logits", &[b, t])?,
        vocab_size: file.scalar("vocab_size")?,
    })
}

fn optimizer_state(file: &TensorFile<'_>) -> Result<Option<RecordedState>> {
    if !file.has("weight") {
        return Ok(None);
    }
    let [v, d] = file.shape("weight")?[..] else {
        bail!("`weight` is not [V, D]")
    };
    Ok(Some(RecordedState {
        weight: file.owned("weight", &[v, d])?,
        exp_avg: file.owned("exp_avg", &[v, d])?,
        exp_avg_sq: file.owned("exp_avg_sq", &[v, d])?,
    }))
}

fn scalars(file: &TensorFile<'_>, dims: Dims) -> Result<Batch<'static>> {
    let mut batch = Batch::new(dims, optimizer(file)?);
    batch.step = file.scalar("step")?;
    batch.step_learning_rate = file.scalar_if_present("step_learning_rate")?;
    batch.max_steps = file.scalar_or("max_steps", 1)?;
    batch.iteration = file.scalar_or("iteration", 0)?;
    batch.seed = file.scalar("seed")?;
    batch.sampling_temperature = file.scalar("sampling_temperature")?;
    batch.sampling_top_k = file.scalar_or("sampling_top_k", 0)?;
    batch.sampling_top_p = file.scalar_or("sampling_top_p", 1.0)?;
    batch.loss_temperature = file.scalar("loss_temperature")?;
    batch.max_completion_length = file.scalar("max_completion_length")?;
    batch.reduction = Reduction(file.scalar_or("reduction", Reduction::COMPLETION_MEAN.0)?);
    batch.denominator = Denominator(file.scalar_or("denominator", Denominator::KEPT.0)?);
    Ok(batch)
}

fn optimizer(file: &TensorFile<'_>) -> Result<OptimizerInfo> {
    let text = file.text("optimizer")?;
    let optimizer: Optimizer =
        serde_json::from_str(text).context("`optimizer` in its metadata cannot be read")?;
    let Some(&(_, kind)) = OPTIMIZERS.iter().find(|(name, _)| *name == optimizer.kind) else {
        let known = OPTIMIZERS.map(|(name, _)| name).join("`, `");
        bail!("its optimizer is `{}` (known: `{known}`)", optimizer.kind);
    };
    let Optimizer {
        learning_rate,
        beta1,
        beta2,
        eps,
        weight_decay,
        max_grad_norm,
        steps_taken,
        ..
    } = optimizer;
    Ok(OptimizerInfo {
        kind,
        learning_rate,
        beta1,
        beta2,
        eps,
        weight_decay,
        max_grad_norm,
        steps_taken,
    })
}

/// Effect of a replay's masks and weights on one batch.
#[derive(Debug, Default)]
pub struct Outcome {
    /// `[B, T]`: 1 for tokens that the masks keep.
    pub token_mask: Vec<u8>,
    /// `[B, T]`: the product of all weights; `None` without weights.
    pub weights: Option<Vec<f32>>,
    /// `[B, T]` arrays of one number per token, by `component-id/name`.
    pub tokens: BTreeMap<String, Vec<f32>>,
    /// Single numbers, by `component-id/name`.
    pub numbers: BTreeMap<String, f64>,
}

/// Writes an outcome: `token_mask`, `weights` and per-token arrays as tensors, single numbers in the
/// metadata.
///
/// # Errors
///
/// When the disk reports an error.
pub fn write_outcome(path: &Path, dims: Dims, outcome: &Outcome) -> Result<()> {
    let shape = [dims.completions as usize, dims.tokens as usize];
    let mut arrays = BTreeMap::from([("token_mask", Array::new(&outcome.token_mask, &shape))]);
    arrays.extend(
        outcome
            .weights
            .as_ref()
            .map(|weights| ("weights", Array::new(weights, &shape))),
    );
    arrays.extend(
        outcome
            .tokens
            .iter()
            .map(|(name, values)| (name.as_str(), Array::new(values, &shape))),
    );
    let numbers = outcome
        .numbers
        .iter()
        .map(|(name, value)| (name.clone(), value.to_string()))
        .collect();
    files::write_atomic(path, &serialized(arrays, &numbers)?)
}

#[cfg(test)]
mod tests {
    use capo_plugin::testing::Fixture;

    use super::*;

    #[test]
    fn no_bit_can_change_unnoticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("batch.safetensors");
        write(&path, &Fixture::new(2, 2).batch(), None).unwrap();
        let written = std::fs::read(&path).unwrap();
        assert!(
            written.windows(8).any(|bytes| bytes == b"\"sha256\""),
            "it has a checksum"
        );
        parse(&written).unwrap();
        for bit in 0..8 * written.len() {
            let mut bytes = written.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(
                parse(&bytes).is_err(),
                "bit {} of byte {}",
                bit % 8,
                bit / 8
            );
        }
        for place in 0..written.len() {
            assert!(parse(&written[..place]).is_err(), "cut at {place}");
        }
    }
}
