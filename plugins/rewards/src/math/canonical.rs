//! One text for an expression, whatever the order in which its sums, products and sets were written.

use super::evaluate::{Evaluator, Value};
use super::expression::Expression;

/// The text: of a constant with an exact value that value, `3/4`; else its parts, sums, products and sets sorted.
pub(super) fn text(expression: &Expression) -> String {
    if expression.is_scalar()
        && expression.is_constant()
        && let Value::Exact(value) = Evaluator::new().value(expression)
    {
        return value.to_string();
    }
    let all = |parts: &[Expression]| parts.iter().map(text).collect::<Vec<_>>();
    let sorted = |parts: &[Expression]| {
        let mut texts = all(parts);
        texts.sort_unstable();
        texts
    };
    match expression {
        Expression::Number(value, _) => value.to_string(),
        Expression::Symbol(name) => name.clone(),
        Expression::Words(words) => words.clone(),
        Expression::Constant(constant) => format!("{constant:?}").to_lowercase(),
        Expression::Sum(terms) => format!("({})", sorted(terms).join("+")),
        Expression::Product(factors) => format!("({})", sorted(factors).join("*")),
        Expression::Power(base, exponent) => format!("{}^{}", text(base), text(exponent)),
        Expression::Call(function, arguments) => format!("{function:?}({})", all(arguments).join(",")).to_lowercase(),
        Expression::Percent(part) => format!("{}%", text(part)),
        Expression::List(parts) | Expression::Set(parts) => format!("{{{}}}", sorted(parts).join(",")),
        Expression::Tuple(open, parts, close) => format!("{open}{}{close}", all(parts).join(",")),
        Expression::Union(parts) => sorted(parts).join("∪"),
        Expression::Matrix(rows) => rows.iter().map(|row| all(row).join(",")).collect::<Vec<_>>().join(";"),
        Expression::Relation(parts, signs) => {
            let signs = signs.iter().map(char::to_string).chain([String::new()]);
            all(parts).into_iter().zip(signs).map(|(part, sign)| part + &sign).collect()
        }
    }
}
