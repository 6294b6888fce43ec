//! Batch files: the batch of one optimizer step as safetensors, for replay, tests and bug reports.
//!
//! Tensors have the names and shapes of [`Batch`]; scalars are in the string metadata, `optimizer` as JSON.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use capo_plugin::{Batch, Denominator, Dims, OptimizerInfo, OptimizerKind, Reduction};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde::{Deserialize, Serialize};

use crate::arrays::{Array, bytes, floats, ids};
use crate::files;
use crate::recorded::{RecordedBatch, RecordedLayer, RecordedState};

/// The optimizer in the metadata.
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

const OPTIMIZERS: [(&str, OptimizerKind); 4] = [
    ("sgd", OptimizerKind::SGD),
    ("adam", OptimizerKind::ADAM),
    ("adamw", OptimizerKind::ADAMW),
    ("adamw_kept_and_rejected", OptimizerKind::ADAMW_KEPT_AND_REJECTED),
];

/// The name of step `step`'s file.
#[must_use]
pub fn name(step: u64) -> String {
    format!("batch-{step:06}.safetensors")
}

/// The step whose file is called `file`; none for any other name.
#[must_use]
pub fn step(file: &str) -> Option<u64> {
    let step = file.strip_prefix("batch-")?.strip_suffix(".safetensors")?.parse().ok()?;
    (name(step) == file).then_some(step)
}

/// Writes a batch whose arrays lie in host memory, whole or not at all.
///
/// # Errors
///
/// An array on a device; a disk that refuses.
pub fn write(path: &Path, batch: &Batch<'_>) -> Result<()> {
    let (b, t) = (batch.dims.completions as usize, batch.dims.tokens as usize);
    let mut arrays = BTreeMap::from([
        ("rewards", Array::new(batch.rewards, &[b])),
        ("advantages", Array::new(batch.advantages, &[b, t])),
        ("logps", Array::new(batch.logps, &[b, t])),
        ("completion_ids", Array::new(batch.completion_ids, &[b, t])),
        ("completion_mask", Array::new(batch.completion_mask, &[b, t])),
        ("truncated", Array::new(batch.truncated, &[b])),
    ]);
    let optional = [
        ("old_logps", batch.old_logps),
        ("ref_logps", batch.ref_logps),
        ("entropy", batch.entropy),
        ("losses", batch.losses),
        ("dloss_dlogp", batch.dloss_dlogp),
    ];
    arrays.extend(optional.iter().filter_map(|(name, values)| Some((*name, Array::new((*values)?, &[b, t])))));
    if let Some(last) = &batch.last_layer {
        arrays.insert("hidden", Array::of(&last.hidden)?);
        arrays.insert("topk_ids", Array::of(&last.topk_ids)?);
        arrays.insert("topk_logits", Array::of(&last.topk_logits)?);
        arrays.insert("logsumexp", Array::of(&last.logsumexp)?);
        arrays.insert("action_logits", Array::of(&last.action_logits)?);
    }
    if let Some(state) = &batch.optimizer_state {
        arrays.insert("weight", Array::of(&state.weight)?);
        arrays.insert("exp_avg", Array::of(&state.exp_avg)?);
        arrays.insert("exp_avg_sq", Array::of(&state.exp_avg_sq)?);
    }
    files::write_atomic(path, &safetensors::serialize(arrays, Some(metadata(batch)?))?)
}

