//! The formulas for the effect of a direction on one token's policy and objective.

/// Reaction of a token's policy to a step that moves its logits by `lr v`, where `v = D h` over the
/// token's rows.
///
/// Both quadratic forms of the model follow from `s = u . v` and `q = Var_pi(v)`: `D' F~ D = s²`
/// and `D' H~ D = A (s² - q)` (paper, eq. 8 and 9). Logits outside the token's rows do not move.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(C)]
pub(crate) struct Reaction {
    pub s: f64,
    pub q: f64,
    /// `KL(pi, pi')`, old policy to new, nats; at least 0.
    pub kl: f64,
    /// `pi'(a) / pi(a) - 1`.
    pub gain: f64,
}

impl Reaction {
    /// The reaction from probabilities, `u = e_a - pi` and projections over one support, and the
    /// probability `tail` outside it.
    pub fn of(pi: &[f64], u: &[f64], v: &[f64], tail: f64, learning_rate: f64) -> Self {
        let s: f64 = u.iter().zip(v).map(|(u, v)| u * v).sum();
        let mean: f64 = pi.iter().zip(v).map(|(p, v)| p * v).sum();
        let q = pi
            .iter()
            .zip(v)
            .map(|(p, v)| p * (v - mean) * (v - mean))
            .sum::<f64>()
            + tail * mean * mean;
        let kl = divergence(pi, v, mean, tail, learning_rate);
        // The sampled logit moves by lr v_a, its log-probability by lr (v_a - mean) - kl, and s is
        // v_a - mean.
        let log_ratio = learning_rate * s - kl;
        // No probability rises above 1; the ceiling also holds if large terms cancel badly. Only
        // the sampled token's u is above 0.
        let ceiling = u
            .iter()
            .position(|&u| u > 0.0)
            .map_or(f64::INFINITY, |sampled| -pi[sampled].ln());
        Self {
            s,
            q,
            kl,
            gain: if log_ratio > ceiling {
                ceiling
            } else {
                log_ratio
            }
            .exp_m1(),
        }
    }
}

/// `log sum pi e^x - sum pi x` with `x = lr v` and the tail at `x = 0`, without cancellation or
/// overflow.
fn divergence(pi: &[f64], v: &[f64], mean: f64, tail: f64, learning_rate: f64) -> f64 {
    let outside = -learning_rate * mean;
    // The probability and `x` of each row, and those of the tail.
    let terms = pi
        .iter()
        .zip(v)
        .map(move |(&p, &v)| (p, learning_rate * (v - mean)))
        .chain([(tail, outside)])
        .filter(|term| term.0 > 0.0);
    let size = terms
        .clone()
        .fold(0.0, |size: f64, (_, x)| size.max(x.abs()));
    if size < 1.0 {
        return terms
            .map(|(p, x)| p * exp_less_tangent(x))
            .sum::<f64>()
            .ln_1p();
    }
    let largest = terms
        .clone()
        .fold(f64::NEG_INFINITY, |largest, (_, x)| largest.max(x));
    let total: f64 = terms.map(|(p, x)| p * (x - largest).exp()).sum();
    let divergence = largest + total.ln();
    // `max` would turn a NaN into 0.
    if divergence < 0.0 { 0.0 } else { divergence }
}

/// `e^x - 1 - x` for `|x| < 1`, to a few ulps.
fn exp_less_tangent(x: f64) -> f64 {
    if x.abs() > 0.5 {
        return x.exp_m1() - x;
    }
    // Taylor's series, x^2/2 + ... + x^14/14!, whose next term is below 1e-16 of the sum.
    let series = (3..=14)
        .rev()
        .fold(1.0, |sum, n| 1.0 + sum * x / f64::from(n));
    0.5 * x * x * series
}

/// Predicted effects of a step on one token, or averaged over the tokens of a subset.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Shift {
    /// Policy shift, nats; [`PolicyShift`](crate::PolicyShift) selects its formula.
    pub m_f: f64,
    /// Objective shift, reward units; [`ObjectiveShift`](crate::ObjectiveShift) selects its
    /// formula.
    pub m_h: f64,
    /// `lr g . D`: the objective shift to first order.
    pub first_order: f64,
    /// Exact KL divergence of the last layer's model, nats.
    pub kl: f64,
    /// Exact change of the ratio surrogate in the last layer's model, reward units.
    pub surrogate: f64,
    /// `‖D‖²` over the rows of the subset's tokens, without weight decay.
    pub squared_norm: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_less_its_tangent_keeps_its_digits() {
        for x in [1e-160, 1e-9, -1e-4, 0.1, -0.49, 0.5, 0.51, -0.99] {
            // Summed from the smallest term of the series.
            let mut term = 1.0;
            let terms: Vec<f64> = (1..40)
                .map(|n| (term *= x / f64::from(n), term).1)
                .collect();
            let exact: f64 = terms[1..].iter().rev().sum();
            assert!(
                (exp_less_tangent(x) - exact).abs() <= 4e-15 * exact.abs(),
                "{x}"
            );
        }
    }

    #[test]
    fn divergence_joins_its_two_forms_and_stays_finite() {
        let pi = [0.5, 0.3, 0.1];
        let of = |v: [f64; 3], rate: f64| Reaction::of(&pi, &[0.5, -0.3, -0.1], &v, 0.1, rate);
        let naive = |v: [f64; 3], rate: f64| {
            let mean: f64 = pi.iter().zip(v).map(|(p, v)| p * v).sum();
            (pi.iter()
                .zip(v)
                .map(|(p, v)| p * (rate * v).exp())
                .sum::<f64>()
                + 0.1)
                .ln()
                - rate * mean
        };
        for rate in [0.05, 0.3, 0.9, 1.0, 1.1, 3.0] {
            let v = [1.0, -0.7, 0.2];
            assert!(
                (of(v, rate).kl / naive(v, rate) - 1.0).abs() < 1e-12,
                "{rate}"
            );
        }
        let tiny = of([1.0, -0.7, 0.2], 1e-9);
        assert!(
            (tiny.kl / (0.5e-18 * tiny.q) - 1.0).abs() < 1e-8,
            "{tiny:?}"
        );
        let huge = of([1e200, -1e200, 0.0], 1e50);
        assert!(huge.kl.is_finite() && huge.gain.is_finite(), "{huge:?}");
        assert_eq!(of([2.0; 3], 0.0).kl, 0.0);
        for v in [
            [f64::INFINITY, 0.0, 0.0],
            [0.0, f64::NEG_INFINITY, 0.0],
            [0.0, 0.0, f64::NAN],
            [f64::NAN; 3],
        ] {
            assert!(
                !of(v, 0.1).kl.is_finite() && !of(v, 0.1).gain.is_finite(),
                "{v:?}: {:?}",
                of(v, 0.1)
            );
        }
    }

    /// `gain` is the ratio of the policies minus 1.
    #[test]
    fn gain_is_what_the_sampled_token_gains() {
        let pi = [0.6, 0.3];
        let v = [0.4, -1.5f64];
        let tail = 0.1;
        let rate = 0.7f64;
        let total: f64 = pi
            .iter()
            .zip(v)
            .map(|(p, v)| p * (rate * v).exp())
            .sum::<f64>()
            + tail;
        let reaction = Reaction::of(&pi, &[-0.6, 0.7], &v, tail, rate);
        let moved = 0.3 * (rate * v[1]).exp() / total;
        assert!(
            (reaction.gain - (moved / 0.3 - 1.0)).abs() < 1e-14,
            "{reaction:?}"
        );
    }
}
