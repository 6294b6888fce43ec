//! Comparison of two expressions by meaning.

use std::ops::Range;

use crate::canonical;
use crate::complex::Complex;
use crate::evaluate::{Evaluator, LARGE, POSITIVE, SMALL, Value};
use crate::expression::{ALL_HOLD, BASED, CASE, Constant, Expression, RATIO};
use crate::label;
use crate::rational::Rational;
use crate::relation::{between, by_name, is_system, said};

/// Most members of two sets that are matched with each other.
const MOST_MEMBERS: usize = 64;

/// Points at which formulas with variables are compared, and how many of them must have a value.
const POINTS: Range<u64> = 0..POSITIVE;
const POSITIVE_POINTS: Range<u64> = POSITIVE..POSITIVE + 6;
const SMALL_POINTS: Range<u64> = SMALL..SMALL + 6;
const LARGE_POINTS: Range<u64> = LARGE..LARGE + 6;
const LEAST_POINTS: usize = 3;

/// Largest logarithm of a value that `f64` cannot hold, and largest difference of two that counts
/// as rounding.
const MOST_LOGARITHM: f64 = 1e6;
const SAME_LOGARITHM: f64 = 1e-9;

/// Largest relative difference of `f64` that counts as rounding.
const ROUNDING: f64 = 1e-9;

/// Largest difference that counts as rounding between values whose parts cancel, relative to these
/// parts.
const CANCELLED: f64 = 1e-14;

/// Largest difference between a decimal with six places and the exact value.
const SIX_PLACES: f64 = 5e-7;

/// True if `answer` has the same meaning as `gold`.
pub(crate) fn same(gold: &Expression, answer: &Expression) -> bool {
    Comparison(Evaluator::of(&[gold, answer])).same(gold, answer)
}

/// A comparison with a limit on its work.
struct Comparison(Evaluator);

impl Comparison {
    fn same(&mut self, gold: &Expression, answer: &Expression) -> bool {
        // Nested sets repeat this comparison many times.
        if !self.0.step() {
            return false;
        }
        self.relation_and_other(gold, answer)
            .or_else(|| self.marked_and_other(gold, answer))
            .or_else(|| self.list_and_other(gold, answer))
            .unwrap_or_else(|| self.single_values(gold, answer))
    }

    /// Compares two expressions if one of them is a relation or a percentage.
    fn relation_and_other(&mut self, gold: &Expression, answer: &Expression) -> Option<bool> {
        use Expression::{List, Percent, Relation, Tuple};
        Some(match (gold, answer) {
            // `2\sqrt{3} \approx 3.46` is its exact part, and its rounded value if it has that.
            (Relation(parts, signs), _) if signs.contains(&'≈') => self
                .approximated(parts, signs)
                .into_iter()
                .any(|value| self.same(&value, answer)),
            (_, Relation(parts, signs)) if signs.contains(&'≈') => self
                .approximated(parts, signs)
                .into_iter()
                .any(|value| self.same(gold, &value)),
            // 50% equals one half, and also 50, because an answer may omit the sign.
            (Percent(part), other) | (other, Percent(part))
                if !matches!((gold, answer), (Percent(_), Percent(_))) =>
            {
                self.same(part, other) || self.scalars(gold, answer)
            }
            (Relation(parts, signs), Relation(others, other_signs)) => {
                signs == other_signs && self.relations(parts, others, signs)
                    || self.functions(gold, answer)
                    || self.say_the_same(gold, answer)
            }
            (List(parts), other @ (Tuple(..) | Relation(..)))
            | (other @ (Tuple(..) | Relation(..)), List(parts))
                if between(parts).is_some_and(|chain| self.same(&chain, other)) =>
            {
                true
            }
            (Relation(..), _) => self
                .value(gold)
                .is_some_and(|value| self.same(&value, answer)),
            (_, Relation(..)) => {
                let value = self.value(answer).or_else(|| {
                    self.total(answer)
                        .filter(|_| gold.is_constant() || derives(answer))
                });
                value.is_some_and(|value| self.same(gold, &value))
            }
            _ => return None,
        })
    }

