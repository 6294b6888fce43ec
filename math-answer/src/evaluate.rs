//! The value of an expression: exact where the limits allow it, else in `f64`.

use std::f64::consts::{FRAC_PI_2, PI};

use crate::complex::Complex;
use crate::expression::{Constant, Expression, Function, folded};
use crate::rational::Rational;
use crate::{expression, factorials};
use num_integer::Integer;

/// Limit on the work of one comparison. Each visited part of an expression costs one step, and so
/// does each product of two 64-bit words. Beyond the limit no expression has a value.
const MOST_WORK: u64 = 2_000_000;

/// Largest term, relative to the largest one of its sum, that a comparison in `f64` may miss.
const HIDDEN: f64 = 1e-9;

/// Largest number whose factorial is computed.
const MOST_FACTORIAL: i64 = 300;

/// Value of an expression.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Exact(Rational),
    Near(Complex),
}

impl Value {
    pub(crate) fn near(&self) -> Complex {
        match self {
            // A number too large for `f64` is not infinite, and one too small is not 0, so it has
            // no value.
            Self::Exact(value) => {
                let near = value.to_f64();
                let is_normal = near.abs() >= f64::MIN_POSITIVE || value.is_zero();
                if near.is_finite() && is_normal {
                    Complex::real(near)
                } else {
                    Complex::NAN
                }
            }
            Self::Near(value) => *value,
        }
    }

    pub(crate) fn is_nan(&self) -> bool {
        matches!(self, Self::Near(value) if value.is_nan())
    }
}

/// Evaluates expressions until its work limit is reached.
pub(crate) struct Evaluator {
    work: u64,
    point: u64,
    /// True if an expression with a part that is not real has no value.
    pub(crate) real: bool,
    /// True if `R` and `r` are two variables.
    cased: bool,
    /// True while a sum may hide a term, because many values are added or compared with each other.
    pub(crate) hides: bool,
    /// Values of bound variables, and of those that are moved.
    fixed: Vec<(String, Value)>,
    /// Sums, integrals and limits without a free variable, with their values.
    known: Vec<(Vec<Expression>, Complex)>,
}

impl Evaluator {
    /// An evaluator of these expressions. Variables are told apart by case if one of them needs it.
    pub(crate) fn of(expressions: &[&Expression]) -> Self {
        let cased = expressions.iter().any(|one| one.is_cased());
        Self {
            work: MOST_WORK,
            point: 0,
            real: false,
            cased,
            hides: false,
            fixed: Vec::new(),
            known: Vec::new(),
        }
    }

    /// The name under which a variable is known.
    pub(crate) fn name(&self, name: &str) -> String {
        if self.cased {
            name.to_owned()
        } else {
            folded(name)
        }
    }

    /// Sets the variables to their values at point number `point`: fractions around 1, of both
    /// signs before point [`POSITIVE`], which depend only on name and number.
    pub(crate) fn at(&mut self, point: u64) -> &mut Self {
        self.point = point;
        self
    }

    /// The result of `find` while the variable of this name has a value.
    pub(crate) fn with<T>(
        &mut self,
        name: &str,
        value: Value,
        find: impl FnOnce(&mut Self) -> T,
    ) -> T {
        self.fixed.push((name.to_owned(), value));
        let found = find(self);
        self.fixed.pop();
        found
    }

    /// Counts many steps.
    pub(crate) fn pay(&mut self, steps: u64) {
        self.work = self.work.saturating_sub(steps);
    }

    /// The value of a sum, an integral or a limit, which is found once if no variable is free in
    /// it.
    fn once(&mut self, function: Function, parts: &[Expression]) -> Complex {
        let closed = self
            .fixed
            .iter()
            .all(|(name, _)| !expression::is_bound(name))
            && parts.iter().all(Expression::is_constant);
        if !closed {
            return self.near_bound(function, parts);
        }
        if let Some((_, value)) = self.known.iter().find(|(known, _)| known == parts) {
            return *value;
        }
        let value = self.near_bound(function, parts);
        self.known.push((parts.to_vec(), value));
        value
    }

