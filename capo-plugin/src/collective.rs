//! The connection between the ranks of a run: methods for components, and a trait for hosts.

use std::marker::PhantomData;

use abi_stable::std_types::{RResult, RSlice, RSliceMut, RVec};

use crate::abi::WireError;
use crate::abi_collective::{COLLECTIVE, Collective};
use crate::guard::caught;
use crate::{Extension, PluginError};

/// **All ranks must make the same calls in the same order.** Each call waits for all other ranks, so a call that one
/// rank skips never returns. A component must not decide about a call from facts of one rank, such as its completions
/// or its error. In that case the ranks agree first ([`agree`](Self::agree)).
impl Collective {
    /// Index of this process among the ranks, from 0.
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// Number of ranks. It is 1 where this process holds the whole batch; the calls then return their inputs.
    pub fn size(&self) -> usize {
        self.size as usize
    }

    /// Replaces each of `values` by its sum over all ranks, bit for bit equal on all of them. Every rank must pass equally many values.
    ///
    /// # Errors
    ///
    /// The host's message, where the ranks cannot reach each other; the contents of `values` are then unspecified.
    pub fn all_reduce_sum(&self, values: &mut [f64]) -> Result<(), PluginError> {
        (self.all_reduce_sum)(self.engine, RSliceMut::from_mut_slice(values)).into_result().map_err(PluginError::from)
    }

    /// Returns the values of each rank, ordered by rank. Ranks may pass different numbers of values.
    ///
    /// # Errors
    ///
    /// The host's message, where the ranks cannot reach each other.
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

    /// Tells the other ranks whether this rank can go on, and hears the same from them. If one rank cannot go on, none does.
    ///
    /// # Errors
    ///
    /// `own`'s error on a rank that has one. The other ranks get a message that names the failed rank.
    pub fn agree<T>(&self, own: Result<T, PluginError>) -> Result<T, PluginError> {
        let told = self.all_gather(&[i64::from(own.is_err())]);
        let (own, told) = (own?, told?);
        match told.iter().position(|told| told.first() != Some(&0)) {
            None => Ok(own),
            Some(rank) => Err(PluginError::failed(format!("rank {rank} could not go on (its own error says why)"))),
        }
    }
}

/// The connection between the ranks of a run. A host with several ranks implements it.
///
/// Both collective calls come while a component works, from the thread that called the component.
pub trait Ranks {
    /// Index of this process among the ranks, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks, at least 1.
    fn size(&self) -> usize;

    /// Replaces each of `values` by its sum over all ranks, bit for bit equal on all of them.
    ///
    /// # Errors
    ///
    /// A message; the component's call fails with it.
    fn all_reduce_sum(&self, values: &mut [f64]) -> Result<(), PluginError>;

    /// Returns the values of each rank, ordered by rank. Ranks may pass different numbers of values.
    ///
    /// # Errors
    ///
    /// A message; the component's call fails with it.
    fn all_gather(&self, values: &[i64]) -> Result<Vec<Vec<i64>>, PluginError>;
}

/// A single process that holds the whole batch. This is the default answer of a host.
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

/// Owner of a [`Collective`] that is valid while its `Ranks` are borrowed.
#[derive(Debug)]
pub struct Connection<'a> {
    collective: Collective,
    ranks: PhantomData<&'a ()>,
}

impl<'a> Connection<'a> {
    /// Connects to `ranks`.
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

    /// Connection of a single process.
    pub fn alone() -> Self {
        Self::new(&OneRank)
    }

    /// The host's answer to a component that asks for its extension `id`; `None` for another id.
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
    // SAFETY: `Connection::new` took `engine` from a `&R` and stored it beside a function for the same `R`, which calls here.
    // A `Collective` is only reached through a borrow of the connection, and the connection borrows the ranks.
    unsafe { &*engine.cast::<R>() }
}

/// Catches a panic, which must not cross into the component.
fn contained<T>(call: impl FnOnce() -> Result<T, PluginError>) -> RResult<T, WireError> {
    let panicked = || Err(PluginError::failed("what connects the ranks panicked (the host is at fault)"));
    caught(call).unwrap_or_else(panicked).map_err(WireError::from).into()
}