    /// Compares two expressions if one of them is a system of equations, a union, or a value with a
    /// condition, a base or parts of a ratio.
    fn marked_and_other(&mut self, gold: &Expression, answer: &Expression) -> Option<bool> {
        use Expression::{List, Relation, Tuple, Union};
        Some(match (gold, answer) {
            // The values of `x=1, y=2` alone are in their order.
            (List(parts), List(others))
                if is_system(parts)
                    && !others.iter().any(|other| matches!(other, Relation(..))) =>
            {
                self.in_order(parts, others)
            }
            (Union(parts), List(others)) | (List(others), Union(parts)) => {
                self.as_sets(parts, &regions(others))
            }
            // A condition that only excludes places without a value may be left out, as in
            // `\frac{1}{x} \text{ for } x \ne 0`.
            (Tuple(CASE, parts, _), other) if !matches!(other, Tuple(CASE, ..)) => {
                is_hole(&parts[1]) && self.same(&parts[0], other)
            }
            (other, Tuple(CASE, parts, _)) if !matches!(other, Tuple(CASE, ..)) => {
                is_hole(&parts[1]) && self.same(other, &parts[0])
            }
            (Tuple(ALL_HOLD, parts, _), Tuple(ALL_HOLD, others, _)) => self.as_sets(parts, others),
            (Tuple(ALL_HOLD, ..), _) | (_, Tuple(ALL_HOLD, ..)) => false,
            // A base may be left out.
            (Tuple(BASED, parts, _), other) if !matches!(other, Tuple(BASED, ..)) => {
                self.same(&parts[0], other)
            }
            (other, Tuple(BASED, parts, _)) if !matches!(other, Tuple(BASED, ..)) => {
                self.same(other, &parts[0])
            }
            (Tuple(RATIO, parts, _), Tuple(RATIO, others, _))
                if parts.len().max(others.len()) <= MOST_MEMBERS =>
            {
                self.in_order(&shares(parts), &shares(others))
            }
            _ => return None,
        })
    }

    /// Compares two expressions if they are points, intervals, sets or lists.
    fn list_and_other(&mut self, gold: &Expression, answer: &Expression) -> Option<bool> {
        use Expression::{List, Set, Tuple, Union};
        Some(match (gold, answer) {
            (Tuple(open, parts, close), Tuple(other_open, others, other_close)) => {
                let interval = parts.len() == 2;
                (!interval || (open, close) == (other_open, other_close))
                    && self.in_order(parts, others)
            }
            (Tuple('(', parts, ')'), List(others)) => self.in_order(parts, &by_name(others)),
            (List(parts), Tuple('(', others, ')')) => self.in_order(&by_name(parts), others),
            // `6, 6, 8` is not `6, 8, 8`.
            (List(parts), Set(others) | List(others)) if self.repeats(parts) => {
                self.one_to_one(parts, others)
            }
            (Set(parts) | List(parts), Set(others) | List(others)) => self.as_sets(parts, others),
            (Union(parts), Union(others)) => self.as_sets(parts, others),
            // One answer in several forms.
            (Set(parts) | List(parts), other) if !parts.is_empty() => {
                parts.iter().all(|part| self.same(part, other))
            }
            (other, Set(parts) | List(parts)) if !parts.is_empty() => {
                parts.iter().all(|part| self.same(other, part))
            }
            _ => return None,
        })
    }

    /// Compares matrices, words and numbers.
    fn single_values(&mut self, gold: &Expression, answer: &Expression) -> bool {
        use Expression::{Matrix, Tuple, Words};
        match (gold, answer) {
            // A column or a row is also written as a point: `\langle 2, -3 \rangle`.
            (Matrix(rows), Tuple('(' | '[', parts, ')' | ']')) => {
                vector(rows).is_some_and(|row| self.in_order(&row, parts))
            }
            (Tuple('(', parts, ')'), Matrix(rows)) => {
                vector(rows).is_some_and(|row| self.in_order(parts, &row))
            }
            // `2\mathbf{i} - 3\mathbf{j}`
            (Matrix(_) | Tuple('(', ..), other) if other.is_scalar() && is_combination(other) => {
                entries(gold).is_some_and(|row| self.combines(&row, other))
            }
            (other, Matrix(_) | Tuple('(', ..)) if other.is_scalar() && is_combination(other) => {
                entries(answer).is_some_and(|row| self.combines(&row, other))
            }
            (Matrix(rows), Matrix(others)) => {
                rows.len() == others.len()
                    && rows
                        .iter()
                        .zip(others)
                        .all(|(row, other)| self.in_order(row, other))
            }
            (Words(words), Words(others)) => words == others,
            _ if gold.is_scalar() && answer.is_scalar() => {
                self.scalars(gold, answer)
                    || without_unit(answer).is_some_and(|bare| self.scalars(gold, &bare))
            }
            _ => false,
        }
    }

