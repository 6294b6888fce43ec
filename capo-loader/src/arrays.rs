//! Conversion of numbers to the bytes of a safetensors file and back.

use std::borrow::Cow;

use anyhow::{Context, Result, bail};
use bytemuck::allocation::pod_collect_to_vec;
use bytemuck::{NoUninit, cast_slice};
use capo_plugin::{DType, Tensor};
use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, View};

/// A number type, with its dtype in a file.
pub(crate) trait Number: NoUninit {
    const DTYPE: Dtype;
}

macro_rules! numbers {
    ($($type:ty: $dtype:ident),*) => {$(
        impl Number for $type {
            const DTYPE: Dtype = Dtype::$dtype;
        }
    )*};
}

// Counts are written as I64, a dtype that every reader of such files supports.
numbers!(f32: F32, u32: U32, u64: I64, u8: U8);

/// A borrowed array to write to a file. Files are little-endian, as are the machines that this
/// crate is built for.
pub(crate) struct Array<'a> {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    pub(crate) fn new<T: Number>(values: &'a [T], shape: &[i64]) -> Self {
        Self {
            dtype: T::DTYPE,
            shape: shape.iter().map(|&extent| extent as usize).collect(),
            bytes: cast_slice(values),
        }
    }

    /// Borrows a compact tensor of f32 or u32 in host memory.
    pub(crate) fn of(tensor: &Tensor<'a>) -> Result<Self> {
        Ok(if tensor.dtype() == DType::U32 {
            Self::new(tensor.as_u32()?, tensor.shape())
        } else {
            Self::new(tensor.as_f32()?, tensor.shape())
        })
    }
}

impl View for Array<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// Returns the values of a tensor of any float type, as f32.
pub(crate) fn floats(name: &str, tensor: &TensorView<'_>) -> Result<Vec<f32>> {
    // The bytes of a file have no alignment, so each value is collected instead of cast.
    let data = tensor.data();
    Ok(match tensor.dtype() {
        Dtype::F32 => pod_collect_to_vec(data),
        Dtype::F64 => pod_collect_to_vec::<u8, f64>(data)
            .into_iter()
            .map(|value| value as f32)
            .collect(),
        Dtype::F16 => pod_collect_to_vec::<u8, u16>(data)
            .into_iter()
            .map(|bits| f16::from_bits(bits).to_f32())
            .collect(),
        Dtype::BF16 => pod_collect_to_vec::<u8, u16>(data)
            .into_iter()
            .map(|bits| bf16::from_bits(bits).to_f32())
            .collect(),
        other => bail!("`{name}` holds {other:?} (its numbers must be F32, F64, F16 or BF16)"),
    })
}

/// Returns the values of a tensor of any integer type, as token ids.
pub(crate) fn ids(name: &str, tensor: &TensorView<'_>) -> Result<Vec<u32>> {
    let data = tensor.data();
    let signed: Vec<i64> = match tensor.dtype() {
        Dtype::U32 => return Ok(pod_collect_to_vec(data)),
        Dtype::U8 => return Ok(data.iter().map(|&value| value.into()).collect()),
        Dtype::I32 => {
            let values = pod_collect_to_vec::<u8, i32>(data).into_iter();
            values.map(Into::into).collect()
        }
        Dtype::I64 => pod_collect_to_vec(data),
        other => bail!("`{name}` holds {other:?} (its ids must be U32, I64, I32 or U8)"),
    };
    let mut ids = Vec::with_capacity(signed.len());
    for value in signed {
        let id = u32::try_from(value);
        ids.push(id.with_context(|| format!("`{name}` holds {value}, which is no token id"))?);
    }
    Ok(ids)
}

/// Returns the values of a tensor of any integer type, as counts.
pub(crate) fn counts(name: &str, tensor: &TensorView<'_>) -> Result<Vec<u64>> {
    let signed: Vec<i64> = match tensor.dtype() {
        Dtype::U64 => return Ok(pod_collect_to_vec(tensor.data())),
        Dtype::I64 => pod_collect_to_vec(tensor.data()),
        _ => return Ok(ids(name, tensor)?.into_iter().map(u64::from).collect()),
    };
    let mut counts = Vec::with_capacity(signed.len());
    for value in signed {
        let count = u64::try_from(value).ok();
        counts.push(count.with_context(|| format!("`{name}` holds {value} (counts are from 0)"))?);
    }
    Ok(counts)
}

/// Returns the values of a tensor of bytes or booleans.
pub(crate) fn bytes(name: &str, tensor: &TensorView<'_>) -> Result<Vec<u8>> {
    match tensor.dtype() {
        Dtype::U8 | Dtype::BOOL => Ok(tensor.data().to_vec()),
        Dtype::I64 | Dtype::I32 | Dtype::U32 => {
            let mut bytes = Vec::new();
            for value in ids(name, tensor)? {
                let byte = u8::try_from(value);
                bytes.push(
                    byte.with_context(|| format!("`{name}` holds {value} (entries are 0 or 1)"))?,
                );
            }
            Ok(bytes)
        }
        other => bail!("`{name}` holds {other:?} (its entries must be U8 or BOOL)"),
    }
}
