//! Quotients of factorials that are too large themselves: `\frac{2024!}{2023!}` is 2024.

use std::borrow::Cow;

use crate::expression::Expression;

/// Largest difference of two numbers whose factorials are divided.
const MOST_FACTORS: i64 = 300;

/// Smallest number whose factorial is divided before it is computed.
const LEAST: i64 = 100;

/// The factors with each large factorial above and one below replaced by their quotient.
pub(crate) fn cancelled(factors: &[Expression]) -> Cow<'_, [Expression]> {
    if !factors
        .iter()
        .any(|factor| factor.any(&|part| large(part).is_some()))
    {
        return factors.into();
    }
    let mut above = Vec::new();
    let mut below = Vec::new();
    factors
        .iter()
        .for_each(|factor| split(factor, &mut above, &mut below));
    let mut quotients = Vec::new();
    above.retain(|factor| {
        let Some(top) = large(factor) else {
            return true;
        };
        let place = below.iter().position(|other| {
            large(other).is_some_and(|other| (top - other).abs() <= MOST_FACTORS)
        });
        let Some(place) = place else {
            return true;
        };
        let bottom = large(&below.remove(place)).unwrap_or(top);
        let between = top.min(bottom) + 1..=top.max(bottom);
        let product = Expression::Product(between.map(Expression::whole).collect());
        quotients.push(if top >= bottom {
            product
        } else {
            product.inverse()
        });
        false
    });
    above
        .into_iter()
        .chain(below.into_iter().map(Expression::inverse))
        .chain(quotients)
        .collect()
}

/// The number of a large factorial.
fn large(expression: &Expression) -> Option<i64> {
    let Expression::Call("factorial", parts) = expression else {
        return None;
    };
    let [Expression::Number(value, false)] = parts.as_slice() else {
        return None;
    };
    value
        .to_whole()
        .filter(|value| (LEAST..1_000_000_000_000).contains(value))
}

/// The factors above and below the line.
fn split(factor: &Expression, above: &mut Vec<Expression>, below: &mut Vec<Expression>) {
    match factor {
        Expression::Product(factors) => factors
            .iter()
            .for_each(|factor| split(factor, above, below)),
        Expression::Power(base, exponent) if **exponent == Expression::whole(-1) => {
            split(base, below, above)
        }
        other => above.push(other.clone()),
    }
}
