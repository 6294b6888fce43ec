//! Sums of rows by id: the gradient of an embedding.

use candle_core::{CpuStorage, DType, InplaceOp2, Layout, Result, Tensor};

use super::fused;
use super::kernel::{layout_error, whole, whole_mut};

/// Adds each of the `rows` `[N, D]` to the row of `sums` `[V, D]` that `ids` `[N]` names, in order
/// and in place; `sums` must not be shared. Rows with the id `padding` are left out.
pub fn add_rows(sums: Tensor, ids: &[u32], rows: &Tensor, padding: Option<u32>) -> Result<Tensor> {
    if let Some(padding) = padding.filter(|padding| ids.contains(padding)) {
        let (places, ids): (Vec<u32>, Vec<u32>) = (0..)
            .zip(ids.iter().copied())
            .filter(|(_, id)| *id != padding)
            .unzip();
        if ids.is_empty() {
            return Ok(sums);
        }
        let rows = rows.index_select(&Tensor::new(places, rows.device())?, 0)?;
        return add_rows(sums, &ids, &rows, None);
    }
    #[cfg(feature = "cuda")]
    if super::cuda::takes(rows) && sums.dtype() == DType::F32 && sums.is_contiguous() {
        super::cuda::add_rows(&sums, ids, rows)?;
        return Ok(sums);
    }
    let rows = rows.contiguous()?.to_dtype(sums.dtype())?;
    if sums.dtype() == DType::F32 && sums.is_contiguous() && fused(&sums) {
        sums.inplace_op2(&rows, &AddRows(ids.to_vec()))?;
    } else {
        let ids = Tensor::new(ids, rows.device())?
            .unsqueeze(1)?
            .broadcast_as(rows.shape())?;
        sums.scatter_add_set(&ids.contiguous()?, &rows, 0)?;
    }
    Ok(sums)
}

struct AddRows(Vec<u32>);

impl InplaceOp2 for AddRows {
    fn name(&self) -> &'static str {
        "add-rows"
    }

    fn cpu_fwd(
        &self,
        sums: &mut CpuStorage,
        sl: &Layout,
        rows: &CpuStorage,
        rl: &Layout,
    ) -> Result<()> {
        let (all, width) = sl.shape().dims2()?;
        if rl.dims() != [self.0.len(), width] {
            return layout_error(
                self.name(),
                format!("rows of shape {:?}, {} ids", rl.dims(), self.0.len()),
            );
        }
        let sums = whole_mut(sums, sl, sl, self.name())?;
        let rows = whole(rows, rl, self.name())?;
        for (id, row) in self.0.iter().zip(rows.chunks(width.max(1))) {
            let Some(sum) = sums.chunks_mut(width.max(1)).nth(*id as usize) else {
                return layout_error(self.name(), format!("row {id} of {all}"));
            };
            sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
        Ok(())
    }
}
