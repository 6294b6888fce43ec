//! Effects of proposals on each token, computed on a device from the pairs there: the sums behind
//! [`Effect`].

#![allow(unsafe_code, reason = "kernel launches")]

use std::ops::RangeInclusive;

use super::arrays::Plain;
use super::driver::{Argument, Buffer};
use super::pairs::Hidden;
use super::rows::{self, AdamArgument, Row};
use super::segments::{Choice, Segments};
use super::{Grid, Pairs, TILE, WARP, threads, warps};
use crate::Error;
use crate::effect::Effect;
use crate::optimizer::Adam;
use crate::proposal::Proposer;
use crate::semantics::Weights;
use crate::step::{HostMoments, MomentArrays};
use crate::store::{Source, Store};
use crate::subset::Subsets;

/// Most warps of a block of `project_tokens`, with a tile of D each.
const TOKEN_WARPS: usize = 4;

/// Range of Adam's `eps` in which fast quotients, and roots flushed to 0 below 1e-19, are accurate
/// enough.
const FAST_EPS: RangeInclusive<f64> = 1e-13..=1e37;

/// Number of tiles of D whose partial results exist at a time: 32 bytes a pair.
const TILES_AT_ONCE: usize = 4;

// SAFETY: six numbers of 8 bytes in C's layout, without gaps.
unsafe impl Plain for Effect {}

