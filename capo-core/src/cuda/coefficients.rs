//! Coefficients of the pairs' features, on a device.

#![allow(unsafe_code, reason = "kernel launches")]

use super::driver::Buffer;
use super::segments::Segments;
use super::{Pairs, threads};
use crate::Error;

impl Pairs {
    /// `[N, S]`: `weight slope A u` of each pair, with one weight per token.
    pub(super) fn coefficients(&self, weights: &[f64], slope: f64) -> Result<Buffer<f64>, Error> {
        let Self {
            queue,
            rows,
            stride,
            signals,
            u,
            ..
        } = self;
        let slots = rows.len() as u32;
        let weights = queue.upload(weights)?;
        let out = queue.buffer(rows.len())?;
        // SAFETY: weights and signals are `[N]`, the rest `[N, S]`.
        unsafe {
            queue.launch(
                "weigh_tokens",
                threads(rows.len()),
                &[&slots, rows, stride, &weights, signals, &slope, u, &out],
            )?;
        }
        Ok(out)
    }

    /// Like [`Self::coefficients`], with 1 over the number of pairs in the pair's row as the
    /// weight, times the token's weight if `weights`, `[N]`, are given.
    pub(super) fn row_means(
        &self,
        segments: &Segments,
        weights: Option<&[f64]>,
        slope: f64,
    ) -> Result<Buffer<f64>, Error> {
        let Self {
            queue,
            stride,
            signals,
            u,
            ..
        } = self;
        let Segments {
            values,
            of_pair,
            starts,
            pairs,
            ..
        } = segments;
        let weights = weights.map(|weights| queue.upload(weights)).transpose()?;
        let weights_or_null = weights.as_ref().map_or(0, Buffer::address);
        let out = queue.filled(self.rows.len(), 0)?;
        // SAFETY: values are `[P]`, indices into `[N, S]`; starts are `[R + 1]`, weights `[N]` or
        // absent.
        unsafe {
            queue.launch(
                "weigh_rows",
                threads(*pairs as usize),
                &[
                    pairs,
                    values,
                    of_pair,
                    starts,
                    stride,
                    &weights_or_null,
                    signals,
                    &slope,
                    u,
                    &out,
                ],
            )?;
        }
        Ok(out)
    }
}