    /// The exact part of an approximation, and the last part if it rounds the exact one correctly.
    /// If a part does not round the exact one, the approximation contradicts itself and has no
    /// value.
    fn approximated(&mut self, parts: &[Expression], signs: &[char]) -> Vec<Expression> {
        let place = signs
            .iter()
            .position(|sign| *sign == '≈')
            .unwrap_or_default();
        let exact = match place {
            0 => parts[0].clone(),
            _ => Expression::Relation(parts[..=place].to_vec(), signs[..place].to_vec()),
        };
        let differences: Vec<f64> = parts[place + 1..]
            .iter()
            .filter_map(|part| self.missed(&parts[place], part))
            .collect();
        if differences.iter().any(|difference| *difference > 1.0) {
            return Vec::new();
        }
        let mut values = vec![exact];
        if let (Some(rounded @ Expression::Number(..)), Some(difference)) =
            (parts.last(), differences.last())
        {
            values.extend((*difference <= 0.5).then(|| rounded.clone()));
        }
        values
    }

    /// The difference of a rounded number from an exact value, in units of the last digit; `None`
    /// if one of the two is not such a number.
    fn missed(&mut self, exact: &Expression, rounded: &Expression) -> Option<f64> {
        let (number, scale) = match rounded {
            Expression::Percent(part) => (part.as_ref(), 0.01),
            other => (other, 1.0),
        };
        let Expression::Number(number, _) = number else {
            return None;
        };
        // Nothing is known of `\zeta(3)`.
        if exact.any(&|part| matches!(part, Expression::Call("of", _))) {
            return None;
        }
        let last = last_digit(number)?;
        let exact = self.0.at(0).value(exact).near().re;
        let difference = (exact / scale - number.to_f64()).abs();
        // A value that needs no more digits is not rounded.
        let digits = exact / scale / last.unit;
        if difference > ROUNDING * number.to_f64().abs()
            && (digits - digits.round()).abs() <= ROUNDING * digits.abs()
        {
            return Some(f64::INFINITY);
        }
        let mut units = difference / last.unit - ROUNDING * (1.0 + exact.abs() / last.unit);
        if last.is_round {
            units *= 2.0;
        }
        exact.is_finite().then_some(units)
    }

    /// True if a sum of multiples of the unit vectors has these entries.
    fn combines(&mut self, entries: &[Expression], sum: &Expression) -> bool {
        let mut mixed = Expression::whole(0);
        for (entry, times) in entries.iter().zip([2, 3, 5]) {
            let term = Expression::Product(vec![entry.clone(), Expression::whole(times)]);
            mixed = Expression::Sum(vec![mixed, term]);
        }
        let third = entries.get(2).cloned().unwrap_or(Expression::whole(0));
        self.same(&mixed, &with_units(sum, [2, 3, 5]))
            && self.same(&entries[0], &with_units(sum, [1, 0, 0]))
            && self.same(&entries[1], &with_units(sum, [0, 1, 0]))
            && self.same(&third, &with_units(sum, [0, 0, 1]))
    }

    /// True if both relations say the same of the same name.
    fn say_the_same(&mut self, gold: &Expression, answer: &Expression) -> bool {
        let Some(((name, value), (other_name, other))) = said(gold).zip(said(answer)) else {
            return false;
        };
        // `P(X=0)` has no value of its own.
        (self.same(name, other_name) || self.alike(name, other_name)) && self.same(&value, &other)
    }

    fn in_order(&mut self, parts: &[Expression], others: &[Expression]) -> bool {
        parts.len() == others.len()
            && parts
                .iter()
                .zip(others)
                .all(|(part, other)| self.same(part, other))
    }

