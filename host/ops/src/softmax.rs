//! Causal softmax over attention scores of left-padded rows.

use candle_core::{CustomOp1, CustomOp2, Result, Shape, Tensor};

use super::kernel::{Arg, Real, custom_op, dot, for_rows, layout_error, maximum, sum};
use super::{Starts, by_kernel, generic};

/// `softmax(scale * scores)` over the keys `starts[b]..=i` of query `i`, for `scores` `[B, H, Q, S]` of the last Q of S queries.
///
/// Other keys get 0, and so do all keys of a query in the padding (`i < starts[b]`).
pub fn causal_softmax(scores: &Tensor, starts: &Starts, scale: f64) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if super::cuda::takes(scores) {
        return super::cuda::causal_softmax(scores, starts, scale);
    }
    let kernel = CausalSoftmax(Masked { starts: starts.clone(), scale });
    by_kernel([scores], || generic::causal_softmax(scores, starts, scale), |[scores]| scores.apply_op1_no_bwd(&kernel))
}

/// Gradient of `causal_softmax` by `scores`, from its result `probs` and the result's gradient `grad`.
pub fn causal_softmax_backward(probs: &Tensor, grad: &Tensor, starts: &Starts, scale: f64) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if super::cuda::takes(probs) {
        return super::cuda::causal_softmax_backward(probs, grad, starts, scale);
    }
    let kernel = CausalSoftmaxBackward(Masked { starts: starts.clone(), scale });
    by_kernel(
        [probs, grad],
        || generic::causal_softmax_backward(probs, grad, scale),
        |[probs, grad]| probs.apply_op2_no_bwd(&grad, &kernel),
    )
}

#[derive(Clone)]
struct Masked {
    starts: Starts,
    scale: f64,
}

struct CausalSoftmax(Masked);
struct CausalSoftmaxBackward(Masked);

impl Masked {
    /// The sizes of scores; an error if the shape does not fit.
    fn sizes(&self, op: &'static str, shape: &Shape) -> Result<Sizes> {
        match shape.dims() {
            &[rows, heads, queries, tokens] if rows == self.starts.len() && queries <= tokens => {
                Ok(Sizes { heads, queries, tokens })
            }
            other => layout_error(op, format!("scores {other:?} do not fit {} starts", self.starts.len())),
        }
    }

    /// Valid keys of the query on line `line` of `[B * H * Q, S]`.
    #[inline(always)]
    fn keys(&self, line: usize, Sizes { heads, queries, tokens }: Sizes) -> std::ops::Range<usize> {
        let query = line % queries + tokens - queries;
        self.starts[line / (heads * queries)].min(query + 1)..query + 1
    }
}

/// H, Q and S.
#[derive(Clone, Copy)]
struct Sizes {
    heads: usize,
    queries: usize,
    tokens: usize,
}

impl CausalSoftmax {
    fn run<T: Real>(&self, (scores, shape): Arg<'_, T>) -> Result<(Vec<T>, Shape)> {
        let sizes = self.0.sizes(self.name(), shape)?;
        let tokens = sizes.tokens;
        let scale = T::from_f64(self.0.scale);
        let mut out = vec![T::from_f64(0.0); scores.len()];
        for_rows!(&mut out, tokens, |line, out| {
            let keys = self.0.keys(line, sizes);
            if keys.is_empty() {
                return;
            }
            let scores = &scores[line * tokens..][keys.clone()];
            let out = &mut out[keys];
            let largest = maximum(scores);
            for (out, score) in out.iter_mut().zip(scores) {
                *out = (scale * (*score - largest)).exp();
            }
            let inverse = T::from_f64(1.0) / sum(out);
            out.iter_mut().for_each(|out| *out *= inverse);
        });
        Ok((out, shape.clone()))
    }
}

custom_op!(CausalSoftmax, "causal-softmax", CustomOp1);

/// `ds = scale * p * (g - p.g)`.
impl CausalSoftmaxBackward {
    fn run<T: Real>(&self, (p, shape): Arg<'_, T>, (g, _): Arg<'_, T>) -> Result<(Vec<T>, Shape)> {
        let sizes = self.0.sizes(self.name(), shape)?;
        let tokens = sizes.tokens;
        let scale = T::from_f64(self.0.scale);
        let mut out = vec![T::from_f64(0.0); p.len()];
        for_rows!(&mut out, tokens, |line, out| {
            let keys = self.0.keys(line, sizes);
            let (p, g) = (&p[line * tokens..][keys.clone()], &g[line * tokens..][keys.clone()]);
            let mean = dot(p, g);
            for ((out, p), g) in out[keys].iter_mut().zip(p).zip(g) {
                *out = scale * *p * (*g - mean);
            }
        });
        Ok((out, shape.clone()))
    }
}

custom_op!(CausalSoftmaxBackward, "causal-softmax-backward", CustomOp2);
