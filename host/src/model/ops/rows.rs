//! Sums of rows by id: the gradient of an embedding.

use candle_core::{Result, Tensor};

/// `sums` `[V, D]` with each of the `rows` `[N, D]` added to the row that `ids` `[N]` (u32) names; both f32 on CUDA.
pub(crate) fn add_rows(sums: Tensor, ids: &Tensor, rows: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if sums.device().is_cuda() {
        // candle's own kernel takes the rows one after another.
        sums.inplace_op2(&rows.contiguous()?, &cuda::AddRows(ids.to_vec1()?))?;
        return Ok(sums);
    }
    sums.index_add(ids, rows, 0)
}

#[cfg(feature = "cuda")]
mod cuda {
    use candle_core::{CpuStorage, CudaStorage, Error, InplaceOp2, Layout, Result};

    pub(super) struct AddRows(pub(super) Vec<u32>);

    impl InplaceOp2 for AddRows {
        fn name(&self) -> &'static str {
            "add-rows"
        }

        fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<()> {
            Err(Error::Msg("add-rows: on the CPU `index_add` does this".to_owned()))
        }

        fn cuda_fwd(&self, sums: &mut CudaStorage, sl: &Layout, rows: &CudaStorage, rl: &Layout) -> Result<()> {
            super::super::cuda::add_rows((sums, sl), (rows, rl), &self.0)
        }
    }
}