    /// True if the two lists have the same members.
    fn as_sets(&mut self, parts: &[Expression], others: &[Expression]) -> bool {
        if parts.len().max(others.len()) > MOST_MEMBERS {
            return self.in_order(parts, others);
        }
        parts
            .iter()
            .all(|part| others.iter().any(|other| self.same(part, other)))
            && others
                .iter()
                .all(|other| parts.iter().any(|part| self.same(part, other)))
    }

    /// True if the list has a member twice, be it in another form.
    fn repeats(&mut self, parts: &[Expression]) -> bool {
        if parts.len() > MOST_MEMBERS {
            return false;
        }
        parts
            .iter()
            .enumerate()
            .any(|(at, part)| parts[at + 1..].iter().any(|other| self.same(part, other)))
    }

    /// True if the two lists have the same members equally often.
    fn one_to_one(&mut self, parts: &[Expression], others: &[Expression]) -> bool {
        if parts.len() != others.len() || parts.len() > MOST_MEMBERS {
            return self.in_order(parts, others);
        }
        let mut left: Vec<&Expression> = others.iter().collect();
        parts.iter().all(|part| {
            let place = left.iter().position(|other| self.same(part, other));
            place.map(|place| left.remove(place)).is_some()
        })
    }

    fn scalars(&mut self, gold: &Expression, answer: &Expression) -> bool {
        if gold.is_constant() && answer.is_constant() {
            let left = self.0.at(0).value(gold);
            let right = self.0.value(answer);
            return if left.is_nan() || right.is_nan() {
                self.alike(gold, answer) || self.as_large(gold, answer)
            } else {
                equal(&left, &right)
                    || cancels(&mut self.0, [&left, &right], [gold, answer])
                    || (gold.has_decimals() || answer.has_decimals()) && rounded(&left, &right)
            };
        }
        let alike = self.at_points(gold, answer, |evaluator, left, right| {
            equal(left, right) || cancels(evaluator, [left, right], [gold, answer])
        });
        alike.unwrap_or_else(|| self.alike(gold, answer))
    }

    /// True if two constants that `f64` cannot hold have the same logarithm.
    fn as_large(&mut self, gold: &Expression, answer: &Expression) -> bool {
        let logarithms = self.0.logarithm(gold).zip(self.0.logarithm(answer));
        logarithms.is_some_and(|(one, other)| {
            one.abs() <= MOST_LOGARITHM && (one - other).abs() <= SAME_LOGARITHM
        })
    }

    /// True if both have the same canonical text; for expressions without a value.
    fn alike(&mut self, gold: &Expression, answer: &Expression) -> bool {
        canonical::write(gold, &mut self.0) == canonical::write(answer, &mut self.0)
    }

    /// True if the values of two expressions fit at all points where both have one; `None` if they
    /// have one at too few points.
    ///
    /// If neither has `i`, every part must be real, because `\sqrt{ab}` and `\sqrt{a}\sqrt{b}`
    /// differ beyond that. If that leaves too few points, all variables are positive, then small,
    /// as for `\arcsin x`, then large, as for `\sqrt{x-50}`, and then parts need not be real. Two
    /// formulas that fit must also fit on both sides of each place where one of them changes.
    fn at_points(
        &mut self,
        one: &Expression,
        other: &Expression,
        mut fit: impl FnMut(&mut Evaluator, &Value, &Value) -> bool,
    ) -> Option<bool> {
        let is_real = !has_i(one) && !has_i(other);
        let evaluator = &mut self.0;
        let mut fits = None;
        for (real, points) in [
            (is_real, POINTS),
            (is_real, POSITIVE_POINTS),
            (is_real, SMALL_POINTS),
            (is_real, LARGE_POINTS),
            (false, POINTS),
        ] {
            evaluator.real = real;
            fits = fit_at(evaluator, points, [one, other], &mut fit);
            if fits.is_some() {
                break;
            }
        }
        if fits == Some(true) && !evaluator.fit_at_breaks([one, other], &mut fit) {
            fits = Some(false);
        }
        evaluator.real = false;
        fits
    }

    /// True if both give a function the same value, under another name of its variable:
    /// `f(x) = x^2` and `f(t) = t^2`.
    fn functions(&mut self, gold: &Expression, answer: &Expression) -> bool {
        let Some((ours, theirs)) = arguments(gold).zip(arguments(answer)) else {
            return false;
        };
        ours != theirs
            && ours.len() == theirs.len()
            && self.same(&renamed(gold, ours), &renamed(answer, theirs))
    }

