//! Numbers that the host knows, as tensors on a device.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use candle_core::{Device, Result, Tensor};

/// A tensor that is made on first use and kept; clones share it. For a second device it is made
/// anew at each use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kept(Arc<OnceLock<Tensor>>);

impl Kept {
    pub(crate) fn get(
        &self,
        device: &Device,
        make: impl FnOnce() -> Result<Tensor>,
    ) -> Result<Tensor> {
        if let Some(kept) = self
            .0
            .get()
            .filter(|kept| kept.device().same_device(device))
        {
            return Ok(kept.clone());
        }
        let made = make()?;
        let _ = self.0.set(made.clone());
        Ok(made)
    }
}

/// `[B]`: first real token of each row of a batch. A device gets them once.
#[derive(Debug, Clone)]
pub struct Starts {
    rows: Arc<[usize]>,
    on_device: Kept,
}

impl<T: Into<Arc<[usize]>>> From<T> for Starts {
    fn from(rows: T) -> Self {
        Self {
            rows: rows.into(),
            on_device: Kept::default(),
        }
    }
}

impl Deref for Starts {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.rows
    }
}

impl Starts {
    /// The starts, `[B]` u32.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn on(&self, device: &Device) -> Result<Tensor> {
        self.on_device.get(device, || ids(&self.rows, device))
    }
}

/// `[N]` u32.
pub(crate) fn ids(values: &[usize], device: &Device) -> Result<Tensor> {
    Tensor::from_iter(values.iter().map(|value| *value as u32), device)
}

/// New tokens and their places in the cache. A row of the cache begins with its first token, and
/// may take several new ones at once.
#[derive(Debug, Clone)]
pub struct DecodeRows {
    /// `[A]`: cache row of each new token.
    pub cache_rows: Arc<[usize]>,
    /// `[A]`: position of each new token in its row.
    pub positions: Arc<[usize]>,
    places: Kept,
}

impl DecodeRows {
    /// New tokens at these `positions` of these rows of the cache.
    pub fn new(cache_rows: Vec<usize>, positions: Vec<usize>) -> Self {
        Self {
            cache_rows: cache_rows.into(),
            positions: positions.into(),
            places: Kept::default(),
        }
    }

    /// Largest number of tokens that a new token attends to, itself included.
    pub(crate) fn longest(&self) -> usize {
        self.positions.iter().max().map_or(0, |last| last + 1)
    }

    /// Cache rows and positions, `[2, A]` u32.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn places(&self, device: &Device) -> Result<Tensor> {
        self.places.get(device, || {
            ids(&[&self.cache_rows[..], &self.positions].concat(), device)
        })
    }
}
