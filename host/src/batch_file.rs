//! Batch files: the batch of one optimizer step as safetensors, for replay, tests and bug reports.
//!
//! Tensors have the names and shapes of [`capo_plugin::Batch`]; scalars are in the string metadata, `optimizer` as JSON.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use candle_core::{DType, Device, Tensor};
use capo_plugin::{Denominator, Dims, OptimizerInfo, OptimizerKind, Reduction};
use safetensors::SafeTensors;
use serde::{Deserialize, Serialize};

use crate::batch::{StepBatch, StepInfo, TokenLoss};
use crate::files;
use crate::lend::HeadState;
use crate::model::{LastLayer, LastLayerData, Sequences};

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

const OPTIMIZERS: [(&str, OptimizerKind); 3] =
    [("sgd", OptimizerKind::SGD), ("adam", OptimizerKind::ADAM), ("adamw", OptimizerKind::ADAMW)];

/// The tensors of [`HeadState`], in its order.
const HEAD_STATE: [&str; 3] = ["weight", "exp_avg", "exp_avg_sq"];

/// The name of step `step`'s file.
#[must_use]
pub fn name(step: u64) -> String {
    format!("batch-{step:06}.safetensors")
}

/// Writes a batch, whole or not at all.
///
/// # Errors
///
/// When the disk refuses.
pub fn write(path: &Path, batch: &StepBatch, info: &StepInfo) -> Result<()> {
    let (b, t) = (batch.dims.completions as usize, batch.dims.tokens as usize);
    let mut tensors: BTreeMap<&str, Tensor> = BTreeMap::new();
    let mut put = |name, values: &[f32], shape: &[usize]| -> Result<()> {
        tensors.insert(name, Tensor::from_slice(values, shape, &Device::Cpu)?);
        Ok(())
    };
    put("rewards", &batch.rewards, &[b])?;
    put("advantages", &batch.advantages, &[b, t])?;
    put("logps", &batch.logps, &[b, t])?;
    let optional = [("old_logps", &batch.old_logps), ("ref_logps", &batch.ref_logps), ("entropy", &batch.entropy)];
    for (name, values) in optional {
        values.as_ref().map_or(Ok(()), |values| put(name, values, &[b, t]))?;
    }
    if let Some(TokenLoss { loss, dloss_dlogp }) = &batch.token_loss {
        put("losses", loss, &[b, t])?;
        put("dloss_dlogp", dloss_dlogp, &[b, t])?;
    }
    let last_layer = batch.last_layer().map(LastLayer::to_host).transpose()?;
    if let Some(last) = &last_layer {
        put("hidden", &last.hidden, &[b, t, last.width])?;
        put("topk_logits", &last.topk_logits, &[b, t, last.k])?;
        put("logsumexp", &last.logsumexp, &[b, t])?;
        put("action_logits", &last.action_logits, &[b, t])?;
        tensors.insert("topk_ids", Tensor::from_slice(&last.topk_ids, &[b, t, last.k], &Device::Cpu)?);
    }
    let cpu = &Device::Cpu;
    tensors.insert("completion_ids", Tensor::from_slice(&batch.completion_ids, &[b, t], cpu)?);
    tensors.insert("completion_mask", Tensor::from_slice(&batch.completion_mask, &[b, t], cpu)?);
    tensors.insert("truncated", Tensor::from_slice(&batch.truncated, &[b], cpu)?);
    if let Some(state) = &batch.head_state {
        let (shape, matrices) = state.to_host()?;
        for (name, values) in HEAD_STATE.into_iter().zip(matrices) {
            tensors.insert(name, Tensor::from_vec(values, &shape, cpu)?);
        }
    }
    let vocab_size = last_layer.map(|last| last.vocab_size);
    let bytes = safetensors::serialize(tensors, Some(metadata(batch, info, vocab_size)?))?;
    files::write_atomic(path, &bytes)
}

