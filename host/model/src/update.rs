//! The step from one set of weights to another: its length, and the share that is applied.

use anyhow::Result;
use candle_core::{CpuStorage, D, DType, Device, Layout, Storage, Tensor};

use super::groups::Group;
use super::ops::optimizer::shorten;
use super::ops::{fused, sum_blocks};
use super::params::Params;

/// Returns the elementwise factor of a tensor's squared change, given the tensor's name.
pub type Factor<'a> = dyn Fn(&str) -> Result<Tensor> + 'a;

/// `Σ (after - before)² factor` over each group's weights, in f64 and in a fixed order. Without a
/// factor, the factor is 1.
pub fn squares(
    before: &Params,
    after: &Params,
    groups: &[Group],
    factor: Option<&Factor<'_>>,
) -> Result<Vec<f64>> {
    let mut sums = Vec::new();
    for tensor in groups.iter().flat_map(|group| &group.tensors) {
        let factor = factor.map(|factor| factor(tensor)).transpose()?;
        sums.push(square(
            before.get(tensor)?,
            after.get(tensor)?,
            factor.as_ref(),
        )?);
    }
    // On another device, the sums are copied to the host together.
    let mut sums = Tensor::stack(&sums, 0)?.to_vec1::<f64>()?.into_iter();
    Ok(groups
        .iter()
        .map(|group| sums.by_ref().take(group.tensors.len()).sum())
        .collect())
}

/// The sum for one tensor, as a scalar on the tensor's device.
fn square(before: &Tensor, after: &Tensor, factor: Option<&Tensor>) -> Result<Tensor> {
    if !fused(after) {
        let square = (after - before)?.sqr()?;
        let square = factor.map_or(Ok(square.clone()), |factor| square * factor)?;
        return Ok(square
            .sum(D::Minus1)?
            .flatten_all()?
            .to_dtype(DType::F64)?
            .sum_all()?);
    }
    let before = before.contiguous()?;
    let (before_storage, layout) = before.storage_and_layout();
    let before = values(&before_storage, layout)?;
    let after = after.contiguous()?;
    let (after_storage, layout) = after.storage_and_layout();
    let after = values(&after_storage, layout)?;
    let sum = match factor {
        None => sum_blocks(after.len(), |block| {
            block.map(|at| square_of_change(before, after, at)).sum()
        }),
        Some(factor) => {
            let factor = factor.contiguous()?;
            let (factor_storage, layout) = factor.storage_and_layout();
            let factor = values(&factor_storage, layout)?;
            sum_blocks(after.len(), |block| {
                block
                    .map(|at| square_of_change(before, after, at) * f64::from(factor[at]))
                    .sum()
            })
        }
    };
    Ok(Tensor::new(sum, &Device::Cpu)?)
}

/// `(after - before)²` at the place `at`.
fn square_of_change(before: &[f32], after: &[f32], at: usize) -> f64 {
    (f64::from(after[at]) - f64::from(before[at])).powi(2)
}

/// The numbers of a contiguous f32 tensor in host memory. Any other tensor is an error.
pub fn values<'a>(storage: &'a Storage, layout: &Layout) -> Result<&'a [f32]> {
    match (storage, layout.contiguous_offsets()) {
        (Storage::Cpu(CpuStorage::F32(values)), Some((from, to))) => Ok(&values[from..to]),
        _ => anyhow::bail!("weights must be contiguous f32 in host memory"),
    }
}

/// Shortens the step from `before` to `after`. Each group keeps its share in `scales`: with 1 the
/// group stays as it is, with 0 it gets back the bits of `before`.
pub fn scale(before: &Params, after: &Params, groups: &[Group], scales: &[f64]) -> Result<()> {
    for (group, &scale) in groups
        .iter()
        .zip(scales)
        .filter(|(_, scale)| **scale != 1.0)
    {
        for tensor in &group.tensors {
            let before = before.get(tensor)?.as_tensor();
            let after = after.get(tensor)?;
            if scale == 0.0 {
                after.set(before)?;
            } else if fused(after) {
                shorten(after, &before.contiguous()?, scale)?;
            } else {
                let change = (after.as_detached_tensor() - before)?;
                after.set(&(before + (change * scale)?)?)?;
            }
        }
    }
    Ok(())
}

/// Euclidean norm of the change in the rows of a matrix `[V, D]` whose `used` entry is false.
pub fn unused_rows_norm(before: &Tensor, after: &Tensor, used: &[bool]) -> Result<f64> {
    let unused: Vec<f32> = used.iter().map(|used| f32::from(u8::from(!used))).collect();
    let unused = Tensor::from_vec(unused, used.len(), after.device())?;
    let rows = (after - before)?.sqr()?.sum(D::Minus1)?;
    Ok((rows * unused)?
        .to_dtype(DType::F64)?
        .sum_all()?
        .to_scalar::<f64>()?
        .sqrt())
}
