//! The wire of how a step's gradient agrees with the step before, frozen at revision 1: an extension of the host's, under an id of its
//! own. The rules of [`crate::abi`] hold here too.

use abi_stable::StableAbi;

/// Extension id of [`Alignment`], which a host answers during the calls of step controls that asked for
/// [`Inputs::ALIGNMENT`](crate::Inputs::ALIGNMENT).
pub const ALIGNMENT: &str = "capo.alignment/1";

/// How the gradient agrees with the last step: see [`Ctx::alignment`](crate::Ctx::alignment).
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy)]
pub struct Alignment {
    /// The cosine, or NaN where there is none.
    pub cosine: f64,
}
