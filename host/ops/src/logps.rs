//! Log-probabilities of tokens from logits, and their gradient, without keeping `[N, V]` tensors.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, DType, Device, Layout, Result, Shape, Tensor};

use super::kernel::{Arg, argument, dtype_error, for_rows, layout_error, maximum, rows, slice};
use super::number::{Number, Real};
use super::product::{Instructions, add_product};
use super::{
    Truncation, add_to, fused, generic, has_kernel, is_rounded, product, product_of_rows, to_dtype,
    truncate,
};

/// Number of logits that exist at one time (16 MiB in f32): a CPU's caches hold them.
const CHUNK_LOGITS: usize = 1 << 22;
/// Number of logits that exist at one time on a GPU (512 MiB in f32). After each chunk the head's
/// whole gradient is read and written.
const CHUNK_LOGITS_ON_GPU: usize = 1 << 27;
/// Smallest number of rows in a chunk, as long as their logits take at most 64 MiB: the whole head
/// is read for each chunk.
const FEWEST_ROWS: usize = 256;

/// Rows of the head whose gradients by a chunk exist at one time on a CPU.
pub const STRIP: usize = 4096;

/// Number of rows of hidden states whose logits are computed at one time on `device`.
pub fn chunk_rows(vocab: usize, device: &Device) -> usize {
    let vocab = vocab.max(1);
    if !device.is_cpu() {
        return (CHUNK_LOGITS_ON_GPU / vocab).max(1);
    }
    (CHUNK_LOGITS / vocab)
        .max((4 * CHUNK_LOGITS / vocab).min(FEWEST_ROWS))
        .max(1)
}

/// Features in the dtype in which the head reads them: bf16 where the processor has instructions
/// for it, whose sums are f32, else f32 or f64.
pub fn for_logits(hidden: &Tensor) -> Result<Tensor> {
    if hidden.dtype() != DType::BF16 || multiplies_bf16(hidden)? {
        Ok(hidden.clone())
    } else {
        to_dtype(hidden, DType::F32)
    }
}

/// True if products of `x`, which is bf16, are computed without widening it first.
fn multiplies_bf16(x: &Tensor) -> Result<bool> {
    let on_cpu = is_rounded(x) && Instructions::of_this_machine()? != Instructions::F32;
    Ok(on_cpu || takes(x))
}

/// True if a GPU has kernels for `x`.
fn takes(x: &Tensor) -> bool {
    #[cfg(feature = "cuda")]
    return super::cuda::takes(x);
    #[cfg(not(feature = "cuda"))]
    return x.device().is_cuda();
}

/// The head `[V, D]` as logits are computed with it, for a model whose activations are of `dtype`:
/// f32, or on a GPU a copy in bf16. On the CPU products round it while they read it.
pub fn head_for_logits(head: &Tensor, dtype: DType) -> Result<Tensor> {
    head.to_dtype(if dtype == DType::BF16 && head.device().is_cuda() {
        dtype
    } else {
        DType::F32
    })
}

/// Four numbers per row of `logits` `[N, V]` and target `[N]` (u32), as `[N, 4]`.
///
/// The columns are the target's log-probability (nats), the logsumexp and the entropy (nats), all
/// of `logits / temperature`; and the target's raw logit. A target outside the vocabulary is an
/// error.
pub fn logit_stats(logits: &Tensor, targets: &Tensor, temperature: f64) -> Result<Tensor> {
    if !has_kernel(logits) {
        return generic::logit_stats(logits, targets, temperature);
    }
    logits
        .contiguous()?
        .apply_op2_no_bwd(targets, &Stats { temperature })
}

/// A loss that depends on N rows' log-probabilities and entropies, given by its derivatives.
#[derive(Clone, Copy)]
pub struct TokenCotangents<'a> {
    /// `[N]`, u32: token ids.
    pub targets: &'a Tensor,
    /// `[N]`: derivative of the loss by the target's log-probability.
    pub d_logps: &'a Tensor,
    /// `[N]`: derivative by the entropy of `softmax(logits / temperature)`; `None` if the loss has
    /// no such term.
    pub d_entropy: Option<&'a Tensor>,
    /// Divisor of the logits.
    pub temperature: f64,
    /// Truncation of the distribution, if the log-probabilities are those of a truncated one.
    pub truncation: Option<Truncation>,
}

