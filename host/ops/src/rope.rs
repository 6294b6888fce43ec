//! Rotary position embeddings with a separate first position for each row.

use std::sync::Arc;

use candle_core::{CustomOp1, Device, Result, Shape, Tensor};

use super::kept::{Kept, Starts};
use super::kernel::{Arg, custom_op, layout_error, rows};
use super::number::{Number, Real};
use super::on_cpu;

/// Rotation frequencies, in radians per position, for each pair of a head's numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Frequencies {
    /// `[width / 2]`: frequency of each pair.
    per_position: Vec<f32>,
    /// Factor of cosines and sines.
    amplitude: f32,
}

impl Frequencies {
    /// `1 / theta^(2i / width)` for `i < width / 2`, for heads of even `width`.
    ///
    /// Source: `transformers.LlamaRotaryEmbedding`, in 32-bit floats like there.
    pub fn new(width: usize, theta: f64) -> Self {
        Self {
            per_position: (0..width / 2)
                .map(|i| 1.0 / theta.powf(2.0 * i as f64 / width as f64) as f32)
                .collect(),
            amplitude: 1.0,
        }
    }

    /// A copy with `f` applied to each frequency and its index.
    #[must_use]
    pub fn map(self, f: impl Fn(usize, f64) -> f64) -> Self {
        let scaled = self
            .per_position
            .iter()
            .enumerate()
            .map(|(i, frequency)| f(i, f64::from(*frequency)) as f32);
        Self {
            per_position: scaled.collect(),
            ..self
        }
    }

    /// `f` of each angle, times the amplitude: `[positions, width / 2]`.
    fn table(&self, positions: usize, f: fn(f32) -> f32) -> Vec<f32> {
        (0..positions)
            .flat_map(|position| self.per_position.iter().map(move |x| position as f32 * x))
            .map(|angle| self.amplitude * f(angle))
            .collect()
    }

    /// A copy with cosines and sines multiplied by `amplitude`.
    #[must_use]
    pub fn amplified(self, amplitude: f32) -> Self {
        Self { amplitude, ..self }
    }
}

/// Cosines and sines of `position * frequency`.
#[derive(Debug)]
pub struct RopeTable {
    cos: Vec<f32>,
    sin: Vec<f32>,
    half: usize,
    on_device: [Kept; 2],
}

impl RopeTable {
    /// The table for positions `0..positions`.
    pub fn new(positions: usize, frequencies: &Frequencies) -> Self {
        Self {
            cos: frequencies.table(positions, f32::cos),
            sin: frequencies.table(positions, f32::sin),
            half: frequencies.per_position.len(),
            on_device: Default::default(),
        }
    }

    /// Cosines and sines `[positions, width / 2]` on `device`, which gets them once.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn on(&self, device: &Device) -> Result<[Tensor; 2]> {
        let shape = (self.positions(), self.half);
        let [cos, sin] = &self.on_device;
        Ok([
            cos.get(device, || Tensor::from_slice(&self.cos, shape, device))?,
            sin.get(device, || Tensor::from_slice(&self.sin, shape, device))?,
        ])
    }

    fn positions(&self) -> usize {
        self.cos.len() / self.half.max(1)
    }
}

/// Rotation of one batch: token `s` of row `b` has position `first_index + s - starts[b]`, or 0
/// before the start.
#[derive(Debug, Clone)]
pub struct Rope {
    /// Table of cosines and sines.
    pub table: Arc<RopeTable>,
    /// `[B]`: first real token of each row.
    pub starts: Starts,
    first_index: usize,
}

impl Rope {
    /// Rotation of rows whose first real tokens are `starts` `[B]`, for tokens from `first_index`
    /// on.
    pub fn new(table: Arc<RopeTable>, starts: impl Into<Starts>, first_index: usize) -> Self {
        Self {
            table,
            starts: starts.into(),
            first_index,
        }
    }

    /// Rotation of rows of one token each, at these positions `[B]`.
    pub fn at(table: Arc<RopeTable>, positions: &[usize]) -> Self {
        let last = positions.iter().max().copied().unwrap_or(0);
        Self::new(
            table,
            positions
                .iter()
                .map(|position| last - position)
                .collect::<Vec<_>>(),
            last,
        )
    }

    /// Rotates `x` `[B, S, H * width]` and moves the heads to the front: `[B, H, S, width]`.
    pub fn apply(&self, x: &Tensor, heads: usize) -> Result<Tensor> {
        let kernel = Rotate {
            rope: self.clone(),
            heads,
            inverse: false,
        };
        #[cfg(feature = "cuda")]
        if super::cuda::takes(x) {
            return kernel.on_cuda(x);
        }
        on_cpu([x], |[x]| x.apply_op1_no_bwd(&kernel))
    }

