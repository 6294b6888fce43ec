//! Exact numbers of limited size.

use std::cmp::Ordering;

use num_bigint::{BigInt, Sign};
use num_integer::Integer;

/// Largest number of bits in a numerator or a denominator: about 1,200 digits.
const MOST_BITS: u64 = 4096;

/// Largest absolute exponent of a decimal, and largest number of its digits: `1e-1200` is about the
/// smallest.
const MOST_EXPONENT: i64 = 1200;

/// A fraction in lowest terms with a positive denominator.
///
/// A fraction with more than 4,096 bits in numerator or denominator has no value, so that work
/// cannot grow without end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rational {
    numerator: BigInt,
    denominator: BigInt,
}

impl Rational {
    /// `numerator / denominator`; `None` for a division by zero, or a result that is too large.
    pub(crate) fn new(numerator: BigInt, denominator: BigInt) -> Option<Self> {
        if denominator.sign() == Sign::NoSign
            || numerator.bits().max(denominator.bits()) > 2 * MOST_BITS
        {
            return None;
        }
        let divisor: BigInt = numerator.gcd(&denominator);
        let divisor = if denominator.sign() == Sign::Minus {
            -divisor
        } else {
            divisor
        };
        let numerator: BigInt = numerator / &divisor;
        let denominator: BigInt = denominator / divisor;
        (numerator.bits().max(denominator.bits()) <= MOST_BITS).then_some(Self {
            numerator,
            denominator,
        })
    }

    /// A whole number.
    pub(crate) fn whole(value: i64) -> Self {
        Self {
            numerator: value.into(),
            denominator: 1.into(),
        }
    }

    /// Parses `12`, `-1.5`, `.5`, `3.`, `2e-3`, without spaces; `None` if the text is not such a
    /// number, or is too long.
    pub(crate) fn decimal(text: &str) -> Option<Self> {
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            None => (text, 0),
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i64>().ok()?),
        };
        let (sign, digits) = match mantissa.strip_prefix('-') {
            Some(digits) => (-1, digits),
            None => (1, mantissa.strip_prefix('+').unwrap_or(mantissa)),
        };
        let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
        let plain = !(whole.is_empty() && part.is_empty())
            && whole
                .bytes()
                .chain(part.bytes())
                .all(|b| b.is_ascii_digit());
        if !plain || digits.len() > MOST_EXPONENT as usize || exponent.abs() > MOST_EXPONENT {
            return None;
        }
        let all: BigInt = format!("{whole}{part}").parse().ok()?;
        let power = exponent - part.len() as i64;
        let tens = BigInt::from(10).pow(power.unsigned_abs() as u32);
        if power < 0 {
            Self::new(all * sign, tens)
        } else {
            Self::new(all * sign * tens, 1.into())
        }
    }

    pub(crate) fn add(&self, other: &Self) -> Option<Self> {
        let numerator = &self.numerator * &other.denominator + &other.numerator * &self.denominator;
        Self::new(numerator, &self.denominator * &other.denominator)
    }

    pub(crate) fn negated(&self) -> Self {
        Self {
            numerator: -&self.numerator,
            denominator: self.denominator.clone(),
        }
    }

    pub(crate) fn times(&self, other: &Self) -> Option<Self> {
        Self::new(
            &self.numerator * &other.numerator,
            &self.denominator * &other.denominator,
        )
    }

    pub(crate) fn inverse(&self) -> Option<Self> {
        Self::new(self.denominator.clone(), self.numerator.clone())
    }

    /// Whole power; `None` if the result is too large, or for 0 to a negative power.
    pub(crate) fn power(&self, exponent: i64) -> Option<Self> {
        let base = if exponent < 0 {
            self.inverse()?
        } else {
            self.clone()
        };
        let times = exponent.unsigned_abs();
        let bits = base.numerator.bits().max(base.denominator.bits()) - 1;
        if bits.checked_mul(times)? > MOST_BITS {
            return None;
        }
        // Every power of 0, 1 and -1 is small.
        let times = if bits == 0 {
            (times % 2 + 2 * u64::from(times > 0)) as u32
        } else {
            u32::try_from(times).ok()?
        };
        Self::new(base.numerator.pow(times), base.denominator.pow(times))
    }

    /// The exact root of this degree, if it is rational and real.
    pub(crate) fn root(&self, degree: u32) -> Option<Self> {
        if degree == 0 || (self.is_negative() && degree.is_multiple_of(2)) {
            return None;
        }
        let numerator = self.numerator.nth_root(degree);
        let denominator = self.denominator.nth_root(degree);
        if numerator.pow(degree) != self.numerator || denominator.pow(degree) != self.denominator {
            return None;
        }
        Self::new(numerator, denominator)
    }

    /// The value as a whole number, if it is one and fits.
    pub(crate) fn to_whole(&self) -> Option<i64> {
        if self.denominator == BigInt::from(1) {
            i64::try_from(&self.numerator).ok()
        } else {
            None
        }
    }

    /// Numerator and denominator, if both fit.
    pub(crate) fn parts(&self) -> Option<(i64, i64)> {
        Some((
            i64::try_from(&self.numerator).ok()?,
            i64::try_from(&self.denominator).ok()?,
        ))
    }

    /// Number of bits in numerator and denominator.
    pub(crate) fn bits(&self) -> u64 {
        self.numerator.bits() + self.denominator.bits()
    }

    /// The largest whole number that is not above the value.
    pub(crate) fn floor(&self) -> Self {
        Self {
            numerator: self.numerator.div_floor(&self.denominator),
            denominator: 1.into(),
        }
    }

    pub(crate) fn is_negative(&self) -> bool {
        self.numerator.sign() == Sign::Minus
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.numerator.sign() == Sign::NoSign
    }

    pub(crate) fn magnitude(&self) -> Self {
        if self.is_negative() {
            self.negated()
        } else {
            self.clone()
        }
    }

    /// True if the value differs from `other` by at most `tolerance`. A difference of more than
    /// 4,096 bits is in no tolerance, and neither is any difference in one that is not finite.
    ///
    /// ```
    /// use math_answer::value;
    ///
    /// let pi = value("3.14").unwrap();
    /// assert!(pi.is_within(&value("3.15").unwrap(), 0.01));
    /// assert!(!pi.is_within(&value("3.1500001").unwrap(), 0.01));
    /// ```
    #[must_use]
    pub fn is_within(&self, other: &Self, tolerance: f64) -> bool {
        let difference = self.add(&other.negated());
        let tolerance = Self::decimal(&format!("{tolerance:e}"));
        difference
            .zip(tolerance)
            .is_some_and(|(difference, tolerance)| difference.magnitude() <= tolerance)
    }

    /// The nearest `f64`, up to a few last bits; infinite if the value is too large.
    #[must_use]
    pub fn to_f64(&self) -> f64 {
        let (above, up) = shortened(&self.numerator);
        let (below, down) = shortened(&self.denominator);
        above / below * 2f64.powi(up - down)
    }
}

