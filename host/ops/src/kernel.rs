//! Common parts of the CPU kernels: slices of storages, rows in parallel, reductions in a fixed
//! order.

use std::mem::MaybeUninit;
use std::ops::Range;

use candle_core::{
    CpuStorage, Error, InplaceOp2, InplaceOp3, Layout, Result, Shape, Tensor, WithDType,
};
use pulp::{Arch, NullaryFnOnce};
use rayon::prelude::*;

use super::number::{Number, Real};

/// Smallest number of elements for which several threads pay off. To wake a thread takes some ten
/// microseconds.
const PARALLEL_ELEMENTS: usize = 1 << 15;
/// Number of elements that one task of `sum_blocks` or of an update handles.
const BLOCK: usize = 1 << 14;
/// Number of independent partial sums in a reduction. The compiler can use SIMD registers while the
/// order stays fixed.
const LANES: usize = 8;

/// The elements of a contiguous layout; any other layout is the caller's error.
pub fn slice<'a, T: WithDType>(
    storage: &'a CpuStorage,
    layout: &Layout,
    op: &'static str,
) -> Result<&'a [T]> {
    match layout.contiguous_offsets() {
        Some((from, to)) => Ok(&T::cpu_storage_as_slice(storage)?[from..to]),
        None => Err(Error::RequiresContiguous { op }),
    }
}

/// The elements of a contiguous f32 tensor.
pub fn whole<'a>(storage: &'a CpuStorage, layout: &Layout, op: &'static str) -> Result<&'a [f32]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::F32(values), Some((from, to))) => Ok(&values[from..to]),
        _ => layout_error(op, "tensors must be contiguous f32".to_owned()),
    }
}

/// The elements of a contiguous f32 tensor, writable; it must have as many as `like`.
pub fn whole_mut<'a>(
    storage: &'a mut CpuStorage,
    layout: &Layout,
    like: &Layout,
    op: &'static str,
) -> Result<&'a mut [f32]> {
    let len = like.shape().elem_count();
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::F32(values), Some((from, to))) if to - from == len => {
            Ok(&mut values[from..to])
        }
        _ => layout_error(op, format!("a weight is not {len} contiguous f32")),
    }
}

/// The error for a storage with a dtype other than f32 or f64.
pub fn dtype_error<T>(storage: &CpuStorage, op: &'static str) -> Result<T> {
    use candle_core::backend::BackendStorage;
    Err(Error::UnsupportedDTypeForOp(storage.dtype(), op))
}

/// A contiguous argument of a kernel.
#[derive(Clone, Copy)]
pub struct Arg<'a, T> {
    pub numbers: &'a [T],
    pub shape: &'a Shape,
}

/// The argument with this storage and layout; a layout that is not contiguous is the caller's
/// error.
pub fn argument<'a, T: WithDType>(
    storage: &'a CpuStorage,
    layout: &'a Layout,
    op: &'static str,
) -> Result<Arg<'a, T>> {
    Ok(Arg {
        numbers: slice(storage, layout, op)?,
        shape: layout.shape(),
    })
}

/// Makes a candle operation from a type whose `run`, generic over [`Number`], takes each argument
/// as [`Arg`] and returns elements and shape.
macro_rules! custom_op {
    ($op:ty, $name:literal, CustomOp1) => {
        custom_op!(@impl $op, $name, CustomOp1, a of_a);
    };
    ($op:ty, $name:literal, CustomOp2) => {
        custom_op!(@impl $op, $name, CustomOp2, a of_a, b of_b);
    };
    ($op:ty, $name:literal, CustomOp3) => {
        custom_op!(@impl $op, $name, CustomOp3, a of_a, b of_b, c of_c);
    };
    (@impl $op:ty, $name:literal, $kind:ident, $a:ident $of_a:ident $(, $b:ident $of_b:ident)*) => {
        impl candle_core::$kind for $op {
            fn name(&self) -> &'static str {
                $name
            }

            fn cpu_fwd(
                &self,
                $a: &candle_core::CpuStorage,
                $of_a: &candle_core::Layout,
                $($b: &candle_core::CpuStorage, $of_b: &candle_core::Layout),*
            ) -> Result<(candle_core::CpuStorage, Shape)> {
                use candle_core::CpuStorage;
                match $a {
                    CpuStorage::F32(_) => {
                        custom_op!(@run self, f32, $name, $a $of_a $(, $b $of_b)*)
                    }
                    CpuStorage::F64(_) => {
                        custom_op!(@run self, f64, $name, $a $of_a $(, $b $of_b)*)
                    }
                    CpuStorage::BF16(_) => {
                        custom_op!(@run self, half::bf16, $name, $a $of_a $(, $b $of_b)*)
                    }
                    other => crate::kernel::dtype_error(other, $name),
                }
            }
        }
    };
    (@run $self:ident, $number:ty, $name:literal, $($arg:ident $layout:ident),*) => {{
        let (numbers, shape) =
            $self.run::<$number>($(crate::kernel::argument($arg, $layout, $name)?),*)?;
        Ok((candle_core::WithDType::to_cpu_storage_owned(numbers), shape))
    }};
}
pub(super) use custom_op;

