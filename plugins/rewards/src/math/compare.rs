//! Comparison of two expressions by meaning.

use super::canonical;
use super::complex::Complex;
use super::evaluate::{Evaluator, Value};
use super::expression::{Constant, Expression};
use super::rational::Rational;

/// Most members of two sets that are matched with each other.
const MOST_MEMBERS: usize = 64;

/// Number of points at which formulas with variables are compared, and how many of them must have a value.
const POINTS: u64 = 6;
const LEAST_POINTS: usize = 3;

/// Largest relative difference of `f64` that counts as rounding.
const ROUNDING: f64 = 1e-9;

/// Largest difference between a decimal with six places and the exact value.
const SIX_PLACES: f64 = 5e-7;

/// True if `answer` has the same meaning as `gold`.
pub(super) fn same(gold: &Expression, answer: &Expression) -> bool {
    Comparison(Evaluator::new()).same(gold, answer)
}

/// A comparison with a limit on its work.
struct Comparison(Evaluator);

impl Comparison {
    fn same(&mut self, gold: &Expression, answer: &Expression) -> bool {
        // Nested sets repeat this comparison many times.
        if !self.0.step() {
            return false;
        }
        use Expression::{List, Matrix, Percent, Relation, Set, Tuple, Union, Words};
        match (gold, answer) {
            // 50% equals one half, and also 50, because an answer may omit the sign.
            (Percent(part), other) | (other, Percent(part)) if !matches!((gold, answer), (Percent(_), Percent(_))) => {
                self.same(part, other) || self.scalars(gold, answer)
            }
            (Relation(parts, signs), Relation(others, other_signs)) => {
                self.relations((parts, signs), (others, other_signs))
            }
            (Relation(..), _) => match self.assigned(gold) {
                Some(value) => self.same(value, answer),
                None => interval(gold).is_some_and(|interval| self.same(&interval, answer)),
            },
            (_, Relation(..)) => self.assigned(answer).is_some_and(|value| self.same(gold, value)),
            (Tuple(open, parts, close), Tuple(other_open, others, other_close)) => {
                let interval = parts.len() == 2;
                (!interval || (open, close) == (other_open, other_close)) && self.in_order(parts, others)
            }
            (Tuple('(', parts, ')'), List(others)) | (List(parts), Tuple('(', others, ')')) => {
                self.in_order(parts, others)
            }
            (Set(parts) | List(parts), Set(others) | List(others)) | (Set(parts), Tuple(_, others, _)) => {
                self.as_sets(parts, others)
            }
            (Union(parts), Union(others)) => self.as_sets(parts, others),
            (Set(parts) | List(parts), other) if parts.len() == 1 => self.same(&parts[0], other),
            (other, Set(parts) | List(parts)) if parts.len() == 1 => self.same(other, &parts[0]),
            (Matrix(rows), Matrix(others)) => {
                rows.len() == others.len() && rows.iter().zip(others).all(|(row, other)| self.in_order(row, other))
            }
            (Words(words), Words(others)) => words == others,
            _ => gold.is_scalar() && answer.is_scalar() && self.scalars(gold, answer),
        }
    }

    fn in_order(&mut self, parts: &[Expression], others: &[Expression]) -> bool {
        parts.len() == others.len() && parts.iter().zip(others).all(|(part, other)| self.same(part, other))
    }

    /// True if the two lists have the same members.
    fn as_sets(&mut self, parts: &[Expression], others: &[Expression]) -> bool {
        if parts.len().max(others.len()) > MOST_MEMBERS {
            return self.in_order(parts, others);
        }
        parts.iter().all(|part| others.iter().any(|other| self.same(part, other)))
            && others.iter().all(|other| parts.iter().any(|part| self.same(part, other)))
    }

    fn scalars(&mut self, gold: &Expression, answer: &Expression) -> bool {
        if gold.is_constant() && answer.is_constant() {
            let (left, right) = (self.0.at(0).value(gold), self.0.value(answer));
            return if left.is_nan() || right.is_nan() {
                self.alike(gold, answer)
            } else {
                equal(&left, &right) || (gold.has_decimals() || answer.has_decimals()) && rounded(&left, &right)
            };
        }
        let pairs = self.at_points(gold, answer);
        if pairs.len() < LEAST_POINTS {
            return self.alike(gold, answer);
        }
        pairs.iter().all(|(left, right)| equal(left, right))
    }

    /// True if both have the same canonical text; for expressions without a value.
    fn alike(&mut self, gold: &Expression, answer: &Expression) -> bool {
        canonical::write(gold, &mut self.0) == canonical::write(answer, &mut self.0)
    }

    /// Values of two expressions at the points where both have one.
    fn at_points(&mut self, one: &Expression, other: &Expression) -> Vec<(Value, Value)> {
        let pairs = (0..POINTS).map(|point| (self.0.at(point).value(one), self.0.value(other)));
        pairs.filter(|(left, right)| !left.is_nan() && !right.is_nan()).collect()
    }