fn metadata(batch: &Batch<'_>) -> Result<HashMap<String, String>> {
    let kind = OPTIMIZERS.iter().find(|(_, kind)| *kind == batch.optimizer.kind).map_or("unknown", |(name, _)| name);
    let OptimizerInfo { learning_rate, beta1, beta2, eps, weight_decay, max_grad_norm, steps_taken, .. } =
        batch.optimizer;
    let kind = kind.to_owned();
    let optimizer = Optimizer { kind, learning_rate, beta1, beta2, eps, weight_decay, max_grad_norm, steps_taken };
    let mut scalars = vec![
        ("group_size", batch.dims.group_size.to_string()),
        ("step", batch.step.to_string()),
        ("max_steps", batch.max_steps.to_string()),
        ("iteration", batch.iteration.to_string()),
        ("seed", batch.seed.to_string()),
        ("max_completion_length", batch.max_completion_length.to_string()),
        ("sampling_temperature", batch.sampling_temperature.to_string()),
        ("sampling_top_k", batch.sampling_top_k.to_string()),
        ("sampling_top_p", batch.sampling_top_p.to_string()),
        ("loss_temperature", batch.loss_temperature.to_string()),
        ("reduction", batch.reduction.0.to_string()),
        ("denominator", batch.denominator.0.to_string()),
        ("optimizer", serde_json::to_string(&optimizer)?),
    ];
    scalars.extend(batch.last_layer.map(|last| ("vocab_size", last.vocab_size.to_string())));
    Ok(scalars.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Reads a batch; prompts are not part of the file.
///
/// # Errors
///
/// A file that is not a batch: what is missing or has the wrong shape, with its path.
pub fn read(path: &Path) -> Result<RecordedBatch> {
    let bytes = files::read(path)?;
    parse(&bytes).with_context(|| format!("`{}` is not a batch file", path.display()))
}

fn parse(bytes: &[u8]) -> Result<RecordedBatch> {
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| anyhow!("{error}"))?;
    let tensors = SafeTensors::deserialize(bytes).map_err(|error| anyhow!("{error}"))?;
    let file = File { tensors, scalars: header.metadata().clone().unwrap_or_default() };
    let [b, t] = file.shape("completion_mask")?[..] else { bail!("`completion_mask` is not [B, T]") };
    ensure!(b > 0 && t > 0, "it has {b} completions of {t} tokens (a step has at least one of each)");
    let group_size: u64 = file.scalar("group_size")?;
    ensure!(
        group_size > 0 && (b as u64).is_multiple_of(group_size),
        "`group_size` {group_size} does not divide the {b} completions"
    );
    let dims = Dims { completions: b as u64, tokens: t as u64, group_size };
    let bt: &[usize] = &[b, t];
    let truncated = if file.has("truncated") { file.bits("truncated", &[b])? } else { vec![0; b] };
    let (losses, dloss_dlogp) = (file.optional("losses", bt)?, file.optional("dloss_dlogp", bt)?);
    let (losses, dloss_dlogp) = losses.zip(dloss_dlogp).unzip();
    let batch = RecordedBatch {
        scalars: file.scalars(dims)?,
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
        last_layer: if file.has("hidden") { Some(file.last_layer(b, t)?) } else { None },
        optimizer_state: file.optimizer_state()?,
    };
    batch.check()?;
    Ok(batch)
}

struct File<'a> {
    tensors: SafeTensors<'a>,
    scalars: HashMap<String, String>,
}

impl<'a> File<'a> {
    fn has(&self, name: &str) -> bool {
        self.tensors.tensor(name).is_ok()
    }

