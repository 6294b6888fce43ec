//! Tensor operations that candle lacks or has only without a backward pass.
//!
//! Each operation is a candle custom op with a CPU kernel generic over `f32` and `f64`. Each
//! backward pass is a separate function, which the trainer's own backward pass calls: candle's
//! autograd does not see through these ops. All kernels compute row by row in a fixed order, so the
//! bits of a result do not depend on the number of threads. The bits of a row do not depend on the
//! rows beside it, except in [`product`] and [`matmul`]; [`product_of_rows`] is the product for
//! which this holds too. CUDA devices have kernels of their own (`cuda`) for f32 and bf16, and
//! `generic` composes candle's operations where a kernel is missing. On the CPU, kernels compute
//! bf16 in f32: they widen numbers as they read them and round results as they write them.

use candle_core::{DType, Tensor};

pub mod adamw;
mod add;
mod attention;
mod bf16;
mod bias;
mod by_row;
#[cfg(feature = "cuda")]
mod cuda;
mod decode;
mod divergence;
mod draw;
mod few_rows;
mod finite;
#[cfg(feature = "testing")]
mod forced;
mod generic;
mod kept;
mod kernel;
mod logps;
mod number;
pub mod optimizer;
mod packing;
mod product;
mod rms_norm;
mod rope;
mod rows;
mod swiglu;
#[cfg(feature = "testing")]
pub mod testing;
mod top;
mod trained;
mod truncate;

pub use add::{add, add_to};
pub use attention::{attention, attention_backward};
use bf16::{by_kernel, is_rounded, on_cpu};
pub use bf16::{narrowed, round_by_chance, to_dtype};
pub use bias::{add_bias, sum_rows};
pub use by_row::product_of_rows;
#[cfg(feature = "cuda")]
pub use cuda::{are_kernels_kept, load_kernels};
pub use decode::{append_to_cache, decode_attention, decode_heads};
pub use divergence::{divergence, divergence_of_products};
pub use draw::{NOT_FINITE, argmax, draw, pick, weigh};
pub use few_rows::{Streamed, products_of_few_rows};
pub use finite::is_finite;
pub use kept::{DecodeRows, Starts};
pub use kernel::{sum_blocks, sum_squares};
pub use logps::{
    STRIP, TokenCotangents, chunk_rows, for_logits, head_for_logits, logit_stats,
    token_logps_by_hidden, token_logps_vjp,
};
pub use packing::{BLOCK, HeadSizes, Packing, SHARE, Tables};
pub use product::{check_instructions, matmul, product};
pub use rms_norm::{add_rms_norm, rms_norm, rms_norm_backward};
pub use rope::{Frequencies, Rope, RopeTable};
pub use rows::add_rows;
pub use swiglu::{swiglu, swiglu_backward};
pub use top::{top_ids, top_k};
pub use truncate::{Truncation, nucleus, truncate};

/// Parts of the kernels, for tests of these parts.
#[cfg(feature = "testing")]
pub mod parts {
    pub use crate::bf16::{narrow, widen};
    pub use crate::kernel::{dot, maximum, sum};
    pub use crate::number::{exp_f32, exp_f64};
    pub use crate::product::Instructions;
    pub use crate::product::operand::{Factors, LINES, Operand, Strides, Sums, TILE, WORDS};
    pub use crate::product::tile::{configured, multiply};
}

/// True if the fused CPU kernels support `x`; other tensors use `generic`.
pub fn fused(x: &Tensor) -> bool {
    #[cfg(feature = "testing")]
    if forced::GENERIC.get() {
        return false;
    }
    x.device().is_cpu() && matches!(x.dtype(), DType::F32 | DType::F64)
}

/// True if a fused kernel on the CPU or on CUDA supports the logits `x`; other tensors use
/// `generic`.
fn has_kernel(x: &Tensor) -> bool {
    fused(x) || x.device().is_cuda()
}
