//! The step from one set of weights to another: its length, and the share of it that is applied.

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
    let (before, after) = (before.contiguous()?, after.contiguous()?);
    let (before, after) = (before.storage_and_layout(), after.storage_and_layout());
    let (before, after) = (values(&before.0, before.1)?, values(&after.0, after.1)?);
    let change = |at: usize| f64::from(after[at]) - f64::from(before[at]);
    let sum = match factor {
        None => sum_blocks(after.len(), |block| {
            block.map(|at| change(at).powi(2)).sum()
        }),
        Some(factor) => {
            let factor = factor.contiguous()?;
            let factor = factor.storage_and_layout();
            let factor = values(&factor.0, factor.1)?;
            sum_blocks(after.len(), |block| {
                block
                    .map(|at| change(at).powi(2) * f64::from(factor[at]))
                    .sum()
            })
        }
    };
    Ok(Tensor::new(sum, &Device::Cpu)?)
}

/// The numbers of a contiguous f32 tensor in host memory. Any other tensor is an error.
pub fn values<'a>(storage: &'a Storage, layout: &Layout) -> Result<&'a [f32]> {
    match (storage, layout.contiguous_offsets()) {
        (Storage::Cpu(CpuStorage::F32(values)), Some((from, to))) => Ok(&values[from..to]),
        _ => anyhow::bail!("weights must be contiguous f32 in host memory"),
    }
}

/// Applies the share `scales`, one per group, of the step from `before`: 1 leaves a group
/// unchanged, 0 restores the bits of `before`.
pub fn scale(before: &Params, after: &Params, groups: &[Group], scales: &[f64]) -> Result<()> {
    for (group, &scale) in groups
        .iter()
        .zip(scales)
        .filter(|(_, scale)| **scale != 1.0)
    {
        for tensor in &group.tensors {
            let (before, after) = (before.get(tensor)?.as_tensor(), after.get(tensor)?);
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
