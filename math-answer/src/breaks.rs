//! Values on both sides of the places where `|x-5|`, a maximum or a floor changes its formula,
//! which fixed points may all miss.

use crate::complex::Complex;
use crate::evaluate::{Evaluator, POSITIVE, Value};
use crate::expression::{Expression, Function};
use crate::rational::Rational;

/// Most variables that are moved, most formulas whose zeros are sought, and most places.
const MOST_VARIABLES: usize = 4;
const MOST_FORMULAS: usize = 24;
const MOST_PLACES: usize = 48;

/// Values that a variable takes in any case, whole and broken, near and far.
const WIDE: [(i64, i64); 10] = [
    (0, 1),
    (2, 1),
    (-2, 1),
    (11, 2),
    (-11, 2),
    (47, 3),
    (-47, 3),
    (101, 1),
    (-101, 1),
    (7001, 3),
];

/// Points of a grid on which zeros are sought.
const GRID: [i64; 20] = [
    -1000, -100, -20, -10, -7, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 7, 10, 30, 1000,
];

/// A formula that changes what stands around it.
struct Break {
    formula: Expression,
    kind: Kind,
}

/// A formula of the first degree in a variable.
struct Line {
    /// Its value where the variable is 0.
    zero: Rational,
    slope: Rational,
}

impl Line {
    /// The value of the variable at which the formula is `target`.
    fn solved(&self, target: i64) -> Option<Rational> {
        Rational::whole(target)
            .add(&self.zero.negated())?
            .times(&self.slope.inverse()?)
    }
}

/// Where a formula changes what stands around it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Where it is 0.
    Zero,
    /// Where it is 0, as the radicand of a root, if its sign changes at all.
    Root,
    /// Where it is a whole number.
    Whole,
}

