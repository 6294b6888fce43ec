//! Operations as compositions of candle's own, where a kernel of the same name lacks a device, a
//! dtype or a size.
//!
//! Sums and functions are computed in f32 (f64 for f64); results have the arguments' dtype. Shapes
//! and meaning are those of the kernel. On CUDA devices each step is a kernel of candle's.

use candle_core::{D, DType, Result, Tensor};
use candle_nn::ops::softmax_last_dim;

use super::bias::sum_rows;
use super::kept::{DecodeRows, ids};

/// Mask value: far below every score, but finite, so that a row without a valid key does not become
/// NaN.
const MASKED: f64 = 1e30;

/// Number of logits that a composition takes at a time. It holds up to ten arrays of this size in
/// f64.
const FEW_LOGITS: usize = 1 << 22;

/// Splits the rows of `logits` `[N, V]` into runs of few rows, calls `part` with the first row and
/// the number of rows of each run, and joins the results. Rows do not depend on each other, so the
/// split changes no bit.
pub(super) fn few_rows(
    logits: &Tensor,
    mut part: impl FnMut(usize, usize) -> Result<Tensor>,
) -> Result<Tensor> {
    let (rows, vocab) = logits.dims2()?;
    let few = (FEW_LOGITS / vocab.max(1)).max(1);
    if rows <= few {
        return part(0, rows);
    }
    let parts: Vec<Tensor> = (0..rows)
        .step_by(few)
        .map(|from| part(from, few.min(rows - from)))
        .collect::<Result<_>>()?;
    Tensor::cat(&parts, 0)
}

/// Dtype in which sums are computed.
fn wide_dtype(x: &Tensor) -> DType {
    if x.dtype() == DType::F64 {
        DType::F64
    } else {
        DType::F32
    }
}

fn wide(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(wide_dtype(x))
}

fn inverse_rms(x: &Tensor, eps: f64) -> Result<Tensor> {
    ((x.sqr()?.sum_keepdim(D::Minus1)? / x.dim(D::Minus1)? as f64)? + eps)?
        .sqrt()?
        .recip()
}

/// `dx = r (w g - x r^2 mean(w g x))`, and the sum over rows of `g x r` for the weight, with
/// `r = 1 / rms(x)`.
pub(super) fn rms_norm_backward(
    x: &Tensor,
    weight: &Tensor,
    grad: &Tensor,
    eps: f64,
) -> Result<(Tensor, Tensor)> {
    let dtype = x.dtype();
    let width = x.dim(D::Minus1)? as f64;
    let x = wide(x)?;
    let grad = wide(grad)?;
    let r = inverse_rms(&x, eps)?;
    let normed = x.broadcast_mul(&r)?;
    let weighted = grad.broadcast_mul(&wide(weight)?)?;
    let mean = ((&weighted * &normed)?.sum_keepdim(D::Minus1)? / width)?;
    let dx = (weighted - normed.broadcast_mul(&mean)?)?.broadcast_mul(&r)?;
    Ok((
        dx.to_dtype(dtype)?,
        sum_rows(&(grad * normed)?)?.to_dtype(dtype)?,
    ))
}

/// Attends over a copy of each token's row. Products are in the cache's dtype, as for whole
/// sequences.
pub(super) fn decode_attention(
    queries: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    rows: &DecodeRows,
) -> Result<Tensor> {
    let (_, kv_heads, _, width) = keys.dims4()?;
    let dtype = keys.dtype();
    let device = keys.device();
    let active = rows.cache_rows.len();
    let count = rows.longest();
    let own = ids(&rows.cache_rows, device)?;
    let positions = ids(&rows.positions, device)?;
    let [keys, values] = [keys, values].map(|cache| {
        cache
            .narrow(2, 0, count)?
            .contiguous()?
            .index_select(&own, 0)
    });
    let index = Tensor::arange(0, count as u32, device)?.reshape((1, 1, 1, count))?;
    let seen = index.broadcast_le(&positions.reshape((active, 1, 1, 1))?)?;
    let masked = seen
        .to_dtype(wide_dtype(queries))?
        .affine(MASKED, -MASKED)?;
    let scores = wide(
        &queries
            .reshape((active, kv_heads, (), width))?
            .matmul(&keys?.t()?)?,
    )?;
    let probs = softmax_last_dim(&(scores / (width as f64).sqrt())?.broadcast_add(&masked)?)?;
    probs
        .to_dtype(dtype)?
        .matmul(&values?)?
        .reshape((active, ()))
}

