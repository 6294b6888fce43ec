//! The numbers that the CPU kernels compute with, and those that they read and write.

use std::borrow::Cow;

use candle_core::{FloatDType, WithDType};
use half::bf16;

/// A float that the kernels can compute with.
pub trait Real: FloatDType + std::ops::Neg<Output = Self> {
    /// `e^self`; for `f32` a vectorisable polynomial, within 2 units in the last place on
    /// `[-87, 88]`.
    fn exp(self) -> Self;
    /// The square root.
    fn sqrt(self) -> Self;

    /// `self factor + addend`, rounded once.
    fn mul_add(self, factor: Self, addend: Self) -> Self;

    /// The larger of two numbers.
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        if other > self { other } else { self }
    }
}

impl Real for f32 {
    #[inline(always)]
    fn exp(self) -> Self {
        exp_f32(self)
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        f32::sqrt(self)
    }
    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        f32::mul_add(self, factor, addend)
    }
}

impl Real for f64 {
    fn exp(self) -> Self {
        f64::exp(self)
    }
    fn sqrt(self) -> Self {
        f64::sqrt(self)
    }
    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        f64::mul_add(self, factor, addend)
    }
}

/// A number in memory. Kernels compute with `Real`: numbers of bf16 are widened when they are read,
/// and rounded when they are written.
pub trait Number: WithDType {
    /// The float that kernels compute with.
    type Real: Real + Number<Real = Self::Real>;

    /// The numbers in the float of the kernels.
    fn read(values: &[Self]) -> Cow<'_, [Self::Real]>;

    /// The nearest number.
    fn nearest(value: Self::Real) -> Self;
}

macro_rules! real_number {
    ($($real:ty),*) => {
        $(impl Number for $real {
            type Real = Self;

            #[inline(always)]
            fn read(values: &[Self]) -> Cow<'_, [Self]> {
                Cow::Borrowed(values)
            }

            #[inline(always)]
            fn nearest(value: Self) -> Self {
                value
            }
        })*
    };
}
real_number!(f32, f64);

impl Number for bf16 {
    type Real = f32;

    #[inline(always)]
    fn read(values: &[Self]) -> Cow<'_, [f32]> {
        // A loop here, because `collect` is not compiled for the machine's widest vectors.
        let mut wide = vec![0.0; values.len()];
        for (wide, value) in wide.iter_mut().zip(values) {
            *wide = f32::from_bits(u32::from(value.to_bits()) << 16);
        }
        Cow::Owned(wide)
    }

    #[inline(always)]
    fn nearest(value: f32) -> Self {
        Self::from_bits(round_to_bf16(value))
    }
}

/// Bits of the nearest bf16, ties to even.
#[inline(always)]
pub fn round_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let quiet = bits | 0x0040_0000;
    ((if value.is_nan() { quiet } else { rounded }) >> 16) as u16
}

/// Cephes' `expf`: a reduction by multiples of ln 2, then a polynomial of degree 6; underflows to
/// about 1e-38, not 0.
#[inline(always)]
pub fn exp_f32(x: f32) -> f32 {
    /// 1.5 * 2^23: adding and subtracting it rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.3, 88.3);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let tail = 0.5
        + r * (0.166_666_65
            + r * (0.041_665_796 + r * (0.008_333_452 + r * (1.398_2e-3 + r * 1.987_569_1e-4))));
    let p = 1.0 + r + r * r * tail;
    // The last bits of `shifted` are the integer n; a cast would prevent vectorisation. NaN passes
    // through `p`.
    let power = f32::from_bits(
        shifted
            .to_bits()
            .wrapping_sub(ROUND.to_bits())
            .wrapping_add(127)
            << 23,
    );
    power * p
}

/// Cephes' `exp` for numbers up to 0, within a unit in the last place; 0 below -708.
#[inline(always)]
pub fn exp_f64(x: f64) -> f64 {
    /// 1.5 * 2^52, as in [`exp_f32`].
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let shifted = x.max(-708.0) * std::f64::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * 6.931_457_519_531_25e-1) - n * 1.428_606_820_309_417_2e-6;
    let square = r * r;
    let p = r * ((1.261_771_930_748_105_9e-4 * square + 3.029_944_077_074_419_6e-2) * square + 1.0);
    let q = ((3.001_985_051_386_644_6e-6 * square + 2.524_483_403_496_841e-3) * square
        + 2.272_655_482_081_550_3e-1)
        * square
        + 2.0;
    let power = f64::from_bits(
        shifted
            .to_bits()
            .wrapping_sub(ROUND.to_bits())
            .wrapping_add(1023)
            << 52,
    );
    let exp = power * (1.0 + 2.0 * (p / (q - p)));
    // NaN stays NaN.
    if x < -708.0 { 0.0 } else { exp }
}
