//! The receiver of a component's reports: a trait for hosts, and the wire's side of one call.

use std::collections::BTreeSet;

use abi_stable::sabi_trait::TD_Opaque;
use abi_stable::sabi_types::RMut;
use abi_stable::std_types::{ROption, RResult, RSlice, RSliceMut, RStr, RVec};

use crate::error::{ErrorKind, PluginError, shortened};
use crate::guard::caught;
use crate::wire::{HostRef, WireError, WireHost, WireHost_TO};
use crate::{Extension, OneRank, Ranks, keeping_arithmetic};

/// Receiver of a component's reports. Hosts implement it, and it must not panic. A report that a
/// sink does not handle goes to the sink behind it, and without such a sink is lost.
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
    /// The ranks of the run; `None` where this process holds the whole batch. The sink behind is
    /// not asked.
    fn ranks(&self) -> Option<&dyn Ranks> {
        None
    }
    /// The host's extension `id`, or `None`.
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
    /// The host's objection to the names recorded in this call. It is returned once and becomes the
    /// call's error.
    fn objection(&mut self) -> Option<String> {
        self.behind()?.objection()
    }
}

/// Most names that one call may record under. A component with invented names would otherwise fill
/// memory and metrics.
const MOST_NAMES: usize = 1000;
/// Longest recorded name, bytes.
const LONGEST_NAME: usize = 200;

/// The names that one call recorded under.
#[derive(Default)]
pub(crate) struct Names(BTreeSet<String>);

impl Names {
    /// Takes in one more name; a sentence if it is beyond the limits.
    pub(crate) fn take(&mut self, name: &str) -> Result<(), String> {
        let length = name.len();
        if !(1..=LONGEST_NAME).contains(&length) {
            return Err(format!(
                "recorded under a name of {length} bytes, 1 to {LONGEST_NAME} are allowed"
            ));
        }
        if self.0.len() == MOST_NAMES && !self.0.contains(name) {
            return Err(format!(
                "recorded under more than {MOST_NAMES} names in one call, `{name}` among them \
                 (give a number per token to `record_tokens`)"
            ));
        }
        self.0.insert(name.to_owned());
        Ok(())
    }
}

/// One call of a component's method.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    /// The component's name in reports.
    pub(crate) component: &'a str,
    /// Name of the method.
    pub(crate) method: &'static str,
    /// Length of an array that the component may record.
    pub(crate) length: usize,
    /// What such an array counts, for messages.
    pub(crate) counted: &'static str,
}

/// The wire's side of one call's sink.
struct HostCall<'a> {
    call: Call<'a>,
    sink: &'a mut dyn Sink,
    names: Names,
    /// The first rule that the component broke in this call.
    broken: Option<String>,
}

impl HostCall<'_> {
    fn ranks(&self) -> &dyn Ranks {
        self.sink.ranks().unwrap_or(&OneRank)
    }

    /// True if `name` is within the limits.
    fn takes(&mut self, name: &str) -> bool {
        let taken = self.names.take(name);
        let takes = taken.is_ok();
        self.broken = self.broken.take().or(taken.err());
        takes
    }
}

impl WireHost for HostCall<'_> {
    fn record(&mut self, name: RStr<'_>, value: f64) {
        if self.takes(name.as_str()) {
            self.sink.record(self.call.component, name.as_str(), value);
        }
    }

    fn record_tokens(&mut self, name: RStr<'_>, values: RSlice<'_, f32>) {
        if !self.takes(name.as_str()) {
            return;
        }
        let have = values.len();
        let Call {
            component,
            length: want,
            counted,
            ..
        } = self.call;
        if have == want {
            self.sink
                .record_tokens(component, name.as_str(), values.as_slice());
        } else {
            self.broken.get_or_insert_with(|| {
                format!(
                    "`record_tokens(\"{name}\")` got {have} values for a batch of {want} {counted}"
                )
            });
        }
    }

    fn warn(&mut self, text: RStr<'_>) {
        self.sink
            .warn(self.call.component, &shortened(text.as_str()));
    }

    fn rank(&self) -> u64 {
        self.ranks().rank() as u64
    }

    fn ranks(&self) -> u64 {
        self.ranks().size() as u64
    }

    fn all_reduce_sum(&self, values: RSliceMut<'_, f64>) -> RResult<(), WireError> {
        contained(|| self.ranks().all_reduce_sum(values.into_mut_slice()))
    }

    fn all_gather(&self, values: RSlice<'_, i64>) -> RResult<RVec<RVec<i64>>, WireError> {
        contained(|| {
            Ok(self
                .ranks()
                .all_gather(values.as_slice())?
                .into_iter()
                .map(RVec::from)
                .collect())
        })
    }

    fn extension(&mut self, id: RStr<'_>) -> ROption<Extension<'_>> {
        self.sink.extension(id.as_str()).into()
    }
}

/// Catches a panic of the host's code, which must not cross into the component.
fn contained<T>(call: impl FnOnce() -> Result<T, PluginError>) -> RResult<T, WireError> {
    let outcome = caught(call).unwrap_or_else(|| {
        Err(PluginError::failed(
            "what connects the ranks panicked (the host is at fault)",
        ))
    });
    outcome.map_err(WireError::from).into()
}

impl Call<'_> {
    /// Runs the call, whose reports go to `sink`. A rule that the call broke is its error.
    pub(crate) fn heard_by<R>(
        self,
        sink: &mut dyn Sink,
        run: impl FnOnce(&mut HostRef<'_>) -> Result<R, WireError>,
    ) -> Result<R, PluginError> {
        sink.enter(self.component, self.method);
        let mut heard = HostCall {
            call: self,
            sink,
            names: Names::default(),
            broken: None,
        };
        let outcome = {
            let mut host = WireHost_TO::from_ptr(RMut::new(&mut heard), TD_Opaque);
            keeping_arithmetic(|| run(&mut host))
        };
        heard.sink.leave();
        let broken = heard.broken.or_else(|| heard.sink.objection());
        let answer = outcome.map_err(PluginError::from)?;
        broken.map_or(Ok(answer), |sentence| Err(contract(sentence)))
    }
}

/// An error about a broken rule of the point.
pub(crate) fn contract(sentence: String) -> PluginError {
    PluginError::new(ErrorKind::CONTRACT, sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_limits() {
        let mut names = Names::default();
        for name in (0..MOST_NAMES).map(|number| number.to_string()) {
            names.take(&name).unwrap();
        }
        assert_eq!(names.take("0"), Ok(()), "it is known");
        let said =
            ["", &"n".repeat(LONGEST_NAME + 1), "more"].map(|name| names.take(name).unwrap_err());
        assert_eq!(
            said[0],
            "recorded under a name of 0 bytes, 1 to 200 are allowed"
        );
        assert_eq!(
            said[1],
            "recorded under a name of 201 bytes, 1 to 200 are allowed"
        );
        assert!(
            said[2]
                .starts_with("recorded under more than 1000 names in one call, `more` among them")
        );
    }
}
