//! Wire types for the rollout's context besides the batch, frozen at revision 1. The host's extension came after the
//! points, under a separate id. The rules of [`crate::abi`] hold here too.

use abi_stable::StableAbi;

/// Extension id of [`RolloutContext`]. A host answers it for components that asked for
/// [`Inputs::ROLLOUT_CONTEXT`](crate::Inputs::ROLLOUT_CONTEXT).
pub const ROLLOUT_CONTEXT: &str = "capo.rollout-context/1";

/// Memory of the host that a call may read.
///
/// The type has no lifetime parameter, so nobody can name a lifetime that is too long. A reference to it also borrows the memory behind
/// it.
#[repr(C)]
#[derive(StableAbi, Debug)]
pub struct Lent<T> {
    data: *const T,
    len: u64,
}

impl<T> Lent<T> {
    /// Borrows `values`, which must outlive the result; the caller ensures this.
    pub(crate) fn new(values: &[T]) -> Self {
        Self { data: values.as_ptr(), len: values.len() as u64 }
    }

    pub(crate) fn get(&self) -> &[T] {
        // SAFETY: `new` took both from a slice. Only `ContextData::lend` makes these values, in structs that cannot
        // be copied. They are reached through a borrow of the data alone, so the slice lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.data, self.len as usize) }
    }
}

/// The rollout's context, facts about its completions besides the batch: see
/// [`Ctx::rollout_context`](crate::Ctx::rollout_context).
#[repr(C)]
#[derive(StableAbi, Debug)]
pub struct RolloutContext {
    pub(crate) group_size: u64,
    pub(crate) tokens: u64,
    pub(crate) age: u64,
    pub(crate) prompt_ids: Lent<u32>,
    pub(crate) prompt_ends: Lent<u64>,
    pub(crate) prompt_numbers: Lent<u64>,
    pub(crate) lines: Lent<u64>,
    pub(crate) texts: Lent<u8>,
    pub(crate) text_ends: Lent<u64>,
    pub(crate) spans: Lent<u32>,
    pub(crate) reward_names: Lent<u8>,
    pub(crate) reward_name_ends: Lent<u64>,
    pub(crate) rewards: Lent<f32>,
    pub(crate) sampler_logps: Lent<f32>,
}
