//! The operations on CPU threads. Inner loops run over fixed blocks of lanes, compiled for several instruction sets, of
//! which the widest that the machine has is taken at run time. Each lane does the same correctly rounded operations in the
//! same order everywhere, so that the bits depend neither on the instruction set nor on the number of threads.

use pulp::Arch;

use super::{Projection, parallel, saturate};
use crate::LastLayer;
use crate::gradient::{Gradients, Pair};
use crate::moments::{MomentRow, Slot, Source};
use crate::optimizer::{Adam, RowRule};
use crate::semantics::StateDtype;

/// Two of the widest vectors: enough for the compiler to keep the loop over lanes and vectorise it, instead of unrolling
/// it first.
const LANES: usize = 32;

/// Part of the pairs, with where their results go.
struct Task<'a> {
    pairs: &'a [Pair],
    coefficients: &'a [f64],
    projections: &'a mut [Projection],
}

/// Where a batch's features are.
#[derive(Clone, Copy)]
pub(crate) struct Features<'a> {
    pub batch: &'a LastLayer<'a>,
    /// Flat position of each token's feature, `[N]`.
    pub positions: &'a [usize],
    /// How many threads may work.
    pub threads: usize,
}

impl<'a> Features<'a> {
    /// The feature of a pair's token, `[D]`.
    fn of(&self, pair: &Pair) -> &'a [f32] {
        self.batch.feature(self.positions[pair.token as usize])
    }

    fn threads_for(&self, pairs: usize) -> usize {
        parallel::threads_for(pairs * self.batch.width, self.threads)
    }
}

/// `‖h‖²`; not finite if an entry is not.
pub(crate) fn squared_norm(feature: &[f32]) -> f64 {
    Arch::new().dispatch(|| sum(feature, feature, |x, y| f64::from(x) * f64::from(y)))
}

/// `D h` of each pair, `[P]`: D is the Adam direction as if the token's own gradient, `coefficient h`, were the batch's,
/// from the moments before the batch. Each projection's squared norm is that of its row of D.
pub(crate) fn token_projections(
    features: Features,
    gradients: &Gradients,
    source: &Source,
    adam: &Adam,
) -> Vec<Projection> {
    let mut projections = vec![Projection::default(); gradients.pairs.len()];
    let threads = features.threads_for(projections.len());
    let arch = Arch::new();
    parallel::for_each(threads, tasks(gradients, &mut projections, threads, |_, _| false), |task| {
        arch.dispatch(|| token_task(features, source, adam, task));
    });
    projections
}

#[inline(always)]
fn token_task(features: Features, source: &Source, adam: &Adam, task: Task) {
    let mut done = 0;
    for run in task.pairs.chunk_by(Pair::shares_row) {
        let row = source.row(run[0].row, features.batch.width);
        let rule = adam.proposal(row.as_ref());
        for pair in run {
            task.projections[done] = project(features.of(pair), row.as_ref(), &rule, task.coefficients[done]);
            done += 1;
        }
    }
}

/// `D h` of each pair, `[P]`: D is the direction of each subset's gradient, the sum of `coefficient h` over its pairs;
/// `adam` absent means SGD. The first projection of each row carries the squared norm of that row of D, the others 0.
pub(crate) fn subset_projections(
    features: Features,
    gradients: &Gradients,
    source: &Source,
    adam: Option<&Adam>,
) -> Vec<Projection> {
    let mut projections = vec![Projection::default(); gradients.pairs.len()];
    let threads = features.threads_for(2 * projections.len());
    let arch = Arch::new();
    parallel::for_each(threads, tasks(gradients, &mut projections, threads, Pair::shares_row), |task| {
        arch.dispatch(|| subset_task(features, source, adam, task));
    });
    projections
}

#[inline(always)]
fn subset_task(features: Features, source: &Source, adam: Option<&Adam>, task: Task) {
    let width = features.batch.width;
    let mut direction = vec![0.0; width];
    let mut done = 0;
    for run in task.pairs.chunk_by(Pair::shares_row) {
        accumulate(features, run, &task.coefficients[done..], &mut direction);
        if let Some(adam) = adam {
            let row = source.row(run[0].row, width);
            let rule = adam.proposal(row.as_ref());
            propose(&mut direction, row.as_ref(), &rule);
        }
        task.projections[done].squared_norm = sum(&direction, &direction, |x, y| x * y);
        for pair in run {
            task.projections[done].v = sum(&direction, features.of(pair), |d, h| d * f64::from(h));
            done += 1;
        }
    }
}

