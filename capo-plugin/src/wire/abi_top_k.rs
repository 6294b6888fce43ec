//! Wire types for the sampler's most likely tokens, drawn or not, frozen at revision 1. The host's extension came
//! after the rollout's context, under a separate id. The rules of [`crate::abi`] hold here too.

use abi_stable::StableAbi;

use crate::abi_context::Lent;

/// Extension id of [`SamplerTopK`]. A host answers it for components that asked for
/// [`Inputs::SAMPLER_TOP_K`](crate::Inputs::SAMPLER_TOP_K).
pub const SAMPLER_TOP_K: &str = "capo.sampler-top-k/1";

/// The sampler's most likely tokens: see [`Ctx::sampler_top_k`](crate::Ctx::sampler_top_k).
#[repr(C)]
#[derive(StableAbi, Debug)]
pub struct SamplerTopK {
    pub(crate) tokens: u64,
    pub(crate) k: u64,
    pub(crate) ids: Lent<u32>,
    pub(crate) logps: Lent<f32>,
}