/// The error for tensors with incompatible shapes.
pub fn layout_error<T>(op: &'static str, what: String) -> Result<T> {
    Err(Error::Msg(format!("{op}: {what}")))
}

/// Calls `|row, out_row| ..` for every row of `width` elements of `out`, on several threads if
/// there is enough work. `cost` is the number of elementary steps per element of `out`, 1 without
/// it.
///
/// The body is compiled for the machine's widest vectors. The bits do not change, because no
/// operations are fused.
macro_rules! for_rows {
    ($out:expr, $width:expr, |$row:ident, $part:ident| $body:block) => {
        for_rows!($out, $width, 1, |$row, $part| $body)
    };
    ($out:expr, $width:expr, $cost:expr, |$row:ident, $part:ident| $body:block) => {
        crate::kernel::run_rows(
            $out,
            $width,
            $cost,
            #[inline(always)]
            |$row, $part| $body,
        )
    };
}
pub(super) use for_rows;

/// Like `for_rows!`, for a vector of [`Number`] of a given length: every row is computed in a
/// buffer, which has numbers of earlier rows, and then written. So no memory is written twice.
macro_rules! rows {
    ($number:ty; $len:expr, $width:expr, |$row:ident, $part:ident| $body:block) => {
        rows!($number; $len, $width, 1, |$row, $part| $body)
    };
    ($number:ty; $len:expr, $width:expr, $cost:expr, |$row:ident, $part:ident| $body:block) => {
        crate::kernel::written_rows::<$number>(
            $len,
            $width,
            $cost,
            #[inline(always)]
            |$row, $part| $body,
        )
    };
}
pub(super) use rows;

/// The function behind `rows!`.
pub fn written_rows<N: Number>(
    len: usize,
    width: usize,
    cost: usize,
    f: impl Fn(usize, &mut [N::Real]) + Sync,
) -> Vec<N> {
    let mut numbers = Vec::with_capacity(len);
    if width > 0 {
        let room = &mut numbers.spare_capacity_mut()[..len];
        in_parts(room, width, cost, |first, out| {
            Arch::new().dispatch(WrittenRows {
                first,
                width,
                out,
                f: &f,
            })
        });
        // SAFETY: the parts are all of `room`, and `WrittenRows` writes every number of its part.
        unsafe { numbers.set_len(len) };
    }
    numbers
}

/// The function behind `for_rows!`: runs `f` on each row of `out`, `width` elements long.
pub fn run_rows<T: Real>(
    out: &mut [T],
    width: usize,
    cost: usize,
    f: impl Fn(usize, &mut [T]) + Sync,
) {
    if width > 0 {
        in_parts(out, width, cost, |first, out| {
            Arch::new().dispatch(Rows {
                first,
                width,
                out,
                f: &f,
            })
        });
    }
}

/// Calls `part` with some rows of `out` and the number of the first one, on several threads if
/// there is enough work.
fn in_parts<T: Send>(
    out: &mut [T],
    width: usize,
    cost: usize,
    part: impl Fn(usize, &mut [T]) + Sync,
) {
    let rows = if out.len() * cost < PARALLEL_ELEMENTS {
        out.len().div_ceil(width)
    } else {
        (PARALLEL_ELEMENTS / 4).div_ceil(width * cost)
    };
    if rows * width >= out.len() {
        return part(0, out);
    }
    out.par_chunks_mut(rows * width)
        .enumerate()
        .for_each(|(number, out)| part(number * rows, out));
}

/// Rows like [`Rows`], of numbers that are not written yet.
struct WrittenRows<'a, N, F> {
    first: usize,
    width: usize,
    out: &'a mut [MaybeUninit<N>],
    f: &'a F,
}

impl<N: Number, F: Fn(usize, &mut [N::Real])> NullaryFnOnce for WrittenRows<'_, N, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let mut buffer = vec![N::Real::from_f64(0.0); self.width.min(self.out.len())];
        for (row, out) in self.out.chunks_mut(self.width).enumerate() {
            let buffer = &mut buffer[..out.len()];
            (self.f)(self.first + row, buffer);
            for (out, value) in out.iter_mut().zip(buffer) {
                out.write(N::nearest(*value));
            }
        }
    }
}

/// Some rows, starting with number `first`. A closure instead would be compiled for the narrowest
/// vectors.
struct Rows<'a, T, F> {
    first: usize,
    width: usize,
    out: &'a mut [T],
    f: &'a F,
}

impl<T: Real, F: Fn(usize, &mut [T])> NullaryFnOnce for Rows<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (row, out) in self.out.chunks_mut(self.width).enumerate() {
            (self.f)(self.first + row, out);
        }
    }
}

/// The inner product, summed over `LANES` interleaved partial sums.
#[inline(always)]
pub fn dot<T: Real>(a: &[T], b: &[T]) -> T {
    let mut lanes = [T::from_f64(0.0); LANES];
    let a_blocks = a.chunks_exact(LANES);
    let b_blocks = b.chunks_exact(LANES);
    let a_rest = a_blocks.remainder();
    let b_rest = b_blocks.remainder();
    for (a, b) in a_blocks.zip(b_blocks) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    let mut rest = T::from_f64(0.0);
    for (a, b) in a_rest.iter().zip(b_rest) {
        rest += *a * *b;
    }
    total(lanes) + rest
}

