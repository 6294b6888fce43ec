//! The wire of what connects the ranks of a run, frozen at revision 1: an extension of the host's that came after the points, under an
//! id of its own. The rules of [`crate::abi`] hold here too.

use abi_stable::StableAbi;
use abi_stable::std_types::{RResult, RSlice, RSliceMut, RVec};

use crate::abi::WireError;

/// Extension id of [`Collective`], which a host may answer during any call.
pub const COLLECTIVE: &str = "capo.collective/1";

/// The processes of a run, its ranks, each of which holds completions of its own of a step's batch: see
/// [`Ctx::collective`](crate::Ctx::collective).
///
/// It carries no lifetime, so that nobody can name a longer one: whoever holds a reference to it holds one to what it was made of.
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