    /// The value of the variable of this name.
    fn variable(&self, name: &str) -> Value {
        if expression::is_bound(name) {
            let fixed = self.fixed.iter().rev().find(|(known, _)| known == name);
            return fixed.map_or(Value::Near(Complex::NAN), |(_, value)| value.clone());
        }
        let name = self.name(name);
        let fixed = self.fixed.iter().rev().find(|(known, _)| *known == name);
        fixed.map_or_else(
            || Value::Exact(variable(&name, self.point)),
            |(_, value)| value.clone(),
        )
    }

    /// The value of `expression`; NaN if it has none.
    pub(crate) fn value(&mut self, expression: &Expression) -> Value {
        match self.exact(expression) {
            Some(value) => Value::Exact(value),
            None => Value::Near(
                Some(self.near(expression))
                    .filter(|near| !self.real || near.im == 0.0)
                    .unwrap_or(Complex::NAN),
            ),
        }
    }

    /// The size of the parts that make up the value of `expression`: like its absolute value, but
    /// terms that cancel count in full.
    pub(crate) fn size(&mut self, expression: &Expression) -> f64 {
        if !self.step() {
            return 0.0;
        }
        match expression {
            Expression::Sum(terms) => terms.iter().map(|term| self.size(term)).sum(),
            Expression::Product(factors) => {
                factors.iter().map(|factor| self.size(factor)).product()
            }
            Expression::Power(base, exponent) => match self.value(exponent).near().as_real() {
                exponent if exponent > 0.0 => self.size(base).powf(exponent),
                _ => self.value(expression).near().abs(),
            },
            Expression::Call("root" | "abs" | "max" | "min" | "floor" | "ceil", _) => {
                self.value(expression).near().abs()
            }
            Expression::Call(..) => self.value(expression).near().abs().max(1.0),
            _ => self.value(expression).near().abs(),
        }
    }

    /// Counts one step; true if work is left.
    pub(crate) fn step(&mut self) -> bool {
        self.work = self.work.saturating_sub(1);
        self.work > 0
    }

    /// Counts the cost of a result.
    pub(crate) fn spent(&mut self, result: Option<Rational>) -> Option<Rational> {
        let words = result.as_ref().map_or(64, |value| value.bits() / 64 + 1);
        self.work = self.work.saturating_sub(words * words);
        result.filter(|_| self.work > 0)
    }

    pub(crate) fn exact(&mut self, expression: &Expression) -> Option<Rational> {
        if !self.step() {
            return None;
        }
        match expression {
            Expression::Number(value, _) => Some(value.clone()),
            Expression::Symbol(name) => match self.variable(name) {
                Value::Exact(value) => Some(value),
                Value::Near(_) => None,
            },
            Expression::Sum(terms) => terms.iter().try_fold(Rational::whole(0), |sum, term| {
                let term = self.exact(term)?;
                self.spent(sum.add(&term))
            }),
            Expression::Product(factors) => {
                let factors = factorials::cancelled(factors);
                factors
                    .iter()
                    .try_fold(Rational::whole(1), |product, factor| {
                        let factor = self.exact(factor)?;
                        self.spent(product.times(&factor))
                    })
            }
            Expression::Power(base, exponent) => {
                let base = self.exact(base)?;
                let exponent = self.exact(exponent)?;
                let (times, degree) = exponent.parts()?;
                let root = if degree == 1 {
                    Some(base)
                } else {
                    base.root(u32::try_from(degree).ok()?)
                }?;
                // An odd root of a negative number is the real one, as that of `\sqrt[3]{-8}`.
                self.spent(root.power(times))
            }
            Expression::Percent(part) => {
                let part = self.exact(part)?;
                self.spent(part.times(&Rational::decimal("0.01")?))
            }
            Expression::Call(function @ ("sum" | "prod"), parts) => {
                self.exact_series(function, parts)
            }
            Expression::Call("integral" | "limit", _) => None,
            Expression::Call(function, arguments) => {
                let arguments = arguments
                    .iter()
                    .map(|part| self.exact(part))
                    .collect::<Option<Vec<_>>>()?;
                let result = match *function {
                    "of" => Some(self.unknown(arguments.iter().map(Rational::to_string))),
                    function => exact_call(function, &arguments),
                };
                self.spent(result)
            }
            _ => None,
        }
    }

