//! Causal attention over packed rows: completions that share a prompt read its keys and values, and
//! no product reads padding.

mod kernel;

use candle_core::{Result, Tensor};

use super::bf16::on_cpu;
use super::packing::{HeadSizes, Packing};

/// Values mixed by the attention of each query, `[N, H * width]`, from `queries` `[N, H * width]`
/// and `keys` and `values` `[N, KV * width]`.
///
/// A token of a prompt attends to the prompt up to itself, a token of a completion to its prompt
/// and to the completion up to itself.
pub fn attention(
    [queries, keys, values]: [&Tensor; 3],
    packing: &Packing,
    sizes: HeadSizes,
) -> Result<Tensor> {
    sizes.check(packing, [queries, keys, values])?;
    #[cfg(feature = "cuda")]
    if queries.device().is_cuda() {
        return super::cuda::attention([queries, keys, values], packing, sizes);
    }
    on_cpu([queries, keys, values], |heads| {
        kernel::attention(&heads, packing, sizes)
    })
}

/// Gradients of `attention` by queries, keys and values, from the gradient `grad` of its result.
///
/// The gradient of a prompt's keys and values is the sum over its completions, in the order of the
/// rows.
pub fn attention_backward(
    [queries, keys, values]: [&Tensor; 3],
    grad: &Tensor,
    packing: &Packing,
    sizes: HeadSizes,
) -> Result<[Tensor; 3]> {
    sizes.check(packing, [queries, keys, values])?;
    #[cfg(feature = "cuda")]
    if queries.device().is_cuda() {
        return super::cuda::attention_backward([queries, keys, values], grad, packing, sizes);
    }
    on_cpu([queries, keys, values, grad], |all| {
        kernel::attention_backward(&all, packing, sizes)
    })
}
