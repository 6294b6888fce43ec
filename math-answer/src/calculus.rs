//! Sums, products, integrals and limits: exactly where they are finite sums of fractions, else by
//! numbers, or not at all.

use std::f64::consts::FRAC_PI_2;

use crate::complex::Complex;
use crate::evaluate::{Evaluator, Value};
use crate::expression::{Expression, Function};
use crate::rational::Rational;

/// Largest number of terms.
const MOST_TERMS: i64 = 2000;

/// Steps of work that one value of a formula costs beside its own.
const COST: u64 = 200;

/// Largest relative difference of two estimates that count as one value.
const AGREED: f64 = 1e-11;

/// The variable that a sum, a product, an integral or a limit binds, with the formula and both
/// ends.
struct Bound<'e> {
    body: &'e Expression,
    name: &'e str,
    ends: [&'e Expression; 2],
}

impl<'e> Bound<'e> {
    fn of(parts: &'e [Expression]) -> Option<Self> {
        let [body, Expression::Symbol(name), from, to] = parts else {
            return None;
        };
        Some(Self {
            body,
            name,
            ends: [from, to],
        })
    }
}

impl Evaluator {
    /// The value of a finite sum or product of fractions.
    pub(crate) fn exact_series(
        &mut self,
        function: Function,
        parts: &[Expression],
    ) -> Option<Rational> {
        let bound = Bound::of(parts)?;
        let from = self.whole(bound.ends[0])?;
        let to = self.whole(bound.ends[1])?;
        let count = to
            .checked_sub(from)?
            .checked_add(1)
            .filter(|count| (0..=MOST_TERMS).contains(count))?;
        let start = Rational::whole(i64::from(function == "prod"));
        (0..count).try_fold(start, |all, step| {
            self.pay(COST);
            let at = Value::Exact(Rational::whole(from + step));
            let term = self.with(bound.name, at, |evaluator| evaluator.exact(bound.body))?;
            let next = if function == "prod" {
                all.times(&term)
            } else {
                all.add(&term)
            };
            self.spent(next)
        })
    }

    /// The value in `f64`; NaN if two estimates of it differ.
    pub(crate) fn near_bound(&mut self, function: Function, parts: &[Expression]) -> Complex {
        let outer = std::mem::replace(&mut self.hides, true);
        let value = Bound::of(parts).and_then(|bound| match function {
            "integral" => self.integral(&bound),
            "limit" => self.limit(&bound),
            function => self.series(function, &bound),
        });
        self.hides = outer;
        value
            .filter(|value| value.is_finite())
            .map_or(Complex::NAN, Complex::real)
    }

    fn whole(&mut self, expression: &Expression) -> Option<i64> {
        self.exact(expression)?.to_whole()
    }

    /// The real value of the formula where its variable is `at`.
    fn body(&mut self, bound: &Bound<'_>, at: Value) -> Option<f64> {
        self.pay(COST);
        let value = self.with(bound.name, at, |evaluator| {
            evaluator.value(bound.body).near().as_real()
        });
        Some(value).filter(|value| value.is_finite())
    }

    /// The term of a series `step` steps behind its beginning.
    fn term(&mut self, bound: &Bound<'_>, from: i64, step: i64) -> Option<f64> {
        let at = Rational::whole(from.checked_add(step)?);
        self.body(bound, Value::Exact(at))
    }

    fn series(&mut self, function: Function, bound: &Bound<'_>) -> Option<f64> {
        let from = self.whole(bound.ends[0])?;
        let last = self.value(bound.ends[1]).near().as_real();
        if last.is_finite() {
            let count = self
                .whole(bound.ends[1])?
                .checked_sub(from)?
                .checked_add(1)?;
            let count = Some(count).filter(|count| (0..=MOST_TERMS).contains(count))?;
            let start = if function == "prod" { 1.0 } else { 0.0 };
            return (0..count).try_fold(start, |all, step| {
                let term = self.term(bound, from, step)?;
                Some(if function == "prod" {
                    all * term
                } else {
                    all + term
                })
            });
        }
        if function == "prod" || last < 0.0 || last.is_nan() {
            return None;
        }
        self.infinite(bound, from)
    }