    /// Compares the parts of two relations with the same signs.
    fn relations(&mut self, parts: &[Expression], others: &[Expression], signs: &[char]) -> bool {
        if self.in_order(parts, others) {
            return true;
        }
        let ([left, right], [low, high]) = (parts, others) else {
            return false;
        };
        let any = matches!(signs[0], '=' | '≠');
        parts.iter().chain(others).all(Expression::is_scalar)
            && self.proportional(&difference_of(left, right), &difference_of(low, high), any)
    }

    /// True if one is a constant times the other. The constant is above 0, or of `any` sign.
    fn proportional(&mut self, one: &Expression, other: &Expression, any: bool) -> bool {
        // Any two numbers are proportional, but `1 < 2` is not `3 < 4`.
        if one.is_constant() && other.is_constant() {
            return false;
        }
        let mut ratio = None;
        let fits = self.at_points(one, other, |evaluator, left, right| {
            let left = left.near();
            let right = right.near();
            let zero = [left, right].map(|side| side.abs() <= ROUNDING);
            match ratio {
                None if zero == [false, false] => ratio = Some(left.times(right.inverse())),
                None => return zero == [true, true],
                Some(ratio) => {
                    let [left, right] = [left, ratio.times(right)].map(Value::Near);
                    return equal(&left, &right)
                        || cancels(evaluator, [&left, &right], [one, other]);
                }
            }
            true
        });
        fits == Some(true) && ratio.is_some_and(|ratio| any || ratio.re > 0.0)
    }

    /// The value that a relation gives, without the name in it. `2 + 3 = 5` gives its last part.
    fn value(&mut self, relation: &Expression) -> Option<Expression> {
        let Expression::Relation(parts, signs) = relation else {
            return None;
        };
        let last = parts
            .last()
            .filter(|_| signs.iter().all(|sign| *sign == '='));
        if let Some((name, value)) = said(relation) {
            if matches!(name, Expression::Words(letters) if label::is_denied(letters)) {
                return None;
            }
            // `x = 2 = 3` gives no value.
            let agrees =
                last.is_none_or(|last| parts[1..].iter().all(|part| self.agrees(part, last)));
            return agrees.then_some(value);
        }
        let last = last?;
        parts
            .iter()
            .all(|part| part.is_scalar() && self.same(last, part))
            .then(|| last.clone())
    }

    /// True unless two constants differ by more than a rounding.
    fn agrees(&mut self, part: &Expression, last: &Expression) -> bool {
        let are_constants = [part, last]
            .iter()
            .all(|one| one.is_scalar() && one.is_constant());
        !are_constants
            || self.same(last, part)
            || self.missed(part, last).is_some_and(|missed| missed <= 1.0)
    }

    /// The number that an answer such as `m+n = 100+13 = 113` or `|z|^2 = 1` gives to a formula.
    /// `x^2+y^2-25 = 0` is about a curve, and `2x = 4` is an equation to solve.
    fn total(&mut self, relation: &Expression) -> Option<Expression> {
        let Expression::Relation(parts, signs) = relation else {
            return None;
        };
        let (formula, values) = parts.split_first()?;
        let last = values.last()?;
        let names = names_value(formula);
        let chain =
            signs.iter().all(|sign| *sign == '=') && (names || *last != Expression::whole(0));
        let computes = chain
            && (names
                || formula.is_scalar()
                    && (formula.symbols().len() > 1 || self.has_no_value(formula)));
        let is_derivative = derives(relation);
        let agrees = computes
            && values
                .iter()
                .all(|value| (is_derivative || value.is_constant()) && self.same(last, value));
        agrees.then(|| last.clone())
    }

    /// True for a formula of numbers without a value that is known here, such as a hard integral.
    fn has_no_value(&mut self, formula: &Expression) -> bool {
        formula.is_constant()
            && formula.any(&|part| {
                matches!(
                    part,
                    Expression::Call("sum" | "prod" | "integral" | "limit", _)
                )
            })
            && self.0.value(formula).is_nan()
    }
}

/// True for a relation that says what a derivative is: `\frac{d}{dx} x^2 = 2x`.
fn derives(relation: &Expression) -> bool {
    let Expression::Relation(parts, _) = relation else {
        return false;
    };
    matches!(parts[0], Expression::Product(_)) && parts[0].any(&is_below_d)
}

