//! The operations on complex numbers in `f64` that answers need.

/// A complex number. A result that is not a number, or for which finite numbers are too large or
/// too small, is NaN in both parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Complex {
    pub(crate) re: f64,
    pub(crate) im: f64,
}

impl Complex {
    pub(crate) const NAN: Self = Self {
        re: f64::NAN,
        im: f64::NAN,
    };
    pub(crate) const I: Self = Self { re: 0.0, im: 1.0 };

    pub(crate) fn real(re: f64) -> Self {
        Self { re, im: 0.0 }
    }

    pub(crate) fn is_nan(self) -> bool {
        self.re.is_nan() || self.im.is_nan()
    }

    pub(crate) fn is_finite(self) -> bool {
        self.re.is_finite() && self.im.is_finite()
    }

    /// The real part if the imaginary part is 0, else NaN.
    pub(crate) fn as_real(self) -> f64 {
        if self.im == 0.0 { self.re } else { f64::NAN }
    }

    pub(crate) fn abs(self) -> f64 {
        self.re.hypot(self.im)
    }

    /// A result may be infinite only if an argument was. An overflow has no value.
    fn checked(self, finite: bool) -> Self {
        if self.is_nan() || (finite && !self.is_finite()) {
            Self::NAN
        } else {
            self
        }
    }

    /// A result that is only 0 because it is too small for `f64` has no value.
    fn above_zero(self, nonzero: bool) -> Self {
        if nonzero && self.re.abs().max(self.im.abs()) < f64::MIN_POSITIVE {
            Self::NAN
        } else {
            self
        }
    }

    fn is_zero(self) -> bool {
        self.re == 0.0 && self.im == 0.0
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        let sum = Self {
            re: self.re + other.re,
            im: self.im + other.im,
        };
        sum.checked(self.is_finite() && other.is_finite())
    }

    pub(crate) fn times(self, other: Self) -> Self {
        let finite = self.is_finite() && other.is_finite();
        let nonzero = !self.is_zero() && !other.is_zero();
        if self.im == 0.0 && other.im == 0.0 {
            return Self::real(self.re * other.re)
                .checked(finite)
                .above_zero(nonzero);
        }
        let re = self.re * other.re - self.im * other.im;
        Self {
            re,
            im: self.re * other.im + self.im * other.re,
        }
        .checked(finite)
        .above_zero(nonzero)
    }

    pub(crate) fn inverse(self) -> Self {
        if self.im == 0.0 {
            return Self::real(1.0 / self.re)
                .checked(self.is_finite())
                .above_zero(self.is_finite());
        }
        let square = self.re * self.re + self.im * self.im;
        Self {
            re: self.re / square,
            im: -self.im / square,
        }
        .checked(self.is_finite())
    }

    pub(crate) fn ln(self) -> Self {
        let im = if self.im == 0.0 && self.re >= 0.0 {
            0.0
        } else {
            self.im.atan2(self.re)
        };
        Self {
            re: self.abs().ln(),
            im,
        }
        .checked(self.is_finite())
    }

    fn exp(self) -> Self {
        let size = self.re.exp();
        if self.im == 0.0 {
            return Self::real(size)
                .checked(self.is_finite())
                .above_zero(self.is_finite());
        }
        let finite = self.is_finite();
        Self {
            re: size * self.im.cos(),
            im: size * self.im.sin(),
        }
        .checked(finite)
        .above_zero(finite)
    }

    /// The principal value of a power.
    pub(crate) fn power(self, exponent: Self) -> Self {
        let finite = self.is_finite() && exponent.is_finite();
        if exponent.im == 0.0 && self.im == 0.0 && (self.re >= 0.0 || exponent.re.fract() == 0.0) {
            return Self::real(self.re.powf(exponent.re))
                .checked(finite)
                .above_zero(finite && self.re != 0.0);
        }
        if exponent.im == 0.0 && exponent.re == 0.5 {
            return self.square_root();
        }
        if exponent.im == 0.0 && exponent.re.fract() == 0.0 && exponent.re.abs() <= 64.0 {
            let product = (0..exponent.re.abs() as u32)
                .fold(Self::real(1.0), |product, _| product.times(self));
            return if exponent.re < 0.0 {
                product.inverse()
            } else {
                product
            };
        }
        self.ln().times(exponent).exp().checked(finite)
    }

    /// Exact where the logarithm leaves a rounding error: the root of −4 has real part 0.
    fn square_root(self) -> Self {
        if self.im == 0.0 && self.re < 0.0 {
            return Self {
                re: 0.0,
                im: (-self.re).sqrt(),
            };
        }
        self.ln().times(Self::real(0.5)).exp()
    }
}
