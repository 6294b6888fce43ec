//! Arrays of other libraries, borrowed through DLPack without a copy for as long as their capsule
//! is held.

#![allow(
    unsafe_code,
    reason = "DLPack hands over addresses; its protocol says what lies there"
)]

use std::ffi::{CStr, c_void};

use capo_plugin::DType;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

/// DLPack's `DLTensor`.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: i32,
    device_id: i32,
    ndim: i32,
    dtype: DType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// The fields of DLPack's `DLManagedTensorVersioned` that are read here.
#[repr(C)]
struct Versioned {
    version: [u32; 2],
    manager: *mut c_void,
    deleter: *mut c_void,
    flags: u64,
    tensor: DlTensor,
}

/// Names of capsules without a consumer. No capsule is renamed here, so each frees its array when
/// it is dropped.
const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

/// The newest supported version.
const VERSION: (u32, u32) = (1, 0);

/// Kinds of devices, by DLPack's numbers.
const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const CUDA_MANAGED: i32 = 13;

/// Location of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// In host memory.
    Host,
    /// In the memory of this CUDA device.
    Cuda(i32),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

/// A borrowed array, which its capsule keeps alive.
pub(crate) struct Lent {
    _capsule: Py<PyAny>,
    address: usize,
    place: Place,
    dtype: DType,
    shape: Vec<i64>,
    /// Strides in elements; `None` for a compact, row-major array.
    strides: Option<Vec<i64>>,
    /// True if the array was copied here from a device.
    fetched: bool,
}

impl Lent {
    /// Borrows the array `object`; error messages call it `name`. An array on a CUDA device is
    /// ready once the work queued on `stream` is done; 0 is the device's default stream, as which
    /// the per-thread one (2) is taken too.
    pub(crate) fn new(name: &str, object: &Bound<'_, PyAny>, stream: u64) -> PyResult<Self> {
        let place = place(name, object)?;
        let arguments = PyDict::new(object.py());
        if place != Place::Host {
            // DLPack's number for the default stream is 1, because 0 is ambiguous. That waits for
            // the streams of all threads.
            arguments.set_item("stream", if stream > 2 { stream } else { 1 })?;
        }
        Self::of(name, object, &capsule(name, object, &arguments)?, place)
    }

    /// Borrows the array `object` in host memory, or copies it there from a device.
    pub(crate) fn on_host(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if place(name, object)? == Place::Host {
            return Self::new(name, object, 0);
        }
        // Methods of torch and cupy; other libraries follow the standard.
        for method in ["cpu", "get"] {
            if object.hasattr(method)? {
                let fetched = Self::new(name, &object.call_method0(method)?, 0)?;
                return Ok(Self {
                    fetched: true,
                    ..fetched
                });
            }
        }
        let arguments = PyDict::new(object.py());
        arguments.set_item("dl_device", (CPU, 0))?;
        let fetched = Self::of(
            name,
            object,
            &capsule(name, object, &arguments)?,
            Place::Host,
        )?;
        Ok(Self {
            fetched: true,
            ..fetched
        })
    }

    fn of(
        name: &str,
        lender: &Bound<'_, PyAny>,
        object: &Bound<'_, PyAny>,
        place: Place,
    ) -> PyResult<Self> {
        let capsule = object
            .cast::<PyCapsule>()
            .map_err(|_| refused(name, "has a `__dlpack__` that gives no capsule"))?;
        let tensor: *const DlTensor = if capsule.is_valid_checked(Some(VERSIONED)) {
            let versioned = capsule
                .pointer_checked(Some(VERSIONED))?
                .cast::<Versioned>()
                .as_ptr();
            // SAFETY: a capsule with this name holds such a structure; its first members are the
            // same in all versions.
            if unsafe { (*versioned).version[0] } > VERSION.0 {
                return Err(refused(name, "speaks a newer DLPack than 1"));
            }
            // SAFETY: this version has this layout.
            unsafe { &raw const (*versioned).tensor }
        } else {
            let pointer = capsule
                .pointer_checked(Some(PLAIN))
                .map_err(|_| refused(name, "has a capsule of another name than DLPack's"))?;
            pointer.cast::<DlTensor>().as_ptr()
        };
        // SAFETY: the capsule is held from here on, and keeps the structure and its arrays alive.
        let tensor = unsafe { &*tensor };
        let ndim = usize::try_from(tensor.ndim).unwrap_or_default();
        // SAFETY: DLPack gives an extent and, if there are strides, a stride for each dimension.
        let shape = unsafe { list(tensor.shape, ndim) }.unwrap_or_default();
        // SAFETY: as above.
        let strides = unsafe { list(tensor.strides, ndim) };
        let lies_there = match place {
            Place::Host => [CPU, CUDA_HOST].contains(&tensor.device),
            Place::Cuda(number) => {
                [CUDA, CUDA_MANAGED].contains(&tensor.device) && tensor.device_id == number
            }
        };
        if !lies_there {
            let what = format!(
                "was asked for on `{place}`, and is lent on another device, of DLPack's kind {} \
                 and number {}",
                tensor.device, tensor.device_id
            );
            return Err(refused(name, &what));
        }
        if !shape.contains(&0) && (tensor.data.is_null() || freed(lender)?) {
            return Err(PyValueError::new_err(format!(
                "`{name}` has shape {shape:?} and no memory on `{place}`: it was freed, as FSDP2 \
                 frees a weight that it has gathered (give what is there: a copy made earlier, or \
                 `full_tensor()` of the DTensor)"
            )));
        }
        let strides = strides.filter(|strides| !is_compact(&shape, strides));
        let address = tensor.data as usize + tensor.byte_offset as usize;
        Ok(Self {
            _capsule: object.clone().unbind(),
            address,
            place,
            dtype: tensor.dtype,
            shape,
            strides,
            fetched: false,
        })
    }