    /// Gradient by the argument of `apply`, `[B, S, H * width]`, from the gradient `grad` of its
    /// result.
    pub fn backward(&self, grad: &Tensor) -> Result<Tensor> {
        let (_, heads, _, _) = grad.dims4()?;
        let kernel = Rotate {
            rope: self.clone(),
            heads,
            inverse: true,
        };
        #[cfg(feature = "cuda")]
        if super::cuda::takes(grad) {
            return kernel.on_cuda(grad);
        }
        on_cpu([grad], |[grad]| grad.apply_op1_no_bwd(&kernel))
    }

    fn position(&self, row: usize, token: usize) -> usize {
        (self.first_index + token).saturating_sub(self.starts[row])
    }
}

/// Forward: `[B, S, H * width]` to `[B, H, S, width]`. Inverse: back, with the opposite angle.
struct Rotate {
    rope: Rope,
    heads: usize,
    inverse: bool,
}

/// Sizes of one rotation.
struct Sizes {
    rows: usize,
    tokens: usize,
    heads: usize,
    width: usize,
}

impl Rotate {
    #[cfg(feature = "cuda")]
    fn on_cuda(&self, x: &Tensor) -> Result<Tensor> {
        let Sizes { heads, .. } = self.sizes(x.shape())?;
        let table = self.rope.table.on(x.device())?;
        let starts = self.rope.starts.on(x.device())?;
        let turn = super::cuda::Turn {
            table,
            starts,
            first_index: self.rope.first_index,
        };
        super::cuda::move_heads(x, heads, &turn, self.inverse)
    }

    fn sizes(&self, shape: &Shape) -> Result<Sizes> {
        let sizes = match (self.inverse, shape.dims()) {
            (false, &[rows, tokens, all]) => Sizes {
                rows,
                tokens,
                heads: self.heads,
                width: all / self.heads,
            },
            (true, &[rows, heads, tokens, width]) => Sizes {
                rows,
                tokens,
                heads,
                width,
            },
            (_, other) => return layout_error(self.name(), format!("x has shape {other:?}")),
        };
        let last = (0..sizes.rows)
            .map(|row| self.rope.position(row, sizes.tokens.saturating_sub(1)))
            .max();
        let fits = sizes.width == 2 * self.rope.table.half
            && self.rope.starts.len() == sizes.rows
            && last.unwrap_or(0) < self.rope.table.positions();
        if !fits {
            return layout_error(
                self.name(),
                format!("x {:?} does not fit the table or starts", shape.dims()),
            );
        }
        Ok(sizes)
    }

    fn run<N: Number>(&self, x: Arg<'_, N>) -> Result<(Vec<N>, Shape)> {
        let Sizes {
            rows,
            tokens,
            heads,
            width,
        } = self.sizes(x.shape)?;
        // Both layouts are sequences of runs of `width`; `outer` and `inner` are the middle axes of
        // the output.
        let (outer, inner) = if self.inverse {
            (tokens, heads)
        } else {
            (heads, tokens)
        };
        let out = rows!(N; x.numbers.len(), width, |run, out| {
            let row = run / (outer * inner);
            let middle = run / inner % outer;
            let last = run % inner;
            let token = if self.inverse { middle } else { last };
            let from = ((row * inner + last) * outer + middle) * width;
            let source = N::read(&x.numbers[from..][..width]);
            self.rotate(self.rope.position(row, token), &source, out);
        });
        let turned = if self.inverse {
            (rows, tokens, heads * width).into()
        } else {
            (rows, heads, tokens, width).into()
        };
        Ok((out, turned))
    }

    #[inline(always)]
    fn rotate<T: Real>(&self, position: usize, x: &[T], out: &mut [T]) {
        let half = self.rope.table.half;
        let cos = &self.rope.table.cos[position * half..][..half];
        let sin = &self.rope.table.sin[position * half..][..half];
        let sign = T::from_f64(if self.inverse { -1.0 } else { 1.0 });
        let (x1, x2) = x.split_at(half);
        let (out1, out2) = out.split_at_mut(half);
        for i in 0..half {
            let cos = T::from_f64(f64::from(cos[i]));
            let sin = sign * T::from_f64(f64::from(sin[i]));
            out1[i] = x1[i] * cos - x2[i] * sin;
            out2[i] = x2[i] * cos + x1[i] * sin;
        }
    }
}

custom_op!(Rotate, "rope", CustomOp1);
