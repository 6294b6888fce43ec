//! Coefficients of the pairs' features, on a device.

#![allow(unsafe_code, reason = "kernel launches")]

use super::driver::Buffer;
use super::segments::Segments;
use super::{Pairs, THREADS, blocks, launch};
use crate::Error;

impl Pairs {
    /// `[N, S]`: `weight slope A u` of each pair, with one weight per token.
    pub(super) fn coefficients(&self, weights: &[f64], slope: f64) -> Result<Buffer<f64>, Error> {
        let (queue, slots) = (&self.queue, self.rows.len());
        let (weights, coefficients) = (queue.upload(weights)?, queue.buffer(slots)?);
        // SAFETY: weights and signals are `[N]`, the rest `[N, S]`.
        unsafe {
            launch!(
                queue,
                "weigh_tokens",
                blocks(slots),
                THREADS,
                slots as u32,
                self.rows.address(),
                self.stride,
                weights.address(),
                self.signals.address(),
                slope,
                self.u.address(),
                coefficients.address(),
            )?;
        }
        Ok(coefficients)
    }

    /// Like [`Self::coefficients`], with 1 over the number of pairs in the pair's row as the weight, times the
    /// token's weight if `weights`, `[N]`, are given.
    pub(super) fn row_means(
        &self,
        segments: &Segments,
        weights: Option<&[f64]>,
        slope: f64,
    ) -> Result<Buffer<f64>, Error> {
        let queue = &self.queue;
        let weights = weights.map(|weights| queue.upload(weights)).transpose()?;
        let coefficients = queue.filled(self.rows.len(), 0)?;
        // SAFETY: values are `[P]`, indices into `[N, S]`; starts are `[R + 1]`, weights `[N]` or absent.
        unsafe {
            launch!(
                queue,
                "weigh_rows",
                blocks(segments.pairs as usize),
                THREADS,
                segments.pairs,
                segments.values.address(),
                segments.of_pair.address(),
                segments.starts.address(),
                self.stride,
                weights.as_ref().map_or(0, Buffer::address),
                self.signals.address(),
                slope,
                self.u.address(),
                coefficients.address(),
            )?;
        }
        Ok(coefficients)
    }
}
