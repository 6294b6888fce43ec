//! Inner loops over fixed blocks of lanes, inlined into code for several instruction sets. Each
//! lane does the same correctly rounded operations in the same order in all of them, so the bits
//! agree.

use super::{Projection, saturate};
use crate::optimizer::{MomentRow, RowRule};
use crate::semantics::StateDtype;

/// Two of the widest vectors. With this number the compiler keeps and vectorises the loop over
/// lanes, instead of unrolling it first.
const LANES: usize = 32;

/// `D . h` for the gradient `coefficient h` of one row: in `f32` if every intermediate is finite
/// there, else in `f64`.
#[inline(always)]
pub(crate) fn project(
    h: &[f32],
    row: Option<&MomentRow>,
    rule: &RowRule,
    coefficient: f64,
) -> Projection {
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
fn project_wide(
    h: &[f32],
    row: Option<&MomentRow>,
    rule: &RowRule,
    coefficient: f64,
) -> Projection {
    let mut projection = Projection::default();
    for (at, &h) in h.iter().enumerate() {
        let (m, v) = row.map_or((0.0, 0.0), |row| {
            (f64::from(row.exp_avg[at]), f64::from(row.exp_avg_sq[at]))
        });
        let h = f64::from(h);
        let direction = rule.direction(m, v, coefficient * h);
        projection.v += h * direction;
        projection.squared_norm += direction * direction;
    }
    projection
}

/// `project` in `f32` for a row with moments; not finite if an intermediate overflowed.
#[inline(always)]
fn project_seen(h: &[f32], row: &MomentRow, rule: &RowRule, coefficient: f64) -> Projection {
    let [old1, new1, old2, new2, eps, coefficient] = [
        rule.old1,
        rule.new1,
        rule.old2,
        rule.new2,
        rule.eps,
        coefficient,
    ]
    .map(|x| x as f32);
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
            // A square that overflows would vanish in the quotient; their sum reveals it.
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
    let v = if reduce(squares).is_finite() {
        reduce(total)
    } else {
        f32::INFINITY
    };
    Projection {
        v: f64::from(v),
        squared_norm: f64::from(reduce(norm)),
    }
}

/// `project` in `f32` for a row with zero moments; not finite if an intermediate overflowed.
#[inline(always)]
fn project_unseen(h: &[f32], rule: &RowRule, coefficient: f64) -> Projection {
    let [new1, root2, eps, coefficient] =
        [rule.new1, rule.new2.sqrt(), rule.eps, coefficient].map(|x| x as f32);
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
    Projection {
        v: f64::from(reduce(total)),
        squared_norm: f64::from(reduce(norm)),
    }
}

/// The last, incomplete block, padded with zeros, which add nothing.
#[inline(always)]
fn padded(rest: &[f32]) -> [f32; LANES] {
    let mut block = [0.0; LANES];
    block[..rest.len()].copy_from_slice(rest);
    block
}

/// The sum of all lanes, by repeated halving.
#[inline(always)]
fn reduce(lanes: [f32; LANES]) -> f32 {
    let lanes: [f32; 16] = std::array::from_fn(|lane| halves(&lanes, lane));
    let lanes: [f32; 8] = std::array::from_fn(|lane| halves(&lanes, lane));
    let lanes: [f32; 4] = std::array::from_fn(|lane| halves(&lanes, lane));
    let lanes: [f32; 2] = std::array::from_fn(|lane| halves(&lanes, lane));
    lanes[0] + lanes[1]
}

/// The sum of a lane and the lane half of all lanes further on.
#[inline(always)]
fn halves(lanes: &[f32], lane: usize) -> f32 {
    lanes[lane] + lanes[lane + lanes.len() / 2]
}

/// `sum f(a, b)` in `f64` over blocks of lanes.
#[inline(always)]
pub(crate) fn sum<A: Copy, B: Copy>(a: &[A], b: &[B], f: impl Fn(A, B) -> f64) -> f64 {
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

/// Replaces one row of a gradient by Adam's direction, in place.
#[inline(always)]
pub(crate) fn propose(gradient: &mut [f64], row: Option<&MomentRow>, rule: &RowRule) {
    match row {
        Some(row) => {
            for ((g, &m), &v) in gradient.iter_mut().zip(row.exp_avg).zip(row.exp_avg_sq) {
                *g = rule.direction(f64::from(m), f64::from(v), *g);
            }
        }
        None => gradient
            .iter_mut()
            .for_each(|g| *g = rule.direction(0.0, 0.0, *g)),
    }
}

/// Adds one row of a gradient to its moments, and the rejected gradient's row to the second moment.
#[inline(always)]
pub(crate) fn update(
    exp_avg: &mut [f32],
    exp_avg_sq: &mut [f32],
    gradient: &[f64],
    rejected: &[f64],
    rule: &RowRule,
    dtype: StateDtype,
) {
    for (((m, v), &g), &r) in exp_avg
        .iter_mut()
        .zip(&mut *exp_avg_sq)
        .zip(gradient)
        .zip(rejected)
    {
        let (mean, square) = rule.moments(f64::from(*m), f64::from(*v), g);
        (*m, *v) = (saturate(mean), saturate(square + rule.new2 * r * r));
    }
    if dtype == StateDtype::Bf16 {
        exp_avg
            .iter_mut()
            .chain(exp_avg_sq)
            .for_each(|x| *x = to_bf16(*x));
    }
}

/// The nearest `bf16` value, ties to even; a finite number stays finite.
fn to_bf16(x: f32) -> f32 {
    const LARGEST: f32 = f32::from_bits(0x7f7f_0000);
    let bits = x.clamp(-LARGEST, LARGEST).to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_has_eight_digits_and_ties_to_even() {
        let eps = 1.0 / 128.0;
        for (x, rounded) in [
            (1.0, 1.0),
            (1.0 + 0.5 * eps, 1.0),
            (1.0 + 1.5 * eps, 1.0 + 2.0 * eps),
            (-1.0 - 0.51 * eps, -1.0 - eps),
            (0.999, 1.0),
            (0.0, 0.0),
        ] {
            assert_eq!(to_bf16(x), rounded, "{x}");
        }
        assert!(to_bf16(f32::MAX).is_finite() && to_bf16(-f32::MAX).is_finite());
    }

    #[test]
    fn lanes_add_up() {
        let lanes: [f32; LANES] = std::array::from_fn(|lane| (lane * lane) as f32);
        assert_eq!(reduce(lanes), lanes.iter().sum());
    }
}