impl TokenCotangents<'_> {
    /// Gradient by the logits of `len` rows from row `from`, `[len, V]`, rounded to `dtype`.
    fn by_logits(&self, logits: &Tensor, from: usize, len: usize, dtype: DType) -> Result<Tensor> {
        let targets = self.targets.narrow(0, from, len)?;
        let d_logps = self.d_logps.narrow(0, from, len)?;
        let drawn_from = match self.truncation {
            None => logits.clone(),
            Some(truncation) => truncate(logits, &targets, truncation)?,
        };
        // The entropy's gradient is added before anything is rounded.
        let first = if self.d_entropy.is_some() {
            logits.dtype()
        } else {
            dtype
        };
        let d_logits = logit_gradient(&drawn_from, &targets, &d_logps, self.temperature, first)?;
        drop(drawn_from);
        let Some(d_entropy) = self.d_entropy else {
            return Ok(d_logits);
        };
        generic::few_rows(logits, |at, few| {
            let d_entropy = d_entropy.narrow(0, from + at, few)?;
            let by_entropy = generic::entropy_gradient(
                &logits.narrow(0, at, few)?,
                &d_entropy,
                self.temperature,
            )?;
            to_dtype(
                &super::add(&d_logits.narrow(0, at, few)?, &by_entropy)?,
                dtype,
            )
        })
    }
}

/// Gradients of a loss by `hidden` `[N, D]`, in its dtype, and by `head` `[V, D]`, in the logits';
/// neither argument may carry a graph.
///
/// The logits `hidden . head^T` are recomputed chunk by chunk.
pub fn token_logps_vjp(
    hidden: &Tensor,
    head: &Tensor,
    loss: &TokenCotangents<'_>,
) -> Result<(Tensor, Tensor)> {
    let mut d_head: Option<Tensor> = None;
    let dtype = dtype_of_logits(head);
    let d_hidden = by_hidden(hidden, head, loss, |d_logits, hidden| {
        let vocab = head.dim(0)?;
        d_head = Some(match d_head.take() {
            None => product(&d_logits.t()?, hidden, dtype)?,
            Some(sum) if fused(&sum) && sum.dtype() == DType::F32 => {
                for first in (0..vocab).step_by(STRIP) {
                    let len = STRIP.min(vocab - first);
                    let strip = product(&d_logits.narrow(1, first, len)?.t()?, hidden, dtype)?;
                    add_to(sum.narrow(0, first, len)?, &strip)?;
                }
                sum
            }
            Some(sum) => add_product(sum, &d_logits.t()?, hidden)?,
        });
        Ok(())
    })?;
    Ok((
        d_hidden,
        d_head.map_or_else(|| head.zeros_like()?.to_dtype(dtype), Ok)?,
    ))
}

/// The dtype of logits, and of the head's gradient: the head's, or f32 for a head of bf16.
fn dtype_of_logits(head: &Tensor) -> DType {
    if head.dtype() == DType::BF16 {
        DType::F32
    } else {
        head.dtype()
    }
}

/// The gradient by `hidden` alone, for a frozen head.
pub fn token_logps_by_hidden(
    hidden: &Tensor,
    head: &Tensor,
    loss: &TokenCotangents<'_>,
) -> Result<Tensor> {
    by_hidden(hidden, head, loss, |_, _| Ok(()))
}

