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

use anyhow::{Context, Result, anyhow, bail, ensure};
use capo_plugin::fields::{Dtype, Extents, Field, Source, Value};
use capo_plugin::{
    Batch, BatchBuffer, ContextData, Dims, OptimizerInfo, OptimizerKind, TensorBuffer, Values,
};
use safetensors::tensor::TensorView;
use serde::{Deserialize, Serialize};

use crate::arrays::{Array, bytes, floats, ids};
use crate::context;
use crate::sound;
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
    let own = note.map_or("", |_| ", and not the one with this run's batches");
    ensure!(
        unused || note.is_some_and(|note| notes(note, dir)),
        "`--dump-batches {}` is no empty folder{own} (choose another)",
        dir.display()
    );
    Ok(())
}

/// True if the run's file `note` says that the run has written to `dir` before.
fn notes(note: &Path, dir: &Path) -> bool {
    path_of(dir).is_ok_and(|path| files::bytes(note).is_ok_and(|noted| noted == path))
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
    let extents = Extents::new(batch.dims);
    let mut arrays = BTreeMap::new();
    let mut metadata = BTreeMap::from([
        ("group_size".to_owned(), batch.dims.group_size.to_string()),
        ("optimizer".to_owned(), optimizer_text(&batch.optimizer)?),
        (CHECKSUM.0.to_owned(), CHECKSUM.1.to_owned()),
        (SHA256.to_owned(), UNWRITTEN.to_owned()),
    ]);
    for (field, value) in batch.values() {
        if let Some(text) = text_of(value) {
            metadata.insert(field.name.to_owned(), text);
        } else {
            arrays.insert(field.name, array_of(value, &extents.shape(field.shape))?);
        }
    }
    if let Some((data, age)) = context {
        arrays.extend(context::arrays(data, batch.dims));
        metadata.extend(context::metadata(data, age)?);
    }
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
    let marked = file.text(CHECKSUM.0);
    let summed = file.text(SHA256);
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
        "it is damaged: its bytes are not those of its checksum (copy it anew, or record the \
         batch again)"
    );
    Ok(())
}

/// A scalar as it stands in the metadata; `None` for an array.
fn text_of(value: Value<'_>) -> Option<String> {
    match value {
        Value::Whole(number) => Some(number.to_string()),
        Value::Single(number) => Some(number.to_string()),
        Value::Double(number) => Some(number.to_string()),
        _ => None,
    }
}

fn array_of<'a>(value: Value<'a>, shape: &[i64]) -> Result<Array<'a>> {
    match value {
        Value::Bits(values) => Ok(Array::new(values, shape)),
        Value::Ids(values) => Ok(Array::new(values, shape)),
        Value::Floats(values) => Ok(Array::new(values, shape)),
        Value::Tensor(tensor) => Array::of(&tensor),
        _ => bail!("a scalar is no array"),
    }
}

/// The optimizer as it stands in the metadata.
fn optimizer_text(info: &OptimizerInfo) -> Result<String> {
    let mut named = OPTIMIZERS.iter();
    let kind = named.find(|(_, kind)| *kind == info.kind);
    let optimizer = Optimizer {
        kind: kind.map_or("unknown", |(name, _)| name).to_owned(),
        learning_rate: info.learning_rate,
        beta1: info.beta1,
        beta2: info.beta2,
        eps: info.eps,
        weight_decay: info.weight_decay,
        max_grad_norm: info.max_grad_norm,
        steps_taken: info.steps_taken,
    };
    Ok(serde_json::to_string(&optimizer)?)
}

/// Reads a batch from a file.
///
/// # Errors
///
/// When the file is not a batch. The message has its path and the part that is missing or has the
/// wrong shape.
pub fn read(path: &Path) -> Result<BatchBuffer> {
    let bytes = files::read(path)?;
    parse(&bytes).with_context(|| format!("`{}` is not a batch file", path.display()))
}

fn parse(bytes: &[u8]) -> Result<BatchBuffer> {
    let file = TensorFile::parse(bytes)?;
    check_sum(bytes, &file)?;
    let dims = dims(&file)?;
    let mut batch = BatchBuffer::read(dims, optimizer(&file)?, &mut Fields(&file))?;
    batch.context = context::read(&file, dims)?;
    sound::check(&batch)?;
    Ok(batch)
}