/// True for the part `1/(dx)` of `d/dx`.
fn is_below_d(part: &Expression) -> bool {
    let Expression::Power(base, exponent) = part else {
        return false;
    };
    let Expression::Product(factors) = base.as_ref() else {
        return false;
    };
    **exponent == Expression::whole(-1)
        && factors.len() == 2
        && factors[0] == Expression::Symbol("d".into())
}

/// True for a formula that names a value, and is not a side of an equation to solve: `|z|^2`,
/// `\max f`, `\sigma^2`, `P(2)`.
fn names_value(formula: &Expression) -> bool {
    let symbols = formula.symbols();
    let is_formula = formula.any(&|part| matches!(part, Expression::Call(..)))
        || matches!(formula, Expression::Power(base, _) if base.is_name());
    has_condition(formula)
        || formula.any(&is_value_of_names)
        || is_formula && !symbols.is_empty() && !symbols.iter().any(|name| is_unknown(name))
}

/// True for a function of names that has a value.
fn is_value_of_names(part: &Expression) -> bool {
    match part {
        Expression::Call("abs", parts) => parts.iter().all(Expression::is_name),
        Expression::Call(
            "of" | "max" | "min" | "gcd" | "lcm" | "sum" | "prod" | "integral" | "limit",
            _,
        ) => !part.is_constant(),
        _ => false,
    }
}

/// True for the name of a variable that an equation may be solved for.
fn is_unknown(name: &str) -> bool {
    name.len() == 1 && name.bytes().all(|b| b.is_ascii_lowercase())
}

/// True for `P(X=2)`.
fn has_condition(formula: &Expression) -> bool {
    let Expression::Product(factors) = formula else {
        return false;
    };
    factors
        .iter()
        .any(|part| matches!(part, Expression::Relation(..)))
}

/// True for a condition that leaves out single values.
fn is_hole(condition: &Expression) -> bool {
    matches!(condition, Expression::Relation(_, signs) if *signs == ['≠'])
}

/// True for a formula with the unit vectors j or k and no variables.
fn is_combination(sum: &Expression) -> bool {
    let symbols = sum.symbols();
    !symbols.is_empty() && symbols.iter().all(|name| matches!(*name, "j" | "k"))
}

/// The two or three entries of a vector.
fn entries(vector: &Expression) -> Option<Vec<Expression>> {
    let entries = match vector {
        Expression::Matrix(rows) => self::vector(rows)?,
        Expression::Tuple('(', parts, ')') => parts.clone(),
        _ => return None,
    };
    (2..=3).contains(&entries.len()).then_some(entries)
}

/// The entries of a matrix of one row or one column.
fn vector(rows: &[Vec<Expression>]) -> Option<Vec<Expression>> {
    match rows {
        [row] if row.len() > 1 => Some(row.clone()),
        rows if rows.len() > 1 && rows.iter().all(|row| row.len() == 1) => Some(rows.concat()),
        _ => None,
    }
}

/// The parts of a ratio as fractions of the whole.
fn shares(parts: &[Expression]) -> Vec<Expression> {
    parts
        .iter()
        .map(|part| part.clone().over(Expression::Sum(parts.to_vec())))
        .collect()
}

/// An answer without the letter behind its number that can be a unit: `5m`.
fn without_unit(answer: &Expression) -> Option<Expression> {
    let Expression::Product(factors) = answer else {
        return None;
    };
    let (unit, number) = factors.split_last()?;
    let unit = if let Expression::Power(base, _) = unit {
        base
    } else {
        unit
    };
    matches!(unit, Expression::Symbol(letter) if crate::signs::is_unit(letter))
        .then(|| Expression::product(number.to_vec()))
        .filter(Expression::is_constant)
}

/// The last digit of a rounded number.
struct LastDigit {
    /// Value of a one at its place.
    unit: f64,
    /// True if zeros follow it, which may be digits too.
    is_round: bool,
}

