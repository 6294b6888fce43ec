//! Attention over packed rows on the CPU: each prompt with its completions and each key head is
//! computed by one thread.
#![allow(unsafe_code, reason = "`gemm` takes addresses")]

use candle_core::{DType, Device, Result, Storage, Tensor, WithDType};
use gemm::{Parallelism, gemm};
use half::bf16;
use rayon::prelude::*;

use super::super::packing::{Block, HeadSizes, Packing, Piece, Stem};
use crate::kernel::{dot, for_rows, layout_error, maximum, rows, slice, sum};
use crate::number::{Number, Real};
use crate::product::part_of;
use crate::to_dtype;

/// A matrix inside a slice: number `j` of line `i` is at `i * line + j * inner`.
#[derive(Clone, Copy)]
struct Matrix<'a, T> {
    numbers: &'a [T],
    line: usize,
    inner: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// Lines of `line` numbers each, from the number `from` on.
    fn new(numbers: &'a [T], from: usize, line: usize) -> Self {
        Self {
            numbers: &numbers[from..],
            line,
            inner: 1,
        }
    }

    fn t(self) -> Self {
        Self {
            line: self.inner,
            inner: self.line,
            ..self
        }
    }

    fn fits(&self, lines: usize, inner: usize) -> bool {
        (lines - 1) * self.line + (inner - 1) * self.inner < self.numbers.len()
    }
}

/// A product `a b`, for `a` `[m, k]` and `b` `[k, n]`.
#[derive(Clone, Copy)]
struct Product<'a, T> {
    m: usize,
    k: usize,
    n: usize,
    a: Matrix<'a, T>,
    b: Matrix<'a, T>,
}

/// Where a product is written. Its lines begin `line` numbers apart.
struct Target<'a, T> {
    numbers: &'a mut [T],
    line: usize,
}

/// Number of results up to which the matrix library splits sums over lanes, if it finds the numbers
/// of both inner axes side by side.
const IN_LANES: usize = 256;

impl<T: Real> Product<'_, T> {
    /// Writes the product to `out`, or adds it if `adds`.
    fn write(self, out: Target<'_, T>, adds: bool) {
        let Self { m, k, n, a, b } = self;
        let end_of_lines = (m - 1) * out.line + n;
        assert!(m * k * n > 0 && a.fits(m, k) && b.fits(k, n));
        assert!(end_of_lines <= out.numbers.len());
        let one = T::from_f64(1.0);
        let to = out.numbers.as_mut_ptr();
        let part = part_of(k);
        let a_at = a.numbers.as_ptr();
        let b_at = b.numbers.as_ptr();
        let [line, a_line, a_inner, b_line, b_inner] =
            [out.line, a.line, a.inner, b.line, b.inner].map(|step| step as isize);
        for from in (0..k).step_by(part) {
            // SAFETY: the assertions say that all numbers of the three matrices lie in their
            // slices, and `out` is borrowed alone. A part of the inner axis lies within the axis.
            unsafe {
                gemm(
                    m,
                    n,
                    part.min(k - from),
                    to,
                    1,
                    line,
                    adds || from > 0,
                    a_at.offset(from as isize * a_inner),
                    a_inner,
                    a_line,
                    b_at.offset(from as isize * b_line),
                    b_inner,
                    b_line,
                    one,
                    one,
                    false,
                    false,
                    false,
                    Parallelism::None,
                );
            }
        }
    }

    /// [`Self::write`] for lines of `a` that share a block with those of other completions. The
    /// number of these other lines changes no bit. The numbers of a line of `a` must lie side by
    /// side.
    fn write_in_company(self, out: Target<'_, T>) {
        let Self { m, k, n, a, b } = self;
        if m * n <= IN_LANES && b.line == 1 {
            self.write_in_order(out);
        } else if m == 1 {
            // The library treats a single line in another way than several.
            let twice = a.numbers[..k].repeat(2);
            let mut both = vec![T::from_f64(0.0); 2 * n];
            let product = Product {
                m: 2,
                a: Matrix::new(&twice, 0, k),
                ..self
            };
            let target = Target {
                numbers: &mut both,
                line: n,
            };
            product.write(target, false);
            out.numbers[..n].copy_from_slice(&both[..n]);
        } else {
            self.write(out, false);
        }
    }

    /// Writes few results, with the bits that [`Self::write`] gives many.
    fn write_in_order(self, out: Target<'_, T>) {
        let Self { m, k, n, a, b } = self;
        let lines: Vec<T> = (0..k * n)
            .map(|at| b.numbers[at / n * b.line + at % n * b.inner])
            .collect();
        let all = &mut out.numbers[..(m - 1) * out.line + n];
        for_rows!(all, out.line, |row, out| {
            let out = &mut out[..n];
            let mut sums = vec![T::from_f64(0.0); n];
            for (number, lines) in lines.chunks(part_of(k) * n).enumerate() {
                sums.fill(T::from_f64(0.0));
                let numbers = &a.numbers[row * a.line + number * part_of(k)..];
                for (number, line) in numbers.iter().zip(lines.chunks_exact(n)) {
                    for (sum, other) in sums.iter_mut().zip(line) {
                        *sum = number.mul_add(*other, *sum);
                    }
                }
                if number == 0 {
                    out.copy_from_slice(&sums);
                } else {
                    for (out, sum) in out.iter_mut().zip(&sums) {
                        *out += *sum;
                    }
                }
            }
        });
    }
}

