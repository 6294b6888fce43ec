//! A component's connection to the host during a call: reports and requests.

use abi_stable::StableAbi;
use abi_stable::std_types::{ROption, RSlice, RStr};

use crate::wire::{HostRef, WireHost};
use crate::{Collective, PluginError};

/// The host's interface during one call.
pub struct Ctx<'a> {
    /// Stored without the wire's own lifetime, which authors need not know.
    host: &'a mut (dyn WireHost + 'a),
}

impl<'a> Ctx<'a> {
    pub(crate) fn new(host: &'a mut HostRef<'_>) -> Self {
        Self { host }
    }

    /// Records one number of this step. In the metrics it appears as `component-id/name` for a mask
    /// and as `rewards/component-id/name` for a reward. The advantage estimator and the objective,
    /// of which a run has one each, use plain `name`. A name under which the host itself records is
    /// refused.
    pub fn record(&mut self, name: &str, value: f64) {
        self.host.record(RStr::from_str(name), value);
    }

    /// Records one number per token, `[B, T]`; a reward records one per completion, `[B]`. The
    /// metrics show the mean and the maximum over completion tokens as `name/mean` and `name/max`.
    /// `host replay` writes the whole array, for histograms and pictures.
    pub fn record_tokens(&mut self, name: &str, values: &[f32]) {
        self.host
            .record_tokens(RStr::from_str(name), RSlice::from_slice(values));
    }

    /// Shows a message to the user at the terminal.
    pub fn warn(&mut self, text: &str) {
        self.host.warn(RStr::from_str(text));
    }

    /// The ranks of a run; a single one where one process holds the whole batch.
    pub fn collective(&self) -> Collective<'_> {
        Collective::new(self.host)
    }

    /// The host's extension `id` as a `T`, or `None` where the host lacks the extension.
    ///
    /// # Errors
    ///
    /// When the host compiled another layout under this id.
    pub fn extension<T: StableAbi + 'static>(
        &mut self,
        id: &str,
    ) -> Result<Option<&T>, PluginError> {
        let ROption::RSome(extension) = self.host.extension(RStr::from_str(id)) else {
            return Ok(None);
        };
        extension.get::<T>().map(Some).map_err(|differences| {
            PluginError::unsupported(format!(
                "the host has another layout under extension id `{id}`\n{differences}"
            ))
        })
    }
}
