//! The policy: a configuration with its weights.

use std::ops::Range;

use anyhow::{Result, bail, ensure};
use candle_core::{DType, Device};

use super::config::Config;
use super::files::ModelFiles;
use super::forward::{Forward, Part};
use super::parallel::side_by_side;
use super::params::Params;
use crate::rng;

/// Most rows of one part of a forward pass.
const MOST_ROWS: usize = 32;

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
    dtype: DType,
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

    /// Some of the rows.
    #[must_use]
    pub fn slice(&self, rows: Range<usize>) -> Self {
        let length = self.prompt_len + self.completion_len;
        let ids = self.ids[rows.start * length..rows.end * length].to_vec();
        Self { ids, starts: self.starts[rows].to_vec(), ..*self }
    }

    /// The columns `from..to` of all rows.
    pub(super) fn columns(&self, from: usize, to: usize) -> Vec<u32> {
        let length = self.prompt_len + self.completion_len;
        self.ids.chunks_exact(length).flat_map(|row| row[from..to].iter().copied()).collect()
    }
}

impl Policy {
    /// Reads configuration and weights; what is missing, malformed or unsupported is an error with its path.
    pub fn load(files: &ModelFiles, device: &Device) -> Result<Self> {
        let config = Config::load(files)?;
        let params = Params::load(files, &config, device)?;
        Ok(Self { config, params, device: device.clone(), dtype: DType::F32 })
    }

    /// A policy with fresh weights in the architecture of `files`, drawn from the stream `model.init` of `seed`.
    pub fn fresh(files: &ModelFiles, seed: u64, device: &Device) -> Result<Self> {
        let mut rng = rng::stream(seed, "model.init", &[]);
        let mut normal = |out: &mut [f32]| rng::fill_standard_normal(&mut rng, out);
        Self::init(Config::load(files)?, device, &mut normal)
    }

    /// A policy with fresh weights; `fill_normal` fills a slice with standard normals.
    pub fn init(config: Config, device: &Device, fill_normal: &mut dyn FnMut(&mut [f32])) -> Result<Self> {
        config.check()?;
        let params = Params::init(&config, device, fill_normal)?;
        Ok(Self { config, params, device: device.clone(), dtype: DType::F32 })
    }

    /// The same policy computing in `dtype`: activations, features, the key-value cache and what products read of the weights.
    ///
    /// The weights that are trained and saved stay f32, and so do logits and all that follows from them.
    #[must_use]
    pub fn with_dtype(self, dtype: DType) -> Self {
        Self { dtype, ..self }
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

    /// What activations are computed in.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// A frozen copy for `ref_logps`: later updates of this policy do not reach it.
    pub fn reference(&self) -> Result<Self> {
        let params = self.params.deep_copy(self.dtype)?;
        Ok(Self { config: self.config.clone(), params, device: self.device.clone(), dtype: self.dtype })
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
        let parts = self.split(rows.rows(), MOST_ROWS);
        let part = |range: Range<usize>| Part::new(self, &rows.slice(range), loss_temperature, keep);
        Ok(Forward::new(side_by_side(parts, part)?, rows.completion_len))
    }

    /// Splits `rows` rows into equal parts of at most `most`, worked on side by side; one part unless the model is small.
    ///
    /// Small matrix products do not gain from more threads, whole parts do. The split depends on nothing but the number
    /// of rows, so neither do the bits of any result.
    pub(super) fn split(&self, rows: usize, most: usize) -> Vec<Range<usize>> {
        let parts = if self.is_small() { (2 * rows.div_ceil(2 * most)).clamp(1, rows.max(1)) } else { 1 };
        (0..parts).map(|part| part * rows / parts..(part + 1) * rows / parts).collect()
    }

    /// Whether copies of the weights and of their gradients are cheap (at most 64 MiB each, on the CPU).
    pub(super) fn is_small(&self) -> bool {
        self.device.is_cpu() && self.params.element_count() <= 1 << 24
    }
}