/// Takes the gradient, the sum of `coefficient h` over each row's pairs, into the moments of its rows.
///
/// `slots` are the rows' own, in the order of the pairs; `steps` counts the steps before this one.
pub(crate) fn update_moments(
    features: Features,
    gradients: &Gradients,
    slots: Vec<&mut Slot>,
    steps: u64,
    adam: &Adam,
    dtype: StateDtype,
) {
    let mut coefficients = &gradients.coefficients[..];
    let runs = gradients.pairs.chunk_by(Pair::shares_row).map(|run| {
        let (own, rest) = coefficients.split_at(run.len());
        coefficients = rest;
        (run, own)
    });
    let updates: Vec<_> = runs.zip(slots).collect();
    let threads = features.threads_for(gradients.pairs.len());
    let arch = Arch::new();
    parallel::for_each(threads, grouped(updates, gradients.pairs.len() / (8 * threads)), |updates| {
        arch.dispatch(|| {
            let mut gradient = vec![0.0; features.batch.width];
            for ((run, coefficients), slot) in updates {
                accumulate(features, run, coefficients, &mut gradient);
                update(slot, &gradient, &adam.update(steps - slot.written), dtype);
                slot.written = steps + 1;
            }
        });
    });
}

type Update<'a> = ((&'a [Pair], &'a [f64]), &'a mut Slot);

/// Updates in groups of at least `size` pairs.
fn grouped(updates: Vec<Update>, size: usize) -> Vec<Vec<Update>> {
    let mut groups: Vec<Vec<Update>> = Vec::new();
    let mut room = 0;
    for update in updates {
        let pairs = update.0.0.len();
        match groups.last_mut() {
            Some(group) if room > 0 => group.push(update),
            _ => {
                groups.push(vec![update]);
                room = size;
            }
        }
        room = room.saturating_sub(pairs);
    }
    groups
}

/// Cuts the pairs into tasks of about equal size, nowhere between two that `belong` together.
fn tasks<'a>(
    gradients: &'a Gradients,
    mut projections: &'a mut [Projection],
    threads: usize,
    belong: impl Fn(&Pair, &Pair) -> bool,
) -> Vec<Task<'a>> {
    let (mut pairs, mut coefficients) = (&gradients.pairs[..], &gradients.coefficients[..]);
    let size = if threads == 1 { pairs.len() } else { pairs.len().div_ceil(8 * threads) };
    let mut tasks = Vec::new();
    while !pairs.is_empty() {
        let mut end = size.min(pairs.len());
        while end < pairs.len() && belong(&pairs[end - 1], &pairs[end]) {
            end += 1;
        }
        let (own_pairs, own_coefficients, own);
        (own_pairs, pairs) = pairs.split_at(end);
        (own_coefficients, coefficients) = coefficients.split_at(end);
        (own, projections) = std::mem::take(&mut projections).split_at_mut(end);
        tasks.push(Task { pairs: own_pairs, coefficients: own_coefficients, projections: own });
    }
    tasks
}

/// `gradient = sum coefficient h` over the pairs of one row, `[D]`.
#[inline(always)]
fn accumulate(features: Features, run: &[Pair], coefficients: &[f64], gradient: &mut [f64]) {
    gradient.fill(0.0);
    for (pair, &coefficient) in run.iter().zip(coefficients) {
        for (g, &h) in gradient.iter_mut().zip(features.of(pair)) {
            *g += coefficient * f64::from(h);
        }
    }
}

/// Turns one row of a gradient into Adam's direction, in place.
#[inline(always)]
fn propose(gradient: &mut [f64], row: Option<&MomentRow>, rule: &RowRule) {
    match row {
        Some(row) => {
            for ((g, &m), &v) in gradient.iter_mut().zip(row.exp_avg).zip(row.exp_avg_sq) {
                *g = rule.direction(f64::from(m), f64::from(v), *g);
            }
        }
        None => gradient.iter_mut().for_each(|g| *g = rule.direction(0.0, 0.0, *g)),
    }
}

#[inline(always)]
fn update(slot: &mut Slot, gradient: &[f64], rule: &RowRule, dtype: StateDtype) {
    for ((m, v), &g) in slot.exp_avg.iter_mut().zip(&mut slot.exp_avg_sq).zip(gradient) {
        let (mean, square) = rule.moments(f64::from(*m), f64::from(*v), g);
        (*m, *v) = (saturate(mean), saturate(square));
    }
    if dtype == StateDtype::Bf16 {
        slot.exp_avg.iter_mut().chain(&mut slot.exp_avg_sq).for_each(|x| *x = to_bf16(*x));
    }
}

