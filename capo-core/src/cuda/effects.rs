//! Effects of proposals on each token, computed on a device from the pairs there: the sums behind [`Effect`].

#![allow(unsafe_code, reason = "kernel launches")]

use std::ops::RangeInclusive;

use super::driver::{Buffer, Queue};
use super::rows::{self, AdamArgument, Row};
use super::segments::{Choice, Segments};
use super::{LONG_WARPS, Pairs, THREADS, TILE, WARP, blocks, launch, warps};
use crate::Error;
use crate::effect::Effect;
use crate::optimizer::Adam;
use crate::proposal::Proposer;
use crate::semantics::Weights;
use crate::shift::Reaction;
use crate::step::{HostMoments, MomentArrays};
use crate::store::{Source, Store};
use crate::subset::Subsets;

/// Warps of a block of `project_tokens`.
const TOKEN_WARPS: u32 = 4;

/// Range of Adam's `eps` in which fast quotients, and roots flushed to 0 below 1e-19, are accurate enough.
const FAST_EPS: RangeInclusive<f64> = 1e-13..=1e37;

/// Number of tiles of D whose partial results exist at a time: 32 bytes a pair.
const TILES_AT_ONCE: usize = 4;

/// `[N]`: effect on each token of the step that its subset proposes.
pub(crate) fn effects(
    proposer: &Proposer,
    pairs: &Pairs,
    subsets: &Subsets,
    weights: &[f64],
) -> Result<Vec<Effect>, Error> {
    let queue = &pairs.queue;
    queue.enter()?;
    let (adam, slope) = (proposer.adam(), proposer.supports.slope);
    let projector =
        Projector { proposer, pairs, v: queue.filled(pairs.rows.len(), 0)?, norms: queue.filled(pairs.rows.len(), 0)? };
    let coefficients = if subsets.single {
        let coefficients = pairs.coefficients(weights, slope)?;
        if let Some(adam) = &adam {
            // Sorted by row as one subset, so that pairs of one row are processed together.
            let one = queue.filled(pairs.tokens as usize, 0)?;
            let segments = Segments::of(pairs, Choice { subset_of: &one, subsets: 1, nonzero: None })?;
            projector.tokens(&segments, &coefficients, adam)?;
        } else {
            projector.follow(weights)?;
        }
        coefficients
    } else {
        let subset_of = queue.upload(&subsets.of)?;
        let segments = Segments::of(pairs, Choice { subset_of: &subset_of, subsets: subsets.count, nonzero: None })?;
        let coefficients = match proposer.semantics.subset_weights {
            Weights::RowMean => pairs.row_means(&segments, None, slope)?,
            Weights::TokenMean | Weights::Loss => pairs.coefficients(weights, slope)?,
        };
        projector.subsets(&segments, &coefficients, adam.as_ref())?;
        coefficients
    };
    // A raw gradient does not decay weights; for single tokens under SGD the optimizer does not either.
    let decay = if adam.is_some() { proposer.step.optimizer.logit_decay() } else { 0.0 };
    projector.react(&coefficients, decay)
}

/// Running sums of all pairs' projections.
struct Projector<'a> {
    proposer: &'a Proposer<'a>,
    pairs: &'a Pairs,
    /// `D h`, `[N, S]`.
    v: Buffer<f64>,
    /// `[N, S]`: each pair's contribution to `‖D‖²`.
    norms: Buffer<f64>,
}

