//! One array of a batch as components read it: the original memory, or a copy in the ABI's type.

#![allow(
    unsafe_code,
    reason = "elements are read at the addresses that DLPack gives"
)]

use std::fmt::Display;
use std::ptr::null_mut;
use std::sync::Arc;

use capo_plugin::fields::Dtype;
use capo_plugin::{DType, DeviceKind, LendTensor, Memory, Tensor, TensorBuffer, Values};
use half::{bf16, f16};
use pyo3::PyResult;
use pyo3::exceptions::PyValueError;

use crate::dlpack::{Lent, Place};

const F64: DType = DType {
    bits: 64,
    ..DType::F32
};
const U8: DType = DType {
    bits: 8,
    ..DType::U32
};
const U16: DType = DType {
    bits: 16,
    ..DType::U32
};
const U64: DType = DType {
    bits: 64,
    ..DType::U32
};
const I8: DType = DType { code: 0, ..U8 };
const I16: DType = DType { code: 0, ..U16 };
const I32: DType = DType {
    code: 0,
    ..DType::U32
};
const I64: DType = DType { code: 0, ..U64 };
const BOOL: DType = DType { code: 6, ..U8 };

/// Values in host memory.
pub(crate) enum Array<T> {
    /// The original memory: compact, aligned, of this type.
    Lent(Lent),
    /// A copy.
    Own(Vec<T>),
}

impl<T: 'static> AsRef<[T]> for Array<T> {
    fn as_ref(&self) -> &[T] {
        self.get()
    }
}

impl<T: 'static> Array<T> {
    pub(crate) fn get(&self) -> &[T] {
        match self {
            Self::Own(values) => values,
            Self::Lent(lent) if lent.len() == 0 => &[],
            // SAFETY: only `lent_as` makes this, from a compact, aligned array in host memory whose
            // elements have `T`'s bits. The capsule keeps it alive, and a component's caller does
            // not touch its arrays until the call returns.
            Self::Lent(lent) => unsafe {
                std::slice::from_raw_parts(lent.address() as *const T, lent.len())
            },
        }
    }

    /// The array as the batch keeps it.
    pub(crate) fn into_values(self) -> Values<T>
    where
        T: Send + Sync,
    {
        match self {
            Self::Own(values) => Values::Own(values),
            lent @ Self::Lent(_) => Values::Lent(Arc::new(lent)),
        }
    }

    pub(crate) fn slot(&self) -> Slot {
        let copied = !matches!(self, Self::Lent(lent) if !lent.fetched());
        let copied = if copied { size_of_val(self.get()) } else { 0 };
        Slot {
            place: Place::Host,
            address: self.get().as_ptr() as usize,
            copied,
        }
    }
}

/// Place and address of an array, and the number of bytes that were copied to get it there.
pub(crate) struct Slot {
    pub(crate) place: Place,
    pub(crate) address: usize,
    pub(crate) copied: usize,
}

/// Wraps `lent` without a copy, if it can be a slice of `T`; the caller ensures that its elements
/// have `T`'s bits.
fn lent_as<T>(lent: Lent) -> Result<Array<T>, Lent> {
    let aligned = lent.address().is_multiple_of(align_of::<T>());
    if lent.strides().is_none() && aligned && lent.place() == Place::Host {
        Ok(Array::Lent(lent))
    } else {
        Err(lent)
    }
}

/// Values as f32: f32 without a copy; f64, f16 and bf16 as copies.
pub(crate) fn floats(name: &str, lent: Lent) -> PyResult<Array<f32>> {
    match lent.dtype() {
        DType::F32 => {
            Ok(lent_as(lent)
                .unwrap_or_else(|lent| Array::Own(copied::<f32, _>(&lent, |value| value))))
        }
        F64 => Ok(Array::Own(copied::<f64, _>(&lent, |value| value as f32))),
        DType::F16 => Ok(Array::Own(copied::<f16, _>(&lent, f16::to_f32))),
        DType::BF16 => Ok(Array::Own(copied::<bf16, _>(&lent, bf16::to_f32))),
        other => Err(wrong_type(name, other, "f32, f64, f16 or bf16")),
    }
}