    pub(crate) fn address(&self) -> usize {
        self.address
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Strides in elements; `None` for a compact, row-major array.
    pub(crate) fn strides(&self) -> Option<&[i64]> {
        self.strides.as_deref()
    }

    /// True if the array was copied here from a device.
    pub(crate) fn fetched(&self) -> bool {
        self.fetched
    }

    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product::<i64>() as usize
    }
}

/// The error about an array that cannot be borrowed; `what` says why.
fn refused(name: &str, what: &str) -> PyErr {
    PyValueError::new_err(format!(
        "`{name}` {what} (give a torch, numpy, cupy or jax array)"
    ))
}

/// The `count` numbers at `values`; `None` without any.
///
/// # Safety
///
/// If `values` is not null, it holds `count` numbers.
unsafe fn list(values: *const i64, count: usize) -> Option<Vec<i64>> {
    if count == 0 || values.is_null() {
        return None;
    }
    // SAFETY: the caller ensures it.
    Some(unsafe { std::slice::from_raw_parts(values, count) }.to_vec())
}

/// True if torch has freed the memory of `lender`. A view with an offset then has a small address
/// instead of a null one.
fn freed(lender: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(lender.hasattr("untyped_storage")?
        && lender
            .call_method0("untyped_storage")?
            .call_method0("nbytes")?
            .extract::<usize>()?
            == 0)
}

/// Location of `object`.
fn place(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Place> {
    if !object.hasattr("__dlpack__")? || !object.hasattr("__dlpack_device__")? {
        let kind = object.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "`{name}` is of type `{kind}`, which has no `__dlpack__` (give a torch, numpy, cupy or \
             jax array)"
        )));
    }
    let (kind, number): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    match kind {
        CPU | CUDA_HOST => Ok(Place::Host),
        CUDA | CUDA_MANAGED => Ok(Place::Cuda(number)),
        other => Err(PyValueError::new_err(format!(
            "`{name}` lies on a device of DLPack's kind {other} (it must lie in host memory or on \
             a CUDA device)"
        ))),
    }
}

/// The capsule of `object.__dlpack__`, in the newest version that both sides support.
fn capsule<'py>(
    name: &str,
    object: &Bound<'py, PyAny>,
    arguments: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let newest = arguments.copy()?;
    newest.set_item("max_version", VERSION)?;
    let lent = object
        .call_method("__dlpack__", (), Some(&newest))
        .or_else(|error| {
            // Libraries older than DLPack 1 do not know the argument.
            if error.is_instance_of::<PyTypeError>(py) {
                object.call_method("__dlpack__", (), Some(arguments))
            } else {
                Err(error)
            }
        });
    lent.map_err(|error| {
        let refused =
            PyValueError::new_err(format!("`{name}` cannot be lent: {}", error.value(py)));
        refused.set_cause(py, Some(error));
        refused
    })
}

/// True if elements with these strides are compact and row-major.
fn is_compact(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1;
    shape.iter().zip(strides).rev().all(|(&extent, &stride)| {
        let fits = extent == 1 || stride == expected;
        expected *= extent;
        fits
    }) || shape.contains(&0)
}
