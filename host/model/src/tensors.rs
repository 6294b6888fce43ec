//! Reads the tensors of a safetensors file one at a time. A large file is never in memory as a
//! whole.

use std::fmt::Debug;
use std::io::{Read, Seek, SeekFrom};

use anyhow::{Context, Result, anyhow, bail, ensure};
use candle_core::{DType, Device, Tensor};
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::files::{ModelFiles, Source};
use super::ops::is_finite;

/// Bytes before the header, which hold its length.
const LENGTH: usize = 8;
/// Longest header, bytes: the limit of the safetensors crate.
const MOST_HEADER: u64 = 100_000_000;

/// An open file and its header.
pub struct TensorFile<'a> {
    source: Box<dyn Source + 'a>,
    header: Metadata,
    /// Offset of the first tensor, bytes.
    start: u64,
}

impl<'a> TensorFile<'a> {
    /// Opens the file `name`. An unreadable or incomplete file is an error.
    pub fn open(files: &'a ModelFiles, name: &str) -> Result<Self> {
        let source = files.open(name)?;
        Self::new(source).with_context(|| format!("cannot use {}", files.describe(name)))
    }

    fn new(mut source: Box<dyn Source + 'a>) -> Result<Self> {
        let size = source.seek(SeekFrom::End(0))?;
        source.rewind()?;
        let header = header(&mut source, size).map_err(|error| {
            anyhow!("not a whole safetensors file: {error} (fetch the file again)")
        })?;
        let start = source.stream_position()?;
        Ok(Self {
            source,
            header,
            start,
        })
    }

    /// Names of the tensors, sorted, so that among several errors the same one is always reported.
    pub fn names(&self) -> Vec<String> {
        let mut names = self.header.offset_keys();
        names.sort_unstable();
        names
    }

    /// The shape of a tensor. An unknown name is an error.
    pub fn shape(&self, name: &str) -> Result<&[usize]> {
        Ok(&self.info(name)?.shape)
    }

    /// A tensor in its stored dtype, on `device`. An unknown name or unsupported type is an error.
    pub fn tensor(&mut self, name: &str, device: &Device) -> Result<Tensor> {
        let info = self.info(name)?.clone();
        let dtype = match info.dtype {
            Dtype::F32 => DType::F32,
            Dtype::BF16 => DType::BF16,
            Dtype::F16 => DType::F16,
            Dtype::I64 => DType::I64,
            other => bail!(unsupported(other)),
        };
        let (from, to) = info.data_offsets;
        let mut bytes = vec![0; to - from];
        self.source
            .seek(SeekFrom::Start(self.start + from as u64))?;
        self.source.read_exact(&mut bytes)?;
        Ok(Tensor::from_raw_buffer(&bytes, dtype, &info.shape, device)?)
    }

    /// A tensor of floats as f32, on `device`. Errors name the tensor; a number that is not finite
    /// is an error.
    pub(super) fn floats(&mut self, name: &str, device: &Device) -> Result<Tensor> {
        let floats = self.tensor(name, device).and_then(|tensor| {
            ensure!(tensor.dtype().is_float(), unsupported(tensor.dtype()));
            let tensor = tensor.to_dtype(DType::F32)?;
            ensure!(
                is_finite(&tensor)?,
                "some of its numbers are infinite or NaN \
                 (use another checkpoint, or fetch the file again)"
            );
            Ok(tensor)
        });
        floats.with_context(|| format!("cannot read tensor `{name}`"))
    }

    fn info(&self, name: &str) -> Result<&TensorInfo> {
        self.header
            .info(name)
            .with_context(|| format!("the file has no tensor `{name}`"))
    }
}

fn unsupported(dtype: impl Debug) -> String {
    format!("dtype {dtype:?} is not supported (convert the weights to f32, bf16 or f16)")
}

/// The header at the beginning of a file of `size` bytes. Errors have the messages of the
/// safetensors crate.
fn header(source: &mut impl Read, size: u64) -> Result<Metadata> {
    ensure!(size >= LENGTH as u64, SafeTensorError::HeaderTooSmall);
    let mut length = [0; LENGTH];
    source.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    ensure!(length <= MOST_HEADER, SafeTensorError::HeaderTooLarge);
    ensure!(
        length <= size - LENGTH as u64,
        SafeTensorError::InvalidHeaderLength
    );
    let mut text = vec![0; length as usize];
    source.read_exact(&mut text)?;
    let text = str::from_utf8(&text).map_err(SafeTensorError::InvalidHeader)?;
    let header: Metadata =
        serde_json::from_str(text).map_err(SafeTensorError::InvalidHeaderDeserialization)?;
    let whole = header.data_len() as u64 + length + LENGTH as u64;
    ensure!(whole == size, SafeTensorError::MetadataIncompleteBuffer);
    Ok(header)
}