/// Values as token ids: u32 and i32 without a copy, other integers as copies.
pub(crate) fn ids(name: &str, lent: Lent) -> PyResult<Array<u32>> {
    // A nonnegative i32 has the bits of its u32.
    let signed = lent.dtype() == I32;
    let found = whole::<u32>(name, lent, "token id", |lent| {
        if signed || lent.dtype() == DType::U32 {
            lent_as(lent)
        } else {
            Err(lent)
        }
    })?;
    match found
        .get()
        .iter()
        .find(|id| signed && **id > i32::MAX as u32)
    {
        Some(id) => Err(not_a(name, id.cast_signed(), "token id")),
        None => Ok(found),
    }
}

/// Values as zeros and ones: bytes and booleans without a copy, other integers as copies.
pub(crate) fn bits(name: &str, lent: Lent) -> PyResult<Array<u8>> {
    let found = whole::<u8>(name, lent, "0 or 1", |lent| {
        if [U8, I8, BOOL].contains(&lent.dtype()) {
            lent_as(lent)
        } else {
            Err(lent)
        }
    })?;
    match found.get().iter().find(|bit| **bit > 1) {
        Some(bit) => Err(PyValueError::new_err(format!(
            "`{name}` holds {bit} (entries are 0 or 1)"
        ))),
        None => Ok(found),
    }
}

/// Whole numbers as `T`: without a copy where `as_is` accepts them, else copied.
fn whole<T: TryFrom<i64>>(
    name: &str,
    lent: Lent,
    kind: &str,
    as_is: impl FnOnce(Lent) -> Result<Array<T>, Lent>,
) -> PyResult<Array<T>> {
    let lent = match as_is(lent) {
        Ok(array) => return Ok(array),
        Err(lent) => lent,
    };
    let values: Vec<i64> = match lent.dtype() {
        U8 | BOOL => copied::<u8, _>(&lent, Into::into),
        U16 => copied::<u16, _>(&lent, Into::into),
        DType::U32 => copied::<u32, _>(&lent, Into::into),
        // A value above the largest i64 becomes negative and is refused as such.
        U64 => copied::<u64, _>(&lent, u64::cast_signed),
        I8 => copied::<i8, _>(&lent, Into::into),
        I16 => copied::<i16, _>(&lent, Into::into),
        I32 => copied::<i32, _>(&lent, Into::into),
        I64 => copied::<i64, _>(&lent, Into::into),
        other => return Err(wrong_type(name, other, "integers or booleans")),
    };
    let mut wholes = Vec::with_capacity(values.len());
    for value in values {
        wholes.push(T::try_from(value).map_err(|_| not_a(name, value, kind))?);
    }
    Ok(Array::Own(wholes))
}

fn not_a(name: &str, value: impl Display, kind: &str) -> pyo3::PyErr {
    PyValueError::new_err(format!("`{name}` holds {value}, which is no {kind}"))
}

fn wrong_type(name: &str, dtype: DType, right: &str) -> pyo3::PyErr {
    PyValueError::new_err(format!(
        "`{name}` is of type {} (it must be {right})",
        spelled(dtype)
    ))
}

fn spelled(dtype: DType) -> String {
    if dtype == BOOL {
        "bool".to_owned()
    } else {
        dtype.to_string()
    }
}

/// Copies the elements, of type `S`, in row-major order.
pub(crate) fn copied<S: Copy, T>(lent: &Lent, convert: impl Fn(S) -> T) -> Vec<T> {
    let base = lent.address() as *const S;
    // SAFETY: the element at this offset is part of the array, by DLPack's shape and strides, and
    // of type `S`.
    let at = |offset: i64| convert(unsafe { base.offset(offset as isize).read_unaligned() });
    let Some(strides) = lent.strides() else {
        return (0..lent.len() as i64).map(at).collect();
    };
    let mut values = Vec::with_capacity(lent.len());
    walk(lent.shape(), strides, 0, &mut |offset| {
        values.push(at(offset))
    });
    values
}