/// The sum, over `LANES` interleaved partial sums.
#[inline(always)]
pub fn sum<T: Real>(values: &[T]) -> T {
    let mut lanes = [T::from_f64(0.0); LANES];
    let blocks = values.chunks_exact(LANES);
    let rest = blocks.remainder();
    for block in blocks {
        for lane in 0..LANES {
            lanes[lane] += block[lane];
        }
    }
    rest.iter().fold(total(lanes), |sum, value| sum + *value)
}

/// The largest element; if the first of `values` is NaN, the result is NaN.
#[inline(always)]
pub fn maximum<T: Real>(values: &[T]) -> T {
    let mut lanes = [values[0]; LANES];
    let blocks = values.chunks_exact(LANES);
    let rest = blocks.remainder();
    for block in blocks {
        for lane in 0..LANES {
            lanes[lane] = lanes[lane].larger(block[lane]);
        }
    }
    rest.iter()
        .chain(&lanes)
        .fold(values[0], |max, value| max.larger(*value))
}

#[inline(always)]
fn total<T: Real>(l: [T; LANES]) -> T {
    ((l[0] + l[4]) + (l[1] + l[5])) + ((l[2] + l[6]) + (l[3] + l[7]))
}

/// The sum of squares in f64, in a fixed order.
pub fn sum_squares(values: &[f32]) -> f64 {
    sum_blocks(values.len(), |block| {
        values[block]
            .iter()
            .map(|value| f64::from(*value).powi(2))
            .sum()
    })
}

/// The sum of `f` over consecutive blocks of `0..len`, in a fixed order.
pub fn sum_blocks(len: usize, f: impl Fn(Range<usize>) -> f64 + Sync) -> f64 {
    if len <= BLOCK {
        return f(0..len);
    }
    let partial: Vec<f64> = (0..len.div_ceil(BLOCK))
        .into_par_iter()
        .map(|block| f(block * BLOCK..((block + 1) * BLOCK).min(len)))
        .collect();
    partial.iter().sum()
}

/// Calls `f(&mut a[i], b[i])` for every element of contiguous f32 tensors on the CPU, in place;
/// `op` names the operation in errors.
pub fn update2(
    op: &'static str,
    a: &Tensor,
    b: &Tensor,
    f: impl Fn(&mut f32, f32) + Sync,
) -> Result<()> {
    a.inplace_op2(b, &Update { op, f })
}

/// Like `update2`, with `f(&mut a[i], b[i], c[i])`.
pub fn update3(
    op: &'static str,
    a: &Tensor,
    b: &Tensor,
    c: &Tensor,
    f: impl Fn(&mut f32, f32, f32) + Sync,
) -> Result<()> {
    a.inplace_op3(b, c, &Update { op, f })
}

struct Update<F> {
    op: &'static str,
    f: F,
}

impl<F: Fn(&mut f32, f32)> Update<F> {
    fn apply2(&self, a: &mut [f32], b: &[f32]) {
        for (a, b) in a.iter_mut().zip(b) {
            (self.f)(a, *b);
        }
    }
}

impl<F: Fn(&mut f32, f32, f32)> Update<F> {
    fn apply3(&self, a: &mut [f32], b: &[f32], c: &[f32]) {
        for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
            (self.f)(a, *b, *c);
        }
    }
}

impl<F: Fn(&mut f32, f32) + Sync> InplaceOp2 for Update<F> {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cpu_fwd(
        &self,
        a: &mut CpuStorage,
        of_a: &Layout,
        b: &CpuStorage,
        of_b: &Layout,
    ) -> Result<()> {
        let a = whole_mut(a, of_a, of_b, self.op)?;
        let b = whole(b, of_b, self.op)?;
        if a.len() <= BLOCK {
            self.apply2(a, b);
        } else {
            a.par_chunks_mut(BLOCK)
                .zip(b.par_chunks(BLOCK))
                .for_each(|(a, b)| self.apply2(a, b));
        }
        Ok(())
    }
}

impl<F: Fn(&mut f32, f32, f32) + Sync> InplaceOp3 for Update<F> {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cpu_fwd(
        &self,
        a: &mut CpuStorage,
        of_a: &Layout,
        b: &CpuStorage,
        of_b: &Layout,
        c: &CpuStorage,
        of_c: &Layout,
    ) -> Result<()> {
        let a = whole_mut(a, of_a, of_b, self.op)?;
        let b = whole(b, of_b, self.op)?;
        let c = whole(c, of_c, self.op)?;
        if a.len() <= BLOCK {
            self.apply3(a, b, c);
        } else {
            a.par_chunks_mut(BLOCK)
                .zip(b.par_chunks(BLOCK))
                .zip(c.par_chunks(BLOCK))
                .for_each(|((a, b), c)| self.apply3(a, b, c));
        }
        Ok(())
    }
}
