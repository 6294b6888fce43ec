//! AdamW on all weights at once, where a device has a kernel for it.

use candle_core::{Result, Tensor};

pub use super::trained::{AdamW, Trained};

#[cfg(not(feature = "cuda"))]
const OP: &str = "adamw";

/// True if [`squares`] and [`AdamW::update`] have kernels for these weights: all are on a CUDA
/// device, and weights and moments are f32.
pub fn takes_all(trained: &[Trained<'_>]) -> bool {
    #[cfg(feature = "cuda")]
    let takes = |x: &Tensor| super::cuda::takes(x) && x.is_contiguous();
    #[cfg(not(feature = "cuda"))]
    let takes = |_: &Tensor| false;
    let f32 = |x: &Tensor| takes(x) && x.dtype() == candle_core::DType::F32;
    let one = |one: &Trained<'_>| {
        let [mean, square] = one.moments;
        f32(one.weight)
            && f32(mean)
            && f32(square)
            && takes(one.grad)
            && one.rejected.is_none_or(takes)
    };
    !trained.is_empty() && trained.iter().all(one)
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
