//! The wire of what the sampler thought of the tokens that it might have drawn, frozen at revision 1: an extension of the host's that
//! came after the rollout's context, under an id of its own. The rules of [`crate::abi`] hold here too.

use abi_stable::StableAbi;

use crate::abi_context::Lent;

/// Extension id of [`SamplerTopK`], which a host answers during the calls of components that asked for
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
