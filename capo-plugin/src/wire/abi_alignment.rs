//! Wire types for the agreement of a step's gradient with the previous step, frozen at revision 1. The host answers
//! under a separate extension id. The rules of [`crate::abi`] hold here too.

use abi_stable::StableAbi;

/// Extension id of [`Alignment`]. A host answers it for step controls that asked for
/// [`Inputs::ALIGNMENT`](crate::Inputs::ALIGNMENT).
pub const ALIGNMENT: &str = "capo.alignment/1";

/// Agreement of the gradient with the last step: see [`Ctx::alignment`](crate::Ctx::alignment).
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy)]
pub struct Alignment {
    /// The cosine, or NaN where there is none.
    pub cosine: f64,
}
