//! The connection between the ranks of a run: calls for components, and a trait for hosts.

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

use abi_stable::std_types::{RResult, RSlice, RSliceMut, RVec};

use crate::abi::WireError;
use crate::abi_collective::{COLLECTIVE, Collective};
use crate::error::PluginError;
use crate::extension::Extension;

/// **All ranks make the same calls in the same order**, and each waits for all others: a call that one makes and another does not would
/// never come back. So whether to call must not depend on what one rank alone knows, such as its own completions or its own error; where
/// it does, the ranks agree first ([`agree`](Self::agree)).
impl Collective {
    /// This process's place among the ranks, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// How many ranks there are; 1 where this process holds the whole batch, and the calls give back what they got.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size as usize
    }

    /// Replaces each of `values`, of which every rank passes as many, by its sum over all ranks: the same bits on all of them.
    ///
    /// # Errors
    ///
    /// The host's sentence, where the ranks cannot hear each other; `values` are as they may be then.
    pub fn all_reduce_sum(&self, values: &mut [f64]) -> Result<(), PluginError> {
        (self.all_reduce_sum)(self.engine, RSliceMut::from_mut_slice(values)).into_result().map_err(PluginError::from)
    }

    /// The values of each rank, which may be of different numbers, in the order of ranks.
    ///
    /// # Errors
    ///
    /// The host's sentence, where the ranks cannot hear each other.
    pub fn all_gather(&self, values: &[i64]) -> Result<Vec<Vec<i64>>, PluginError> {
        let gathered = (self.all_gather)(self.engine, RSlice::from_slice(values)).into_result()?;
        if gathered.len() != self.size() {
            let (got, size) = (gathered.len(), self.size);
            return Err(PluginError::failed(format!(
                "the host gathered {got} arrays from {size} ranks (it must be one of each)"
            )));
        }
        Ok(gathered.into_iter().map(RVec::into_vec).collect())
    }

    /// Tells the other ranks whether this one can go on, and hears it of them: where one cannot, none does.
    ///
    /// # Errors
    ///
    /// `own`'s error, and on the other ranks a sentence that names the rank which has one.
    pub fn agree<T>(&self, own: Result<T, PluginError>) -> Result<T, PluginError> {
        let told = self.all_gather(&[i64::from(own.is_err())]);
        let (own, told) = (own?, told?);
        match told.iter().position(|told| told.first() != Some(&0)) {
            None => Ok(own),
            Some(rank) => Err(PluginError::failed(format!("rank {rank} could not go on (its own error says why)"))),
        }
    }
}

/// The connection between the ranks of a run: implemented by hosts that have several.
///
/// Both calls come while a component works, from the thread that called it.
pub trait Ranks {
    /// This process's place, from 0.
    fn rank(&self) -> usize;

    /// How many there are, at least 1.
    fn size(&self) -> usize;

    /// Replaces each of `values` by its sum over all ranks: the same bits on all of them.
    ///
    /// # Errors
    ///
    /// A sentence; the component's call fails with it.
    fn all_reduce_sum(&self, values: &mut [f64]) -> Result<(), PluginError>;

    /// The values of each rank, which may be of different numbers, in the order of ranks.
    ///
    /// # Errors
    ///
    /// A sentence; the component's call fails with it.
    fn all_gather(&self, values: &[i64]) -> Result<Vec<Vec<i64>>, PluginError>;
}

/// The one process that holds the whole batch: what a host answers that does not say otherwise.
#[derive(Debug, Clone, Copy)]
pub struct OneRank;

impl Ranks for OneRank {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn all_reduce_sum(&self, _values: &mut [f64]) -> Result<(), PluginError> {
        Ok(())
    }

    fn all_gather(&self, values: &[i64]) -> Result<Vec<Vec<i64>>, PluginError> {
        Ok(vec![values.to_vec()])
    }
}

/// A [`Collective`] that is good for as long as its ranks are borrowed.
#[derive(Debug)]
pub struct Connection<'a> {
    collective: Collective,
    ranks: PhantomData<&'a ()>,
}

impl<'a> Connection<'a> {
    /// Through `ranks`.
    #[must_use]
    pub fn new<R: Ranks>(ranks: &'a R) -> Self {
        let collective = Collective {
            rank: ranks.rank() as u64,
            size: ranks.size() as u64,
            engine: std::ptr::from_ref(ranks).cast(),
            all_reduce_sum: all_reduce_sum::<R>,
            all_gather: all_gather::<R>,
        };
        Self { collective, ranks: PhantomData }
    }

    /// Of a process that is alone.
    #[must_use]
    pub fn alone() -> Self {
        Self::new(&OneRank)
    }

    /// The host's answer to a component that asks for its extension `id`; none where the id is another's.
    #[must_use]
    pub fn extension(&self, id: &str) -> Option<Extension<'_>> {
        (id == COLLECTIVE).then(|| Extension::of(&self.collective))
    }
}

extern "C" fn all_reduce_sum<R: Ranks>(engine: *const (), values: RSliceMut<'_, f64>) -> RResult<(), WireError> {
    contained(|| ranks::<R>(engine).all_reduce_sum(values.into_mut_slice()))
}

extern "C" fn all_gather<R: Ranks>(engine: *const (), values: RSlice<'_, i64>) -> RResult<RVec<RVec<i64>>, WireError> {
    contained(|| Ok(ranks::<R>(engine).all_gather(values.as_slice())?.into_iter().map(RVec::from).collect()))
}

fn ranks<'a, R>(engine: *const ()) -> &'a R {
    // SAFETY: `Connection::new` took `engine` from a `&R` and put the function that calls here, for the same `R`, beside it. A `Collective`
    // is reached through a borrow of the connection alone, which borrows the ranks.
    unsafe { &*engine.cast::<R>() }
}

/// A panic must not cross to the component.
fn contained<T>(call: impl FnOnce() -> Result<T, PluginError>) -> RResult<T, WireError> {
    let outcome = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        std::mem::forget(payload);
        Err(PluginError::failed("what connects the ranks panicked (the host is at fault)"))
    });
    outcome.map_err(WireError::from).into()
}
