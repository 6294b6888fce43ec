//! A component's connection to the host during a call: reports and requests.

use abi_stable::StableAbi;
use abi_stable::std_types::{ROption, RSlice, RStr};

use crate::abi::{HostRef, HostWire};
use crate::abi_alignment::{ALIGNMENT, Alignment};
use crate::abi_collective::{COLLECTIVE, Collective};
use crate::abi_context::{ROLLOUT_CONTEXT, RolloutContext};
use crate::abi_top_k::{SAMPLER_TOP_K, SamplerTopK};
use crate::{ErrorKind, PluginError};

/// The host's interface during one call.
pub struct Ctx<'a> {
    /// Stored without the wire's own lifetime, which authors need not know.
    host: &'a mut (dyn HostWire + 'a),
}

impl<'a> Ctx<'a> {
    pub(crate) fn new(host: &'a mut HostRef<'_>) -> Self {
        Self { host }
    }

    /// Records one number of this step. In the metrics it appears as `component-id/name` for a mask and as
    /// `rewards/component-id/name` for a reward. The advantage estimator and the objective, of which a run has one
    /// each, use plain `name`. A name under which the host itself records is refused.
    pub fn record(&mut self, name: &str, value: f64) {
        self.host.record(RStr::from_str(name), value);
    }

    /// Records one number per token, `[B, T]`; a reward records one per completion, `[B]`. The metrics show the mean
    /// and the maximum over completion tokens as `name/mean` and `name/max`. `host replay` writes the whole array,
    /// for histograms and pictures.
    pub fn record_tokens(&mut self, name: &str, values: &[f32]) {
        self.host.record_tokens(RStr::from_str(name), RSlice::from_slice(values));
    }

    /// Shows a message to the user at the terminal.
    pub fn warn(&mut self, text: &str) {
        self.host.warn(RStr::from_str(text));
    }

    /// The rollout's context, facts about its completions besides the batch: prompts, texts, rewards per function,
    /// and the sampler's own log-probabilities. Needs [`Inputs::ROLLOUT_CONTEXT`](crate::Inputs::ROLLOUT_CONTEXT).
    ///
    /// # Errors
    ///
    /// When the component did not ask for it.
    pub fn rollout_context(&mut self) -> Result<&RolloutContext, PluginError> {
        let sentence = "the rollout's context is not there (return `Inputs::ROLLOUT_CONTEXT` from `inputs`)";
        self.extension(ROLLOUT_CONTEXT)?.ok_or_else(|| PluginError::new(ErrorKind::MISSING_INPUT, sentence))
    }

    /// The sampler's most likely tokens at each position, with log-probabilities in its own distribution. Needs
    /// [`Inputs::SAMPLER_TOP_K`](crate::Inputs::SAMPLER_TOP_K).
    ///
    /// # Errors
    ///
    /// When the component did not ask for it.
    pub fn sampler_top_k(&mut self) -> Result<&SamplerTopK, PluginError> {
        let sentence = "the sampler's top tokens are not there (return `Inputs::SAMPLER_TOP_K` from `inputs`)";
        self.extension(SAMPLER_TOP_K)?.ok_or_else(|| PluginError::new(ErrorKind::MISSING_INPUT, sentence))
    }

    /// Cosine between the previous step and the descent direction, `−gradient`, of this step's batch, over all
    /// weights. A large value means that the last step still descends on new completions. `None` before the second
    /// step. Only step controls get it, with [`Inputs::ALIGNMENT`](crate::Inputs::ALIGNMENT).
    ///
    /// # Errors
    ///
    /// When the component did not ask for it, or is not a step control.
    pub fn alignment(&mut self) -> Result<Option<f64>, PluginError> {
        let sentence = "the step's alignment is not there (return `Inputs::ALIGNMENT` from a step control's `inputs`)";
        let alignment: Option<&Alignment> = self.extension(ALIGNMENT)?;
        let alignment = alignment.ok_or_else(|| PluginError::new(ErrorKind::MISSING_INPUT, sentence))?;
        Ok(Some(alignment.cosine).filter(|cosine| cosine.is_finite()))
    }

    /// The ranks of a run with several processes. `None` in a host without support for ranks, which counts as one rank.
    ///
    /// # Errors
    ///
    /// When the host compiled another layout under the extension id.
    pub fn collective(&mut self) -> Result<Option<&Collective>, PluginError> {
        self.extension(COLLECTIVE)
    }

    /// The host's extension `id` as a `T`, or `None` where the host lacks the extension.
    ///
    /// # Errors
    ///
    /// When the host compiled another layout under this id.
    pub fn extension<T: StableAbi>(&mut self, id: &str) -> Result<Option<&T>, PluginError> {
        let ROption::RSome(extension) = self.host.extension(RStr::from_str(id)) else { return Ok(None) };
        extension.get::<T>().map(Some).map_err(|differences| {
            PluginError::unsupported(format!("the host has another layout under extension id `{id}`\n{differences}"))
        })
    }
}
