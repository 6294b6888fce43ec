//! Expressions in an answer: numbers, formulas, and combinations of them.

use std::collections::BTreeSet;

use crate::rational::Rational;
use crate::signs;

/// An answer, or a part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expression {
    /// A number, and true if it was written with a decimal point.
    Number(Rational, bool),
    /// Name of a variable.
    Symbol(String),
    /// Letters of a text.
    Words(String),
    /// One of π, e, i and ∞.
    Constant(Constant),
    Sum(Vec<Self>),
    Product(Vec<Self>),
    Power(Box<Self>, Box<Self>),
    Call(Function, Vec<Self>),
    Percent(Box<Self>),
    /// Several answers in a row, as in `2, 3`.
    List(Vec<Self>),
    /// A point or an interval: the opening bracket, the members, and the closing bracket. Other
    /// combinations have one of the signs below in place of the brackets, such as [`RATIO`].
    Tuple(char, Vec<Self>, char),
    Set(Vec<Self>),
    Union(Vec<Self>),
    Matrix(Vec<Vec<Self>>),
    /// A chain such as `1 < x ≤ 3`, with one part more than signs.
    Relation(Vec<Self>, Vec<char>),
}

/// Signs in place of the brackets of a [`Expression::Tuple`] that is not a point or an interval: a
/// value with its condition.
pub(crate) const CASE: char = '?';

/// A number with the base of its digits, or a value with its modulus.
pub(crate) const BASED: char = '_';

/// A ratio of three or more parts.
pub(crate) const RATIO: char = ':';

/// A value with its unit, several of these, or a value with words behind it.
pub(crate) const QUANTITY: char = ' ';

/// Inequalities that all hold.
pub(crate) const ALL_HOLD: char = '∧';

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Constant {
    Pi,
    E,
    I,
    Infinity,
}

/// A function, by its command or English name. The first argument of `of` is the name of an unknown
/// one, as in `f(2)`; `after` is `\circ`.
pub(crate) type Function = &'static str;

/// Functions that a command names, of one argument and, at the end, of several.
const COMMANDS: &str = "\
    sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth sech \
    csch arcsinh arccosh arctanh arccoth arcsech arccsch ln gcd lcm max min";

/// The function with this command; `arsinh` and `asinh` are `arcsinh`.
pub(crate) fn function(command: &str) -> Option<Function> {
    let command = match command {
        "tg" => "tan",
        "ctg" | "cotg" => "cot",
        "cosec" => "csc",
        "arctg" => "arctan",
        "arcctg" => "arccot",
        other => other,
    };
    COMMANDS
        .split(' ')
        .find(|known| *known == command || is_short_for(command, known))
}

/// True if a command is a shorter name of an inverse function.
fn is_short_for(command: &str, inverse: &str) -> bool {
    let of = inverse.strip_prefix("arc").filter(|of| !of.is_empty());
    of.is_some_and(|of| {
        command.strip_prefix("ar") == Some(of) || command.strip_prefix('a') == Some(of)
    })
}

/// Beginning of the name of a variable that a sum, a product, an integral or a limit binds.
const BOUND: char = '\u{1}';

/// The name of a bound variable.
pub(crate) fn bound(name: &str) -> String {
    format!("{BOUND}{name}")
}

/// The name of a variable in lower case. `E` and `I` stay, because `e` and `i` are constants, and
/// `\Delta`, because `\delta` is another letter.
pub(crate) fn folded(name: &str) -> String {
    let (head, index) = name.split_at(
        name.find(|c: char| !c.is_alphabetic())
            .unwrap_or(name.len()),
    );
    let stays = matches!(head, "E" | "I") || signs::is_in(signs::GREEK, head);
    if stays {
        head.to_owned() + &index.to_lowercase()
    } else {
        name.to_lowercase()
    }
}

/// True for a letter that usually names a function, with its primes.
fn is_function(name: &str) -> bool {
    "fghpqr".contains(&name.trim_end_matches('\'').to_lowercase())
}

/// True for the name of a bound variable.
pub(crate) fn is_bound(name: &str) -> bool {
    name.starts_with(BOUND)
}

impl Expression {
    pub(crate) fn whole(value: i64) -> Self {
        Self::Number(Rational::whole(value), false)
    }

    pub(crate) fn negated(self) -> Self {
        match self {
            Self::Number(value, decimal) => Self::Number(value.negated(), decimal),
            other => Self::product(vec![Self::whole(-1), other]),
        }
    }

    pub(crate) fn over(self, below: Self) -> Self {
        Self::product(vec![self, below.inverse()])
    }

    pub(crate) fn inverse(self) -> Self {
        Self::Power(Box::new(self), Box::new(Self::whole(-1)))
    }

    pub(crate) fn call(function: Function, argument: Self) -> Self {
        Self::Call(function, vec![argument])
    }

    /// The product. Numbers multiply the entries of a single matrix.
    pub(crate) fn product(mut factors: Vec<Self>) -> Self {
        if factors.len() == 1 {
            return factors.remove(0);
        }
        let matrices = factors
            .iter()
            .filter(|factor| matches!(factor, Self::Matrix(_)))
            .count();
        let place = factors
            .iter()
            .position(|factor| matches!(factor, Self::Matrix(_)));
        let Some(Self::Matrix(rows)) = place
            .filter(|_| matrices == 1)
            .map(|place| factors.remove(place))
        else {
            return Self::Product(factors);
        };
        let mut scaled = rows;
        for entry in scaled.iter_mut().flatten() {
            *entry = Self::Product([factors.as_slice(), std::slice::from_ref(entry)].concat());
        }
        Self::Matrix(scaled)
    }

