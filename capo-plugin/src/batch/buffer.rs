//! What a [`BatchBuffer`](crate::BatchBuffer) owns: numbers in host memory, tensors on any device,
//! and the rollout's context.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use crate::{ContextData, Tensor};

/// Numbers in host memory: a vector, or memory of someone else that is kept alive.
pub enum Values<T: 'static> {
    /// A vector.
    Own(Vec<T>),
    /// Memory of someone else, read where it lies. A change copies it first.
    Lent(Arc<dyn AsRef<[T]> + Send + Sync>),
}

impl<T: 'static> Deref for Values<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Own(values) => values,
            Self::Lent(lent) => (**lent).as_ref(),
        }
    }
}

impl<T: Clone + 'static> DerefMut for Values<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        if let Self::Lent(lent) = self {
            *self = Self::Own((**lent).as_ref().to_vec());
        }
        match self {
            Self::Own(values) => values,
            Self::Lent(_) => unreachable!("it was copied above"),
        }
    }
}

impl<'a, T: 'static> IntoIterator for &'a Values<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: 'static> Default for Values<T> {
    fn default() -> Self {
        Self::Own(Vec::new())
    }
}

impl<T: 'static> From<Vec<T>> for Values<T> {
    fn from(values: Vec<T>) -> Self {
        Self::Own(values)
    }
}

impl<T: Clone + 'static> Clone for Values<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Own(values) => Self::Own(values.clone()),
            Self::Lent(lent) => Self::Lent(lent.clone()),
        }
    }
}

impl<T: fmt::Debug + 'static> fmt::Debug for Values<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: PartialEq + 'static> PartialEq for Values<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

/// Lends a tensor for as long as it lives.
pub trait LendTensor: fmt::Debug + Send + Sync {
    /// The tensor, with the extents `shape`.
    fn lend<'a>(&'a self, shape: &'a [i64]) -> Tensor<'a>;
}

/// A tensor with its shape: vectors in host memory, or memory of someone else on any device.
#[derive(Clone, Debug)]
pub struct TensorBuffer {
    /// Extents of the dimensions.
    pub shape: Vec<i64>,
    /// The elements.
    pub memory: Memory,
}

/// The elements of a tensor, row-major.
#[derive(Clone, Debug)]
pub enum Memory {
    /// Numbers in host memory.
    Floats(Vec<f32>),
    /// Ids in host memory.
    Ids(Vec<u32>),
    /// Elements of someone else.
    Lent(Arc<dyn LendTensor>),
}

impl From<Vec<f32>> for Memory {
    fn from(values: Vec<f32>) -> Self {
        Self::Floats(values)
    }
}

impl From<Vec<u32>> for Memory {
    fn from(values: Vec<u32>) -> Self {
        Self::Ids(values)
    }
}

impl TensorBuffer {
    /// A tensor of this shape.
    pub fn new(memory: impl Into<Memory>, shape: &[i64]) -> Self {
        Self {
            shape: shape.to_vec(),
            memory: memory.into(),
        }
    }

    /// The tensor as components see it.
    ///
    /// # Panics
    ///
    /// When the shape does not multiply to the number of elements.
    pub fn view(&self) -> Tensor<'_> {
        match &self.memory {
            Memory::Floats(values) => Tensor::from_f32(values, &self.shape),
            Memory::Ids(values) => Tensor::from_u32(values, &self.shape),
            Memory::Lent(lent) => lent.lend(&self.shape),
        }
    }

    /// The numbers in host memory, for a change; `None` for other elements.
    pub fn floats_mut(&mut self) -> Option<&mut [f32]> {
        match &mut self.memory {
            Memory::Floats(values) => Some(values),
            _ => None,
        }
    }

    /// The ids in host memory, for a change; `None` for other elements.
    pub fn ids_mut(&mut self) -> Option<&mut [u32]> {
        match &mut self.memory {
            Memory::Ids(values) => Some(values),
            _ => None,
        }
    }

    /// True if the elements are in vectors of its own.
    pub fn is_own(&self) -> bool {
        !matches!(self.memory, Memory::Lent(_))
    }

    /// The entries `rows` of the first dimension.
    ///
    /// # Panics
    ///
    /// When the elements are those of someone else.
    #[must_use]
    pub fn part(&self, rows: Range<usize>) -> Self {
        let width = self.shape[1..].iter().product::<i64>() as usize;
        let own = rows.start * width..rows.end * width;
        let memory = match &self.memory {
            Memory::Floats(values) => values[own].to_vec().into(),
            Memory::Ids(values) => values[own].to_vec().into(),
            Memory::Lent(_) => panic!("a lent tensor has no parts"),
        };
        let mut shape = self.shape.clone();
        shape[0] = rows.len() as i64;
        Self { shape, memory }
    }
}

/// The context of a batch's rollout, with its age.
#[derive(Clone, Debug, PartialEq)]
pub struct AgedContext {
    /// The data that components may read.
    pub data: ContextData,
    /// Optimizer steps since the completions were sampled.
    pub age: u64,
}
