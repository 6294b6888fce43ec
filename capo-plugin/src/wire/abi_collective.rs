//! Wire types for the connection between a run's ranks, frozen at revision 1. The host's extension came after the
//! points, under a separate id. The rules of [`crate::abi`] hold here too.

use abi_stable::StableAbi;
use abi_stable::std_types::{RResult, RSlice, RSliceMut, RVec};

use crate::abi::WireError;

/// Extension id of [`Collective`], which a host may answer during any call.
pub const COLLECTIVE: &str = "capo.collective/1";

/// The ranks of a run: processes that each hold completions of their own of a step's batch. See
/// [`Ctx::collective`](crate::Ctx::collective).
///
/// The type has no lifetime parameter, so nobody can name a lifetime that is too long. A reference to it also borrows the value behind it.
#[repr(C)]
#[derive(StableAbi, Debug)]
pub struct Collective {
    pub(crate) rank: u64,
    pub(crate) size: u64,
    pub(crate) engine: *const (),
    pub(crate) all_reduce_sum: extern "C" fn(engine: *const (), values: RSliceMut<'_, f64>) -> RResult<(), WireError>,
    pub(crate) all_gather:
        extern "C" fn(engine: *const (), values: RSlice<'_, i64>) -> RResult<RVec<RVec<i64>>, WireError>,
}
