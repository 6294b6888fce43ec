//! A canonical text for an expression, independent of the order of its sums, products and sets.

use crate::evaluate::{Evaluator, Value};
use crate::expression::Expression;
use crate::relation;

/// The canonical text. A constant with an exact value gives that value, as `3/4`; other expressions
/// give their parts, sorted within sums, products and sets.
pub(crate) fn text(expression: &Expression) -> String {
    write(expression, &mut Evaluator::of(&[expression]))
}

/// Like [`text`], within the remaining work of `evaluator`.
pub(crate) fn write(expression: &Expression, evaluator: &mut Evaluator) -> String {
    if expression.is_scalar()
        && expression.is_constant()
        && let Value::Exact(value) = evaluator.value(expression)
    {
        return value.to_string();
    }
    let mut all = |parts: &[Expression]| {
        parts
            .iter()
            .map(|part| write(part, evaluator))
            .collect::<Vec<_>>()
    };
    match expression {
        Expression::Number(value, _) => value.to_string(),
        Expression::Symbol(name) => evaluator.name(name),
        Expression::Words(words) => words.clone(),
        Expression::Constant(constant) => format!("{constant:?}").to_lowercase(),
        Expression::Sum(terms) => format!("({})", sorted(all(terms)).join("+")),
        Expression::Product(factors) => format!("({})", sorted(all(factors)).join("*")),
        Expression::Power(base, exponent) => {
            format!("{}^{}", write(base, evaluator), write(exponent, evaluator))
        }
        Expression::Call(function, arguments) => {
            format!("{function}({})", all(arguments).join(","))
        }
        Expression::Percent(part) => format!("{}%", write(part, evaluator)),
        // Like a point: `x=1, y=2` is not `x=2, y=1`.
        Expression::List(parts) if relation::is_system(parts) => {
            format!("({})", all(&relation::by_name(parts)).join(","))
        }
        Expression::List(parts) | Expression::Set(parts) => {
            format!("{{{}}}", sorted(all(parts)).join(","))
        }
        Expression::Tuple(open, parts, close) => format!("{open}{}{close}", all(parts).join(",")),
        Expression::Union(parts) => sorted(all(parts)).join("∪"),
        Expression::Matrix(rows) => rows
            .iter()
            .map(|row| all(row).join(","))
            .collect::<Vec<_>>()
            .join(";"),
        Expression::Relation(parts, signs) => {
            // A named value is the value, and of `2\sqrt{3} \approx 3.46` only the exact part
            // counts.
            let exact = signs
                .iter()
                .position(|sign| *sign == '≈')
                .unwrap_or(signs.len());
            let texts = all(&parts[..=exact]);
            let first = &texts[0];
            let last = &texts[exact];
            if signs[..exact].iter().all(|sign| matches!(sign, '=' | '∈'))
                && (parts[0].is_name() || first == last)
            {
                return last.clone();
            }
            let signs = signs.iter().map(char::to_string).chain([String::new()]);
            texts
                .iter()
                .zip(signs)
                .map(|(part, sign)| part.clone() + &sign)
                .collect()
        }
    }
}

fn sorted(mut texts: Vec<String>) -> Vec<String> {
    texts.sort_unstable();
    texts
}