/// The first 64 bits of a number, and the number of bits behind them. The quotient of two huge
/// numbers needs no more.
fn shortened(value: &BigInt) -> (f64, i32) {
    let shift = value.bits().saturating_sub(64);
    let first = i128::try_from(value >> shift).unwrap_or(0);
    (first as f64, shift as i32)
}

impl PartialOrd for Rational {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Rational {
    fn cmp(&self, other: &Self) -> Ordering {
        (&self.numerator * &other.denominator).cmp(&(&other.numerator * &self.denominator))
    }
}

/// Written as `3`, or as `-1/2`.
impl std::fmt::Display for Rational {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.denominator == BigInt::from(1) {
            true => write!(f, "{}", self.numerator),
            false => write!(f, "{}/{}", self.numerator, self.denominator),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Rational {
        Rational::decimal(text).unwrap()
    }

    #[test]
    fn reads_decimals_exactly() {
        for (text, shown) in [
            ("12", "12"),
            ("-1.50", "-3/2"),
            (".5", "1/2"),
            ("3.", "3"),
            ("+2e-3", "1/500"),
            ("1.5E2", "150"),
        ] {
            assert_eq!(decimal(text).to_string(), shown);
        }
        for text in [
            "",
            ".",
            "-",
            "1e",
            "1.2.3",
            "1,000",
            "e5",
            "1e9999999999999999999",
            "0x1",
            "1e1201",
            "--1",
        ] {
            assert_eq!(Rational::decimal(text), None, "{text}");
        }
        assert_eq!(Rational::decimal(&"9".repeat(1201)), None);
    }

    #[test]
    fn refuses_results_that_are_too_large() {
        assert_eq!(
            decimal("9").power(9).unwrap().power(81).unwrap().power(9),
            None
        );
        assert_eq!(decimal("9").power(i64::MAX), None);
        assert_eq!(decimal("-1").power(i64::MAX), Some(decimal("-1")));
        assert_eq!(decimal("0").power(0), Some(decimal("1")));
        assert_eq!(decimal("0").power(-1), None);
        assert_eq!(decimal("1").power(i64::MIN), Some(decimal("1")));
    }

    #[test]
    fn finds_exact_roots_alone() {
        assert_eq!(decimal("2.25").root(2), Some(decimal("1.5")));
        assert_eq!(decimal("-8").root(3), Some(decimal("-2")));
        assert_eq!(
            (
                decimal("2").root(2),
                decimal("-4").root(2),
                decimal("4").root(0)
            ),
            (None, None, None)
        );
    }

    #[test]
    fn converts_quotients_of_huge_numbers() {
        let third = decimal("1e400")
            .times(&decimal("3e400").inverse().unwrap())
            .unwrap();
        assert!((third.to_f64() - 1.0 / 3.0).abs() < 1e-15);
        let odd = Rational::new(
            BigInt::from(10).pow(400) + 1,
            BigInt::from(3) * BigInt::from(10).pow(400),
        )
        .unwrap();
        assert!((odd.to_f64() - 1.0 / 3.0).abs() < 1e-15);
        assert_eq!(decimal("1e400").to_f64(), f64::INFINITY);
        assert_eq!(decimal("-2.5").to_f64(), -2.5);
    }
}