fn dims(file: &TensorFile<'_>) -> Result<Dims> {
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
    Ok(Dims {
        completions: b as u64,
        tokens: t as u64,
        group_size,
    })
}

/// A file as a source of a batch's fields: arrays are its tensors, scalars its metadata.
struct Fields<'f>(&'f TensorFile<'f>);

impl Fields<'_> {
    /// The tensor of `field`, if the file has it.
    fn find(&self, field: &Field, shape: &[i64]) -> Result<Option<TensorView<'_>>> {
        let is_there = self.0.has(field.name);
        is_there
            .then(|| self.0.fitting(field.name, shape))
            .transpose()
    }
}

impl Source for Fields<'_> {
    type Error = anyhow::Error;

    fn has(&mut self, field: &'static Field) -> Result<bool> {
        Ok(self.0.has(field.name))
    }

    fn scalar(
        &mut self,
        field: &'static Field,
        default: Option<Value<'static>>,
    ) -> Result<Option<Value<'static>>> {
        let name = field.name;
        if !field.required && !self.0.has_scalar(name) {
            return Ok(default);
        }
        Ok(Some(match field.dtype {
            Dtype::F32 => Value::Single(self.0.scalar(name)?),
            Dtype::F64 => Value::Double(self.0.scalar(name)?),
            Dtype::U64 => Value::Whole(self.0.scalar(name)?),
            _ => Value::Whole(self.0.scalar::<u32>(name)?.into()),
        }))
    }

    fn bits(&mut self, field: &'static Field, shape: &[i64]) -> Result<Option<Values<u8>>> {
        let Some(tensor) = self.find(field, shape)? else {
            return Ok(None);
        };
        let values = bytes(field.name, &tensor)?;
        match values.iter().find(|&&value| value > 1) {
            Some(value) => bail!("`{}` holds {value} (entries are 0 or 1)", field.name),
            None => Ok(Some(values.into())),
        }
    }

    fn ids(&mut self, field: &'static Field, shape: &[i64]) -> Result<Option<Values<u32>>> {
        match self.find(field, shape)? {
            Some(tensor) => Ok(Some(ids(field.name, &tensor)?.into())),
            None => Ok(None),
        }
    }

    fn floats(&mut self, field: &'static Field, shape: &[i64]) -> Result<Option<Values<f32>>> {
        match self.find(field, shape)? {
            Some(tensor) => Ok(Some(floats(field.name, &tensor)?.into())),
            None => Ok(None),
        }
    }

    fn tensor(&mut self, field: &'static Field, shape: &[i64]) -> Result<TensorBuffer> {
        let tensor = self.0.fitting(field.name, shape)?;
        let shape: Vec<i64> = tensor.shape().iter().map(|&extent| extent as i64).collect();
        Ok(match field.dtype {
            Dtype::U32 => TensorBuffer::new(ids(field.name, &tensor)?, &shape),
            _ => TensorBuffer::new(floats(field.name, &tensor)?, &shape),
        })
    }

    fn missing(&mut self, field: &'static Field, _: &[i64]) -> anyhow::Error {
        anyhow!("it has no tensor `{}`", field.name)
    }
}

fn optimizer(file: &TensorFile<'_>) -> Result<OptimizerInfo> {
    let text = file.text("optimizer")?;
    let optimizer: Optimizer =
        serde_json::from_str(text).context("`optimizer` in its metadata cannot be read")?;
    let Some(&(_, kind)) = OPTIMIZERS.iter().find(|(name, _)| *name == optimizer.kind) else {
        let known = OPTIMIZERS.map(|(name, _)| name).join("`, `");
        bail!("its optimizer is `{}` (known: `{known}`)", optimizer.kind);
    };
    Ok(OptimizerInfo {
        kind,
        learning_rate: optimizer.learning_rate,
        beta1: optimizer.beta1,
        beta2: optimizer.beta2,
        eps: optimizer.eps,
        weight_decay: optimizer.weight_decay,
        max_grad_norm: optimizer.max_grad_norm,
        steps_taken: optimizer.steps_taken,
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

/// Writes an outcome: `token_mask`, `weights` and per-token arrays as tensors, single numbers in
/// the metadata.
///
/// # Errors
///
/// When the disk reports an error.
pub fn write_outcome(path: &Path, dims: Dims, outcome: &Outcome) -> Result<()> {
    let shape = [dims.completions as i64, dims.tokens as i64];
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
    fn notices_every_changed_bit() {
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