/// The gradient by `hidden`; `each` receives the gradient by the logits of some rows, and the rows.
fn by_hidden(
    hidden: &Tensor,
    head: &Tensor,
    loss: &TokenCotangents<'_>,
    mut each: impl FnMut(&Tensor, &Tensor) -> Result<()>,
) -> Result<Tensor> {
    let (rows, _) = hidden.dims2()?;
    let chunk = chunk_rows(head.dim(0)?, head.device());
    let mut d_hidden = Vec::new();
    for from in (0..rows).step_by(chunk) {
        let len = chunk.min(rows - from);
        let hidden = hidden.narrow(0, from, len)?;
        let logits = product_of_rows(&hidden, &head.t()?, dtype_of_logits(head))?;
        let d_logits = loss.by_logits(&logits, from, len, hidden.dtype())?;
        drop(logits);
        d_hidden.push(product_of_rows(&d_logits, head, hidden.dtype())?);
        each(&d_logits, &hidden)?;
    }
    if d_hidden.is_empty() {
        hidden.zeros_like()
    } else {
        Tensor::cat(&d_hidden, 0)
    }
}

/// Gradient of `sum_n d_logps_n logp_n` by `logits` `[N, V]`, rounded to `dtype`.
fn logit_gradient(
    logits: &Tensor,
    targets: &Tensor,
    d_logps: &Tensor,
    temperature: f64,
    dtype: DType,
) -> Result<Tensor> {
    if !has_kernel(logits) {
        return generic::logit_gradient(logits, targets, d_logps, temperature)?.to_dtype(dtype);
    }
    #[cfg(feature = "cuda")]
    if logits.device().is_cuda() {
        return super::cuda::logit_gradient(logits, targets, d_logps, temperature, dtype);
    }
    to_dtype(
        &logits.apply_op3_no_bwd(targets, d_logps, &LogitGradient { temperature })?,
        dtype,
    )
}

/// Checks shapes and targets; returns the numbers of rows and of logits per row.
fn check(op: &'static str, logits: &Shape, targets: &[u32]) -> Result<(usize, usize)> {
    let &[rows, vocab] = logits.dims() else {
        return layout_error(
            op,
            format!("logits have shape {:?}, expected two axes", logits.dims()),
        );
    };
    if targets.len() != rows {
        return layout_error(
            op,
            format!("{rows} rows of logits, {} targets", targets.len()),
        );
    }
    match targets.iter().find(|target| **target as usize >= vocab) {
        Some(target) => layout_error(
            op,
            format!("token id {target} is outside the vocabulary of {vocab}"),
        ),
        None => Ok((rows, vocab)),
    }
}

fn ids<'a>(op: &'static str, storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [u32]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::U32(ids), Some((from, to))) => Ok(&ids[from..to]),
        _ => layout_error(op, "targets must be contiguous u32".to_owned()),
    }
}

/// Result of one pass over a row's logits z: largest scaled logit, `sum e^(z - max)`,
/// `sum z e^(z - max)`.
struct Pass {
    largest: f64,
    sum: f64,
    weighted: f64,
}

impl Pass {
    /// Processes blocks, so that partial sums stay small; totals are f64.
    fn over<T: Real>(logits: &[T], temperature: f64) -> Self {
        const BLOCK: usize = 256;
        let inverse = T::from_f64(1.0 / temperature);
        let largest = maximum(logits);
        let mut sum = 0.0;
        let mut weighted = 0.0;
        let mut exps = [T::from_f64(0.0); BLOCK];
        let mut products = [T::from_f64(0.0); BLOCK];
        for block in logits.chunks(BLOCK) {
            let exps = &mut exps[..block.len()];
            let products = &mut products[..block.len()];
            for ((exp, product), logit) in exps.iter_mut().zip(products.iter_mut()).zip(block) {
                let below = (*logit - largest) * inverse;
                *exp = below.exp();
                *product = below * *exp;
            }
            sum += super::kernel::sum(exps).to_f64();
            weighted += super::kernel::sum(products).to_f64();
        }
        Self {
            largest: largest.to_f64() / temperature,
            sum,
            weighted,
        }
    }
}

struct Stats {
    temperature: f64,
}

