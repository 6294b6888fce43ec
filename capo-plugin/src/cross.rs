//! Types of fields and their types on the wire. Slices keep their addresses.

use abi_stable::std_types::{ROption, RSlice, RStr};

use crate::{Denominator, Reduction};

/// Converts a field's value to its type on the wire and back.
pub trait Cross: Sized {
    /// The type on the wire.
    type There;
    /// The value on the wire.
    fn there(self) -> Self::There;
    /// The value of one on the wire.
    fn back(there: Self::There) -> Self;
}

/// Types that are the same on the wire.
macro_rules! same_on_the_wire {
    ($($type:ty),*) => {$(
        impl Cross for $type {
            type There = Self;

            fn there(self) -> Self {
                self
            }

            fn back(there: Self) -> Self {
                there
            }
        }
    )*};
}

same_on_the_wire!(bool, f32, f64, u32, u64, Denominator, Reduction);

impl Cross for usize {
    type There = u64;

    fn there(self) -> u64 {
        self as u64
    }

    fn back(there: u64) -> Self {
        there as Self
    }
}

impl<'a> Cross for &'a str {
    type There = RStr<'a>;

    fn there(self) -> RStr<'a> {
        RStr::from_str(self)
    }

    fn back(there: RStr<'a>) -> Self {
        there.as_str()
    }
}

impl<'a, T> Cross for &'a [T] {
    type There = RSlice<'a, T>;

    fn there(self) -> RSlice<'a, T> {
        RSlice::from_slice(self)
    }

    fn back(there: RSlice<'a, T>) -> Self {
        there.as_slice()
    }
}

impl<T: Cross> Cross for Option<T> {
    type There = ROption<T::There>;

    fn there(self) -> ROption<T::There> {
        self.map(T::there).into()
    }

    fn back(there: ROption<T::There>) -> Self {
        there.into_option().map(T::back)
    }
}