    /// A sum without end. If its terms fall as a power of their number, the sums of the first 16,
    /// 32, ... terms are a polynomial in the inverse of that number, whose value at 0 is the limit.
    fn infinite(&mut self, bound: &Bound<'_>, from: i64) -> Option<f64> {
        let mut sum = 0.0;
        let mut sums = Vec::new();
        let mut terms = Vec::new();
        let mut tiny = 0;
        for step in 0..512 {
            // Terms that have become too small for `f64` have no value.
            let Some(next) = self.term(bound, from, step) else {
                return (tiny >= 3).then_some(sum);
            };
            sum += next;
            tiny = if next.abs() <= 1e-17 * f64::abs(sum) {
                tiny + 1
            } else {
                0
            };
            if tiny >= 8 {
                return Some(sum);
            }
            if step >= 15 && (step + 1i64).is_positive() && (step + 1).count_ones() == 1 {
                sums.push((1.0 / (step + 1) as f64, sum));
                terms.push(next.abs());
            }
        }
        let falls = terms
            .first()
            .zip(terms.last())
            .is_some_and(|(first, last)| *last < 0.1 * first);
        if falls { extrapolated(&sums) } else { None }
    }

    fn limit(&mut self, bound: &Bound<'_>) -> Option<f64> {
        let side = self.whole(bound.ends[1])?;
        let place = self.value(bound.ends[0]);
        let near = place.near().as_real();
        if near.is_nan() {
            return None;
        }
        let estimates = if near.is_infinite() {
            self.estimates_far_out(bound, near)?
        } else {
            self.estimates_near(bound, &place, side)?
        };
        let first = *estimates.first()?;
        let agree = estimates
            .iter()
            .all(|other| (other - first).abs() <= 1e-8 * first.abs().max(1.0));
        // What is near 0 by its estimate is 0.
        let zero = estimates.iter().all(|estimate| estimate.abs() <= 1e-10);
        agree.then_some(if zero { 0.0 } else { first })
    }

    /// Estimates of a limit at ∞ or −∞, by values at powers of two beside several offsets. A
    /// variable such as `n` may stand for whole numbers alone.
    fn estimates_far_out(&mut self, bound: &Bound<'_>, end: f64) -> Option<Vec<f64>> {
        let sign = if end < 0.0 { -1 } else { 1 };
        let counts = "nkm".contains(bound.name.trim_start_matches('\u{1}'));
        let offsets: [(i64, i64); 3] = if counts {
            [(0, 1), (1, 1), (3, 1)]
        } else {
            [(0, 1), (1, 1), (3, 7)]
        };
        let mut estimates = Vec::new();
        for (above, below) in offsets {
            let offset = Rational::new(above.into(), below.into())?;
            let mut points = Vec::new();
            for k in 2..=10 {
                let at = Rational::whole(1 << k)
                    .add(&offset)?
                    .times(&Rational::whole(sign))?;
                let step = at.inverse()?.to_f64();
                match self.body(bound, Value::Exact(at)) {
                    Some(value) => points.push((step, value)),
                    None if points.len() >= 5 => break,
                    None => return None,
                }
            }
            estimates.push(extrapolated(&points)?);
        }
        Some(estimates)
    }

    /// Estimates of a limit at a number, by values ever nearer to it on the given side, or for
    /// `side` 0 on both.
    fn estimates_near(&mut self, bound: &Bound<'_>, place: &Value, side: i64) -> Option<Vec<f64>> {
        let directions: &[i64] = match side {
            0 => &[1, -1],
            1 => &[1],
            _ => &[-1],
        };
        let mut estimates = Vec::new();
        for direction in directions {
            let mut points = Vec::new();
            for k in 2..=10 {
                let step = Rational::whole(1 << k)
                    .inverse()?
                    .times(&Rational::whole(*direction))?;
                let distance = step.to_f64();
                let at = match place {
                    Value::Exact(place) => Value::Exact(place.add(&step)?),
                    Value::Near(place) => Value::Near(place.plus(Complex::real(distance))),
                };
                points.push((distance, self.body(bound, at)?));
            }
            estimates.push(extrapolated(&points)?);
        }
        Some(estimates)
    }

