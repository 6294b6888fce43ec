//! AdamW on all weights at once, where a device has a kernel for it.

use candle_core::{DType, Result, Tensor};

pub use super::trained::{AdamW, Trained};

#[cfg(not(feature = "cuda"))]
const OP: &str = "adamw";

/// True if [`squares`] and [`AdamW::update`] have kernels for these weights: all are on a CUDA
/// device, and weights and moments are f32.
pub fn takes_all(trained: &[Trained<'_>]) -> bool {
    !trained.is_empty() && trained.iter().all(takes)
}

fn takes(trained: &Trained<'_>) -> bool {
    let [mean, square] = trained.moments;
    [trained.weight, mean, square]
        .into_iter()
        .all(|x| x.dtype() == DType::F32 && has_kernel(x))
        && has_kernel(trained.grad)
        && trained.rejected.is_none_or(has_kernel)
}

#[cfg(feature = "cuda")]
fn has_kernel(x: &Tensor) -> bool {
    super::cuda::takes(x) && x.is_contiguous()
}

#[cfg(not(feature = "cuda"))]
fn has_kernel(_: &Tensor) -> bool {
    false
}

/// Sums of squares of the gradients, of the rejected ones, and of their sums; for what
/// [`takes_all`] accepts.
pub fn squares(trained: &[Trained<'_>]) -> Result<[f64; 3]> {
    #[cfg(feature = "cuda")]
    return super::cuda::squares(trained);
    #[cfg(not(feature = "cuda"))]
    super::kernel::layout_error(OP, format!("no kernel for {} weights", trained.len()))
}

impl AdamW {
    /// Updates weights and moments in place; for what [`takes_all`] accepts.
    pub fn update(&self, trained: &[Trained<'_>]) -> Result<()> {
        #[cfg(feature = "cuda")]
        return super::cuda::adamw(trained, self);
        #[cfg(not(feature = "cuda"))]
        super::kernel::layout_error(OP, format!("no kernel for {} weights", trained.len()))
    }
}