impl Stats {
    fn run<T: Real>(&self, logits: Arg<'_, T>, targets: &[u32]) -> Result<(CpuStorage, Shape)> {
        let (rows, vocab) = check(self.name(), logits.shape, targets)?;
        let logits = logits.numbers;
        let mut out = vec![T::from_f64(0.0); 4 * rows];
        for_rows!(&mut out, 4, vocab, |row, out| {
            let logits = &logits[row * vocab..][..vocab];
            let Pass {
                largest,
                sum,
                weighted,
            } = Pass::over(logits, self.temperature);
            let action = logits[targets[row] as usize];
            let log_sum = sum.ln();
            out[0] = T::from_f64(action.to_f64() / self.temperature - largest - log_sum);
            out[1] = T::from_f64(largest + log_sum);
            out[2] = T::from_f64(log_sum - weighted / sum);
            out[3] = action;
        });
        Ok((T::to_cpu_storage_owned(out), (rows, 4).into()))
    }
}

impl CustomOp2 for Stats {
    fn name(&self) -> &'static str {
        "logit-stats"
    }

    fn cpu_fwd(
        &self,
        logits: &CpuStorage,
        of_logits: &Layout,
        targets: &CpuStorage,
        of_targets: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let op = self.name();
        let targets = ids(op, targets, of_targets)?;
        match logits {
            CpuStorage::F32(_) => self.run::<f32>(argument(logits, of_logits, op)?, targets),
            CpuStorage::F64(_) => self.run::<f64>(argument(logits, of_logits, op)?, targets),
            other => dtype_error(other, op),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        logits: &CudaStorage,
        of_logits: &Layout,
        targets: &CudaStorage,
        of_targets: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        use super::cuda::{Arg, logit_stats};

        let logits = Arg::new(logits, of_logits);
        logit_stats(logits, Arg::new(targets, of_targets), self.temperature)
    }
}

/// `d_v = d_logps / temperature * (1[v = target] - softmax(logits / temperature)_v)`.
struct LogitGradient {
    temperature: f64,
}

impl LogitGradient {
    fn run<T: Number<Real = T> + Real>(
        &self,
        logits: Arg<'_, T>,
        targets: &[u32],
        d_logps: &[T],
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, vocab) = check(self.name(), logits.shape, targets)?;
        let shape = logits.shape.clone();
        let logits = logits.numbers;
        if d_logps.len() != rows {
            return layout_error(
                self.name(),
                format!("{rows} rows of logits, {} derivatives", d_logps.len()),
            );
        }
        let inverse = T::from_f64(1.0 / self.temperature);
        let out = rows!(T; logits.len(), vocab, 4, |row, out| {
            let weight = d_logps[row] * inverse;
            if weight == T::from_f64(0.0) {
                return out.fill(weight);
            }
            let logits = &logits[row * vocab..][..vocab];
            let largest = maximum(logits);
            let sum = Pass::over(logits, self.temperature).sum;
            let scale = -weight * T::from_f64(1.0 / sum);
            for (out, logit) in out.iter_mut().zip(logits) {
                *out = scale * ((*logit - largest) * inverse).exp();
            }
            out[targets[row] as usize] += weight;
        });
        Ok((T::to_cpu_storage_owned(out), shape))
    }
}

impl CustomOp3 for LogitGradient {
    fn name(&self) -> &'static str {
        "logit-gradient"
    }

    fn cpu_fwd(
        &self,
        logits: &CpuStorage,
        of_logits: &Layout,
        targets: &CpuStorage,
        of_targets: &Layout,
        d_logps: &CpuStorage,
        of_d_logps: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let op = self.name();
        let targets = ids(op, targets, of_targets)?;
        match logits {
            CpuStorage::F32(_) => {
                let d_logps = slice::<f32>(d_logps, of_d_logps, op)?;
                self.run(argument(logits, of_logits, op)?, targets, d_logps)
            }
            CpuStorage::F64(_) => {
                let d_logps = slice::<f64>(d_logps, of_d_logps, op)?;
                self.run(argument(logits, of_logits, op)?, targets, d_logps)
            }
            other => dtype_error(other, op),
        }
    }
}