    /// The value of a function of which nothing is known: some number, the same for the same name
    /// and arguments.
    fn unknown(&self, arguments: impl Iterator<Item = String>) -> Rational {
        variable(&arguments.collect::<Vec<_>>().join(" "), self.point)
    }

    fn near(&mut self, expression: &Expression) -> Complex {
        if !self.step() {
            return Complex::NAN;
        }
        match expression {
            Expression::Number(value, _) => Value::Exact(value.clone()).near(),
            Expression::Symbol(name) => self.variable(name).near(),
            Expression::Constant(constant) => match constant {
                Constant::Pi => Complex::real(PI),
                Constant::E => Complex::real(std::f64::consts::E),
                Constant::I => Complex::I,
                Constant::Infinity => Complex::real(f64::INFINITY),
            },
            Expression::Sum(terms) => self.near_sum(terms),
            Expression::Product(factors) => {
                let factors = factorials::cancelled(factors);
                factors.iter().fold(Complex::real(1.0), |product, factor| {
                    product.times(self.value(factor).near())
                })
            }
            Expression::Power(base, exponent) => {
                let odd = self
                    .exact(exponent)
                    .and_then(|exponent| exponent.parts())
                    .filter(|(_, degree)| degree % 2 == 1);
                let base = self.value(base).near();
                let exponent = self.value(exponent).near();
                match odd {
                    Some((times, degree)) if degree > 1 && base.im == 0.0 && base.re < 0.0 => {
                        let sign = if times % 2 == 0 { 1.0 } else { -1.0 };
                        Complex::real(-base.re)
                            .power(exponent)
                            .times(Complex::real(sign))
                    }
                    _ if exponent == Complex::real(-1.0) => base.inverse(),
                    _ => base.power(exponent),
                }
            }
            Expression::Percent(part) => self.value(part).near().times(Complex::real(0.01)),
            Expression::Call(function @ ("sum" | "prod" | "integral" | "limit"), parts) => {
                self.once(function, parts)
            }
            Expression::Call(function, arguments) => {
                let arguments: Vec<Complex> = arguments
                    .iter()
                    .map(|part| self.value(part).near())
                    .collect();
                match *function {
                    _ if arguments.iter().any(|argument| argument.is_nan()) => Complex::NAN,
                    "of" => {
                        let value = self.unknown(arguments.iter().map(eight_digits));
                        Complex::real(value.to_f64())
                    }
                    function => near_call(function, &arguments),
                }
            }
            _ => Complex::NAN,
        }
    }
}

impl Evaluator {
    /// The sum in `f64`. A term that the sum does not show has no value: `1 + e^{-50}` is not 1.
    /// What rounding leaves, as in `\sin\pi`, may vanish.
    fn near_sum(&mut self, terms: &[Expression]) -> Complex {
        let values: Vec<Complex> = terms.iter().map(|term| self.value(term).near()).collect();
        let sum = values
            .iter()
            .fold(Complex::real(0.0), |sum, value| sum.plus(*value));
        let least = HIDDEN * values.iter().map(|value| value.abs()).fold(0.0, f64::max);
        let hides = !self.hides
            && sum.is_finite()
            && terms.iter().zip(&values).any(|(term, value)| {
                value.abs() > 0.0 && value.abs() < least && self.size(term) < least
            });
        if hides { Complex::NAN } else { sum }
    }

    /// The natural logarithm of a positive constant, which may be too large or too small for `f64`.
    pub(crate) fn logarithm(&mut self, expression: &Expression) -> Option<f64> {
        if !self.step() {
            return None;
        }
        let near = self.value(expression).near();
        if near.im == 0.0 && near.re > 0.0 && near.is_finite() {
            return Some(near.re.ln());
        }
        match expression {
            Expression::Product(factors) => factors
                .iter()
                .try_fold(0.0, |sum, factor| Some(sum + self.logarithm(factor)?)),
            Expression::Power(base, exponent) => {
                let exponent = self.value(exponent).near();
                let exponent = Some(exponent.as_real()).filter(|exponent| exponent.is_finite())?;
                Some(exponent * self.logarithm(base)?)
            }
            _ => None,
        }
    }
}

