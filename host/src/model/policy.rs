//! The policy: a configuration with its weights.

use std::ops::Range;

use anyhow::{Result, ensure};
use candle_core::{DType, Device};

use super::config::Config;
use super::files::ModelFiles;
use super::lora::{ADAPTER_CONFIG_FILE, Adapter, Base, Dropout, LoraConfig};
use super::ops::Truncation;
use super::params::Params;
use super::size;
use crate::rng;

/// A language model whose weights, or an adapter of them, can be trained.
#[derive(Debug)]
pub struct Policy {
    config: Config,
    weights: Params,
    adapter: Option<Adapter>,
    dropout: Option<Dropout>,
    device: Device,
    dtype: DType,
    gradient_checkpointing: bool,
    /// True if there is no more than the sizes of the weights.
    counted: bool,
    truncation: Option<Truncation>,
}

impl Policy {
    /// Reads configuration and weights; what is missing, malformed or unsupported is an error with its path.
    pub fn load(files: &ModelFiles, device: &Device) -> Result<Self> {
        let config = Config::load(files)?;
        let weights = Params::load(files, &config, device)?;
        let adapter = files.contains(ADAPTER_CONFIG_FILE).then(|| Adapter::load(files, &config, device)).transpose()?;
        Ok(Self { adapter, ..Self::of(config, weights, device) })
    }

    /// These weights, in f32, without an adapter.
    pub(super) fn of(config: Config, weights: Params, device: &Device) -> Self {
        let device = device.clone();
        Self {
            config,
            weights,
            adapter: None,
            dropout: None,
            device,
            dtype: DType::F32,
            gradient_checkpointing: false,
            truncation: None,
            counted: false,
        }
    }

    /// A policy whose weights are counted and nothing else, for an estimate: they are zeros that nobody reads, which take no memory on the CPU.
    pub fn counted(files: &ModelFiles) -> Result<Self> {
        let config = Config::load(files)?;
        let weights = Params::zeros(&config)?;
        Ok(Self { counted: true, ..Self::of(config, weights, &Device::Cpu) })
    }

    /// True if there is no more than the sizes of the weights.
    pub fn is_counted(&self) -> bool {
        self.counted
    }

    /// A policy with fresh weights in the architecture of `files`, drawn from the stream `model.init` of `seed`.
    pub fn fresh(files: &ModelFiles, seed: u64, device: &Device) -> Result<Self> {
        let mut rng = rng::stream(seed, "model.init", &[]);
        let mut normal = |out: &mut [f32]| rng::fill_standard_normal(&mut rng, out);
        Self::init(Config::load(files)?, device, &mut normal)
    }

    /// A policy with fresh weights; `fill_normal` fills a slice with standard normals.
    pub fn init(config: Config, device: &Device, fill_normal: &mut dyn FnMut(&mut [f32])) -> Result<Self> {
        let weights = Params::init(&config, device, fill_normal)?;
        Ok(Self::of(config, weights, device))
    }

    /// The model, frozen, with a fresh adapter that is trained in place of its weights. `seed` is for its first factors.
    pub fn with_adapter(self, lora: LoraConfig, base: Base, seed: u64) -> Result<Self> {
        let adapter = Adapter::fresh(lora, base, &self.config, seed, &self.device)?;
        Ok(Self { adapter: Some(adapter), ..self })
    }

    /// A policy that shares the weights and applies the dropout of a step's passes.
    pub fn in_training(&self, dropout: Dropout) -> Self {
        Self { dropout: Some(dropout), ..self.share() }
    }

    /// The policy with its computation in `dtype`: activations, features, the key-value cache, and the weights as products read them.
    ///
    /// The weights that are trained and saved stay f32, and so do logits and all that follows from them.
    pub fn with_dtype(self, dtype: DType) -> Self {
        Self { dtype, ..self }
    }

    /// The policy with gradient checkpointing on or off. When on, it keeps less, and the backward pass computes layers again, one at a
    /// time.
    ///
    /// No bit of a gradient changes, except for rounding where only some of the rows are passed back.
    pub fn with_gradient_checkpointing(self, gradient_checkpointing: bool) -> Self {
        Self { gradient_checkpointing, ..self }
    }

    /// The policy with log-probabilities, and gradients of them, under truncated distributions; the sampled token always stays in.
    pub fn with_truncation(self, truncation: Option<Truncation>) -> Self {
        Self { truncation, ..self }
    }