impl Projector<'_> {
    fn queue(&self) -> &Queue {
        &self.pairs.queue
    }

    /// 1 where rows of features and of moments may be read 16 bytes at a time, else 0.
    fn vector(&self) -> i32 {
        self.pairs.hidden.vector & i32::from(self.proposer.source.is_aligned())
    }

    /// The segments' rows in the form that a proposal reads.
    fn rows(&self, segments: &Segments, adam: &Adam) -> Result<Buffer<Row>, Error> {
        let Self { proposer: Proposer { source, .. }, pairs, .. } = self;
        let adam = AdamArgument::proposal(adam, source.steps());
        match source {
            Source::Own(Store::Cuda(own)) => {
                own.rows_of(self.queue().buffer(segments.count as usize)?, pairs, segments, false, adam)
            }
            Source::Trainer(HostMoments { arrays: MomentArrays::Cuda { exp_avg, exp_avg_sq }, .. }) => {
                rows::dense(pairs, segments, exp_avg, exp_avg_sq, adam)
            }
            Source::Own(Store::Host(_)) | Source::Trainer(_) => {
                Err(Error::new("the moments lie in host memory and the batch on a device (pass both from one place)"))
            }
        }
    }

    /// Projections for single tokens whose direction is their gradient.
    fn follow(&self, weights: &[f64]) -> Result<(), Error> {
        let (queue, pairs, supports) = (self.queue(), self.pairs, self.proposer.supports);
        let scale = |(weight, signal): (&f64, &f64)| weight * signal * supports.slope;
        let scales: Vec<f64> = weights.iter().zip(&supports.signals).map(scale).collect();
        let scales = queue.upload(&scales)?;
        // SAFETY: scales and norms of features are `[N]`, the rest `[N, S]`.
        unsafe {
            launch!(
                queue,
                "follow_gradients",
                blocks(pairs.rows.len()),
                THREADS,
                pairs.rows.len() as u32,
                pairs.rows.address(),
                pairs.stride,
                pairs.u.address(),
                scales.address(),
                pairs.squared_norms.address(),
                self.v.address(),
                self.norms.address(),
            )
        }
    }

    /// Projections for single tokens under Adam.
    fn tokens(&self, segments: &Segments, coefficients: &Buffer<f64>, adam: &Adam) -> Result<(), Error> {
        let (queue, pairs, hidden) = (self.queue(), self.pairs, self.pairs.hidden);
        let rows = self.rows(segments, adam)?;
        let windows = segments.pairs.div_ceil(WARP);
        let fast = hidden.of_dtype(["project_tokens_f32", "project_tokens_f16", "project_tokens_bf16"]);
        let wide = hidden.of_dtype(["project_tokens_wide_f32", "project_tokens_wide_f16", "project_tokens_wide_bf16"]);
        // The wide kernel recomputes values that the fast kernel cannot represent.
        let eps = if FAST_EPS.contains(&adam.eps) { adam.eps as f32 } else { f32::NAN };
        // SAFETY: values and segments of pairs are `[P]`, rows `[R]`, features `[N]`, the rest `[N, S]`. The rows'
        // moments have the features' width.
        unsafe {
            launch!(
                queue,
                fast,
                (windows, 1),
                TOKEN_WARPS * WARP,
                segments.pairs,
                segments.values.address(),
                segments.of_pair.address(),
                rows.address(),
                hidden.address,
                pairs.features.address(),
                hidden.width,
                self.vector(),
                pairs.stride,
                coefficients.address(),
                eps,
                self.v.address(),
                self.norms.address(),
            )?;
            launch!(
                queue,
                wide,
                warps(windows as usize),
                THREADS,
                segments.pairs,
                segments.values.address(),
                segments.of_pair.address(),
                rows.address(),
                hidden.address,
                pairs.features.address(),
                hidden.width,
                pairs.stride,
                coefficients.address(),
                adam.eps,
                self.v.address(),
                self.norms.address(),
            )
        }
    }

    /// Projections for subsets; without `adam` the direction is SGD's.
    fn subsets(&self, segments: &Segments, coefficients: &Buffer<f64>, adam: Option<&Adam>) -> Result<(), Error> {
        let (queue, pairs, hidden) = (self.queue(), self.pairs, self.pairs.hidden);
        let rows = adam.map(|adam| self.rows(segments, adam)).transpose()?;
        let (rows, eps) = (rows.as_ref().map_or(0, Buffer::address), adam.map_or(0.0, |adam| adam.eps));
        let (list, long) = segments.long(queue)?;
        let Segments { values, of_pair, starts, pairs: known, count } = segments;
        let tiles = (hidden.width as usize).div_ceil(TILE);
        let at_once = tiles.min(TILES_AT_ONCE);
        let parts = queue.buffer::<f64>(at_once * *known as usize)?;
        let norms = queue.buffer::<f64>(at_once * *count as usize)?;
        let short_kernel = hidden.of_dtype(["project_short_f32", "project_short_f16", "project_short_bf16"]);
        let long_kernel = hidden.of_dtype(["project_long_f32", "project_long_f16", "project_long_bf16"]);
        for first in (0..tiles).step_by(TILES_AT_ONCE) {
            let (first_tile, some) = (first as u32, (tiles - first).min(TILES_AT_ONCE) as u32);
            // SAFETY: as in `tokens`; parts are `[tiles, P]`, their norms `[tiles, R]`.
            unsafe {
                launch!(
                    queue,
                    short_kernel,
                    (*count, some),
                    WARP,
                    *known,
                    *count,
                    values.address(),
                    starts.address(),
                    rows,
                    hidden.address,
                    pairs.features.address(),
                    first_tile,
                    hidden.width,
                    hidden.vector,
                    pairs.stride,
                    coefficients.address(),
                    eps,
                    parts.address(),
                    norms.address(),
                )?;
                launch!(
                    queue,
                    long_kernel,
                    (long, some),
                    LONG_WARPS * WARP,
                    list.address(),
                    *known,
                    *count,
                    values.address(),
                    starts.address(),
                    rows,
                    hidden.address,
                    pairs.features.address(),
                    first_tile,
                    hidden.width,
                    hidden.vector,
                    pairs.stride,
                    coefficients.address(),
                    eps,
                    parts.address(),
                    norms.address(),
                )?;
                launch!(
                    queue,
                    "add_projections",
                    blocks(*known as usize),
                    THREADS,
                    *known,
                    *count,
                    some,
                    values.address(),
                    of_pair.address(),
                    starts.address(),
                    parts.address(),
                    norms.address(),
                    self.v.address(),
                    self.norms.address(),
                )?;
            }
        }
        Ok(())
    }

    /// The sums of each token over its rows.
    fn react(&self, coefficients: &Buffer<f64>, decay: f64) -> Result<Vec<Effect>, Error> {
        let (queue, pairs) = (self.queue(), self.pairs);
        let effects = queue.buffer::<[f64; 6]>(pairs.tokens as usize)?;
        // SAFETY: tails and effects are `[N]`, the rest `[N, S]`.
        unsafe {
            launch!(
                queue,
                "react",
                warps(pairs.tokens as usize),
                THREADS,
                pairs.tokens,
                pairs.stride,
                pairs.rows.address(),
                pairs.logits.address(),
                pairs.pi.address(),
                pairs.u.address(),
                pairs.tails.address(),
                coefficients.address(),
                self.norms.address(),
                self.proposer.rate(),
                decay,
                self.v.address(),
                effects.address(),
            )?;
        }
        let effect = |[s, q, kl, gain, slope, squared_norm]: [f64; 6]| {
            let reaction = Reaction { s, q, kl, gain };
            Effect { reaction, slope, squared_norm }
        };
        Ok(queue.download(&effects, effects.len())?.into_iter().map(effect).collect())
    }
}
