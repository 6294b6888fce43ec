//! Arrays of numpy for what comes back.

#![allow(unsafe_code, reason = "a new array is filled at the address that numpy gives")]

use pyo3::prelude::*;

use crate::dlpack::Lent;

/// A type that numpy knows.
pub(crate) trait Element: Copy {
    /// What numpy calls it.
    const NAME: &str;
}

impl Element for f32 {
    const NAME: &str = "float32";
}

impl Element for u32 {
    const NAME: &str = "uint32";
}

impl Element for u8 {
    const NAME: &str = "uint8";
}

/// A new array of this shape with these values.
///
/// # Errors
///
/// Where numpy is not there or has no memory.
///
/// # Panics
///
/// When `shape` does not multiply to `values.len()`.
pub(crate) fn array<'py, T: Element>(py: Python<'py>, shape: &[usize], values: &[T]) -> PyResult<Bound<'py, PyAny>> {
    let array = py.import("numpy")?.call_method1("empty", (shape.to_vec(), T::NAME))?;
    let lent = Lent::on_host("array", &array)?;
    assert_eq!(lent.len(), values.len(), "an array of shape {shape:?}");
    assert!(lent.strides().is_none() && lent.dtype().bits as usize == 8 * size_of::<T>(), "what `empty` makes");
    // SAFETY: the new array is compact, of this type and this many elements, and nobody else has it yet.
    unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), lent.address() as *mut T, values.len()) };
    Ok(array)
}