    /// A policy that shares the weights: an update of either one updates the other.
    pub fn share(&self) -> Self {
        let Self { config, weights, adapter, device, .. } = self;
        let (config, weights, adapter) = (config.clone(), weights.clone(), adapter.clone());
        Self { config, weights, adapter, device: device.clone(), ..*self }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The parameters that are trained: those of the adapter where there is one, else the weights.
    pub fn params(&self) -> &Params {
        self.adapter.as_ref().map_or(&self.weights, Adapter::params)
    }

    /// The weights of the model, trained or not.
    pub fn weights(&self) -> &Params {
        &self.weights
    }

    /// The adapter that is trained in place of the weights, where there is one.
    pub fn adapter(&self) -> Option<&Adapter> {
        self.adapter.as_ref()
    }

    /// True if the passes of a step leave something out, as no other pass does.
    pub fn drops_out(&self) -> bool {
        self.adapter.as_ref().is_some_and(|adapter| adapter.config().dropout > 0.0)
    }

    /// Overwrites what is trained with what a checkpoint in `files` has of it.
    pub fn restore(&self, files: &ModelFiles) -> Result<()> {
        match &self.adapter {
            Some(adapter) => adapter.params().assign(&adapter.factors_of(files, &self.config, &self.device)?),
            None => self.weights.restore(files, &self.config, &self.device),
        }
    }

    /// The dropout of the passes that it is used for.
    pub(super) fn dropout(&self) -> Option<Dropout> {
        self.dropout
    }

    /// The device that holds the weights.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Floating-point type of activations.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// True if a training forward pass keeps only what each layer starts from.
    pub(super) fn checkpoints_gradients(&self) -> bool {
        self.gradient_checkpointing
    }

    /// Truncation of the distribution under which log-probabilities are computed; none for the whole distribution.
    pub(super) fn truncation(&self) -> Option<Truncation> {
        self.truncation
    }

    /// A frozen copy for `ref_logps`: later updates of this policy do not reach it. That of an adapter shares the weights.
    pub fn reference(&self) -> Result<Self> {
        if let Some(adapter) = &self.adapter {
            return Ok(Self { adapter: Some(adapter.deep_copy()?), dropout: None, ..self.share() });
        }
        if self.counted {
            return Ok(self.share());
        }
        Ok(Self { weights: self.weights.deep_copy(self.dtype)?, ..self.share() })
    }

    /// Writes what is trained: a Hugging Face directory, see `Params::save`, or an adapter's.
    pub fn save(&self, directory: &std::path::Path) -> Result<()> {
        match &self.adapter {
            Some(adapter) => adapter.save(directory),
            None => self.weights.save(&self.config, directory),
        }
    }

    /// The model without its adapter. The product is added to the weights in place, and so to those of policies that share them.
    pub fn merged(self) -> Result<Self> {
        self.adapter.as_ref().map_or(Ok(()), |adapter| adapter.add_to(&self.weights))?;
        Ok(Self { adapter: None, ..self })
    }

    /// Refuses prompts and completions, the latter by the section of their setting, that together have more tokens than positions, or
    /// of which `rows` at a time do not fit into memory.
    pub fn check_lengths(&self, prompt: usize, (section, completion): (&str, usize), rows: usize) -> Result<()> {
        let (sum, limit) = (prompt.saturating_add(completion), self.config.max_position_embeddings);
        ensure!(
            sum <= limit,
            "`data.max_prompt_length` {prompt} and `{section}.max_completion_length` {completion} make {sum} tokens, the model has {limit} positions (lower one of them)"
        );
        self.check_cache(rows, completion)
    }

    /// Refuses completions, `rows` at a time, whose keys and values do not fit into memory.
    pub fn check_cache(&self, rows: usize, tokens: usize) -> Result<()> {
        if self.counted { Ok(()) } else { size::fits_cache(&self.config, rows, tokens, self.dtype, &self.device) }
    }

    /// Splits `rows` rows into equal parts of at most `most`, worked on side by side; one part unless the model is small.
    ///
    /// Small matrix products do not gain from more threads, whole parts do. The split depends on nothing but the number
    /// of rows, so neither do the bits of any result.
    pub(super) fn split(&self, rows: usize, most: usize) -> Vec<Range<usize>> {
        let parts = if self.is_small() { (2 * rows.div_ceil(2 * most)).clamp(1, rows.max(1)) } else { 1 };
        (0..parts).map(|part| part * rows / parts..(part + 1) * rows / parts).collect()
    }

    /// True if copies of the weights and of their gradients are cheap (at most 64 MiB each, on the CPU).
    pub(super) fn is_small(&self) -> bool {
        self.device.is_cpu() && self.weights.element_count() <= 1 << 24
    }
}
