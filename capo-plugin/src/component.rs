//! The host's side of the wire: a handle that calls a component and checks its results. Each point
//! has its own method.

use abi_stable::StableAbi;
use abi_stable::std_types::{ROption, RResult, RSlice, RStr, RVec};

use crate::call::{PluginObject, keeping_arithmetic};
use crate::sink::{Call, Sink, contract};
use crate::wire::{HostRef, WireBatch, WireError};
use crate::{Batch, Dims, Extension, Inputs, PluginError, Point};

/// A component's object on the wire, for code that all points share.
pub trait WireObject: StableAbi + Sized + 'static {
    /// The point.
    const POINT: Point;
    #[doc(hidden)]
    fn inputs(&self) -> Inputs;
    #[doc(hidden)]
    fn save(&self) -> RResult<RVec<u8>, WireError>;
    #[doc(hidden)]
    fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError>;
    #[doc(hidden)]
    fn extension(&mut self, id: RStr<'_>) -> ROption<Extension<'_>>;
}

/// A live component of this executable or of a plugin; `W` is its object on the wire.
pub struct Component<W> {
    pub(crate) id: String,
    pub(crate) wire: PluginObject<W>,
    inputs: Inputs,
}

impl<W: WireObject> Component<W> {
    pub(crate) fn new(id: &str, wire: W) -> Self {
        let inputs = keeping_arithmetic(|| wire.inputs());
        Self {
            id: id.to_owned(),
            inputs,
            wire: PluginObject::new(id, wire),
        }
    }

    /// The component's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Inputs that the host must compute for the component. The host asks once, at creation.
    pub fn inputs(&self) -> Inputs {
        self.inputs
    }

    /// Gives the component another id in reports and messages. A host needs it to run one component
    /// twice.
    #[must_use]
    pub fn renamed(self, id: &str) -> Self {
        Self {
            id: id.to_owned(),
            ..self
        }
    }

    /// The component's state for a checkpoint.
    ///
    /// # Errors
    ///
    /// The component's own message, prefixed with its id.
    pub fn save(&self) -> Result<Vec<u8>, PluginError> {
        let state = keeping_arithmetic(|| self.wire.save().into_result());
        state
            .map(RVec::into_vec)
            .map_err(|error| self.named(error.into()))
    }

    /// Restores a saved state.
    ///
    /// # Errors
    ///
    /// The component's own message, prefixed with its id.
    pub fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
        let loaded = keeping_arithmetic(|| self.wire.load(RSlice::from_slice(state)).into_result());
        loaded.map_err(|error| self.named(error.into()))
    }

    /// The component's extension `id`, or `None` when it does not know it. Later versions of a
    /// point ask for their additions here.
    ///
    /// # Errors
    ///
    /// When the plugin compiled another layout under this id: the differences, as abi_stable prints
    /// them.
    pub fn extension<T: StableAbi + 'static>(&mut self, id: &str) -> Result<Option<&T>, String> {
        match keeping_arithmetic(|| self.wire.extension(RStr::from_str(id))) {
            ROption::RNone => Ok(None),
            ROption::RSome(extension) => extension.get::<T>().map(Some),
        }
    }

    /// Calls `method` with the part of `batch` that the component asked for.
    pub(crate) fn call(
        &mut self,
        method: &'static str,
        sink: &mut dyn Sink,
        batch: &Batch<'_>,
        work: impl FnOnce(&mut W, &mut HostRef<'_>, &WireBatch<'_>) -> RResult<(), WireError>,
    ) -> Result<(), PluginError> {
        let seen = WireBatch::from(&batch.with_only(self.inputs));
        let wire = &mut self.wire;
        let call = Call {
            component: &self.id,
            method,
            length: batch.dims.len(),
            counted: "tokens (B · T, padding included)",
        };
        let outcome = call.heard_by(sink, |host| work(wire, host, &seen).into_result());
        outcome.map_err(|error| self.named(error))
    }

    pub(crate) fn named(&self, error: PluginError) -> PluginError {
        error.context(format_args!("component `{}`", self.id))
    }

    /// Refuses the first `[B, T]` entry for which `broken` returns a description and the violated
    /// rule.
    pub(crate) fn check(
        &self,
        dims: Dims,
        broken: impl Fn(usize) -> Option<(String, &'static str)>,
    ) -> Result<(), PluginError> {
        let tokens = dims.tokens.max(1) as usize;
        let found = (0..dims.len()).find_map(|i| Some((i / tokens, i % tokens, broken(i)?)));
        let Some((completion, token, (what, rule))) = found else {
            return Ok(());
        };
        Err(self.named(contract(format!(
            "{what} at completion {completion}, token {token}{rule}"
        ))))
    }

    /// Checks that every value is finite, and zero on padding.
    pub(crate) fn check_per_token(
        &self,
        what: &str,
        values: &[f32],
        batch: &Batch<'_>,
    ) -> Result<(), PluginError> {
        self.check(batch.dims, |i| match values[i] {
            value if !value.is_finite() => {
                Some((format!("{what} is {value}"), " (it must be finite)"))
            }
            value if batch.completion_mask[i] == 0 && value != 0.0 => Some((
                format!("{what} is {value}"),
                ", which is padding (leave padding at 0)",
            )),
            _ => None,
        })
    }
}