/// The first point at which all variables are positive.
pub(crate) const POSITIVE: u64 = 8;

/// The first point at which variables are small, and the first at which they are large.
pub(crate) const SMALL: u64 = 16;
pub(crate) const LARGE: u64 = 24;

/// A fraction with an absolute value between 1/4 and 4, or an eighth or 64 times that. Point 1 has
/// the sign that point 0 has not.
fn variable(name: &str, point: u64) -> Rational {
    let hash = hash(name, point);
    let above = (hash >> 8) % 61 + 29;
    let below = (hash >> 32) % 53 + 23;
    let is_negative = if point == 1 {
        self::hash(name, 0) >> 50 & 1 == 0
    } else {
        hash >> 50 & 1 == 1
    };
    let sign = if is_negative && !(POSITIVE..SMALL).contains(&point) {
        -1
    } else {
        1
    };
    let (times, parts) = match point {
        LARGE.. => (64, 1),
        SMALL.. => (1, 8),
        _ => (1, 1),
    };
    Rational::new((sign * times * above as i64).into(), (parts * below).into())
        .unwrap_or(Rational::whole(2))
}

/// A hash of a name and a point.
fn hash(name: &str, point: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for byte in name.bytes().map(u64::from).chain([point, 0]) {
        let mixed = (hash ^ byte).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        hash = mixed ^ mixed >> 29;
    }
    hash
}

/// A value as text to eight places, because equal arguments may differ in their last digits, and in
/// the sign of a zero.
fn eight_digits(value: &Complex) -> String {
    format!("{:.8e} {:.8e}", value.re + 0.0, value.im + 0.0)
}

fn exact_call(function: Function, arguments: &[Rational]) -> Option<Rational> {
    match (function, arguments) {
        ("abs", [value]) => Some(value.magnitude()),
        ("floor", [value]) => Some(value.floor()),
        ("ceil", [value]) => Some(value.negated().floor().negated()),
        ("factorial" | "doublefactorial", [value]) => {
            let last = value
                .to_whole()
                .filter(|last| (0..=MOST_FACTORIAL).contains(last))?;
            let step = if function == "factorial" { 1 } else { 2 };
            let mut factors = (1..=last).rev().step_by(step);
            factors.try_fold(Rational::whole(1), |product, next| {
                product.times(&Rational::whole(next))
            })
        }
        ("binomial", [above, below]) => {
            let k = below.to_whole()?;
            let rest = above
                .to_whole()
                .and_then(|n| n.checked_sub(k))
                .filter(|rest| (0..k).contains(rest));
            let k = rest.unwrap_or(k);
            let steps = (0..=MOST_FACTORIAL).contains(&k).then_some(0..k)?;
            steps
                .into_iter()
                .try_fold(Rational::whole(1), |product, step| {
                    let factor = above
                        .add(&Rational::whole(-step))?
                        .times(&Rational::whole(step + 1).inverse()?)?;
                    product.times(&factor)
                })
        }
        ("root", [value, degree]) => value.root(u32::try_from(degree.to_whole()?).ok()?),
        ("log", [base, value]) => whole_logarithm(base, value),
        ("max", values) => values.iter().max().cloned(),
        ("min", values) => values.iter().min().cloned(),
        ("gcd" | "lcm", values) => {
            values
                .iter()
                .skip(1)
                .try_fold(values.first()?.clone(), |joined, next| {
                    let one = joined.to_whole()?;
                    let other = next.to_whole()?;
                    let gcd = Rational::whole(
                        i64::try_from(one.unsigned_abs().gcd(&other.unsigned_abs())).ok()?,
                    );
                    if function == "gcd" {
                        Some(gcd)
                    } else {
                        joined
                            .times(next)?
                            .times(&gcd.inverse()?)
                            .map(|lcm| lcm.magnitude())
                    }
                })
        }
        _ => None,
    }
}