fn metadata(batch: &StepBatch, info: &StepInfo, vocab_size: Option<usize>) -> Result<HashMap<String, String>> {
    let kind = OPTIMIZERS.iter().find(|(_, kind)| *kind == info.optimizer.kind).map_or("unknown", |(name, _)| name);
    let OptimizerInfo { learning_rate, beta1, beta2, eps, weight_decay, max_grad_norm, steps_taken, .. } =
        info.optimizer;
    let kind = kind.to_owned();
    let optimizer = Optimizer { kind, learning_rate, beta1, beta2, eps, weight_decay, max_grad_norm, steps_taken };
    let mut scalars = vec![
        ("group_size", batch.dims.group_size.to_string()),
        ("step", info.step.to_string()),
        ("max_steps", info.max_steps.to_string()),
        ("iteration", info.iteration.to_string()),
        ("seed", info.seed.to_string()),
        ("max_completion_length", info.max_completion_length.to_string()),
        ("sampling_temperature", info.sampling_temperature.to_string()),
        ("sampling_top_k", info.sampling_top_k.to_string()),
        ("sampling_top_p", info.sampling_top_p.to_string()),
        ("loss_temperature", info.loss_temperature.to_string()),
        ("reduction", info.reduction.0.to_string()),
        ("denominator", info.denominator.0.to_string()),
        ("optimizer", serde_json::to_string(&optimizer)?),
    ];
    scalars.extend(vocab_size.map(|size| ("vocab_size", size.to_string())));
    Ok(scalars.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Reads a batch; prompts are not part of the file.
///
/// # Errors
///
/// A file that is not a batch: what is missing or has the wrong shape, with its path.
pub fn read(path: &Path) -> Result<(StepBatch, StepInfo)> {
    let bytes = files::read(path)?;
    parse(&bytes).with_context(|| format!("`{}` is not a batch file", path.display()))
}

fn parse(bytes: &[u8]) -> Result<(StepBatch, StepInfo)> {
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| anyhow!("{error}"))?;
    let tensors = candle_core::safetensors::load_buffer(bytes, &Device::Cpu).map_err(|error| anyhow!("{error}"))?;
    let file = File { tensors, scalars: header.metadata().clone().unwrap_or_default() };
    let (b, t) = file.tensor("completion_mask")?.dims2().context("`completion_mask` is not [B, T]")?;
    let group_size: u64 = file.scalar("group_size")?;
    ensure!(
        group_size > 0 && (b as u64).is_multiple_of(group_size),
        "`group_size` {group_size} does not divide the {b} completions"
    );
    let bt: &[usize] = &[b, t];
    let mut batch = StepBatch::new(
        Sequences { ids: Vec::new(), starts: Vec::new(), prompt_len: 0, completion_len: t },
        &vec![&[][..]; b],
        vec![0; b],
        file.floats("rewards", &[b])?,
        group_size as usize,
        0,
    );
    batch.completion_ids = file.shaped("completion_ids", bt)?.to_dtype(DType::U32)?.flatten_all()?.to_vec1()?;
    batch.completion_mask = file.bytes("completion_mask", bt)?;
    if file.tensors.contains_key("truncated") {
        batch.truncated = file.bytes("truncated", &[b])?;
    }
    batch.advantages = file.floats("advantages", bt)?;
    batch.logps = file.floats("logps", bt)?;
    batch.old_logps = file.optional("old_logps", bt)?;
    batch.ref_logps = file.optional("ref_logps", bt)?;
    batch.entropy = file.optional("entropy", bt)?;
    batch.token_loss = match (file.optional("losses", bt)?, file.optional("dloss_dlogp", bt)?) {
        (Some(loss), Some(dloss_dlogp)) => Some(TokenLoss { loss, dloss_dlogp }),
        _ => None,
    };
    if file.tensors.contains_key("hidden") {
        batch.set_last_layer(LastLayer::Host(file.last_layer(b, t)?))?;
    }
    batch.head_state = file.head_state()?;
    Ok((batch, file.info()?))
}

struct File {
    tensors: HashMap<String, Tensor>,
    scalars: HashMap<String, String>,
}

impl File {
    fn tensor(&self, name: &str) -> Result<&Tensor> {
        self.tensors.get(name).with_context(|| format!("it has no tensor `{name}`"))
    }

    fn shaped(&self, name: &str, shape: &[usize]) -> Result<&Tensor> {
        let tensor = self.tensor(name)?;
        ensure!(tensor.dims() == shape, "`{name}` has shape {:?}, expected {shape:?}", tensor.dims());
        Ok(tensor)
    }

    /// Values as f32, whatever float type the file holds.
    fn floats(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        Ok(self.shaped(name, shape)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
    }

    fn optional(&self, name: &str, shape: &[usize]) -> Result<Option<Vec<f32>>> {
        if self.tensors.contains_key(name) { self.floats(name, shape).map(Some) } else { Ok(None) }
    }

    /// Zeros and ones.
    fn bytes(&self, name: &str, shape: &[usize]) -> Result<Vec<u8>> {
        let values: Vec<u8> = self.shaped(name, shape)?.to_dtype(DType::U8)?.flatten_all()?.to_vec1()?;
        match values.iter().find(|&&value| value > 1) {
            Some(value) => bail!("`{name}` holds {value} (entries are 0 or 1)"),
            None => Ok(values),
        }
    }

    fn last_layer(&self, b: usize, t: usize) -> Result<LastLayerData> {
        let last = |name: &str| -> Result<usize> {
            let tensor = self.tensor(name)?;
            tensor.dims().last().copied().with_context(|| format!("`{name}` is a scalar"))
        };
        let (width, k) = (last("hidden")?, last("topk_ids")?);
        Ok(LastLayerData {
            hidden: self.floats("hidden", &[b, t, width])?,
            topk_ids: self.shaped("topk_ids", &[b, t, k])?.to_dtype(DType::U32)?.flatten_all()?.to_vec1()?,
            topk_logits: self.floats("topk_logits", &[b, t, k])?,
            logsumexp: self.floats("logsumexp", &[b, t])?,
            action_logits: self.floats("action_logits", &[b, t])?,
            k,
            width,
            vocab_size: self.scalar("vocab_size")?,
        })
    }

    fn head_state(&self) -> Result<Option<HeadState>> {
        let Some(weight) = self.tensors.get("weight") else { return Ok(None) };
        let (v, d) = weight.dims2().context("`weight` is not [V, D]")?;
        let matrix = |name: &str| -> Result<Tensor> { Ok(self.shaped(name, &[v, d])?.to_dtype(DType::F32)?) };
        let [weight, exp_avg, exp_avg_sq] = HEAD_STATE.map(matrix);
        Ok(Some(HeadState::new(&weight?, &exp_avg?, &exp_avg_sq?)?))
    }

    fn scalar<T: std::str::FromStr>(&self, name: &str) -> Result<T> {
        let text = self.scalars.get(name).with_context(|| format!("its metadata has no `{name}`"))?;
        text.parse().map_err(|_| anyhow!("`{name}` in its metadata is `{text}` (it must be a number)"))
    }

    /// A scalar that older files leave out.
    fn scalar_or<T: std::str::FromStr>(&self, name: &str, default: T) -> Result<T> {
        if self.scalars.contains_key(name) { self.scalar(name) } else { Ok(default) }
    }

    fn info(&self) -> Result<StepInfo> {
        let text = self.scalars.get("optimizer").context("its metadata has no `optimizer`")?;
        let optimizer: Optimizer = serde_json::from_str(text).context("`optimizer` in its metadata cannot be read")?;
        let Some((_, kind)) = OPTIMIZERS.iter().find(|(name, _)| *name == optimizer.kind) else {
            bail!("its optimizer is `{}` (known: `sgd`, `adam`, `adamw`)", optimizer.kind);
        };
        let Optimizer { learning_rate, beta1, beta2, eps, weight_decay, max_grad_norm, steps_taken, .. } = optimizer;
        let kind = *kind;
        Ok(StepInfo {
            step: self.scalar("step")?,
            max_steps: self.scalar_or("max_steps", 1)?,
            iteration: self.scalar_or("iteration", 0)?,
            seed: self.scalar("seed")?,
            sampling_temperature: self.scalar("sampling_temperature")?,
            sampling_top_k: self.scalar_or("sampling_top_k", 0)?,
            sampling_top_p: self.scalar_or("sampling_top_p", 1.0)?,
            loss_temperature: self.scalar("loss_temperature")?,
            max_completion_length: self.scalar("max_completion_length")?,
            reduction: Reduction(self.scalar_or("reduction", Reduction::COMPLETION_MEAN.0)?),
            denominator: Denominator(self.scalar_or("denominator", Denominator::KEPT.0)?),
            optimizer: OptimizerInfo {
                kind,
                learning_rate,
                beta1,
                beta2,
                eps,
                weight_decay,
                max_grad_norm,
                steps_taken,
            },
        })
    }
}

/// What the masks of a replay did to one batch.
#[derive(Debug, Default)]
pub struct Outcome {
    /// `[B, T]`.
    pub keep: Vec<u8>,
    /// `component-id/name`: one number per token, `[B, T]`.
    pub tokens: BTreeMap<String, Vec<f32>>,
    /// `component-id/name`: one number.
    pub numbers: BTreeMap<String, f64>,
}

/// Writes what masks did: `keep`, per-token arrays as tensors, numbers in the metadata.
///
/// # Errors
///
/// When the disk refuses.
pub fn write_outcome(path: &Path, dims: Dims, outcome: &Outcome) -> Result<()> {
    let shape = [dims.completions as usize, dims.tokens as usize];
    let mut tensors = BTreeMap::from([("keep", Tensor::from_slice(&outcome.keep, &shape, &Device::Cpu)?)]);
    for (name, values) in &outcome.tokens {
        tensors.insert(name, Tensor::from_slice(values, &shape, &Device::Cpu)?);
    }
    let numbers = outcome.numbers.iter().map(|(name, value)| (name.clone(), value.to_string())).collect();
    files::write_atomic(path, &safetensors::serialize(tensors, Some(numbers))?)
}