    fn tensor(&self, name: &str) -> Result<TensorView<'a>> {
        self.tensors.tensor(name).map_err(|_| anyhow!("it has no tensor `{name}`"))
    }

    fn shape(&self, name: &str) -> Result<Vec<usize>> {
        Ok(self.tensor(name)?.shape().to_vec())
    }

    fn shaped(&self, name: &str, shape: &[usize]) -> Result<TensorView<'a>> {
        let tensor = self.tensor(name)?;
        ensure!(tensor.shape() == shape, "`{name}` has shape {:?}, expected {shape:?}", tensor.shape());
        Ok(tensor)
    }

    /// Values as f32, whatever float type the file holds.
    fn floats(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        floats(name, &self.shaped(name, shape)?)
    }

    fn optional(&self, name: &str, shape: &[usize]) -> Result<Option<Vec<f32>>> {
        if self.has(name) { self.floats(name, shape).map(Some) } else { Ok(None) }
    }

    /// Zeros and ones.
    fn bits(&self, name: &str, shape: &[usize]) -> Result<Vec<u8>> {
        let values = bytes(name, &self.shaped(name, shape)?)?;
        match values.iter().find(|&&value| value > 1) {
            Some(value) => bail!("`{name}` holds {value} (entries are 0 or 1)"),
            None => Ok(values),
        }
    }

    fn last_layer(&self, b: usize, t: usize) -> Result<RecordedLayer> {
        let last = |name: &str| -> Result<usize> {
            self.shape(name)?.last().copied().with_context(|| format!("`{name}` is a scalar"))
        };
        let (width, k) = (last("hidden")?, last("topk_ids")?);
        ensure!(width > 0 && k > 0, "`hidden` has {width} columns and `topk_ids` {k} (both have at least one)");
        let shape = |extent: usize| [b as i64, t as i64, extent as i64];
        Ok(RecordedLayer {
            hidden: self.floats("hidden", &[b, t, width])?,
            topk_ids: ids("topk_ids", &self.shaped("topk_ids", &[b, t, k])?)?,
            topk_logits: self.floats("topk_logits", &[b, t, k])?,
            logsumexp: self.floats("logsumexp", &[b, t])?,
            action_logits: self.floats("action_logits", &[b, t])?,
            vocab_size: self.scalar("vocab_size")?,
            hidden_shape: shape(width),
            topk_shape: shape(k),
            token_shape: [b as i64, t as i64],
        })
    }

    fn optimizer_state(&self) -> Result<Option<RecordedState>> {
        if !self.has("weight") {
            return Ok(None);
        }
        let [v, d] = self.shape("weight")?[..] else { bail!("`weight` is not [V, D]") };
        Ok(Some(RecordedState {
            weight: self.floats("weight", &[v, d])?,
            exp_avg: self.floats("exp_avg", &[v, d])?,
            exp_avg_sq: self.floats("exp_avg_sq", &[v, d])?,
            shape: [v as i64, d as i64],
        }))
    }

    fn scalar<T: std::str::FromStr>(&self, name: &str) -> Result<T> {
        let text = self.scalars.get(name).with_context(|| format!("its metadata has no `{name}`"))?;
        text.parse().map_err(|_| anyhow!("`{name}` in its metadata is `{text}` (it must be a number)"))
    }

    /// A scalar that older files leave out.
    fn scalar_or<T: std::str::FromStr>(&self, name: &str, default: T) -> Result<T> {
        if self.scalars.contains_key(name) { self.scalar(name) } else { Ok(default) }
    }

    fn scalars(&self, dims: Dims) -> Result<Batch<'static>> {
        let mut batch = Batch::new(dims, self.optimizer()?);
        batch.step = self.scalar("step")?;
        batch.max_steps = self.scalar_or("max_steps", 1)?;
        batch.iteration = self.scalar_or("iteration", 0)?;
        batch.seed = self.scalar("seed")?;
        batch.sampling_temperature = self.scalar("sampling_temperature")?;
        batch.sampling_top_k = self.scalar_or("sampling_top_k", 0)?;
        batch.sampling_top_p = self.scalar_or("sampling_top_p", 1.0)?;
        batch.loss_temperature = self.scalar("loss_temperature")?;
        batch.max_completion_length = self.scalar("max_completion_length")?;
        batch.reduction = Reduction(self.scalar_or("reduction", Reduction::COMPLETION_MEAN.0)?);
        batch.denominator = Denominator(self.scalar_or("denominator", Denominator::KEPT.0)?);
        Ok(batch)
    }

    fn optimizer(&self) -> Result<OptimizerInfo> {
        let text = self.scalars.get("optimizer").context("its metadata has no `optimizer`")?;
        let optimizer: Optimizer = serde_json::from_str(text).context("`optimizer` in its metadata cannot be read")?;
        let Some(&(_, kind)) = OPTIMIZERS.iter().find(|(name, _)| *name == optimizer.kind) else {
            bail!("its optimizer is `{}` (known: `sgd`, `adam`, `adamw`)", optimizer.kind);
        };
        let Optimizer { learning_rate, beta1, beta2, eps, weight_decay, max_grad_norm, steps_taken, .. } = optimizer;
        Ok(OptimizerInfo { kind, learning_rate, beta1, beta2, eps, weight_decay, max_grad_norm, steps_taken })
    }
}

/// What the masks and weights of a replay did to one batch.
#[derive(Debug, Default)]
pub struct Outcome {
    /// `[B, T]`.
    pub keep: Vec<u8>,
    /// `[B, T]`: the product of all weights, where there are any.
    pub weights: Option<Vec<f32>>,
    /// `component-id/name`: one number per token, `[B, T]`.
    pub tokens: BTreeMap<String, Vec<f32>>,
    /// `component-id/name`: one number.
    pub numbers: BTreeMap<String, f64>,
}

/// Writes what they did: `keep`, `weights`, per-token arrays as tensors, numbers in the metadata.
///
/// # Errors
///
/// When the disk refuses.
pub fn write_outcome(path: &Path, dims: Dims, outcome: &Outcome) -> Result<()> {
    let shape = [dims.completions as usize, dims.tokens as usize];
    let mut arrays = BTreeMap::from([("keep", Array::new(&outcome.keep, &shape))]);
    arrays.extend(outcome.weights.as_ref().map(|weights| ("weights", Array::new(weights, &shape))));
    arrays.extend(outcome.tokens.iter().map(|(name, values)| (name.as_str(), Array::new(values, &shape))));
    let numbers = outcome.numbers.iter().map(|(name, value)| (name.clone(), value.to_string())).collect();
    files::write_atomic(path, &safetensors::serialize(arrays, Some(numbers))?)
}
