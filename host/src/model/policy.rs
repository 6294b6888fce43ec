//! The policy: a configuration with its weights, its forward pass over whole sequences and the gradients.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, Tensor};

use super::backward::Tape;
use super::config::Config;
use super::files::ModelFiles;
use super::ops;
use super::params::Params;
use super::qwen2::{Qwen2, rope};

/// A batch of prompts with their completions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequences {
    /// Token ids, `[B, P + T]` row-major: prompts padded on the left, completions padded on the right.
    pub ids: Vec<u32>,
    /// Index of the first real token of each row, `[B]`; less than `prompt_len`.
    pub starts: Vec<usize>,
    /// Padded length of the prompts, P, tokens.
    pub prompt_len: usize,
    /// Padded length of the completions, T, tokens.
    pub completion_len: usize,
}

/// A language model whose weights can be trained.
#[derive(Debug)]
pub struct Policy {
    config: Config,
    params: Params,
    device: Device,
}

/// One forward pass over `[B, T]` completion tokens, with or without what the backward pass needs.
pub struct Forward {
    /// Features that produced the logits of the tokens, `[B * T, D]`.
    hidden: Tensor,
    /// `[V, D]`.
    pub(super) head: Tensor,
    /// Completion ids, `[B * T]` u32.
    pub(super) targets: Tensor,
    pub(super) loss_temperature: f64,
    rows: usize,
    tokens: usize,
    tape: Option<Tape>,
}

/// The gradient of a loss by every weight, ordered by name.
#[derive(Debug, Clone)]
pub struct Gradients {
    tensors: BTreeMap<String, Tensor>,
}

impl Sequences {
    /// Number of rows, B.
    pub fn rows(&self) -> usize {
        self.starts.len()
    }

    /// Checks the sizes against one another and the ids against `vocab_size`.
    fn check(&self, vocab_size: usize) -> Result<()> {
        let (rows, length) = (self.rows(), self.prompt_len + self.completion_len);
        ensure!(
            rows > 0 && self.prompt_len > 0 && self.completion_len > 0,
            "a batch of {rows} rows, {} prompt and {} completion tokens is empty (give at least one of each)",
            self.prompt_len,
            self.completion_len
        );
        ensure!(self.ids.len() == rows * length, "{} ids do not fill {rows} rows of {length} tokens", self.ids.len());
        if let Some(start) = self.starts.iter().find(|start| **start >= self.prompt_len) {
            bail!("a prompt starts at {start} in {} prompt tokens (give at least one prompt token)", self.prompt_len);
        }
        match self.ids.iter().find(|id| **id as usize >= vocab_size) {
            Some(id) => bail!("token id {id} is outside the vocabulary of {vocab_size} (use the model's tokenizer)"),
            None => Ok(()),
        }
    }

    /// The columns `from..to` of all rows.
    fn columns(&self, from: usize, to: usize) -> Vec<u32> {
        let length = self.prompt_len + self.completion_len;
        self.ids.chunks_exact(length).flat_map(|row| row[from..to].iter().copied()).collect()
    }
}

impl Policy {
    /// Reads configuration and weights; what is missing, malformed or unsupported is an error with its path.
    pub fn load(files: &ModelFiles, device: &Device) -> Result<Self> {
        let config = Config::load(files)?;
        let params = Params::load(files, &config, device)?;
        Ok(Self { config, params, device: device.clone() })
    }

