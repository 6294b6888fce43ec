//! Norms of gradients, steps of AdamW, and copies in bf16, for all weights at once.

use candle_core::{DType, Device, Result, Tensor};

use super::super::kernel::layout_error;
use super::super::trained::{AdamW, Trained};
use super::launch::{Launch, address, device_of, unwritten};

/// Numbers that a block takes, as in `optimizer.cuh`.
const CHUNK: usize = 16_384;

/// The weights on their device, as the kernels read them.
///
/// The table holds addresses, so the tensors must outlive the launch that reads it.
struct Table {
    /// Words of 64 bits, as `Trained` in `optimizer.cuh` lays them out.
    words: Tensor,
    /// Number of blocks.
    blocks: usize,
}

impl Table {
    fn new(trained: &[Trained<'_>]) -> Result<Self> {
        let device = trained[0].weight.device();
        let mut words = Vec::new();
        let mut blocks = 0usize;
        for one in trained {
            let Ok(chunk) = u32::try_from(blocks) else {
                return layout_error("optimizer", "there are too many weights".to_owned());
            };
            let count = one.weight.elem_count();
            let factor = u64::from((one.decay_factor as f32).to_bits());
            let flags = is_bf16(one.grad) | one.rejected.map_or(0, is_bf16) << 32;
            words.extend(addresses(one, device)?);
            let numbers = [count as u64, u64::from(chunk) | factor << 32, flags];
            words.extend(numbers.map(u64::cast_signed));
            blocks += count.div_ceil(CHUNK);
        }
        let words = Tensor::from_vec(words, (trained.len(), 8), device)?;
        Ok(Self { words, blocks })
    }
}

fn is_bf16(tensor: &Tensor) -> u64 {
    u64::from(tensor.dtype() == DType::BF16)
}

/// Addresses of a weight, its moments, its gradient and its rejected gradient, 0 for one that is
/// absent.
fn addresses(trained: &Trained<'_>, device: &Device) -> Result<[i64; 5]> {
    let Trained {
        weight,
        moments: [mean, square],
        grad,
        rejected,
        ..
    } = *trained;
    let mut addresses = [0i64; 5];
    let tensors = [Some(weight), Some(mean), Some(square), Some(grad), rejected];
    for (place, (tensor, slot)) in tensors.into_iter().zip(&mut addresses).enumerate() {
        let Some(tensor) = tensor else { continue };
        let dtype_fits =
            tensor.dtype() == DType::F32 || (place >= 3 && tensor.dtype() == DType::BF16);
        let fits = dtype_fits
            && tensor.device().same_device(device)
            && tensor.elem_count() == weight.elem_count()
            && tensor.is_contiguous();
        if !fits {
            return layout_error(
                "optimizer",
                format!("a tensor of a weight {:?} does not fit it", weight.dims()),
            );
        }
        let (storage, layout) = tensor.storage_and_layout();
        *slot = address(&storage, layout, &device_of(tensor)?.cuda_stream())?
            .0
            .cast_signed();
    }
    Ok(addresses)
}

/// Sums of squares of the gradients, of the rejected ones and of their sums, in f64.
pub(crate) fn squares(trained: &[Trained<'_>]) -> Result<[f64; 3]> {
    let Table {
        words: table,
        blocks,
    } = Table::new(trained)?;
    let parts = unwritten(&table, (blocks, 3), DType::F64)?;
    let out = unwritten(&table, 3, DType::F64)?;
    let launch = Launch::named("gradient_squares".to_owned(), &table)?.memory(
        &table,
        DType::I64,
        8 * trained.len(),
    )?;
    let launch = launch
        .memory(&parts, DType::F64, 3 * blocks)?
        .words([trained.len()])?;
    // SAFETY: the table's tensors are borrowed here, and its chunks count up to `blocks`, each of
    // which writes 3 numbers.
    unsafe { launch.run(blocks, 1) }?;
    let launch = Launch::named("sum_of_squares".to_owned(), &table)?.memory(
        &parts,
        DType::F64,
        3 * blocks,
    )?;
    // SAFETY: one block reads `blocks` rows of 3 and writes 3 numbers.
    unsafe {
        launch
            .memory(&out, DType::F64, 3)?
            .words([blocks])?
            .run(1, 1)
    }?;
    let sums = out.to_device(&Device::Cpu)?.to_vec1::<f64>()?;
    Ok([sums[0], sums[1], sums[2]])
}

/// Updates weights and moments in place.
pub(crate) fn adamw(trained: &[Trained<'_>], rule: &AdamW) -> Result<()> {
    let AdamW {
        mean,
        square,
        rate,
        root,
        eps,
    } = rule;
    let Table {
        words: table,
        blocks,
    } = Table::new(trained)?;
    let launch =
        Launch::named("adamw".to_owned(), &table)?.memory(&table, DType::I64, 8 * trained.len())?;
    let launch = launch
        .words([trained.len()])?
        .float(1.0 - mean.beta)
        .float(square.beta)
        .float(1.0 - square.beta);
    // SAFETY: the table's tensors are borrowed here and all different, and its chunks count up to
    // `blocks`.
    unsafe {
        launch
            .float(mean.scale)
            .float(*rate)
            .float(*root)
            .float(*eps)
            .run(blocks, 1)
    }
}

/// Copies of f32 tensors in bf16: the parts of one tensor, in their order, and that tensor. Each
/// begins at a multiple of 16 bytes.
pub(crate) fn narrowed(tensors: &[Tensor]) -> Result<(Tensor, Vec<Tensor>)> {
    let mut words = Vec::new();
    let mut places = Vec::new();
    let mut end = 0usize;
    let mut blocks = 0usize;
    for tensor in tensors {
        if tensor.dtype() != DType::F32
            || !tensor.is_contiguous()
            || !tensor.device().same_device(tensors[0].device())
        {
            return layout_error(
                "narrowed",
                format!("a weight {:?} is not contiguous f32", tensor.dims()),
            );
        }
        let (storage, layout) = tensor.storage_and_layout();
        let from = address(&storage, layout, &device_of(tensor)?.cuda_stream())?.0;
        let count = tensor.elem_count();
        words.extend([from, end as u64, count as u64, blocks as u64].map(u64::cast_signed));
        places.push(end);
        end = (end + count).next_multiple_of(8);
        blocks += count.div_ceil(CHUNK);
    }
    let all = unwritten(&tensors[0], end, DType::BF16)?;
    let table = Tensor::from_vec(words, (tensors.len(), 4), tensors[0].device())?;
    let launch = Launch::named("narrow_all".to_owned(), &table)?.memory(
        &table,
        DType::I64,
        4 * tensors.len(),
    )?;
    // SAFETY: the tensors are borrowed here, their copies lie in `all` behind each other, and their
    // chunks count up to `blocks`.
    unsafe {
        launch
            .memory(&all, DType::BF16, end)?
            .words([tensors.len()])?
            .run(blocks, 1)
    }?;
    let mut parts = Vec::with_capacity(tensors.len());
    for (tensor, at) in tensors.iter().zip(places) {
        let part = all.narrow(0, at, tensor.elem_count())?;
        parts.push(part.reshape(tensor.shape())?);
    }
    Ok((all, parts))
}
