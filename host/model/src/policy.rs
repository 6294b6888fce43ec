//! The policy: a configuration with its weights.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use candle_core::{DType, Device};

use super::config::Config;
use super::decoder::Decoder;
use super::files::ModelFiles;
use super::lora::{ADAPTER_CONFIG_FILE, Adapter, Base, Dropout, LoraConfig};
use super::ops::Truncation;
use super::params::Params;
use super::size;

/// A language model whose weights or adapter can be trained.
pub struct Policy {
    model: Model,
    pub(super) passes: PassOptions,
    /// The weights as all passes read them; `None` if each pass prepares them.
    decoder: Option<Arc<Decoder>>,
}

/// A configuration and its parameters. Clones share the parameters.
#[derive(Clone)]
struct Model {
    config: Config,
    weights: Params,
    adapter: Option<Adapter>,
    device: Device,
    /// True if the weights are zeros that only have sizes, for an estimate.
    counted: bool,
}

/// How passes over the model compute.
#[derive(Clone, Copy)]
pub(super) struct PassOptions {
    /// Floating-point type of activations.
    dtype: DType,
    /// True if a training forward pass stores only the input of each layer.
    pub(super) gradient_checkpointing: bool,
    /// Truncation of the distribution under which log-probabilities are computed; `None` for the
    /// full distribution.
    pub(super) truncation: Option<Truncation>,
    /// Identifies the dropout masks of training passes; `None` in any other pass.
    dropout: Option<Dropout>,
}

impl Policy {
    /// Reads configuration and weights. A missing, malformed or unsupported file is an error with
    /// its path.
    pub fn load(files: &ModelFiles, device: &Device) -> Result<Self> {
        let config = Config::load(files)?;
        let weights = Params::load(files, &config, device)?;
        let mut policy = Self::of(config, weights, device);
        if files.contains(ADAPTER_CONFIG_FILE) {
            let adapter = Adapter::load(files, policy.config(), device)?;
            policy.model.adapter = Some(adapter);
        }
        Ok(policy)
    }

    /// A policy with these weights, in f32 and without an adapter.
    pub(super) fn of(config: Config, weights: Params, device: &Device) -> Self {
        Self {
            model: Model {
                config,
                weights,
                adapter: None,
                device: device.clone(),
                counted: false,
            },
            passes: PassOptions {
                dtype: DType::F32,
                gradient_checkpointing: false,
                truncation: None,
                dropout: None,
            },
            decoder: None,
        }
    }

    /// A policy that only counts its weights, for an estimate of a run on `device`: they are zeros
    /// on the CPU that are never read, and take no memory.
    pub fn counted(files: &ModelFiles, device: &Device) -> Result<Self> {
        let config = Config::load(files)?;
        let weights = Params::zeros(&config)?;
        let mut policy = Self::of(config, weights, device);
        policy.model.counted = true;
        Ok(policy)
    }

    /// True if only the sizes of the weights are known.
    pub fn is_counted(&self) -> bool {
        self.model.counted
    }

    /// A policy with fresh weights in the architecture of `files`, drawn from the stream
    /// `model.init` of `seed`.
    pub fn fresh(files: &ModelFiles, seed: u64, device: &Device) -> Result<Self> {
        let mut rng = host_rng::stream(seed, "model.init", &[]);
        let mut normal = |out: &mut [f32]| host_rng::fill_standard_normal(&mut rng, out);
        Self::init(Config::load(files)?, device, &mut normal)
    }

    /// A policy with fresh weights; `fill_normal` fills a slice with standard normals.
    pub fn init(
        config: Config,
        device: &Device,
        fill_normal: &mut dyn FnMut(&mut [f32]),
    ) -> Result<Self> {
        let weights = Params::init(&config, device, fill_normal)?;
        Ok(Self::of(config, weights, device))
    }

    /// The frozen model with a fresh adapter that is trained in place of its weights. `seed`
    /// initializes the adapter's first factors.
    pub fn with_adapter(mut self, lora: LoraConfig, base: Base, seed: u64) -> Result<Self> {
        let adapter = Adapter::fresh(lora, base, self.config(), seed, self.device())?;
        self.model.adapter = Some(adapter);
        Ok(self)
    }

    /// A policy that shares the weights, and applies `dropout` in its passes.
    pub fn in_training(&self, dropout: Dropout) -> Self {
        let mut policy = self.share();
        policy.passes.dropout = Some(dropout);
        policy
    }

    /// A policy that shares the weights for passes between two of their updates. The passes share
    /// conversions of the weights, such as a GPU's copy in bf16.
    pub fn prepared(&self) -> Result<Self> {
        let mut policy = self.share();
        policy.decoder = Some(Arc::new(self.decoder()?));
        Ok(policy)
    }

    /// The weights as a pass reads them.
    pub(super) fn decoder(&self) -> Result<Decoder> {
        match &self.decoder {
            Some(decoder) => Ok(Decoder::clone(decoder)),
            None => {
                let adapter = self.adapter();
                Decoder::new(self.config(), self.weights(), adapter, self.dtype())
            }
        }
    }

    /// The policy with computation in `dtype`: activations, features, the KV cache, and the weights
    /// as inputs of products.
    ///
    /// The trained and saved weights stay f32, and so do logits and all results computed from them.
    pub fn with_dtype(mut self, dtype: DType) -> Self {
        self.passes.dtype = dtype;
        self.decoder = None;
        self
    }

