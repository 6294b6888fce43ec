//! Products of f32 by the matrix library, as candle calls it.
#![allow(unsafe_code, reason = "`gemm` takes addresses")]

use candle_core::{CpuStorage, Layout, Result, Storage, Tensor};

/// Most products that are summed before the sum is added to that of the products before them. The
/// library takes at least as many.
const LONGEST_PART: usize = 512;

/// Length of the parts in which sums over an inner axis of this length are added. The last part may
/// be shorter.
pub(crate) fn part_of(inner: usize) -> usize {
    let parts = inner.div_ceil(LONGEST_PART).max(1);
    inner.div_ceil(parts).max(1)
}

/// `a b`, in the library's order of sums, which depends on all sizes.
pub(crate) fn in_f32(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    multiply(a, b, usize::MAX)
}

/// `a b` with the sums of each part of the inner axis added in order. Then the library's order
/// depends on the number of rows only where `by_row` does not call it.
pub(crate) fn in_parts(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    multiply(a, b, part_of(a.dims()[a.rank() - 1]))
}

/// `a b`, a part of the inner axis after the other. For two matrices of f32 on the CPU the result
/// is written once; candle first fills it with zeros, on one thread.
fn multiply(a: &Tensor, b: &Tensor, part: usize) -> Result<Tensor> {
    let (a_storage, a_layout) = a.storage_and_layout();
    let (b_storage, b_layout) = b.storage_and_layout();
    let (Storage::Cpu(CpuStorage::F32(left)), Storage::Cpu(CpuStorage::F32(right))) =
        (&*a_storage, &*b_storage)
    else {
        return a.matmul(b);
    };
    let (&[rows, inner], &[same, columns]) = (a.dims(), b.dims()) else {
        return a.matmul(b);
    };
    let count = rows * columns;
    if inner != same || inner == 0 || count == 0 {
        return a.matmul(b);
    }
    let [a_line, a_inner] = strides(a_layout);
    let [b_line, b_inner] = strides(b_layout);
    let threads = candle_core::utils::get_num_threads();
    let parallelism = if threads > 1 {
        gemm::Parallelism::Rayon(threads)
    } else {
        gemm::Parallelism::None
    };
    let left = &left[a_layout.start_offset()..];
    let right = &right[b_layout.start_offset()..];
    let mut out = Vec::with_capacity(count);
    for from in (0..inner).step_by(part) {
        // SAFETY: a tensor's layout stays within its storage, and a part of the inner axis within
        // the axis. The first call of `gemm` writes `rows` lines of `columns` numbers without
        // reading them before, which are all of the `count` numbers that there is room for. The
        // other calls add to these.
        unsafe {
            gemm::gemm(
                rows,
                columns,
                part.min(inner - from),
                out.as_mut_ptr(),
                1,
                columns as isize,
                from > 0,
                left.as_ptr().offset(from as isize * a_inner),
                a_inner,
                a_line,
                right.as_ptr().offset(from as isize * b_line),
                b_inner,
                b_line,
                1.0,
                1.0_f32,
                false,
                false,
                false,
                parallelism,
            );
        }
    }
    // SAFETY: the calls have written all of the numbers.
    unsafe { out.set_len(count) };
    drop((a_storage, b_storage));
    Tensor::from_vec(out, (rows, columns), a.device())
}

/// Distances between two lines of a matrix, and between two numbers of a line.
fn strides(layout: &Layout) -> [isize; 2] {
    [0, 1].map(|axis| layout.stride()[axis] as isize)
}
