//! Ids of the largest logits in each row.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::kernel::{dtype_error, layout_error, slice};

/// Ids of the `k` largest logits of every row of `logits` `[N, V]` f32, as `[N, k]` u32:
/// descending, the lower id first among equals. A `k` above V is an error.
pub fn top_ids(logits: &Tensor, k: usize) -> Result<Tensor> {
    logits.contiguous()?.apply_op1_no_bwd(&TopIds { k })
}

/// Ids of the `k` largest `logits`, descending, the lower id first among equals; `order` is scratch
/// space.
pub fn top_k<'a>(logits: &[f32], k: usize, order: &'a mut Vec<u32>) -> &'a [u32] {
    order.clear();
    order.extend(0..logits.len() as u32);
    let descending = |a: &u32, b: &u32| {
        logits[*b as usize]
            .total_cmp(&logits[*a as usize])
            .then(a.cmp(b))
    };
    if k < order.len() {
        order.select_nth_unstable_by(k, descending);
    }
    let top = &mut order[..k.min(logits.len())];
    top.sort_unstable_by(descending);
    top
}

struct TopIds {
    k: usize,
}

impl TopIds {
    fn rows(&self, layout: &Layout) -> Result<(usize, usize)> {
        match layout.dims() {
            &[rows, vocab] if self.k <= vocab => Ok((rows, vocab)),
            other => layout_error(self.name(), format!("{} ids of logits {other:?}", self.k)),
        }
    }
}

impl CustomOp1 for TopIds {
    fn name(&self) -> &'static str {
        "top-ids"
    }

    fn cpu_fwd(&self, logits: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, vocab) = self.rows(layout)?;
        let CpuStorage::F32(_) = logits else {
            return dtype_error(logits, self.name());
        };
        let logits = slice::<f32>(logits, layout, self.name())?;
        let mut ids = vec![0; rows * self.k];
        if !ids.is_empty() {
            let rows = ids
                .par_chunks_exact_mut(self.k)
                .zip(logits.par_chunks_exact(vocab));
            rows.for_each_init(Vec::new, |order, (ids, row)| {
                ids.copy_from_slice(top_k(row, self.k, order))
            });
        }
        Ok((CpuStorage::U32(ids), (rows, self.k).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        a: &candle_core::CudaStorage,
        al: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        use candle_core::backend::BackendDevice;

        self.rows(al)?;
        if (1..=super::cuda::MOST_TOP).contains(&self.k) {
            return super::cuda::top_ids((a, al), self.k);
        }
        let device = &a.device;
        // Only the view's rows: the storage may hold those of many views.
        let logits = CpuStorage::F32(super::cuda::to_host((a, al), self.name())?);
        let (ids, shape) = self.cpu_fwd(&logits, &Layout::contiguous(al.shape().clone()))?;
        Ok((device.storage_from_cpu_storage_owned(ids)?, shape))
    }
}
