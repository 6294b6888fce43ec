//! The plugin's side of the wire. An adapter turns an author's component into a wire object,
//! catches its panics before they reach the ABI, and retires an instance that panicked.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

use abi_stable::std_types::RResult;

use crate::wire::WireError;
use crate::{ErrorKind, Inputs, Keys, PluginError, Reduction, Table, Traits};

/// Answers that a component gives once, at creation, so that asking for them on the wire cannot
/// fail.
#[derive(Clone, Copy)]
pub(crate) struct Answers {
    pub(crate) inputs: Inputs,
    pub(crate) reduction: Reduction,
    pub(crate) restores_moments: bool,
    pub(crate) traits: Traits,
}

impl Answers {
    pub(crate) const NONE: Self = Self {
        inputs: Inputs::NONE,
        reduction: Reduction::COMPLETION_MEAN,
        restores_moments: false,
        traits: Traits::NONE,
    };
}

/// An author's component behind the wire.
pub(crate) struct Guarded<T> {
    component: ManuallyDrop<T>,
    pub(crate) answers: Answers,
    retired: bool,
}

/// Builds a component from its table and asks for its fixed answers.
pub(crate) fn create<T: Keys>(
    json: &str,
    validate: fn(&T) -> Result<(), PluginError>,
    ask: impl FnOnce(&T) -> Answers,
) -> Result<Guarded<T>, PluginError> {
    let built = catch_unwind(AssertUnwindSafe(|| {
        // Not dropped where a question panics: a second panic, in the component's `drop`, would
        // abort.
        let component = ManuallyDrop::new(Table::of_json(json)?.read::<T>()?);
        if let Err(error) = validate(&component) {
            drop(ManuallyDrop::into_inner(component));
            return Err(PluginError::config(error.message()));
        }
        let answers = ask(&component);
        Ok(Guarded {
            component,
            answers,
            retired: false,
        })
    }));
    built.unwrap_or_else(|payload| Err(panicked("while it was created", payload)))
}

impl<T> Guarded<T> {
    pub(crate) fn call<R>(
        &mut self,
        method: &str,
        work: impl FnOnce(&mut T) -> Result<R, PluginError>,
    ) -> RResult<R, WireError> {
        // A panic leaves the instance retired.
        let retired = std::mem::replace(&mut self.retired, true);
        contained(retired, method, || {
            let outcome = work(&mut self.component);
            self.retired = false;
            outcome
        })
    }

    /// Calls a method without `&mut self`, such as `save`. A panic there leaves the instance as it
    /// was.
    pub(crate) fn call_shared<R>(
        &self,
        method: &str,
        work: impl FnOnce(&T) -> Result<R, PluginError>,
    ) -> RResult<R, WireError> {
        contained(self.retired, method, || work(&self.component))
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        // A panic in an author's `drop` must not cross the ABI. Memory that the component had yet
        // to free leaks. SAFETY: `self` is being dropped, so nobody uses `component` after this.
        caught(|| unsafe { ManuallyDrop::drop(&mut self.component) });
    }
}

/// Runs `work`; `None` where it panics. The payload is leaked, because its own `drop` could panic
/// again.
pub(crate) fn caught<R>(work: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(work))
        .map_err(std::mem::forget)
        .ok()
}

/// Runs `work` unless the instance is retired; a panic becomes an error.
fn contained<R>(
    retired: bool,
    method: &str,
    work: impl FnOnce() -> Result<R, PluginError>,
) -> RResult<R, WireError> {
    let outcome = if retired {
        let sentence =
            "called again after it panicked (the instance is retired; start the run again)";
        Err(PluginError::new(ErrorKind::PANIC, sentence))
    } else {
        catch_unwind(AssertUnwindSafe(work))
            .unwrap_or_else(|payload| Err(panicked(&format!("in `{method}`"), payload)))
    };
    outcome.map_err(WireError::from).into()
}

fn panicked(place: &str, payload: Box<dyn Any + Send>) -> PluginError {
    let words = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    let error = PluginError::new(ErrorKind::PANIC, format!("panicked {place}: {words}"));
    // The payload's own `drop` could panic again, so it is leaked.
    std::mem::forget(payload);
    error
}