/// The exponent with which `base` gives `value`, if it is a whole number.
fn whole_logarithm(base: &Rational, value: &Rational) -> Option<Rational> {
    let power = (value.to_f64().ln() / base.to_f64().ln()).round();
    let power = (power.abs() <= 4096.0).then_some(power as i64)?;
    (base.power(power)? == *value && *base != Rational::whole(1)).then(|| Rational::whole(power))
}

fn near_call(function: Function, arguments: &[Complex]) -> Complex {
    match (function, arguments) {
        ("sin", [x]) => real(x, f64::sin),
        ("cos", [x]) => real(x, f64::cos),
        ("tan", [x]) => real(x, f64::tan),
        ("cot", [x]) => real(x, |x| 1.0 / x.tan()),
        ("sec", [x]) => real(x, |x| 1.0 / x.cos()),
        ("csc", [x]) => real(x, |x| 1.0 / x.sin()),
        ("arcsin", [x]) => real(x, f64::asin),
        ("arccos", [x]) => real(x, f64::acos),
        ("arctan", [x]) => real(x, f64::atan),
        ("arccot", [x]) => real(x, |x| FRAC_PI_2 - x.atan()),
        ("arcsec", [x]) => real(x, |x| x.recip().acos()),
        ("arccsc", [x]) => real(x, |x| x.recip().asin()),
        ("sinh", [x]) => real(x, f64::sinh),
        ("cosh", [x]) => real(x, f64::cosh),
        ("tanh", [x]) => real(x, f64::tanh),
        ("coth", [x]) => real(x, |x| x.tanh().recip()),
        ("sech", [x]) => real(x, |x| x.cosh().recip()),
        ("csch", [x]) => real(x, |x| x.sinh().recip()),
        ("arcsinh", [x]) => real(x, f64::asinh),
        ("arccosh", [x]) => real(x, f64::acosh),
        ("arctanh", [x]) => real(x, f64::atanh),
        ("arccoth", [x]) => real(x, |x| x.recip().atanh()),
        ("arcsech", [x]) => real(x, |x| x.recip().acosh()),
        ("arccsch", [x]) => real(x, |x| x.recip().asinh()),
        ("factorial", [x]) => real(x, |x| gamma(x + 1.0)),
        ("binomial", [n, k]) => {
            let n = n.as_real();
            let k = k.as_real();
            finite(gamma(n + 1.0) / gamma(k + 1.0) / gamma(n - k + 1.0))
        }
        ("ln", [x]) => x.ln(),
        ("log", [base, x]) => x.ln().times(base.ln().inverse()),
        ("abs", [x]) => Complex::real(x.abs()),
        ("floor", [x]) => real(x, f64::floor),
        ("ceil", [x]) => real(x, f64::ceil),
        ("root", [x, degree]) => {
            // The real root of a negative number, if the degree is odd.
            let odd = x.im == 0.0 && x.re < 0.0 && degree.im == 0.0 && degree.re % 2.0 == 1.0;
            let of = if odd { Complex::real(-x.re) } else { *x };
            let root = of.power(degree.inverse());
            if odd {
                root.times(Complex::real(-1.0))
            } else {
                root
            }
        }
        _ => Complex::NAN,
    }
}

/// The value of a function of real numbers, if it is finite.
fn real(value: &Complex, of: fn(f64) -> f64) -> Complex {
    finite(of(value.as_real()))
}

fn finite(value: f64) -> Complex {
    if value.is_finite() {
        Complex::real(value)
    } else {
        Complex::NAN
    }
}

/// Γ(x) by Lanczos' approximation; NaN at the poles. The identities of factorials hold for it
/// between whole numbers too.
fn gamma(x: f64) -> f64 {
    const TERMS: [f64; 8] = [
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    if x <= 0.0 && x.fract() == 0.0 {
        return f64::NAN;
    }
    if x < 0.5 {
        return PI / ((PI * x).sin() * gamma(1.0 - x));
    }
    let from = x + 6.5;
    let x = x - 1.0;
    let terms = TERMS
        .iter()
        .zip(1u8..)
        .map(|(term, k)| term / (x + f64::from(k)));
    (2.0 * PI).sqrt()
        * from.powf(x + 0.5)
        * (-from).exp()
        * terms.fold(0.999_999_999_999_809_9, |sum, term| sum + term)
}