impl Evaluator {
    /// True if the two sides fit wherever one of the formulas in them changes.
    pub(crate) fn fit_at_breaks(
        &mut self,
        sides: [&Expression; 2],
        fit: &mut impl FnMut(&mut Self, &Value, &Value) -> bool,
    ) -> bool {
        let mut breaks = Vec::new();
        sides.iter().for_each(|side| collect(side, &mut breaks));
        if breaks.is_empty() {
            return true;
        }
        breaks.truncate(MOST_FORMULAS);
        let names: std::collections::BTreeSet<&str> =
            sides.iter().flat_map(|side| side.symbols()).collect();
        // Roots change seldom, so that they get less of the work.
        let few = names.len() == 1 || breaks.iter().all(|change| change.kind == Kind::Root);
        let points: &[u64] = if few { &[POSITIVE] } else { &[0, POSITIVE] };
        for name in names.into_iter().take(MOST_VARIABLES) {
            let name = self.name(name);
            for &point in points {
                self.at(point);
                for place in self.places(&name, &breaks) {
                    let fits = self.with(&name, Value::Exact(place), |evaluator| {
                        let left = evaluator.value(sides[0]);
                        let right = evaluator.value(sides[1]);
                        left.is_nan() || right.is_nan() || fit(evaluator, &left, &right)
                    });
                    if !fits {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Values of a variable on both sides of each break, between each two, and far from all.
    fn places(&mut self, name: &str, breaks: &[Break]) -> Vec<Rational> {
        let mut zeros: Vec<Rational> = breaks
            .iter()
            .flat_map(|change| self.zeros(name, change))
            .collect();
        zeros.sort();
        zeros.dedup();
        zeros.truncate(MOST_PLACES);
        let mut places: Vec<Rational> = zeros
            .windows(2)
            .filter_map(|pair| middle(&pair[0], &pair[1]))
            .collect();
        if let (Some(first), Some(last)) = (zeros.first(), zeros.last()) {
            for far in [-1, -37] {
                places.extend(first.add(&Rational::whole(far)));
            }
            for far in [1, 37] {
                places.extend(last.add(&Rational::whole(far)));
            }
        }
        places.extend(zeros);
        places.extend(
            WIDE.iter()
                .filter_map(|(above, below)| Rational::new((*above).into(), (*below).into())),
        );
        places
    }

    /// Values of a variable at which a formula is 0, or one of some whole numbers.
    fn zeros(&mut self, name: &str, change: &Break) -> Vec<Rational> {
        if let Some(line) = self.line(name, &change.formula) {
            let targets: &[i64] = if change.kind == Kind::Whole {
                &[-2, -1, 0, 1, 2, 3, 7]
            } else {
                &[0]
            };
            return targets
                .iter()
                .filter_map(|target| line.solved(*target))
                .collect();
        }
        let symbols = change.formula.symbols();
        if change.kind == Kind::Root || !symbols.iter().any(|symbol| self.name(symbol) == name) {
            return Vec::new();
        }
        self.crossings(name, &change.formula)
    }

    /// A formula as a line, if it is of the first degree in a variable.
    fn line(&mut self, name: &str, formula: &Expression) -> Option<Line> {
        let zero = self.exact_at(name, 0, formula)?;
        let one = self.exact_at(name, 1, formula)?;
        let two = self.exact_at(name, 2, formula)?;
        let slope = one.add(&zero.negated())?;
        let is_line = two.add(&one.negated())? == slope && !slope.is_zero();
        is_line.then_some(Line { zero, slope })
    }

    /// The exact value of a formula where a variable is `value`.
    fn exact_at(&mut self, name: &str, value: i64, formula: &Expression) -> Option<Rational> {
        let value = Value::Exact(Rational::whole(value));
        self.with(name, value, |evaluator| evaluator.exact(formula))
    }

    /// Approximate zeros between the points of a grid.
    fn crossings(&mut self, name: &str, formula: &Expression) -> Vec<Rational> {
        let mut value = |at: f64| {
            let at = Value::Near(Complex::real(at));
            self.with(name, at, |evaluator| {
                evaluator.value(formula).near().as_real()
            })
        };
        let mut zeros = Vec::new();
        let grid = GRID.map(|at| (at as f64 + 1e-3, value(at as f64 + 1e-3)));
        for pair in grid.windows(2).filter(|pair| pair[0].1 * pair[1].1 < 0.0) {
            let ((mut low, begin), (mut high, _)) = (pair[0], pair[1]);
            for _ in 0..24 {
                let middle = 0.5 * (low + high);
                if value(middle) * begin > 0.0 {
                    low = middle
                } else {
                    high = middle
                }
            }
            zeros.extend(Rational::decimal(&format!("{:.9}", 0.5 * (low + high))));
        }
        zeros
    }
}

/// The number halfway between two others.
fn middle(one: &Rational, other: &Rational) -> Option<Rational> {
    one.add(other)?.times(&Rational::decimal("0.5")?)
}

/// Collects the formulas at whose zeros or whole values an expression changes.
fn collect(expression: &Expression, breaks: &mut Vec<Break>) {
    let mut zero = |formula: &Expression, kind: Kind| {
        if !formula.is_constant() && breaks.iter().all(|known: &Break| known.formula != *formula) {
            breaks.push(Break {
                formula: formula.clone(),
                kind,
            });
        }
    };
    match expression {
        Expression::Call("abs", parts) => parts.iter().for_each(|part| zero(part, Kind::Zero)),
        Expression::Call("max" | "min", parts) => {
            for (at, one) in parts.iter().enumerate() {
                let differences = parts[at + 1..]
                    .iter()
                    .map(|other| Expression::Sum(vec![one.clone(), other.clone().negated()]));
                differences.for_each(|difference| zero(&difference, Kind::Zero));
            }
        }
        Expression::Call("root", parts) => match &parts[0] {
            Expression::Power(base, _) => zero(base, Kind::Root),
            other => zero(other, Kind::Root),
        },
        Expression::Power(base, exponent) if is_broken(exponent) => match base.as_ref() {
            Expression::Power(base, _) => zero(base, Kind::Root),
            other => zero(other, Kind::Root),
        },
        Expression::Call("floor" | "ceil", parts) if !parts.iter().all(Expression::is_constant) => {
            breaks.extend(parts.iter().map(|part| Break {
                formula: part.clone(),
                kind: Kind::Whole,
            }));
        }
        Expression::Call(function, parts) if is_inverse(function) => {
            parts.iter().for_each(|part| zero(part, Kind::Zero))
        }
        _ => {}
    }
    expression
        .parts()
        .into_iter()
        .for_each(|part| collect(part, breaks));
}

/// True for the inverse of a function that is not one to one.
fn is_inverse(function: Function) -> bool {
    matches!(
        function,
        "arcsin" | "arccos" | "arctan" | "arccot" | "arcsec" | "arccsc"
    )
}

/// True for an exponent that is a fraction.
fn is_broken(exponent: &Expression) -> bool {
    match exponent {
        Expression::Number(value, _) => value.to_whole().is_none(),
        Expression::Product(parts) => parts.iter().all(Expression::is_constant),
        _ => false,
    }
}
