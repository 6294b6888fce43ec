//! The types with which the [table](super::table) of a batch's fields is data.

use crate::{Dims, Inputs, Tensor};

use super::buffer::{TensorBuffer, Values};

/// One field of a batch: a row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name in Rust, in batch files and in Python.
    pub name: &'static str,
    /// Its type in Rust.
    pub rust: &'static str,
    /// The class of Python that has the field as an attribute.
    pub class: &'static str,
    /// True if a batch cannot be read without the field.
    pub required: bool,
    /// Type of the scalar, or of the array's elements.
    pub dtype: Dtype,
    /// Shape of an array; empty for a scalar.
    pub shape: &'static [Extent],
    /// Unit; empty for a field without one.
    pub unit: &'static str,
    /// Values that a scalar may have.
    pub limit: Limit,
    /// Description: a sentence or several.
    pub about: &'static str,
}

impl Field {
    /// The description without line breaks and the space at its beginning.
    pub fn sentence(&self) -> &'static str {
        self.about.trim_start()
    }
}

/// A part of the batch for which components ask: an array, the tensors of a group, or a part of the
/// rollout's context.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Flag with which a component asks for it.
    pub flag: Inputs,
    /// Name of the flag.
    pub name: &'static str,
    /// Name of the field of [`Batch`](crate::Batch).
    pub field: &'static str,
    /// Description.
    pub about: &'static str,
}

/// Extent of a dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// Completions of the step.
    B,
    /// Tokens of the longest completion.
    T,
    /// Width of the features.
    D,
    /// Top tokens.
    K,
    /// Entries of the vocabulary.
    V,
}

/// Type of a scalar or of an array's elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dtype {
    /// 0 or 1 in a byte.
    Bit,
    /// 32-bit unsigned integer.
    U32,
    /// 64-bit unsigned integer.
    U64,
    /// 32-bit float.
    F32,
    /// 64-bit float.
    F64,
    /// The number of a [`Reduction`](crate::Reduction).
    Reduction,
    /// The number of a [`Denominator`](crate::Denominator).
    Denominator,
}

/// Values that a scalar may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// Every value.
    Any,
    /// Above 0, and finite.
    Positive,
    /// Above 0, and at most 1.
    Share,
    /// 0 or more, and finite.
    NotNegative,
}

impl Limit {
    /// What `value` must be, if it is not within the limit.
    pub fn broken_by(self, value: f64) -> Option<&'static str> {
        match self {
            Self::Positive if !(value > 0.0 && value.is_finite()) => Some("above 0 and finite"),
            Self::Share if !(value > 0.0 && value <= 1.0) => Some("above 0 and at most 1"),
            Self::NotNegative if !(value >= 0.0 && value.is_finite()) => {
                Some("0 or more and finite")
            }
            _ => None,
        }
    }
}

/// The value of a field.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// A whole number.
    Whole(u64),
    /// A number of single precision.
    Single(f32),
    /// A number of double precision.
    Double(f64),
    /// Zeros and ones in host memory.
    Bits(&'a [u8]),
    /// Token ids in host memory.
    Ids(&'a [u32]),
    /// Numbers in host memory.
    Floats(&'a [f32]),
    /// An array on any device.
    Tensor(Tensor<'a>),
}

/// Provides the fields of a batch to [`BatchBuffer::read`](crate::BatchBuffer::read): a file, or
/// the arguments of a call from another language. A shape has -1 where any extent above 0 will do.
pub trait Source {
    /// The error about a field that is missing or wrong.
    type Error;
    /// True if the source has `field`.
    fn has(&mut self, field: &'static Field) -> Result<bool, Self::Error>;
    /// The scalar `field`, of its type. Where the source has none, it is `default`, or an error.
    fn scalar(
        &mut self,
        field: &'static Field,
        default: Option<Value<'static>>,
    ) -> Result<Option<Value<'static>>, Self::Error>;
    /// An array of zeros and ones, if the source has it.
    fn bits(
        &mut self,
        field: &'static Field,
        shape: &[i64],
    ) -> Result<Option<Values<u8>>, Self::Error>;
    /// An array of token ids, if the source has it.
    fn ids(
        &mut self,
        field: &'static Field,
        shape: &[i64],
    ) -> Result<Option<Values<u32>>, Self::Error>;
    /// An array of numbers, if the source has it.
    fn floats(
        &mut self,
        field: &'static Field,
        shape: &[i64],
    ) -> Result<Option<Values<f32>>, Self::Error>;
    /// A large array of token ids or numbers, which may lie on a device.
    fn tensor(&mut self, field: &'static Field, shape: &[i64])
    -> Result<TensorBuffer, Self::Error>;
    /// The error about an array that is required and missing.
    fn missing(&mut self, field: &'static Field, shape: &[i64]) -> Self::Error;
}

/// True if an array of shape `have` is one of shape `want`, in which -1 is any extent above 0.
pub fn fits(have: &[i64], want: &[i64]) -> bool {
    let mut extents = have.iter().zip(want);
    have.len() == want.len() && extents.all(|(have, want)| have == want || *want == -1 && *have > 0)
}

/// A shape for a person, in which -1 is `any`.
pub fn shape_text(shape: &[i64]) -> String {
    let mut extents = Vec::new();
    for extent in shape {
        extents.push(match extent {
            -1 => "any".to_owned(),
            extent => extent.to_string(),
        });
    }
    format!("[{}]", extents.join(", "))
}

/// The extents that are known while a batch is read or checked; -1 for the others.
#[derive(Debug)]
pub struct Extents([i64; 5]);

impl Extents {
    /// The extents of a batch's dimensions.
    pub fn new(dims: Dims) -> Self {
        Self([dims.completions as i64, dims.tokens as i64, -1, -1, -1])
    }

    /// The shape in numbers.
    pub fn shape(&self, letters: &[Extent]) -> Vec<i64> {
        letters
            .iter()
            .map(|&letter| self.0[letter as usize])
            .collect()
    }

    /// Takes the extents of an array whose shape has these letters.
    pub fn learn(&mut self, letters: &[Extent], shape: &[i64]) {
        for (&letter, &extent) in letters.iter().zip(shape) {
            self.0[letter as usize] = extent;
        }
    }
}
