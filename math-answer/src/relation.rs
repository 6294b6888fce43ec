//! The values and intervals that relations give to names: `x = 1`, `y < 2`, and lists of these.

use std::collections::BTreeSet;

use crate::expression::{Constant, Expression};

/// The name in a relation, and what the relation says of it: a value, an interval or a set.
pub(crate) fn said(relation: &Expression) -> Option<(&Expression, Expression)> {
    let Expression::Relation(parts, signs) = relation else {
        return None;
    };
    let interval = |open: char, low: &Expression, high: &Expression, close: char| {
        let (open, close) = (
            if open == '<' { '(' } else { '[' },
            if close == '<' { ')' } else { ']' },
        );
        Expression::Tuple(open, vec![low.clone(), high.clone()], close)
    };
    let infinity = Expression::Constant(Constant::Infinity);
    let minus = infinity.clone().negated();
    let (name, value) = match (parts.as_slice(), signs.as_slice()) {
        // `e = x` gives `x` a value.
        ([Expression::Constant(_), name], ['=']) if name.is_name() => (name, parts[0].clone()),
        ([name, .., value], signs) if name.is_name() && signs.iter().all(|sign| *sign == '=') => {
            (name, value.clone())
        }
        ([value, name], ['=']) | ([name, value], ['∈']) => (name, value.clone()),
        ([name, hole], ['≠']) => (
            name,
            Expression::Union(vec![
                interval('<', &minus, hole, '<'),
                interval('<', hole, &infinity, '<'),
            ]),
        ),
        ([low, name, high], [open @ ('<' | '≤'), close @ ('<' | '≤')]) => {
            (name, interval(*open, low, high, *close))
        }
        ([name, high], [close @ ('<' | '≤')]) if name.is_name() => {
            (name, interval('<', &minus, high, *close))
        }
        ([low, name], [open @ ('<' | '≤')]) => (name, interval(*open, low, &infinity, '<')),
        _ => return None,
    };
    name.is_name().then_some((name, value))
}

/// True if every part gives another name a value, as in `x=1, y=2`.
pub(crate) fn is_system(parts: &[Expression]) -> bool {
    let name = |part: &Expression| said(part).map(|(name, _)| name.clone());
    parts.iter().all(|part| name(part).is_some())
        && parts
            .windows(2)
            .all(|pair| name(&pair[0]) != name(&pair[1]))
}

/// True for inequalities that bound one name.
pub(crate) fn are_bounds(parts: &[Expression]) -> bool {
    let is_bound = |part: &Expression| matches!(part, Expression::Relation(_, signs) if signs.iter().all(|sign| matches!(sign, '<' | '≤')));
    let name = |part: &Expression| said(part).map(|(name, _)| name.clone());
    parts
        .iter()
        .all(|part| is_bound(part) && name(part).is_some())
        && parts
            .windows(2)
            .all(|pair| name(&pair[0]) == name(&pair[1]))
}

/// The parts, by name if their names are letters that follow each other, as in `y=2, x=1`.
pub(crate) fn by_name(parts: &[Expression]) -> Vec<Expression> {
    let letter = |part: &Expression| match said(part)?.0 {
        Expression::Symbol(name) if name.len() == 1 => name.bytes().next(),
        _ => None,
    };
    let mut sorted = parts.to_vec();
    sorted.sort_by_key(letter);
    let follow = |pair: &[Expression]| {
        letter(&pair[0])
            .zip(letter(&pair[1]))
            .is_some_and(|(one, next)| next == one + 1)
    };
    if sorted.windows(2).all(follow) {
        sorted
    } else {
        parts.to_vec()
    }
}

/// `1 ≤ x < 3`, which `x ≥ 1, x < 3` says in two parts.
pub(crate) fn between(parts: &[Expression]) -> Option<Expression> {
    let [
        Expression::Relation(one, open),
        Expression::Relation(other, close),
    ] = parts
    else {
        return None;
    };
    let chain = |low: &[Expression], open: &[char], high: &[Expression], close: &[char]| {
        let ordered = |signs: &[char]| matches!(signs, ['<' | '≤']);
        (ordered(open) && ordered(close) && low[1] == high[0] && low[1].is_name())
            .then(|| Expression::Relation([low, &high[1..]].concat(), [open, close].concat()))
    };
    chain(one, open, other, close).or_else(|| chain(other, close, one, open))
}

/// The list without the numbers of `x_1=2, x_2=-5`: values of one letter, in any order.
pub(crate) fn unnumbered(mut items: Vec<Expression>) -> Vec<Expression> {
    fn name(item: &mut Expression) -> Option<&mut String> {
        match item {
            Expression::Relation(parts, signs) if signs.iter().all(|sign| *sign == '=') => {
                match &mut parts[0] {
                    Expression::Symbol(name) => Some(name),
                    _ => None,
                }
            }
            _ => None,
        }
    }
    let names: BTreeSet<String> = items
        .iter_mut()
        .filter_map(name)
        .map(|name| name.clone())
        .collect();
    let letter = names
        .first()
        .and_then(|name| name.split_once('_'))
        .map(|(letter, _)| letter.to_owned());
    let is_numbered = |(of, number): (&str, &str)| {
        Some(of) == letter.as_deref() && number.bytes().all(|b| b.is_ascii_digit())
    };
    if let Some(letter) = &letter
        && names.len() == items.len()
        && names
            .iter()
            .all(|name| name.split_once('_').is_some_and(is_numbered))
    {
        items
            .iter_mut()
            .filter_map(name)
            .for_each(|name| name.clone_from(letter));
    }
    items
}