/// Intermediate values for the rows of `logits` `[N, V]`.
///
/// Largest scaled logit `[N, 1]`, scaled logits minus it `[N, V]`, their exponentials `[N, V]`, and
/// the sum of the exponentials `[N, 1]`.
struct Rows {
    largest: Tensor,
    below: Tensor,
    exps: Tensor,
    sum: Tensor,
}

impl Rows {
    fn new(logits: &Tensor, temperature: f64) -> Result<Self> {
        let scaled = (wide(logits)? / temperature)?;
        let largest = scaled.max_keepdim(1)?;
        let below = scaled.broadcast_sub(&largest)?;
        let exps = below.exp()?;
        Ok(Self {
            largest,
            sum: exps.sum_keepdim(1)?,
            below,
            exps,
        })
    }
}

pub(super) fn logit_stats(logits: &Tensor, targets: &Tensor, temperature: f64) -> Result<Tensor> {
    let Rows {
        largest,
        below,
        exps,
        sum,
    } = Rows::new(logits, temperature)?;
    let log_sum = sum.log()?;
    let action = wide(&logits.gather(&targets.unsqueeze(1)?, 1)?)?;
    let logp = (((&action / temperature)? - &largest)? - &log_sum)?;
    let entropy = (&log_sum - ((below * exps)?.sum_keepdim(1)? / &sum)?)?;
    Tensor::cat(&[logp, (largest + log_sum)?, entropy, action], 1)
}

/// `d_v = d_logps / temperature * (1[v = target] - softmax(logits / temperature)_v)`.
pub(super) fn logit_gradient(
    logits: &Tensor,
    targets: &Tensor,
    d_logps: &Tensor,
    temperature: f64,
) -> Result<Tensor> {
    let Rows { exps, sum, .. } = Rows::new(logits, temperature)?;
    let weight = (wide(d_logps)?.unsqueeze(1)? / temperature)?;
    let d_logits = exps.broadcast_mul(&(weight.neg()? / sum)?)?;
    d_logits.scatter_add(&targets.unsqueeze(1)?, &weight, 1)
}

/// `d_v = -d_entropy / temperature * p_v (ln p_v + H)`, with `p = softmax(logits / temperature)`
/// and its entropy H.
pub(super) fn entropy_gradient(
    logits: &Tensor,
    d_entropy: &Tensor,
    temperature: f64,
) -> Result<Tensor> {
    let Rows {
        below, exps, sum, ..
    } = Rows::new(logits, temperature)?;
    let log_sum = sum.log()?;
    let p = exps.broadcast_div(&sum)?;
    let entropy = (&log_sum - (&below * &p)?.sum_keepdim(1)?)?;
    let surplus = below.broadcast_add(&(entropy - log_sum)?)?;
    let weight = (wide(d_entropy)?.unsqueeze(1)? / -temperature)?;
    (p * surplus)?.broadcast_mul(&weight)
}

/// KL divergence of each row. It is computed in f64, because `e^x - 1 - x` cancels: by its series
/// for changes below 0.1, directly above.
pub(super) fn divergence(logits: &Tensor, change: &Tensor, temperature: f64) -> Result<Tensor> {
    few_rows(logits, |from, len| {
        divergence_of_few(
            &logits.narrow(0, from, len)?,
            &change.narrow(0, from, len)?,
            temperature,
        )
    })
}

fn divergence_of_few(logits: &Tensor, change: &Tensor, temperature: f64) -> Result<Tensor> {
    let logits = (logits.to_dtype(DType::F64)? / temperature)?;
    let change = (change.to_dtype(DType::F64)? / temperature)?;
    let Rows { exps, sum, .. } = Rows::new(&logits, 1.0)?;
    let probs = exps.broadcast_div(&sum)?;
    let x = change.broadcast_sub(&(&probs * &change)?.sum_keepdim(1)?)?;
    let mut series = x.affine(1.0 / 40_320.0, 1.0 / 5_040.0)?;
    for factor in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 1.0 / 2.0] {
        series = ((series * &x)? + factor)?;
    }
    let far = ((x.exp()? - 1.0)? - &x)?;
    let terms = x.abs()?.lt(0.1)?.where_cond(&(series * x.sqr()?)?, &far)?;
    ((probs * terms)?.sum(1)? + 1.0)?.log()
}
