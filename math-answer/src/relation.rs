//! The values and intervals that relations give to names: `x = 1`, `y < 2`, and lists of these.

use std::collections::BTreeSet;

use crate::expression::{Constant, Expression};

/// The name in a relation, and what the relation says of it: a value, an interval or a set.
pub(crate) fn said(relation: &Expression) -> Option<(&Expression, Expression)> {
    let Expression::Relation(parts, signs) = relation else {
        return None;
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

/// The interval between two ends, with the signs of inequality that stand at them.
fn interval(open: char, low: &Expression, high: &Expression, close: char) -> Expression {
    let open = if open == '<' { '(' } else { '[' };
    let close = if close == '<' { ')' } else { ']' };
    Expression::Tuple(open, vec![low.clone(), high.clone()], close)
}

/// The name to which a relation gives a value.
fn name(relation: &Expression) -> Option<&Expression> {
    said(relation).map(|(name, _)| name)
}

/// True if every part gives another name a value, as in `x=1, y=2`.
pub(crate) fn is_system(parts: &[Expression]) -> bool {
    parts.iter().all(|part| name(part).is_some())
        && parts
            .windows(2)
            .all(|pair| name(&pair[0]) != name(&pair[1]))
}

/// True for inequalities that bound one name.
pub(crate) fn are_bounds(parts: &[Expression]) -> bool {
    parts
        .iter()
        .all(|part| is_inequality(part) && name(part).is_some())
        && parts
            .windows(2)
            .all(|pair| name(&pair[0]) == name(&pair[1]))
}

fn is_inequality(part: &Expression) -> bool {
    let Expression::Relation(_, signs) = part else {
        return false;
    };
    signs.iter().all(|sign| matches!(sign, '<' | '≤'))
}

/// The parts in the order of their names if these are letters that follow each other, as in
/// `y=2, x=1`; otherwise in their own order.
pub(crate) fn by_name(parts: &[Expression]) -> Vec<Expression> {
    let mut sorted = parts.to_vec();
    sorted.sort_by_key(letter);
    let follow = sorted.windows(2).all(|pair| {
        letter(&pair[0])
            .zip(letter(&pair[1]))
            .is_some_and(|(one, next)| next == one + 1)
    });
    if follow { sorted } else { parts.to_vec() }
}

/// The letter to which a relation gives a value.
fn letter(relation: &Expression) -> Option<u8> {
    match name(relation)? {
        Expression::Symbol(name) if name.len() == 1 => name.bytes().next(),
        _ => None,
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
    if !matches!(
        (open.as_slice(), close.as_slice()),
        (['<' | '≤'], ['<' | '≤'])
    ) {
        return None;
    }
    let (low, high, signs) = if one[1] == other[0] && one[1].is_name() {
        (one, other, [open.as_slice(), close])
    } else if other[1] == one[0] && other[1].is_name() {
        (other, one, [close.as_slice(), open])
    } else {
        return None;
    };
    let parts = [low.as_slice(), &high[1..]].concat();
    Some(Expression::Relation(parts, signs.concat()))
}

/// The list without the numbers of `x_1=2, x_2=-5`, which are values of one letter in any order.
pub(crate) fn unnumbered(mut items: Vec<Expression>) -> Vec<Expression> {
    let names: BTreeSet<String> = items
        .iter_mut()
        .filter_map(named)
        .map(|name| name.clone())
        .collect();
    let first = names.first().and_then(|name| name.split_once('_'));
    let Some((letter, _)) = first else {
        return items;
    };
    let are_numbered = names.iter().all(|name| {
        name.split_once('_')
            .is_some_and(|(of, number)| of == letter && number.bytes().all(|b| b.is_ascii_digit()))
    });
    if are_numbered && names.len() == items.len() {
        for name in items.iter_mut().filter_map(named) {
            *name = letter.to_owned();
        }
    }
    items
}

/// The variable to which an equation gives a value.
fn named(item: &mut Expression) -> Option<&mut String> {
    let Expression::Relation(parts, signs) = item else {
        return None;
    };
    match &mut parts[0] {
        Expression::Symbol(name) if signs.iter().all(|sign| *sign == '=') => Some(name),
        _ => None,
    }
}