/// The last digit of a number; `None` if it is not a decimal of at most 18 places.
fn last_digit(number: &Rational) -> Option<LastDigit> {
    let (above, below) = number.parts()?;
    let places = (0..19).find(|places| 10i64.pow(*places) % below == 0)?;
    let mut zeros = 0;
    if places == 0 && above != 0 {
        while zeros < 18 && above % 10i64.pow(zeros + 1) == 0 {
            zeros += 1;
        }
    }
    Some(LastDigit {
        unit: 10f64.powi(zeros as i32 - places as i32),
        is_round: zeros > 0,
    })
}

/// What relations say of their names, and the other parts as they are.
fn regions(parts: &[Expression]) -> Vec<Expression> {
    parts
        .iter()
        .map(|part| said(part).map_or_else(|| part.clone(), |(_, region)| region))
        .collect()
}

/// A sum of multiples of the unit vectors, with numbers in their places.
fn with_units(sum: &Expression, values: [i64; 3]) -> Expression {
    let units = [
        Expression::Constant(Constant::I),
        Expression::Symbol("j".into()),
        Expression::Symbol("k".into()),
    ];
    let mut sum = sum.clone();
    for (unit, value) in units.iter().zip(values) {
        sum = sum.replaced(unit, &Expression::whole(value));
    }
    sum
}

fn has_i(side: &Expression) -> bool {
    side.any(&|part| *part == Expression::Constant(Constant::I))
}

/// True if the values of both sides fit at these points; `None` if they have one at too few.
fn fit_at(
    evaluator: &mut Evaluator,
    points: Range<u64>,
    sides: [&Expression; 2],
    fit: &mut impl FnMut(&mut Evaluator, &Value, &Value) -> bool,
) -> Option<bool> {
    let mut found = 0;
    for point in points {
        let left = evaluator.at(point).value(sides[0]);
        let right = evaluator.value(sides[1]);
        if !left.is_nan() && !right.is_nan() {
            found += 1;
            if !fit(evaluator, &left, &right) {
                return Some(false);
            }
        }
    }
    (found >= LEAST_POINTS).then_some(true)
}

/// The arguments of the function to which an equation gives a value: those of `f(x) = x^2`.
fn arguments(relation: &Expression) -> Option<&[Expression]> {
    let Expression::Relation(parts, signs) = relation else {
        return None;
    };
    let Expression::Call("of", called) = &parts[0] else {
        return None;
    };
    let arguments = &called[1..];
    let are_names = arguments
        .iter()
        .all(|part| matches!(part, Expression::Symbol(_)));
    (*signs == ['='] && are_names && !arguments.is_empty()).then_some(arguments)
}

/// A relation in which the arguments of a function are numbered.
fn renamed(relation: &Expression, arguments: &[Expression]) -> Expression {
    let mut renamed = relation.clone();
    for (at, argument) in arguments.iter().enumerate() {
        renamed = renamed.replaced(argument, &Expression::Symbol(format!("\u{2}{at}")));
    }
    renamed
}

fn difference_of(left: &Expression, right: &Expression) -> Expression {
    Expression::Sum(vec![left.clone(), right.clone().negated()])
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
    difference(left, right) <= ROUNDING * left.abs().max(right.abs())
}

fn difference(left: Complex, right: Complex) -> f64 {
    left.plus(right.times(Complex::real(-1.0))).abs()
}

/// True if the difference of two values is only what rounding leaves of parts that cancel, as in
/// `\sin\pi` or `\sqrt2-\sqrt2`.
fn cancels(evaluator: &mut Evaluator, values: [&Value; 2], sides: [&Expression; 2]) -> bool {
    if values.iter().all(|value| matches!(value, Value::Exact(_))) {
        return false;
    }
    let [left, right] = values.map(Value::near);
    let difference = difference(left, right);
    // The parts of larger values are seldom that much larger still, and finding their size costs
    // work.
    difference <= 1.0
        && sides
            .into_iter()
            .any(|side| difference <= CANCELLED * evaluator.size(side))
}

/// True if one value is the other rounded to six places. It is not enough that both are near 0.
fn rounded(left: &Value, right: &Value) -> bool {
    let difference = match (left, right) {
        (Value::Exact(left), Value::Exact(right)) => left
            .add(&right.negated())
            .as_ref()
            .map_or(f64::INFINITY, Rational::to_f64)
            .abs(),
        _ => difference(left.near(), right.near()),
    };
    difference <= SIX_PLACES && difference <= 1e-4 * left.near().abs()
}