    fn relations(&mut self, gold: (&[Expression], &[char]), answer: (&[Expression], &[char])) -> bool {
        let ((parts, signs), (others, other_signs)) = (gold, answer);
        if signs == other_signs && self.in_order(parts, others) {
            return true;
        }
        let turned: Vec<char> = other_signs.iter().rev().map(|sign| turn(*sign)).collect();
        let reversed: Vec<Expression> = others.iter().rev().cloned().collect();
        if signs == turned && self.in_order(parts, &reversed) {
            return true;
        }
        let ([left, right], [other_left, other_right]) = (parts, others) else { return false };
        if ![left, right, other_left, other_right].into_iter().all(Expression::is_scalar) {
            return false;
        }
        let less = |left: &Expression, right: &Expression| Expression::Sum(vec![left.clone(), right.clone().negated()]);
        let (difference, other) = (less(left, right), less(other_left, other_right));
        if signs == other_signs {
            return self.proportional(&difference, &other, signs[0] == '=' || signs[0] == '≠');
        }
        signs == turned && self.proportional(&difference, &less(other_right, other_left), false)
    }

    /// True if one is a constant times the other. The constant is above 0, or with `any` nonzero.
    fn proportional(&mut self, one: &Expression, other: &Expression, any: bool) -> bool {
        let pairs = self.at_points(one, other);
        let pairs: Vec<(Complex, Complex)> = pairs.iter().map(|(left, right)| (left.near(), right.near())).collect();
        let Some((left, right)) = pairs.iter().find(|(left, right)| left.abs() > ROUNDING && right.abs() > ROUNDING)
        else {
            return false;
        };
        let ratio = left.times(right.inverse());
        let fits = |(left, right): &(Complex, Complex)| near(*left, ratio.times(*right));
        pairs.len() >= LEAST_POINTS && (any || ratio.re > 0.0) && pairs.iter().all(fits)
    }

    /// The value that `x = 5`, `f(x) = 5` or `x ∈ S` assigns to the name on the left, or the last part of `2 + 3 = 5`.
    fn assigned<'e>(&mut self, relation: &'e Expression) -> Option<&'e Expression> {
        let Expression::Relation(parts, signs) = relation else { return None };
        let last = parts.last().filter(|_| signs.iter().all(|sign| matches!(sign, '=' | '∈')))?;
        let sum = || parts.iter().all(|part| part.is_scalar() && part.is_constant());
        (is_name(&parts[0]) || sum() && parts.iter().all(|part| self.same(last, part))).then_some(last)
    }
}

/// True for a variable, a function applied to something, or several variables.
fn is_name(part: &Expression) -> bool {
    match part {
        Expression::Symbol(_) | Expression::Words(_) => true,
        Expression::Product(factors) => {
            matches!(factors.as_slice(), [Expression::Symbol(f), _] if "fghpqr".contains(f))
        }
        Expression::Tuple('(', parts, ')') => parts.iter().all(|part| matches!(part, Expression::Symbol(_))),
        _ => false,
    }
}

/// The interval that an inequality in one variable describes.
fn interval(relation: &Expression) -> Option<Expression> {
    let Expression::Relation(parts, signs) = relation else { return None };
    let rising = signs.iter().all(|sign| matches!(sign, '<' | '≤'));
    if !rising {
        let falling = signs.iter().all(|sign| matches!(sign, '>' | '≥'));
        let turned = signs.iter().rev().map(|sign| turn(*sign)).collect();
        return falling.then(|| interval(&Expression::Relation(parts.iter().rev().cloned().collect(), turned)))?;
    }
    let is_name = |part: &Expression| matches!(part, Expression::Symbol(_));
    let infinity = Expression::Constant(Constant::Infinity);
    let open = |sign: char| sign == '<';
    let (left, low, high, right) = match (parts.as_slice(), signs.as_slice()) {
        ([low, name, high], [first, second]) if is_name(name) => (*first, low.clone(), high.clone(), *second),
        ([name, high], [sign]) if is_name(name) => ('<', infinity.negated(), high.clone(), *sign),
        ([low, name], [sign]) if is_name(name) => (*sign, low.clone(), infinity, '<'),
        _ => return None,
    };
    let (left, right) = (if open(left) { '(' } else { '[' }, if open(right) { ')' } else { ']' });
    Some(Expression::Tuple(left, vec![low, high], right))
}

fn turn(sign: char) -> char {
    match sign {
        '<' => '>',
        '>' => '<',
        '≤' => '≥',
        '≥' => '≤',
        other => other,
    }
}

fn equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Exact(left), Value::Exact(right)) => left == right,
        _ => near(left.near(), right.near()),
    }
}

fn near(left: Complex, right: Complex) -> bool {
    if !left.is_finite() || !right.is_finite() {
        return left == right;
    }
    let difference = left.plus(right.times(Complex::real(-1.0))).abs();
    difference <= ROUNDING * left.abs().max(right.abs()) || difference <= 1e-14
}

/// True if one value is the other rounded to six places. It is not enough that both are near 0.
fn rounded(left: &Value, right: &Value) -> bool {
    let difference = match (left, right) {
        (Value::Exact(left), Value::Exact(right)) => {
            left.add(&right.negated()).as_ref().map_or(f64::INFINITY, Rational::to_f64).abs()
        }
        _ => left.near().plus(right.near().times(Complex::real(-1.0))).abs(),
    };
    difference <= SIX_PLACES && difference <= 1e-4 * left.near().abs()
}
