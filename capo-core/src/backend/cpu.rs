//! The operations on one CPU thread. Inner loops run over fixed blocks of lanes, which the compiler vectorises.

use super::saturate;
use crate::LastLayer;
use crate::moments::{MomentRow, Moments};
use crate::optimizer::{Adam, RowRule};
use crate::support::Pair;

/// Enough for the compiler to keep the loop over lanes and vectorise it, instead of unrolling it first.
const LANES: usize = 32;

/// `‖h‖²` of each feature, `[N]`, given by flat positions.
pub(crate) fn squared_norms(batch: &LastLayer, features: &[usize]) -> Vec<f64> {
    let norm = |h| sum(h, h, |x, y| f64::from(x) * f64::from(y));
    features.iter().map(|&feature| norm(batch.feature(feature))).collect()
}

/// `v = D h` of each pair, `[P]`: D is the Adam direction as if the token's own gradient, `coefficient h`, were the
/// batch's, from the moments before the batch.
pub(crate) fn token_projections(
    batch: &LastLayer,
    by_row: &[Pair],
    coefficients: &[f64],
    moments: &Moments,
    adam: &Adam,
) -> Vec<f64> {
    let mut projections = vec![0.0; coefficients.len()];
    for pairs in by_row.chunk_by(|a, b| a.row == b.row) {
        let row = moments.row(pairs[0].row);
        let rule = adam.proposal(row.as_ref().map_or(0, |row| row.age));
        for pair in pairs {
            projections[pair.index] =
                project(batch.feature(pair.feature), row.as_ref(), &rule, coefficients[pair.index]);
        }
    }
    projections
}

/// `v = D h` of each pair, `[P]`: D is the direction of `sum coefficient h` over each row's pairs; `adam` absent means
/// SGD.
pub(crate) fn subset_projections(
    batch: &LastLayer,
    by_row: &[Pair],
    coefficients: &[f64],
    moments: &Moments,
    adam: Option<&Adam>,
) -> Vec<f64> {
    let mut projections = vec![0.0; coefficients.len()];
    let mut direction = vec![0.0; batch.width];
    for pairs in by_row.chunk_by(|a, b| a.row == b.row) {
        accumulate(batch, pairs, coefficients, &mut direction);
        if let Some(adam) = adam {
            propose(&mut direction, moments.row(pairs[0].row).as_ref(), adam);
        }
        for pair in pairs {
            projections[pair.index] = sum(&direction, batch.feature(pair.feature), |d, h| d * f64::from(h));
        }
    }
    projections
}

/// Takes the gradient `sum coefficient h` of every row in `by_row` into the moments; other rows are left for later.
pub(crate) fn update_moments(
    batch: &LastLayer,
    by_row: &[Pair],
    coefficients: &[f64],
    moments: &mut Moments,
    adam: &Adam,
) {
    let mut gradient = vec![0.0; batch.width];
    for pairs in by_row.chunk_by(|a, b| a.row == b.row) {
        accumulate(batch, pairs, coefficients, &mut gradient);
        let (exp_avg, exp_avg_sq, age) = moments.row_mut(pairs[0].row);
        let rule = adam.update(age);
        for ((m, v), &g) in exp_avg.iter_mut().zip(exp_avg_sq).zip(&gradient) {
            let (mean, square) = rule.moments(f64::from(*m), f64::from(*v), g);
            (*m, *v) = (saturate(mean), saturate(square));
        }
    }
}

/// `gradient = sum coefficient h` over the pairs of one row, `[D]`.
fn accumulate(batch: &LastLayer, pairs: &[Pair], coefficients: &[f64], gradient: &mut [f64]) {
    gradient.fill(0.0);
    for pair in pairs {
        let coefficient = coefficients[pair.index];
        for (g, &h) in gradient.iter_mut().zip(batch.feature(pair.feature)) {
            *g += coefficient * f64::from(h);
        }
    }
}

/// Turns one row of a gradient into Adam's direction, in place.
fn propose(gradient: &mut [f64], row: Option<&MomentRow>, adam: &Adam) {
    let rule = adam.proposal(row.map_or(0, |row| row.age));
    match row {
        Some(row) => {
            for ((g, &m), &v) in gradient.iter_mut().zip(row.exp_avg).zip(row.exp_avg_sq) {
                *g = rule.direction(f64::from(m), f64::from(v), *g);
            }
        }
        None => gradient.iter_mut().for_each(|g| *g = rule.direction(0.0, 0.0, *g)),
    }
}

/// `D . h` for the gradient `coefficient h` of one row: in `f32` where that holds every intermediate, else in `f64`.
fn project(h: &[f32], row: Option<&MomentRow>, rule: &RowRule, coefficient: f64) -> f64 {
    let fast = match row {
        Some(row) => project_seen(h, row, rule, coefficient),
        None => project_unseen(h, rule, coefficient),
    };
    if fast.is_finite() {
        return fast;
    }
    let entry = |h: f32, m: f32, v: f32| {
        let h = f64::from(h);
        h * rule.direction(f64::from(m), f64::from(v), coefficient * h)
    };
    match row {
        Some(row) => h.iter().zip(row.exp_avg).zip(row.exp_avg_sq).map(|((&h, &m), &v)| entry(h, m, v)).sum(),
        None => h.iter().map(|&h| entry(h, 0.0, 0.0)).sum(),
    }
}

/// `project` in `f32` for a row with moments; not finite if anything overflowed on the way.
fn project_seen(h: &[f32], row: &MomentRow, rule: &RowRule, coefficient: f64) -> f64 {
    let [old1, new1, old2, new2, eps, coefficient] =
        [rule.old1, rule.new1, rule.old2, rule.new2, rule.eps, coefficient].map(|x| x as f32);
    let mut total = [0.0f32; LANES];
    let mut squares = [0.0f32; LANES];
    let mut block = |h: &[f32; LANES], m: &[f32; LANES], v: &[f32; LANES]| {
        for lane in 0..LANES {
            let g = coefficient * h[lane];
            let square = old2 * v[lane] + new2 * (g * g);
            total[lane] += h[lane] * (old1 * m[lane] + new1 * g) / (square.sqrt() + eps);
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
    block(&padded(h_rest), &padded(m_rest), &padded(v_rest));
    let fits = squares.iter().all(|x| x.is_finite());
    if fits { total.iter().map(|&x| f64::from(x)).sum() } else { f64::INFINITY }
}

/// `project` in `f32` for a row whose moments are zero; not finite if anything overflowed on the way.
fn project_unseen(h: &[f32], rule: &RowRule, coefficient: f64) -> f64 {
    let [new1, root2, eps, coefficient] = [rule.new1, rule.new2.sqrt(), rule.eps, coefficient].map(|x| x as f32);
    let mut total = [0.0f32; LANES];
    let mut block = |h: &[f32; LANES]| {
        for lane in 0..LANES {
            let g = coefficient * h[lane];
            total[lane] += h[lane] * (new1 * g) / (root2 * g.abs() + eps);
        }
    };
    let (blocks, rest) = h.as_chunks();
    for h in blocks {
        block(h);
    }
    block(&padded(rest));
    total.iter().map(|&x| f64::from(x)).sum()
}

/// The last, incomplete block, filled up with zeros, which add nothing.
fn padded(rest: &[f32]) -> [f32; LANES] {
    let mut block = [0.0; LANES];
    block[..rest.len()].copy_from_slice(rest);
    block
}

/// `sum f(a, b)` in `f64` over blocks of lanes.
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