/// `[N]`: effect on each token of the step that its subset proposes.
pub(crate) fn effects(
    proposer: &Proposer,
    pairs: &Pairs,
    subsets: &Subsets,
    weights: &[f64],
) -> Result<Vec<Effect>, Error> {
    let queue = &pairs.queue;
    queue.enter()?;
    let adam = proposer.adam();
    let slope = proposer.supports.slope;
    let projector = Projector {
        proposer,
        pairs,
        v: queue.filled(pairs.rows.len(), 0)?,
        norms: queue.filled(pairs.rows.len(), 0)?,
    };
    let coefficients = if subsets.single {
        let coefficients = pairs.coefficients(weights, slope)?;
        if let Some(adam) = &adam {
            // Sorted by row as one subset, so that pairs of one row are processed together.
            let segments = Segments::of(
                pairs,
                Choice {
                    subset_of: None,
                    subsets: 1,
                    nonzero: None,
                },
            )?;
            projector.tokens(&segments, &coefficients, adam)?;
        } else {
            projector.follow(weights)?;
        }
        coefficients
    } else {
        let subset_of = queue.upload(&subsets.of[..])?;
        let segments = Segments::of(
            pairs,
            Choice {
                subset_of: Some(&subset_of),
                subsets: subsets.count,
                nonzero: None,
            },
        )?;
        let coefficients = match proposer.semantics.subset_weights {
            Weights::RowMean => pairs.row_means(&segments, None, slope)?,
            Weights::TokenMean | Weights::Loss => pairs.coefficients(weights, slope)?,
        };
        projector.subsets(&segments, &coefficients, adam.as_ref())?;
        coefficients
    };
    // A raw gradient does not decay weights; for single tokens under SGD the optimizer does not
    // either.
    let decay = if adam.is_some() {
        proposer.step.optimizer.logit_decay()
    } else {
        0.0
    };
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
    /// 1 where rows of features and of moments may be read 16 bytes at a time, else 0.
    fn vector(&self) -> i32 {
        self.pairs.hidden.vector & i32::from(self.proposer.source.is_aligned())
    }

    /// The segments' rows in the form that a proposal reads.
    fn rows(&self, segments: &Segments, adam: &Adam) -> Result<Buffer<Row>, Error> {
        let Self {
            proposer: Proposer { source, .. },
            pairs,
            ..
        } = self;
        let adam = AdamArgument::proposal(adam, source.steps());
        match source {
            Source::Own(Store::Cuda(own)) => own.rows_of(
                pairs.queue.buffer(segments.count as usize)?,
                pairs,
                segments,
                false,
                adam,
            ),
            Source::Trainer(HostMoments {
                arrays:
                    MomentArrays::Cuda {
                        exp_avg,
                        exp_avg_sq,
                    },
                ..
            }) => rows::dense(pairs, segments, exp_avg, exp_avg_sq, adam),
            Source::Own(Store::Host(_)) | Source::Trainer(_) => Err(Error::input(
                "the moments lie in host memory and the batch on a device (pass both from one \
                 place)",
            )),
        }
    }

    /// Projections for single tokens whose direction is their gradient.
    fn follow(&self, weights: &[f64]) -> Result<(), Error> {
        let Self {
            proposer: Proposer { supports, .. },
            pairs,
            v,
            norms,
        } = self;
        let Pairs {
            queue,
            rows,
            stride,
            u,
            squared_norms,
            ..
        } = pairs;
        let scales: Vec<f64> = weights
            .iter()
            .zip(&supports.signals)
            .map(|(weight, signal)| weight * signal * supports.slope)
            .collect();
        let slots = rows.len() as u32;
        let scales = queue.upload(scales)?;
        // SAFETY: scales and norms of features are `[N]`, the rest `[N, S]`.
        unsafe {
            queue.launch(
                "follow_gradients",
                threads(rows.len()),
                &[&slots, rows, stride, u, &scales, squared_norms, v, norms],
            )
        }
    }

    /// Projections for single tokens under Adam.
    fn tokens(
        &self,
        segments: &Segments,
        coefficients: &Buffer<f64>,
        adam: &Adam,
    ) -> Result<(), Error> {
        let Self {
            pairs:
                Pairs {
                    queue,
                    hidden,
                    features,
                    stride,
                    squared_norms,
                    ..
                },
            v,
            norms,
            ..
        } = self;
        let Segments {
            values,
            of_pair,
            pairs,
            ..
        } = segments;
        let Hidden { address, width, .. } = hidden;
        let rows = self.rows(segments, adam)?;
        let tiles = (*width as usize).div_ceil(TILE);
        let windows = pairs.div_ceil(WARP);
        let fast = hidden.of_dtype([
            "project_tokens_f32",
            "project_tokens_f16",
            "project_tokens_bf16",
        ]);
        let wide = hidden.of_dtype([
            "project_tokens_wide_f32",
            "project_tokens_wide_f16",
            "project_tokens_wide_bf16",
        ]);
        // The wide kernel recomputes values that the fast kernel cannot represent.
        let eps = if FAST_EPS.contains(&adam.eps) {
            adam.eps as f32
        } else {
            f32::NAN
        };
        let common: [&dyn Argument; 7] = [pairs, values, of_pair, &rows, address, features, width];
        for first in (0..tiles).step_by(TOKEN_WARPS) {
            let first_tile = first as u32;
            let some = (tiles - first).min(TOKEN_WARPS) as u32;
            let grid = Grid {
                columns: windows,
                rows: 1,
                threads: some * WARP,
            };
            let tile: [&dyn Argument; 5] = [
                &self.vector(),
                stride,
                coefficients,
                squared_norms,
                &first_tile,
            ];
            // SAFETY: values and segments of pairs are `[P]`, rows `[R]`, features and their norms
            // `[N]`, the rest `[N, S]`. The rows' moments have the features' width.
            unsafe { queue.launch(fast, grid, &[&common, &tile, &eps, v, norms]) }?;
        }
        // SAFETY: as above.
        unsafe {
            queue.launch(
                wide,
                warps(windows as usize),
                &[&common, stride, coefficients, &adam.eps, v, norms],
            )
        }
    }

    /// Projections for subsets; without `adam` the direction is SGD's.
    fn subsets(
        &self,
        segments: &Segments,
        coefficients: &Buffer<f64>,
        adam: Option<&Adam>,
    ) -> Result<(), Error> {
        let Self {
            pairs: Pairs { queue, hidden, .. },
            v,
            norms,
            ..
        } = self;
        let Hidden {
            address,
            width,
            vector,
            ..
        } = hidden;
        let rows = adam.map(|adam| self.rows(segments, adam)).transpose()?;
        let rows = rows.as_ref().map_or(0, Buffer::address);
        let eps = adam.map_or(0.0, |adam| adam.eps);
        let classes = segments.by_length(queue)?;
        let (features, coefficients) = segments.ordered(self.pairs, coefficients)?;
        let Segments {
            values,
            of_pair,
            starts,
            pairs: known,
            count,
        } = segments;
        let tiles = (*width as usize).div_ceil(TILE);
        let at_once = tiles.min(TILES_AT_ONCE);
        let parts = queue.buffer::<f64>(at_once * *known as usize)?;
        let of_parts = queue.buffer::<f64>(at_once * *count as usize)?;
        let kernels = [
            ["project_long_f32", "project_long_f16", "project_long_bf16"],
            [
                "project_medium_f32",
                "project_medium_f16",
                "project_medium_bf16",
            ],
            [
                "project_short_f32",
                "project_short_f16",
                "project_short_bf16",
            ],
        ];
        for first in (0..tiles).step_by(TILES_AT_ONCE) {
            let first_tile = first as u32;
            let some = (tiles - first).min(TILES_AT_ONCE) as u32;
            let batch: [&dyn Argument; 9] = [
                known,
                count,
                starts,
                &rows,
                address,
                &features,
                &first_tile,
                width,
                vector,
            ];
            for (class, kernels) in classes.iter().zip(kernels) {
                let [list, listed] = class.arguments();
                let grid = class.grid(some);
                let own: [&dyn Argument; 4] = [&coefficients, &eps, &parts, &of_parts];
                // SAFETY: as in `tokens`; the sorted pairs' features and coefficients are `[P]`,
                // parts `[tiles, P]`, their norms `[tiles, R]`.
                unsafe {
                    queue.launch(
                        hidden.of_dtype(kernels),
                        grid,
                        &[&list, &listed, &batch, &own],
                    )
                }?;
            }
            // SAFETY: as above.
            unsafe {
                queue.launch(
                    "add_projections",
                    threads(*known as usize),
                    &[
                        known, count, &some, values, of_pair, starts, &parts, &of_parts, v, norms,
                    ],
                )?;
            }
        }
        Ok(())
    }

    /// The sums of each token over its rows.
    fn react(&self, coefficients: &Buffer<f64>, decay: f64) -> Result<Vec<Effect>, Error> {
        let Self {
            proposer,
            pairs,
            v,
            norms,
        } = self;
        let Pairs {
            queue,
            tokens,
            stride,
            rows,
            logits,
            pi,
            u,
            tails,
            ..
        } = pairs;
        let rate = proposer.rate();
        let effects = queue.buffer::<Effect>(*tokens as usize)?;
        let policies: [&dyn Argument; 7] = [tokens, stride, rows, logits, pi, u, tails];
        // SAFETY: tails and effects are `[N]`, the rest `[N, S]`.
        unsafe {
            let moves: [&dyn Argument; 6] = [coefficients, norms, &rate, &decay, v, &effects];
            queue.launch("react", warps(*tokens as usize), &[&policies, &moves])?;
        }
        queue.download(&effects, effects.len())
    }
}
