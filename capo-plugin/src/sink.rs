//! The receiver of a component's reports: a trait for hosts, and the wire's side of one call.

use std::collections::BTreeSet;

use abi_stable::sabi_trait::TD_Opaque;
use abi_stable::sabi_types::RMut;
use abi_stable::std_types::{ROption, RSlice, RStr};

use crate::abi::{HostRef, HostWire, HostWire_TO, WireError};
use crate::abi_alignment::ALIGNMENT;
use crate::abi_context::ROLLOUT_CONTEXT;
use crate::abi_top_k::SAMPLER_TOP_K;
use crate::error::{ErrorKind, PluginError, shortened};
use crate::{Connection, Dims, Extension, Inputs, guarded};

/// Receiver of a component's reports. Hosts implement it, and it must not panic. A report that a sink does not handle
/// goes to the sink behind it, and without such a sink is lost.
pub trait Sink {
    /// The next sink, which receives unhandled reports.
    fn behind(&mut self) -> Option<&mut dyn Sink> {
        None
    }
    /// Receives one number of this step from `component`.
    fn record(&mut self, component: &str, name: &str, value: f64) {
        if let Some(sink) = self.behind() {
            sink.record(component, name, value);
        }
    }
    /// Receives one number per token, `[B, T]`, from `component`.
    fn record_tokens(&mut self, component: &str, name: &str, values: &[f32]) {
        if let Some(sink) = self.behind() {
            sink.record_tokens(component, name, values);
        }
    }
    /// Receives a message for the user at the terminal.
    fn warn(&mut self, component: &str, text: &str) {
        if let Some(sink) = self.behind() {
            sink.warn(component, text);
        }
    }
    /// The host's extension `id`, or `None`. Without `capo.collective/1`, a component sees a single rank.
    fn extension(&mut self, id: &str) -> Option<Extension<'_>> {
        self.behind()?.extension(id)
    }
    /// Reports that a call of `method` begins, for a host that watches calls.
    fn enter(&mut self, component: &str, method: &'static str) {
        if let Some(sink) = self.behind() {
            sink.enter(component, method);
        }
    }
    /// Reports that the call has returned.
    fn leave(&mut self) {
        if let Some(sink) = self.behind() {
            sink.leave();
        }
    }
    /// The host's objection to the names recorded in this call. It is returned once and becomes the call's error.
    fn objection(&mut self) -> Option<String> {
        self.behind()?.objection()
    }
}

/// Most names that one call may record under. A component with invented names would otherwise fill memory and metrics.
const MOST_NAMES: usize = 1000;
/// Longest recorded name, bytes.
const LONGEST_NAME: usize = 200;

/// The wire's side of one call's sink. It stores a broken rule until the call returns.
struct Ear<'a> {
    component: &'a str,
    /// Length of an array that the component may record, and a description of what the array counts.
    length: (usize, &'static str),
    inputs: Inputs,
    sink: &'a mut dyn Sink,
    /// The connection of a single rank, for a host that gives none.
    alone: Connection<'static>,
    names: BTreeSet<String>,
    broken: Option<String>,
}

impl Ear<'_> {
    /// True if `name` is within the limits.
    fn takes(&mut self, name: &str) -> bool {
        if name.len() > LONGEST_NAME {
            let length = name.len();
            self.broken.get_or_insert_with(|| {
                format!("recorded under a name of {length} bytes, at most {LONGEST_NAME} are allowed")
            });
            return false;
        }
        if self.names.contains(name) {
            return true;
        }
        if self.names.len() == MOST_NAMES {
            self.broken.get_or_insert_with(|| {
                format!(
                    "recorded under more than {MOST_NAMES} names in one call, `{name}` among them (give a number per token to `record_tokens`)"
                )
            });
            return false;
        }
        self.names.insert(name.to_owned())
    }
}

impl HostWire for Ear<'_> {
    fn record(&mut self, name: RStr<'_>, value: f64) {
        if self.takes(name.as_str()) {
            self.sink.record(self.component, name.as_str(), value);
        }
    }

    fn record_tokens(&mut self, name: RStr<'_>, values: RSlice<'_, f32>) {
        if !self.takes(name.as_str()) {
            return;
        }
        let (have, (want, counted)) = (values.len(), self.length);
        if have == want {
            self.sink.record_tokens(self.component, name.as_str(), values.as_slice());
        } else {
            self.broken.get_or_insert_with(|| {
                format!("`record_tokens(\"{name}\")` got {have} values for a batch of {want} {counted}")
            });
        }
    }

    fn warn(&mut self, text: RStr<'_>) {
        self.sink.warn(self.component, &shortened(text.as_str()));
    }

    fn extension(&mut self, id: RStr<'_>) -> ROption<Extension<'_>> {
        let on_request = [
            (ROLLOUT_CONTEXT, Inputs::ROLLOUT_CONTEXT),
            (SAMPLER_TOP_K, Inputs::SAMPLER_TOP_K),
            (ALIGNMENT, Inputs::ALIGNMENT),
        ];
        let withheld = on_request.iter().any(|(known, flag)| id.as_str() == *known && !self.inputs.contains(*flag));
        if withheld {
            return ROption::RNone;
        }
        let answer = self.sink.extension(id.as_str());
        answer.or_else(|| self.alone.extension(id.as_str())).into()
    }
}

/// Length of a `[B, T]` array, and a description of what the array counts.
pub(crate) fn per_token(dims: Dims) -> (usize, &'static str) {
    (dims.len(), "tokens (B · T, padding included)")
}

/// Runs one call of `method` of a component with inputs `inputs`. Afterwards returns the first rule that the call broke as its error.
pub(crate) fn listen(
    (component, method, inputs): (&str, &'static str, Inputs),
    length: (usize, &'static str),
    sink: &mut dyn Sink,
    call: impl FnOnce(&mut HostRef<'_>) -> Result<(), WireError>,
) -> Result<(), PluginError> {
    sink.enter(component, method);
    let mut ear =
        Ear { component, length, inputs, sink, alone: Connection::alone(), names: BTreeSet::new(), broken: None };
    let outcome = {
        let mut host = HostWire_TO::from_ptr(RMut::new(&mut ear), TD_Opaque);
        guarded(|| call(&mut host))
    };
    ear.sink.leave();
    let broken = ear.broken.or_else(|| ear.sink.objection());
    outcome.map_err(PluginError::from)?;
    broken.map_or(Ok(()), |sentence| Err(contract(sentence)))
}

/// An error about a broken rule of the point.
pub(crate) fn contract(sentence: String) -> PluginError {
    PluginError::new(ErrorKind::CONTRACT, sentence)
}
