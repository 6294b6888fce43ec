//! Values on both sides of the places where `|x-5|`, a maximum or a floor changes its formula,
//! which fixed points may all miss.

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

/// Where a formula changes what stands around it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Where it is 0.
    Zero,
    /// Where it is 0, as a radicand; its sign may change nowhere.
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
                        let (left, right) = (evaluator.value(sides[0]), evaluator.value(sides[1]));
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
        let half =
            |one: &Rational, other: &Rational| one.add(other)?.times(&Rational::decimal("0.5")?);
        let mut places: Vec<Rational> = zeros
            .windows(2)
            .filter_map(|pair| half(&pair[0], &pair[1]))
            .collect();
        let ends = [(zeros.first(), -1), (zeros.last(), 1)];
        places.extend(
            ends.iter()
                .flat_map(|(end, sign)| {
                    end.iter()
                        .flat_map(|end| [1, 37].map(|far| end.add(&Rational::whole(sign * far))))
                        .collect::<Vec<_>>()
                })
                .flatten(),
        );
        places.extend(zeros);
        places.extend(
            WIDE.iter()
                .filter_map(|(above, below)| Rational::new((*above).into(), (*below).into())),
        );
        places
    }

    /// Values of a variable at which a formula is 0, or one of some whole numbers.
    fn zeros(&mut self, name: &str, change: &Break) -> Vec<Rational> {
        let mut at = |value: i64| {
            self.with(name, Value::Exact(Rational::whole(value)), |evaluator| {
                evaluator.exact(&change.formula)
            })
        };
        let minus = |one: &Rational, other: &Rational| one.add(&other.negated());
        // An equation of the first degree is solved exactly.
        let straight = (|| {
            let (zero, one, two) = (at(0)?, at(1)?, at(2)?);
            let slope = minus(&one, &zero)?;
            (minus(&two, &one)? == slope && slope != Rational::whole(0)).then_some((zero, slope))
        })();
        if let Some((zero, slope)) = straight {
            let targets: &[i64] = if change.kind == Kind::Whole {
                &[-2, -1, 0, 1, 2, 3, 7]
            } else {
                &[0]
            };
            let solved =
                |target: &i64| minus(&Rational::whole(*target), &zero)?.times(&slope.inverse()?);
            return targets.iter().filter_map(solved).collect();
        }
        if change.kind == Kind::Root
            || !change
                .formula
                .symbols()
                .iter()
                .any(|symbol| self.name(symbol) == name)
        {
            return Vec::new();
        }
        self.crossings(name, &change.formula)
    }

    /// Approximate zeros between the points of a grid.
    fn crossings(&mut self, name: &str, formula: &Expression) -> Vec<Rational> {
        let mut value = |at: f64| {
            let at = Value::Near(crate::complex::Complex::real(at));
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

/// Collects the formulas at whose zeros or whole values an expression changes.
fn collect(expression: &Expression, breaks: &mut Vec<Break>) {
    let varies = |part: &Expression| !part.is_constant();
    let mut zero = |formula: &Expression, kind: Kind| {
        if varies(formula) && breaks.iter().all(|known: &Break| known.formula != *formula) {
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
        Expression::Call("floor" | "ceil", parts) if parts.iter().any(varies) => {
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