    /// The integral by the rule of tanh and sinh. Two step lengths must agree on it.
    fn integral(&mut self, bound: &Bound<'_>) -> Option<f64> {
        let [from, to] = bound.ends.map(|end| self.value(end).near().as_real());
        if from.is_nan() || to.is_nan() {
            return None;
        }
        if from > to {
            return self.between(bound, to, from).map(|value| -value);
        }
        self.between(bound, from, to)
    }

    fn between(&mut self, bound: &Bound<'_>, from: f64, to: f64) -> Option<f64> {
        let least = if from.is_finite() && to.is_finite() {
            8.0
        } else {
            16.0
        };
        let [coarse, fine] =
            [least, 2.0 * least].map(|steps| self.quadrature(bound, [from, to], 1.0 / steps));
        let coarse = coarse?;
        let fine = fine?;
        if fine.abs() <= 1e-13 && coarse.abs() <= 1e-13 {
            return Some(0.0);
        }
        ((coarse - fine).abs() <= 10.0 * AGREED * fine.abs().max(1e-3)).then_some(fine)
    }

    fn quadrature(&mut self, bound: &Bound<'_>, ends: [f64; 2], step: f64) -> Option<f64> {
        let [from, to] = ends;
        let mut sum = 0.0;
        for direction in [1.0, -1.0] {
            let mut small = 0;
            for k in i32::from(direction < 0.0)..(4.0 / step) as i32 {
                let (at, weight) = node(ends, direction * f64::from(k) * step);
                if at <= from || at >= to || !at.is_finite() || small >= 4 {
                    break;
                }
                let value = self.body(bound, Value::Near(Complex::real(at)));
                // Far out, a value may be too small for `f64`.
                let value = value.or((small >= 1).then_some(0.0))?;
                sum += weight * value;
                small = if (weight * value).abs() <= 1e-18 * f64::abs(sum) {
                    small + 1
                } else {
                    0
                };
            }
        }
        Some(sum * step)
    }
}

/// Place and weight of a node of the rule of tanh and sinh between two ends.
fn node([from, to]: [f64; 2], t: f64) -> (f64, f64) {
    let inner = FRAC_PI_2 * t.sinh();
    let slope = FRAC_PI_2 * t.cosh();
    match (from.is_finite(), to.is_finite()) {
        (true, true) => (
            0.5 * (from + to) + 0.5 * (to - from) * inner.tanh(),
            0.5 * (to - from) * slope / (inner.cosh() * inner.cosh()),
        ),
        (true, false) => (from + inner.exp(), slope * inner.exp()),
        (false, true) => (to - inner.exp(), slope * inner.exp()),
        (false, false) => (inner.sinh(), slope * inner.cosh()),
    }
}

/// The value at 0 of the polynomial through the points, if it agrees with that through fewer of
/// them.
fn extrapolated(points: &[(f64, f64)]) -> Option<f64> {
    let mut best: Option<(f64, f64)> = None;
    let mut row: Vec<f64> = Vec::new();
    for (count, (x, y)) in points.iter().enumerate() {
        let last = row.last().copied();
        let mut next = vec![*y];
        for order in 1..=count {
            let before = row[order - 1];
            let far = points[count - order].0;
            let one = next[order - 1];
            next.push(one + (one - before) * x / (far - x));
        }
        let value = *next.last()?;
        if let Some(last) = last {
            let difference = (value - last).abs() / value.abs().max(1.0);
            if best.is_none_or(|(least, _)| difference < least) {
                best = Some((difference, value));
            }
        }
        row = next;
    }
    best.filter(|(difference, _)| *difference <= 10.0 * AGREED)
        .map(|(_, value)| value)
}