/// The nearest number that `bf16` has, ties to even; a finite one stays finite.
fn to_bf16(x: f32) -> f32 {
    let bits = x.clamp(-3.38953139e38, 3.38953139e38).to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

/// `D . h` for the gradient `coefficient h` of one row: in `f32` where that holds every intermediate, else in `f64`.
#[inline(always)]
fn project(h: &[f32], row: Option<&MomentRow>, rule: &RowRule, coefficient: f64) -> Projection {
    let fast = match row {
        Some(row) => project_seen(h, row, rule, coefficient),
        None => project_unseen(h, rule, coefficient),
    };
    if fast.v.is_finite() && fast.squared_norm.is_finite() {
        return fast;
    }
    project_wide(h, row, rule, coefficient)
}

/// `project` in `f64`.
#[inline(never)]
fn project_wide(h: &[f32], row: Option<&MomentRow>, rule: &RowRule, coefficient: f64) -> Projection {
    let mut projection = Projection::default();
    for (at, &h) in h.iter().enumerate() {
        let (m, v) = row.map_or((0.0, 0.0), |row| (f64::from(row.exp_avg[at]), f64::from(row.exp_avg_sq[at])));
        let h = f64::from(h);
        let direction = rule.direction(m, v, coefficient * h);
        projection.v += h * direction;
        projection.squared_norm += direction * direction;
    }
    projection
}

/// `project` in `f32` for a row with moments; not finite if anything overflowed on the way.
#[inline(always)]
fn project_seen(h: &[f32], row: &MomentRow, rule: &RowRule, coefficient: f64) -> Projection {
    let [old1, new1, old2, new2, eps, coefficient] =
        [rule.old1, rule.new1, rule.old2, rule.new2, rule.eps, coefficient].map(|x| x as f32);
    let mut total = [0.0f32; LANES];
    let mut norm = [0.0f32; LANES];
    let mut squares = [0.0f32; LANES];
    let mut block = |h: &[f32; LANES], m: &[f32; LANES], v: &[f32; LANES]| {
        for lane in 0..LANES {
            let g = coefficient * h[lane];
            let square = old2 * v[lane] + new2 * (g * g);
            let direction = (old1 * m[lane] + new1 * g) / (square.sqrt() + eps);
            total[lane] += h[lane] * direction;
            norm[lane] += direction * direction;
            // A square that overflows would vanish in the quotient; their sum tells.
            squares[lane] += square;
        }
    };
    let (h_blocks, h_rest) = h.as_chunks();
    let (m_blocks, m_rest) = row.exp_avg.as_chunks();
    let (v_blocks, v_rest) = row.exp_avg_sq.as_chunks();
    for ((h, m), v) in h_blocks.iter().zip(m_blocks).zip(v_blocks) {
        block(h, m, v);
    }
    if !h_rest.is_empty() {
        block(&padded(h_rest), &padded(m_rest), &padded(v_rest));
    }
    let fits = squares.iter().all(|x| x.is_finite());
    Projection { v: if fits { wide_sum(&total) } else { f64::INFINITY }, squared_norm: wide_sum(&norm) }
}

/// `project` in `f32` for a row whose moments are zero; not finite if anything overflowed on the way.
#[inline(always)]
fn project_unseen(h: &[f32], rule: &RowRule, coefficient: f64) -> Projection {
    let [new1, root2, eps, coefficient] = [rule.new1, rule.new2.sqrt(), rule.eps, coefficient].map(|x| x as f32);
    let mut total = [0.0f32; LANES];
    let mut norm = [0.0f32; LANES];
    let mut block = |h: &[f32; LANES]| {
        for lane in 0..LANES {
            let g = coefficient * h[lane];
            let direction = (new1 * g) / (root2 * g.abs() + eps);
            total[lane] += h[lane] * direction;
            norm[lane] += direction * direction;
        }
    };
    let (blocks, rest) = h.as_chunks();
    for h in blocks {
        block(h);
    }
    if !rest.is_empty() {
        block(&padded(rest));
    }
    Projection { v: wide_sum(&total), squared_norm: wide_sum(&norm) }
}

#[inline(always)]
fn wide_sum(lanes: &[f32; LANES]) -> f64 {
    lanes.iter().map(|&x| f64::from(x)).sum()
}

/// The last, incomplete block, filled up with zeros, which add nothing.
#[inline(always)]
fn padded(rest: &[f32]) -> [f32; LANES] {
    let mut block = [0.0; LANES];
    block[..rest.len()].copy_from_slice(rest);
    block
}

/// `sum f(a, b)` in `f64` over blocks of lanes.
#[inline(always)]
fn sum<A: Copy, B: Copy>(a: &[A], b: &[B], f: impl Fn(A, B) -> f64) -> f64 {
    let mut total = [0.0f64; LANES];
    let (a_blocks, a_rest) = a.as_chunks::<LANES>();
    let (b_blocks, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for lane in 0..LANES {
            total[lane] += f(a[lane], b[lane]);
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(&a, &b)| f(a, b)).sum();
    total.iter().sum::<f64>() + rest
}
