//! Ids of the largest logits in each row.

use std::cmp::Ordering;

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
    if k < order.len() {
        order.select_nth_unstable_by(k, |a, b| descending(logits, *a, *b));
    }
    let top = &mut order[..k.min(logits.len())];
    top.sort_unstable_by(|a, b| descending(logits, *a, *b));
    top
}

/// The order of two ids: the larger logit first, among equals the lower id.
fn descending(logits: &[f32], a: u32, b: u32) -> Ordering {
    logits[b as usize]
        .total_cmp(&logits[a as usize])
        .then(a.cmp(&b))
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
        logits: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        use candle_core::backend::BackendDevice;

        use super::cuda::{Arg, MOST_TOP, to_host, top_ids};

        self.rows(layout)?;
        let arg = Arg::new(logits, layout);
        if (1..=MOST_TOP).contains(&self.k) {
            return top_ids(arg, self.k);
        }
        // Only the view's rows: the storage may hold those of many views.
        let on_host = CpuStorage::F32(to_host(arg, self.name())?);
        let (ids, shape) = self.cpu_fwd(&on_host, &Layout::contiguous(layout.shape().clone()))?;
        Ok((logits.device.storage_from_cpu_storage_owned(ids)?, shape))
    }
}