    /// A policy with fresh weights; `fill_normal` fills a slice with standard normals.
    pub fn init(config: Config, device: &Device, fill_normal: &mut dyn FnMut(&mut [f32])) -> Result<Self> {
        config.check()?;
        let params = Params::init(&config, device, fill_normal)?;
        Ok(Self { config, params, device: device.clone() })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The weights.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The device that holds the weights.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// A frozen copy for `ref_logps`: later updates of this policy do not reach it.
    pub fn reference(&self) -> Result<Self> {
        let params = self.params.deep_copy()?;
        Ok(Self { config: self.config.clone(), params, device: self.device.clone() })
    }

    /// Writes a Hugging Face directory, see `Params::save`.
    pub fn save(&self, directory: &std::path::Path) -> Result<()> {
        self.params.save(&self.config, directory)
    }

    /// The forward pass for training; `loss_temperature` divides the logits.
    ///
    /// It keeps every activation; the weights must not change before its backward pass.
    pub fn forward(&self, rows: &Sequences, loss_temperature: f64) -> Result<Forward> {
        self.run(rows, loss_temperature, true)
    }

    /// The forward pass for scores alone.
    pub fn forward_detached(&self, rows: &Sequences, loss_temperature: f64) -> Result<Forward> {
        self.run(rows, loss_temperature, false)
    }

    fn run(&self, rows: &Sequences, loss_temperature: f64, keep: bool) -> Result<Forward> {
        rows.check(self.config.vocab_size)?;
        ensure!(
            loss_temperature.is_finite() && loss_temperature > 0.0,
            "the loss temperature is {loss_temperature}, expected more than 0 (correct the configuration)"
        );
        let model = Qwen2::new(&self.config, &self.params)?;
        let (prompt, tokens) = (rows.prompt_len, rows.completion_len);
        // The last token of a row produces no logits that anyone reads.
        let inputs = prompt + tokens - 1;
        let ids = Tensor::from_vec(rows.columns(0, inputs), (rows.rows(), inputs), &self.device)?;
        let rope = rope(&self.config, &rows.starts, inputs);
        let mut saved = Vec::new();
        let x = model.residual(&ids, &rope, |_, layer| {
            if keep {
                saved.push(layer);
            }
            Ok(())
        })?;
        let last = x.narrow(1, prompt - 1, tokens)?.contiguous()?;
        let count = rows.rows() * tokens;
        Ok(Forward {
            hidden: model.features(&last)?.reshape((count, self.config.hidden_size))?,
            head: model.head.clone(),
            targets: Tensor::from_vec(rows.columns(prompt, prompt + tokens), count, &self.device)?,
            loss_temperature,
            rows: rows.rows(),
            tokens,
            tape: keep.then(|| Tape { model, ids, rope, layers: saved, last, tied: self.config.tie_word_embeddings }),
        })
    }
}

impl Forward {
    /// Rows and completion tokens, B and T.
    pub fn dims(&self) -> (usize, usize) {
        (self.rows, self.tokens)
    }

    /// The features that produced each token's logits, `[B * T, D]`.
    pub fn hidden(&self) -> Tensor {
        self.hidden.clone()
    }

    /// The gradients of a loss whose derivative by the log-probabilities is `seed`, `[B, T]`.
    ///
    /// A detached forward pass, or a seed of another size, is an error.
    pub fn backward(&self, seed: &[f32]) -> Result<Gradients> {
        let tape = self.tape.as_ref().context("this forward pass kept no activations (call `forward`)")?;
        let (count, _) = self.hidden.dims2()?;
        ensure!(seed.len() == count, "the seed has {} numbers, expected {count}", seed.len());
        let seed = Tensor::from_slice(seed, count, self.hidden.device())?;
        let (d_hidden, d_head) =
            ops::token_logps_vjp(&self.hidden, &self.head, &self.targets, &seed, self.loss_temperature)?;
        tape.backward(&d_hidden, d_head)
    }
}

impl Gradients {
    /// Adds the gradients of another micro-batch of the same model.
    pub fn accumulate(&mut self, other: &Self) -> Result<()> {
        ensure!(self.tensors.keys().eq(other.tensors.keys()), "the gradients belong to different models");
        for (name, sum) in &mut self.tensors {
            *sum = ops::add(sum, &other.tensors[name])?;
        }
        Ok(())
    }

    /// The gradient by the weight `name`, in its shape; an unknown name is an error.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        self.tensors.get(name).with_context(|| format!("there is no gradient for `{name}`"))
    }

    /// Names and gradients, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }
}

impl FromIterator<(String, Tensor)> for Gradients {
    fn from_iter<I: IntoIterator<Item = (String, Tensor)>>(tensors: I) -> Self {
        Self { tensors: tensors.into_iter().collect() }
    }
}

/// The values of a tensor on the host, row-major, as f32.
pub(super) fn host(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?)
}
