//! numpy arrays for results, and the values of arrays that callbacks return.

#![allow(
    unsafe_code,
    reason = "arrays are filled at the addresses that they give"
)]

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::array::copied;
use crate::dlpack::Lent;

/// An element type that numpy supports.
pub(crate) trait Element: Copy {
    /// numpy's name of the type.
    const NAME: &str;
    /// DLPack's type code.
    const CODE: u8;
}

macro_rules! elements {
    ($($type:ty: $name:literal, $code:literal;)*) => {$(
        impl Element for $type {
            const NAME: &str = $name;
            const CODE: u8 = $code;
        }
    )*};
}

elements! {
    f32: "float32", 2;
    f64: "float64", 2;
    u32: "uint32", 1;
    u8: "uint8", 1;
    i64: "int64", 0;
}

/// A new array of this shape with these values.
///
/// # Panics
///
/// When `shape` does not multiply to `values.len()`.
pub(crate) fn array<'py, T: Element>(
    py: Python<'py>,
    shape: &[usize],
    values: &[T],
) -> PyResult<Bound<'py, PyAny>> {
    let array = py
        .import("numpy")?
        .call_method1("empty", (shape.to_vec(), T::NAME))?;
    let lent = Lent::on_host("array", &array)?;
    assert_eq!(lent.len(), values.len(), "an array of shape {shape:?}");
    assert!(
        lent.strides().is_none() && lent.dtype().bits as usize == 8 * size_of::<T>(),
        "what `empty` makes"
    );
    // SAFETY: the new array is compact, has this type and number of elements, and is not shared
    // yet.
    unsafe {
        std::ptr::copy_nonoverlapping(values.as_ptr(), lent.address() as *mut T, values.len())
    };
    Ok(array)
}

/// Values of an array in host memory; error messages call it `name`.
pub(crate) fn values<T: Element>(name: &str, lent: &Lent) -> PyResult<Vec<T>> {
    let dtype = lent.dtype();
    if (dtype.code, usize::from(dtype.bits), dtype.lanes) != (T::CODE, 8 * size_of::<T>(), 1)
        || lent.strides().is_some()
    {
        let expected = T::NAME;
        return Err(PyValueError::new_err(format!(
            "{name} is no compact array of {expected} (give back what was given)"
        )));
    }
    Ok(copied(lent, |value: T| value))
}