/// Visits the offset of every element.
fn walk(shape: &[i64], strides: &[i64], start: i64, visit: &mut impl FnMut(i64)) {
    match (shape, strides) {
        ([extent], [stride, ..]) => (0..*extent).for_each(|i| visit(start + i * stride)),
        ([extent, shape @ ..], [stride, strides @ ..]) => {
            (0..*extent).for_each(|i| walk(shape, strides, start + i * stride, visit));
        }
        _ => visit(start),
    }
}

/// A large array of a batch, with its slot: its own memory without a copy, which may be a device's.
pub(crate) fn large(
    name: &str,
    lent: Lent,
    dtype: Dtype,
    stream: u64,
) -> PyResult<(TensorBuffer, Slot)> {
    let shape = lent.shape().to_vec();
    if lent.place() == Place::Host {
        let slot;
        let memory: Memory = if dtype == Dtype::U32 {
            let ids = ids(name, lent)?;
            slot = ids.slot();
            Memory::Lent(Arc::new(OnHost(ids, DType::U32)))
        } else {
            let values = floats(name, lent)?;
            slot = values.slot();
            Memory::Lent(Arc::new(OnHost(values, DType::F32)))
        };
        return Ok((TensorBuffer::new(memory, &shape), slot));
    }
    let dtype = if dtype == Dtype::U32 {
        let right = "u32 or i32 there; `.int()` of torch makes it so";
        on_device(name, &lent, &[DType::U32, I32], right)?;
        DType::U32
    } else {
        let known = [DType::F32, DType::F16, DType::BF16];
        on_device(name, &lent, &known, "f32, f16 or bf16")?
    };
    let slot = Slot {
        place: lent.place(),
        address: lent.address(),
        copied: 0,
    };
    let array = OnDevice {
        lent,
        dtype,
        stream,
    };
    let memory = Memory::Lent(Arc::new(array));
    Ok((TensorBuffer::new(memory, &shape), slot))
}

/// An array in host memory, and the type of its elements.
struct OnHost<T>(Array<T>, DType);

impl<T> std::fmt::Debug for OnHost<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an array of {} in host memory", self.1)
    }
}

impl<T: Send + Sync + 'static> LendTensor for OnHost<T> {
    fn lend<'a>(&'a self, shape: &'a [i64]) -> Tensor<'a> {
        let data = self.0.get().as_ptr().cast();
        // SAFETY: the address holds compact elements of this shape and type, which `self` keeps
        // alive.
        unsafe { Tensor::from_raw(data, DeviceKind::CPU, 0, self.1, shape, &[], 0, null_mut()) }
    }
}

/// An array in device memory, ready once the work queued on this stream is done.
struct OnDevice {
    lent: Lent,
    dtype: DType,
    stream: u64,
}

impl std::fmt::Debug for OnDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an array of {} on `{}`", self.dtype, self.lent.place())
    }
}

impl LendTensor for OnDevice {
    fn lend<'a>(&'a self, shape: &'a [i64]) -> Tensor<'a> {
        let (kind, number) = match self.lent.place() {
            Place::Host => (DeviceKind::CPU, 0),
            Place::Cuda(number) => (DeviceKind::CUDA, number),
        };
        let data = self.lent.address() as *const _;
        let stream = self.stream as *mut _;
        // SAFETY: the address holds compact elements of this shape and type, which `self` keeps
        // alive. The lender was asked to make them ready on this stream.
        unsafe { Tensor::from_raw(data, kind, number, self.dtype, shape, &[], 0, stream) }
    }
}

/// Checks the type of an array on a device, which cannot be converted here.
fn on_device(name: &str, lent: &Lent, known: &[DType], right: &str) -> PyResult<DType> {
    if !known.contains(&lent.dtype()) {
        return Err(PyValueError::new_err(format!(
            "`{name}` on `{}` is of type {} (it must be {right})",
            lent.place(),
            spelled(lent.dtype())
        )));
    }
    if let Some(strides) = lent.strides() {
        return Err(PyValueError::new_err(format!(
            "`{name}` on `{}` has strides {strides:?} for shape {:?} (it must be contiguous there; \
             `.contiguous()` makes it so)",
            lent.place(),
            lent.shape()
        )));
    }
    Ok(lent.dtype())
}