    /// The policy with gradient checkpointing on or off. If on, a pass stores less, and the
    /// backward pass recomputes the layers one at a time.
    ///
    /// Gradients stay the same bit by bit, except for rounding when only some of the rows run the
    /// backward pass.
    pub fn with_gradient_checkpointing(mut self, on: bool) -> Self {
        self.passes.gradient_checkpointing = on;
        self
    }

    /// The policy with log-probabilities and their gradients under truncated distributions. The
    /// sampled token is never cut off.
    pub fn with_truncation(mut self, truncation: Option<Truncation>) -> Self {
        self.passes.truncation = truncation;
        self
    }

    /// A policy that shares the weights: an update of one also updates the other.
    pub fn share(&self) -> Self {
        Self {
            model: self.model.clone(),
            passes: self.passes,
            decoder: None,
        }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.model.config
    }

    /// The trained parameters: the factors of the adapter if there is one, else the weights.
    pub fn params(&self) -> &Params {
        self.adapter().map_or(self.weights(), Adapter::params)
    }

    /// The weights of the model, whether trained or frozen.
    pub fn weights(&self) -> &Params {
        &self.model.weights
    }

    /// The adapter that is trained in place of the weights, if there is one.
    pub fn adapter(&self) -> Option<&Adapter> {
        self.model.adapter.as_ref()
    }

    /// The dropout masks of this policy's passes; `None` if nothing is dropped. With dropout, rows
    /// with the same prompt differ.
    pub(super) fn dropout(&self) -> Option<Dropout> {
        self.passes.dropout.filter(|_| self.drops_out())
    }

    /// Probability that dropout drops a number in a training pass.
    pub(super) fn dropout_rate(&self) -> f64 {
        self.adapter()
            .map_or(0.0, |adapter| adapter.config().dropout)
    }

    /// True if the adapter has dropout in training passes.
    pub fn drops_out(&self) -> bool {
        self.dropout_rate() > 0.0
    }

    /// Overwrites the trained parameters with those of a checkpoint in `files`.
    pub fn restore(&self, files: &ModelFiles) -> Result<()> {
        match self.adapter() {
            Some(adapter) => {
                let factors = adapter.factors_of(files, self.config(), self.device())?;
                adapter.params().assign(&factors)
            }
            None => self.weights().restore(files, self.config(), self.device()),
        }
    }

    /// The device that holds the weights.
    pub fn device(&self) -> &Device {
        &self.model.device
    }

    /// Floating-point type of activations.
    pub fn dtype(&self) -> DType {
        self.passes.dtype
    }

    /// A frozen copy for `ref_logps`, which later updates of this policy do not change. With an
    /// adapter, the copy shares the weights.
    pub fn reference(&self) -> Result<Self> {
        let mut copy = self.share();
        if let Some(adapter) = self.adapter() {
            copy.model.adapter = Some(adapter.deep_copy()?);
            copy.passes.dropout = None;
        } else if !self.is_counted() {
            copy.model.weights = self.weights().deep_copy(self.dtype())?;
        }
        Ok(copy)
    }

    /// Writes the trained parameters: a Hugging Face directory, see `Params::save`, or an adapter's
    /// directory.
    pub fn save(&self, directory: &std::path::Path) -> Result<()> {
        match self.adapter() {
            Some(adapter) => adapter.save(directory),
            None => self.weights().save(self.config(), directory),
        }
    }

    /// The model with its adapter merged in. The weights change in place, so policies that share
    /// them change too. A merged weight that is not finite is an error.
    pub fn merged(mut self) -> Result<Self> {
        let Some(adapter) = self.model.adapter.take() else {
            return Ok(self);
        };
        adapter.add_to(self.weights())?;
        if let Some(name) = self.weights().not_finite()? {
            bail!("the adapter makes numbers of `{name}` infinite or NaN (use another checkpoint)");
        }
        Ok(self)
    }

    /// Refuses prompts and completions whose total length in tokens exceeds the positions, or whose
    /// keys and values do not fit into memory for `rows` completions at a time. `section` is the
    /// configuration section that sets the completion length.
    pub fn check_lengths(
        &self,
        section: &str,
        prompt: usize,
        completion: usize,
        rows: usize,
    ) -> Result<()> {
        let sum = prompt.saturating_add(completion);
        let limit = self.config().max_position_embeddings;
        ensure!(
            sum <= limit,
            "`data.max_prompt_length` {prompt} and `{section}.max_completion_length` {completion} \
             make {sum} tokens, the model has {limit} positions (lower one of them)"
        );
        self.check_cache(rows, completion)
    }

    /// Refuses completions whose keys and values, for `rows` rows at a time, do not fit into
    /// memory.
    pub fn check_cache(&self, rows: usize, tokens: usize) -> Result<()> {
        if self.is_counted() {
            return Ok(());
        }
        size::fits_cache(self.config(), rows, tokens, self.dtype(), self.device())
    }

    /// Splits `rows` rows into equal parts of at most `most`, which run in parallel; a larger model
    /// gets one part.
    ///
    /// Small matrix products do not gain from more threads, but whole parts do. The split depends
    /// only on the number of rows, so the number of threads does not affect the bits of any result.
    pub(super) fn split(&self, rows: usize, most: usize) -> Vec<Range<usize>> {
        let parts = if self.is_small() {
            (2 * rows.div_ceil(2 * most)).clamp(1, rows.max(1))
        } else {
            1
        };
        (0..parts)
            .map(|part| part * rows / parts..(part + 1) * rows / parts)
            .collect()
    }

    /// True if copies of the weights and of their gradients are cheap (at most 64 MiB each, on the
    /// CPU).
    pub(super) fn is_small(&self) -> bool {
        self.device().is_cpu() && self.weights().element_count() <= 1 << 24
    }
}
