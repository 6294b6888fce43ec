//! The connection between the ranks of a run: methods for components, and a trait for hosts.

use abi_stable::std_types::{RSlice, RSliceMut, RVec};

use crate::PluginError;
use crate::wire::WireHost;

/// The ranks of a run: processes that each hold completions of their own of a step's batch.
/// [`Ctx::collective`](crate::Ctx::collective) gives it.
///
/// **All ranks must make the same calls in the same order.** Each call waits for all other ranks,
/// so a call that one rank skips never returns. A component must not decide about a call from facts
/// of one rank, such as its completions or its error. In that case the ranks agree first
/// ([`agree`](Self::agree)).
#[derive(Clone, Copy)]
pub struct Collective<'a> {
    host: &'a (dyn WireHost + 'a),
}

impl<'a> Collective<'a> {
    pub(crate) fn new(host: &'a (dyn WireHost + 'a)) -> Self {
        Self { host }
    }

    /// Index of this process among the ranks, from 0.
    pub fn rank(&self) -> usize {
        self.host.rank() as usize
    }

    /// Number of ranks. It is 1 where this process holds the whole batch; the calls then return
    /// their inputs.
    pub fn size(&self) -> usize {
        self.host.ranks() as usize
    }

    /// Replaces each of `values` by its sum over all ranks, bit for bit equal on all of them. Every
    /// rank must pass equally many values.
    ///
    /// # Errors
    ///
    /// The host's message, where the ranks cannot reach each other; the contents of `values` are
    /// then unspecified.
    pub fn all_reduce_sum(&self, values: &mut [f64]) -> Result<(), PluginError> {
        Ok(self
            .host
            .all_reduce_sum(RSliceMut::from_mut_slice(values))
            .into_result()?)
    }

    /// Returns the values of each rank, ordered by rank. Ranks may pass different numbers of
    /// values.
    ///
    /// # Errors
    ///
    /// The host's message, where the ranks cannot reach each other.
    pub fn all_gather(&self, values: &[i64]) -> Result<Vec<Vec<i64>>, PluginError> {
        let gathered = self
            .host
            .all_gather(RSlice::from_slice(values))
            .into_result()?;
        if gathered.len() != self.size() {
            return Err(PluginError::failed(format!(
                "the host gathered {} arrays from {} ranks (it must be one of each)",
                gathered.len(),
                self.size()
            )));
        }
        Ok(gathered.into_iter().map(RVec::into_vec).collect())
    }

    /// Tells the other ranks whether this rank can go on, and hears the same from them. If one rank
    /// cannot go on, none does.
    ///
    /// # Errors
    ///
    /// `own`'s error on a rank that has one. The other ranks get a message that names the failed
    /// rank.
    pub fn agree<T>(&self, own: Result<T, PluginError>) -> Result<T, PluginError> {
        let told = self.all_gather(&[i64::from(own.is_err())]);
        let own = own?;
        let told = told?;
        match told.iter().position(|told| told.first() != Some(&0)) {
            None => Ok(own),
            Some(rank) => Err(PluginError::failed(format!(
                "rank {rank} could not go on (its own error says why)"
            ))),
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

    /// Returns the values of each rank, ordered by rank. Ranks may pass different numbers of
    /// values.
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