    /// A variable with a prime, a bar or dots, which is another variable. Other expressions stay as
    /// they are.
    pub(crate) fn marked(self, mark: &str) -> Self {
        match self {
            Self::Symbol(name) => Self::Symbol(name + mark),
            other => other,
        }
    }

    /// True if the expression only names something: a variable, `f(2)`, `PQ`, `|z|`, `m:n` or
    /// `\sin A`. `e` and `i` may be names too.
    pub(crate) fn is_name(&self) -> bool {
        match self {
            Self::Symbol(_) | Self::Words(_) | Self::Constant(Constant::E | Constant::I) => true,
            Self::Product(factors) => {
                matches!(factors.as_slice(), [Self::Symbol(f), _] if is_function(f))
                    || factors.iter().all(Self::is_name)
            }
            Self::Call("of", parts) => {
                matches!(&parts[0], Self::Symbol(f) if !matches!(f.as_str(), "zeta" | "Gamma"))
            }
            Self::Power(base, exponent) => base.is_name() && **exponent == Self::whole(-1),
            Self::Call("abs" | "sin" | "cos" | "tan" | "max" | "min", parts) => {
                parts.iter().all(Self::is_name)
            }
            Self::Tuple('(', parts, ')') | Self::Tuple(RATIO, parts, _) => {
                parts.iter().all(|part| {
                    matches!(
                        part,
                        Self::Symbol(_) | Self::Constant(Constant::E | Constant::I)
                    )
                })
            }
            _ => false,
        }
    }

    /// A matrix with its rows as columns. A point is a row and a column.
    pub(crate) fn transposed(self) -> Self {
        let Self::Matrix(rows) = &self else {
            return self;
        };
        let width = rows.first().map_or(0, Vec::len);
        if rows.iter().any(|row| row.len() != width) {
            return self;
        }
        Self::Matrix(
            (0..width)
                .map(|column| rows.iter().map(|row| row[column].clone()).collect())
                .collect(),
        )
    }

    /// Direct parts of the expression.
    pub(crate) fn parts(&self) -> Vec<&Self> {
        match self {
            Self::Number(..) | Self::Symbol(_) | Self::Words(_) | Self::Constant(_) => Vec::new(),
            Self::Sum(parts)
            | Self::Product(parts)
            | Self::Call(_, parts)
            | Self::List(parts)
            | Self::Tuple(_, parts, _) => parts.iter().collect(),
            Self::Set(parts) | Self::Union(parts) | Self::Relation(parts, _) => {
                parts.iter().collect()
            }
            Self::Power(base, exponent) => vec![base, exponent],
            Self::Percent(part) => vec![part],
            Self::Matrix(rows) => rows.iter().flatten().collect(),
        }
    }

    /// True if `holds` is true for the expression or any part of it.
    pub(crate) fn any(&self, holds: &impl Fn(&Self) -> bool) -> bool {
        holds(self) || self.parts().into_iter().any(|part| part.any(holds))
    }

    /// The expression with another one in place of each part that equals `what`.
    pub(crate) fn replaced(&self, what: &Self, by: &Self) -> Self {
        let all = |parts: &[Self]| {
            parts
                .iter()
                .map(|part| part.replaced(what, by))
                .collect::<Vec<_>>()
        };
        match self {
            one if one == what => by.clone(),
            Self::Number(..) | Self::Symbol(_) | Self::Words(_) | Self::Constant(_) => self.clone(),
            Self::Sum(parts) => Self::Sum(all(parts)),
            Self::Product(parts) => Self::Product(all(parts)),
            Self::Power(base, exponent) => Self::Power(
                Box::new(base.replaced(what, by)),
                Box::new(exponent.replaced(what, by)),
            ),
            Self::Call(function, parts) => Self::Call(function, all(parts)),
            Self::Percent(part) => Self::Percent(Box::new(part.replaced(what, by))),
            Self::List(parts) => Self::List(all(parts)),
            Self::Tuple(open, parts, close) => Self::Tuple(*open, all(parts), *close),
            Self::Set(parts) => Self::Set(all(parts)),
            Self::Union(parts) => Self::Union(all(parts)),
            Self::Matrix(rows) => Self::Matrix(rows.iter().map(|row| all(row)).collect()),
            Self::Relation(parts, signs) => Self::Relation(all(parts), signs.clone()),
        }
    }

    /// Names of the free variables.
    pub(crate) fn symbols(&self) -> BTreeSet<&str> {
        match self {
            Self::Symbol(name) if is_bound(name) => BTreeSet::new(),
            Self::Symbol(name) => BTreeSet::from([name.as_str()]),
            _ => self.parts().into_iter().flat_map(Self::symbols).collect(),
        }
    }

    /// True if a capital and its lower-case letter are two variables, as in `R^2-r^2`.
    pub(crate) fn is_cased(&self) -> bool {
        let symbols = self.symbols();
        symbols
            .iter()
            .map(|name| folded(name))
            .collect::<BTreeSet<_>>()
            .len()
            < symbols.len()
    }

    /// True if the expression has a value without variables.
    pub(crate) fn is_constant(&self) -> bool {
        !self.any(&|part| matches!(part, Self::Symbol(name) if !is_bound(name)))
    }

    /// True if any number in the expression was written with a decimal point.
    pub(crate) fn has_decimals(&self) -> bool {
        self.any(&|part| matches!(part, Self::Number(_, true)))
    }

    /// True for a number, or a formula with a numeric value.
    pub(crate) fn is_scalar(&self) -> bool {
        use Expression::{List, Matrix, Relation, Set, Tuple, Union, Words};
        !self.any(&|part| {
            matches!(
                part,
                Words(_) | List(_) | Tuple(..) | Set(_) | Union(_) | Matrix(_) | Relation(..)
            )
        })
    }
}