/// Numbers of the packed matrices, and what is common to all blocks of a key head.
struct Head<'a, T> {
    queries: &'a [T],
    keys: &'a [T],
    values: &'a [T],
    sizes: HeadSizes,
    /// Number of the query head, and of its key head.
    head: usize,
    kv: usize,
}

impl<'a, T: Real> Head<'a, T> {
    /// The rows from `row` on of a matrix of query heads.
    fn of_queries(&self, all: &'a [T], row: usize) -> Matrix<'a, T> {
        let HeadSizes { heads, width, .. } = self.sizes;
        Matrix::new(all, (row * heads + self.head) * width, heads * width)
    }

    /// The rows from `row` on of a matrix of key heads.
    fn of_keys(&self, all: &'a [T], row: usize) -> Matrix<'a, T> {
        let HeadSizes {
            kv_heads, width, ..
        } = self.sizes;
        Matrix::new(all, (row * kv_heads + self.kv) * width, kv_heads * width)
    }

    /// `left right^T` for each query of the block, a row of `left`, and each of its keys, rows of
    /// `right`: `[Q, K]`.
    fn scores(&self, block: &Block, left: &'a [T], right: &'a [T]) -> Vec<T> {
        let width = self.sizes.width;
        let line = block.keys();
        let context = block.context.len();
        let mut scores = vec![T::from_f64(0.0); block.rows.len() * line];
        if context > 0 {
            let product = Product {
                m: block.rows.len(),
                k: width,
                n: context,
                a: self.of_queries(left, block.rows.start),
                b: self.of_keys(right, block.context.start).t(),
            };
            product.write_in_company(Target {
                numbers: &mut scores,
                line,
            });
        }
        for piece in &block.pieces {
            let product = Product {
                m: piece.rows.len(),
                k: width,
                n: piece.own(),
                a: self.of_queries(left, piece.rows.start),
                b: self.of_keys(right, piece.first).t(),
            };
            let row = piece.rows.start - block.rows.start;
            let target = Target {
                numbers: &mut scores[row * line + context..],
                line,
            };
            product.write(target, false);
        }
        scores
    }

    /// Attention probabilities of the block, `[Q, K]`; 0 for keys that a query does not read.
    fn probs(&self, block: &Block) -> Vec<T> {
        let mut probs = self.scores(block, self.queries, self.keys);
        let scale = T::from_f64(self.sizes.scale());
        for_rows!(&mut probs, block.keys(), |row, line| {
            let (line, others) = line.split_at_mut(read(block, row));
            others.fill(T::from_f64(0.0));
            let largest = maximum(line);
            line.iter_mut()
                .for_each(|score| *score = (scale * (*score - largest)).exp());
            let inverse = T::from_f64(1.0) / sum(line);
            line.iter_mut().for_each(|prob| *prob *= inverse);
        });
        probs
    }

    /// Gradient by the scores `[Q, K]`, from `probs` and from the gradient by the mixed values.
    fn d_scores(&self, block: &Block, probs: &[T], grad: &'a [T]) -> Vec<T> {
        let mut d_scores = self.scores(block, grad, self.values);
        let keys = block.keys();
        let scale = T::from_f64(self.sizes.scale());
        for_rows!(&mut d_scores, keys, |row, line| {
            let (line, others) = line.split_at_mut(read(block, row));
            others.fill(T::from_f64(0.0));
            let probs = &probs[row * keys..][..line.len()];
            let mean = dot(probs, line);
            line.iter_mut()
                .zip(probs)
                .for_each(|(d, prob)| *d = scale * *prob * (*d - mean));
        });
        d_scores
    }

    /// Writes the product of `factors` `[Q, K]` with the rows of `right` that the queries read to
    /// `out`, `[Q, width]`.
    fn mix(&self, block: &Block, factors: &[T], right: &'a [T], out: &mut [T]) {
        let width = self.sizes.width;
        let line = block.keys();
        let context = block.context.len();
        if context > 0 {
            let product = Product {
                m: block.rows.len(),
                k: context,
                n: width,
                a: Matrix::new(factors, 0, line),
                b: self.of_keys(right, block.context.start),
            };
            product.write_in_company(Target {
                numbers: &mut *out,
                line: width,
            });
        }
        for piece in &block.pieces {
            let row = piece.rows.start - block.rows.start;
            let product = Product {
                m: piece.rows.len(),
                k: piece.own(),
                n: width,
                a: Matrix::new(factors, row * line + context, line),
                b: self.of_keys(right, piece.first),
            };
            let target = Target {
                numbers: &mut out[row * width..],
                line: width,
            };
            product.write(target, context > 0);
        }
    }

    /// Adds the product of the transpose of `factors` `[Q, K]` with the block's rows of `left` to
    /// `out`, whose first row is the stem's.
    fn spread(&self, stem: &Stem, block: &Block, factors: &[T], left: &'a [T], out: &mut [T]) {
        let width = self.sizes.width;
        let line = block.keys();
        let context = block.context.len();
        if context > 0 {
            let product = Product {
                m: context,
                k: block.rows.len(),
                n: width,
                a: Matrix::new(factors, 0, line).t(),
                b: self.of_queries(left, block.rows.start),
            };
            let target = Target {
                numbers: &mut *out,
                line: width,
            };
            product.write(target, true);
        }
        for Piece { rows, first } in &block.pieces {
            let row = rows.start - block.rows.start;
            let product = Product {
                m: rows.end - first,
                k: rows.len(),
                n: width,
                a: Matrix::new(factors, row * line + context, line).t(),
                b: self.of_queries(left, rows.start),
            };
            let target = Target {
                numbers: &mut out[(first - stem.rows.start) * width..],
                line: width,
            };
            product.write(target, true);
        }
    }
}

/// Number of keys that query `row` of the block reads.
fn read(block: &Block, row: usize) -> usize {
    let row = block.rows.start + row;
    block.context.len() + row + 1 - block.piece(row).first
}

/// Numbers `[N, heads * width]`, computed for one stem and one of `kv_heads` at a time, each with
/// the place of its result: `[heads / kv_heads, rows of the stem, width]`.
struct Parts<T> {
    numbers: Vec<T>,
    heads: usize,
    width: usize,
}

impl<T: Real> Parts<T> {
    fn new(packing: &Packing, heads: usize, width: usize) -> Self {
        Self {
            numbers: vec![T::from_f64(0.0); packing.rows() * heads * width],
            heads,
            width,
        }
    }

    /// The places, stem by stem.
    fn split(&mut self, packing: &Packing, kv_heads: usize) -> Vec<&mut [T]> {
        let each = self.heads / kv_heads * self.width;
        let mut rest = self.numbers.as_mut_slice();
        let mut places = Vec::with_capacity(packing.stems.len() * kv_heads);
        for stem in packing.stems.iter() {
            for _ in 0..kv_heads {
                let (place, others) = rest.split_at_mut(stem.rows.len() * each);
                places.push(place);
                rest = others;
            }
        }
        places
    }

    /// The tensor `[N, heads * width]`.
    fn finish<N: Number<Real = T>>(self, packing: &Packing) -> Result<Tensor> {
        let Self {
            numbers,
            heads,
            width,
        } = self;
        let stem_of: Vec<&Stem> = packing
            .stems
            .iter()
            .flat_map(|stem| vec![stem; stem.rows.len()])
            .collect();
        let out = rows!(N; numbers.len(), heads * width, |row, out| {
            let stem = stem_of[row].rows.clone();
            for (head, out) in out.chunks_exact_mut(width).enumerate() {
                let at = stem.start * heads + head * stem.len() + row - stem.start;
                out.copy_from_slice(&numbers[at * width..][..width]);
            }
        });
        Tensor::from_vec(out, (packing.rows(), heads * width), &Device::Cpu)
    }
}

pub(super) fn attention(
    heads: &[Tensor; 3],
    packing: &Packing,
    sizes: HeadSizes,
) -> Result<Tensor> {
    match heads[0].dtype() {
        DType::F64 => forward::<f64>(heads, packing, sizes),
        DType::BF16 => forward::<bf16>(heads, packing, sizes),
        _ => forward::<f32>(heads, packing, sizes),
    }
}

fn forward<N: Number>(heads: &[Tensor; 3], packing: &Packing, sizes: HeadSizes) -> Result<Tensor> {
    let mut mixed = Parts::<N::Real>::new(packing, sizes.heads, sizes.width);
    with_numbers::<N, _>(heads, |[queries, keys, values]| {
        let places = mixed.split(packing, sizes.kv_heads);
        places
            .into_par_iter()
            .enumerate()
            .for_each(|(number, place)| {
                let stem = &packing.stems[number / sizes.kv_heads];
                let kv = number % sizes.kv_heads;
                for (shared, out) in place.chunks_mut(stem.rows.len() * sizes.width).enumerate() {
                    let head = Head {
                        queries,
                        keys,
                        values,
                        sizes,
                        head: kv * sizes.shared() + shared,
                        kv,
                    };
                    for block in &stem.blocks {
                        let out = &mut out[(block.rows.start - stem.rows.start) * sizes.width..];
                        head.mix(
                            block,
                            &head.probs(block),
                            values,
                            &mut out[..block.rows.len() * sizes.width],
                        );
                    }
                }
            });
    })?;
    mixed.finish::<N>(packing)
}

pub(super) fn attention_backward(
    all: &[Tensor; 4],
    packing: &Packing,
    sizes: HeadSizes,
) -> Result<[Tensor; 3]> {
    match all[0].dtype() {
        DType::F64 => backward::<f64>(all, packing, sizes),
        DType::BF16 => backward::<bf16>(all, packing, sizes),
        _ => backward::<f32>(all, packing, sizes),
    }
}

fn backward<N: Number>(
    all: &[Tensor; 4],
    packing: &Packing,
    sizes: HeadSizes,
) -> Result<[Tensor; 3]> {
    let [mut d_queries, mut d_keys, mut d_values] = [sizes.heads, sizes.kv_heads, sizes.kv_heads]
        .map(|heads| Parts::<N::Real>::new(packing, heads, sizes.width));
    with_numbers::<N, _>(all, |[queries, keys, values, grad]| {
        let places = d_queries.split(packing, sizes.kv_heads).into_par_iter();
        let of_keys = d_keys.split(packing, sizes.kv_heads).into_par_iter();
        let of_values = d_values.split(packing, sizes.kv_heads).into_par_iter();
        places.zip(of_keys).zip(of_values).enumerate().for_each(
            |(number, ((place, d_keys), d_values))| {
                let stem = &packing.stems[number / sizes.kv_heads];
                let kv = number % sizes.kv_heads;
                for (shared, out) in place.chunks_mut(stem.rows.len() * sizes.width).enumerate() {
                    let head = Head {
                        queries,
                        keys,
                        values,
                        sizes,
                        head: kv * sizes.shared() + shared,
                        kv,
                    };
                    for block in &stem.blocks {
                        let out = &mut out[(block.rows.start - stem.rows.start) * sizes.width..];
                        let probs = head.probs(block);
                        let d_scores = head.d_scores(block, &probs, grad);
                        head.mix(
                            block,
                            &d_scores,
                            keys,
                            &mut out[..block.rows.len() * sizes.width],
                        );
                        head.spread(stem, block, &d_scores, queries, d_keys);
                        head.spread(stem, block, &probs, grad, d_values);
                    }
                }
            },
        );
    })?;
    Ok([
        d_queries.finish::<N>(packing)?,
        d_keys.finish::<N>(packing)?,
        d_values.finish::<N>(packing)?,
    ])
}

/// Calls `work` with the numbers of contiguous tensors in host memory, widened if they are bf16.
fn with_numbers<N: Number, const COUNT: usize>(
    tensors: &[Tensor; COUNT],
    work: impl FnOnce([&[N::Real]; COUNT]),
) -> Result<()> {
    let tensors = tensors
        .each_ref()
        .map(|tensor| to_dtype(tensor, N::Real::DTYPE));
    let tensors: Vec<Tensor> = tensors.into_iter().collect::<Result<_>>()?;
    let stored: Vec<_> = tensors.iter().map(Tensor::storage_and_layout).collect();
    let mut numbers: [&[N::Real]; COUNT] = [&[]; COUNT];
    for (numbers, (storage, layout)) in numbers.iter_mut().zip(&stored) {
        let Storage::Cpu(storage) = &**storage else {
            return layout_error("attention", "tensors must be on the CPU".to_owned());
        };
        *numbers = slice(storage, layout, "attention")?;
    }
    work(numbers);
    Ok(())
}
