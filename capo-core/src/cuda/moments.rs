//! Adam's moments of the last layer on a device.

#![allow(unsafe_code, reason = "kernel launches")]

use super::driver::{Argument, Buffer, Device, Queue};
use super::pairs::Hidden;
use super::rows::{AdamArgument, Row};
use super::segments::{Choice, Class, Segments, scan};
use super::{Arrays, Pairs, TILE, threads};
use crate::intake::{Intake, Taken};
use crate::moments::{self, Slot};
use crate::optimizer::Adam;
use crate::semantics::{Semantics, StateDtype, UntouchedRows, Weights};
use crate::{Error, cuda};

/// Rows of a slab, as in the kernels.
const SLAB_ROWS: usize = 1024;

/// Marks a row without a slot.
const NONE: u32 = u32::MAX;

/// First and second moments of R rows, in the order in which the rows first appeared.
/// [`moments::Moments`] describes missed decays.
///
/// Rows are stored in slabs, so that new rows move no old ones: 8 D bytes a row, and 16 bytes a row
/// of the vocabulary.
#[derive(Debug)]
pub(crate) struct Moments {
    pub device: Device,
    vocab_size: usize,
    width: usize,
    /// Steps taken.
    pub steps: u64,
    /// R: number of rows with moments.
    pub rows: usize,
    /// `[SLAB_ROWS, 2, D]` each.
    slabs: Vec<Buffer<f32>>,
    /// Addresses of the slabs.
    addresses: Buffer<u64>,
    /// `[V]`: slot of each row.
    of_row: Buffer<u32>,
    /// `[V]`: by slot, `steps` when it was last written.
    written: Buffer<u64>,
    /// `[V]`: row of each slot.
    row: Buffer<u32>,
}

/// The model's own moments in the kernels' layout.
#[repr(C)]
#[derive(Clone, Copy)]
struct SlotsArgument {
    slabs: u64,
    of_row: u64,
    written: u64,
    row: u64,
}

impl Argument for SlotsArgument {}

/// A gradient for the moments, on the device.
struct Coefficients {
    /// `[N]`: 0 for each token in the gradient, as in [`Choice`].
    subset_of: Buffer<u32>,
    /// `[N, S]`: coefficient of each pair's feature; 0 for tokens that are not in the subset.
    values: Buffer<f64>,
}

/// The pairs of a step in the order of their segments.
struct Sorted<'a> {
    segments: &'a Segments,
    features: &'a Buffer<u32>,
    /// Address of the coefficients of the kept tokens.
    kept: u64,
    /// Address of the coefficients of all tokens; 0 without them.
    everything: u64,
}

impl Coefficients {
    fn of(pairs: &Pairs, intake: &Intake, kind: Weights, slope: f64) -> Result<Self, Error> {
        let subset_of = pairs.queue.upload(&intake.subset.of[..])?;
        let choice = Choice {
            subset_of: Some(&subset_of),
            subsets: 1,
            nonzero: None,
        };
        let values = match kind {
            Weights::RowMean => {
                pairs.row_means(&Segments::of(pairs, choice)?, Some(&intake.weights), slope)?
            }
            Weights::TokenMean | Weights::Loss => pairs.coefficients(&intake.weights, slope)?,
        };
        Ok(Self { subset_of, values })
    }
}

impl Moments {
    /// Copies host moments to the device of `arrays`; `dims` are the batch's V and D, for empty
    /// moments.
    pub fn of(
        host: &moments::Moments,
        arrays: &Arrays,
        dims: (usize, usize),
    ) -> Result<Self, Error> {
        let queue = Device::open(arrays.device)?.queue(arrays.stream)?;
        let (vocab_size, width) = if host.steps == 0 {
            dims
        } else {
            (host.vocab_size, host.width)
        };
        let mut of_row = vec![NONE; vocab_size];
        let mut written = vec![0; vocab_size];
        let mut row = vec![0; vocab_size];
        for (at, slot) in host.slots.iter().enumerate() {
            of_row[slot.row as usize] = at as u32;
            written[at] = slot.written;
            row[at] = slot.row;
        }
        let mut slabs: Vec<Buffer<f32>> = Vec::new();
        for slots in host.slots.chunks(SLAB_ROWS) {
            let mut values = vec![0.0; SLAB_ROWS * 2 * width];
            for (slot, values) in slots.iter().zip(values.chunks_mut(2 * width)) {
                values[..width].copy_from_slice(&slot.exp_avg);
                values[width..].copy_from_slice(&slot.exp_avg_sq);
            }
            slabs.push(queue.upload(values)?);
        }
        let addresses: Vec<u64> = slabs.iter().map(Buffer::address).collect();
        let moments = Self {
            device: queue.device().clone(),
            vocab_size,
            width,
            steps: host.steps,
            rows: host.slots.len(),
            addresses: queue.upload(addresses)?,
            slabs,
            of_row: queue.upload(of_row)?,
            written: queue.upload(written)?,
            row: queue.upload(row)?,
        };
        queue.synchronize()?;
        Ok(moments)
    }

    /// A copy in host memory.
    pub fn to_host(&self) -> Result<moments::Moments, Error> {
        let queue = self.device.queue(cuda::Stream::default())?;
        let rows = queue.download(&self.row, self.rows)?;
        let written = queue.download(&self.written, self.rows)?;
        let mut slots = Vec::with_capacity(self.rows);
        for (at, slab) in self.slabs.iter().enumerate() {
            let values = queue.download(slab, (self.rows - at * SLAB_ROWS) * 2 * self.width)?;
            for (values, place) in values.chunks(2 * self.width).zip(at * SLAB_ROWS..self.rows) {
                let (exp_avg, exp_avg_sq) = values.split_at(self.width);
                let row = rows[place];
                let written = written[place];
                slots.push(Slot {
                    row,
                    written,
                    exp_avg: exp_avg.into(),
                    exp_avg_sq: exp_avg_sq.into(),
                });
            }
        }
        let (vocab_size, width) = if self.steps == 0 { (0, 0) } else { self.dims() };
        let moments = moments::Moments::new(vocab_size, width, self.steps, slots);
        moments.ok_or_else(|| Error::device("the device's moments name a row twice"))
    }

    /// V and D; 0 before the first step.
    pub fn dims(&self) -> (usize, usize) {
        (self.vocab_size, self.width)
    }

    /// Updates the moments with one step of the tokens in `taken`.
    pub fn update(
        &mut self,
        pairs: &Pairs,
        taken: &Taken,
        adam: &Adam,
        semantics: &Semantics,
        slope: f64,
    ) -> Result<(), Error> {
        let queue = &pairs.queue;
        queue.enter()?;
        let kept = Coefficients::of(pairs, taken.kept, taken.kind, slope)?;
        let everything = taken
            .everything
            .map(|all| Coefficients::of(pairs, all, taken.kind, slope))
            .transpose()?;
        let widest = everything.as_ref().unwrap_or(&kept);
        // A zero gradient only decays a row, and the decay is applied when the row is next read.
        let nonzero = (semantics.untouched_rows == UntouchedRows::Decay).then_some(&widest.values);
        let segments = Segments::of(
            pairs,
            Choice {
                subset_of: Some(&widest.subset_of),
                subsets: 1,
                nonzero,
            },
        )?;
        let classes = segments.by_length(queue)?;
        let (marks, new) = self.new_rows(pairs, &segments)?;
        let rows = queue.buffer(segments.count as usize)?;
        let (features, of_kept) = segments.ordered(pairs, &kept.values)?;
        let of_everything = everything
            .as_ref()
            .map(|all| segments.ordered(pairs, &all.values))
            .transpose()?;
        let sorted = Sorted {
            segments: &segments,
            features: &features,
            kept: of_kept.address(),
            everything: of_everything
                .as_ref()
                .map_or(0, |(_, ordered)| ordered.address()),
        };
        self.make_room(queue, new)?;
        // Nothing has changed so far, and no memory is allocated from here on. A failed allocation
        // therefore leaves the state unchanged.
        self.place(pairs, &segments, &marks)?;
        let adam = AdamArgument::update(adam, self.steps);
        let rows = self.rows_of(rows, pairs, &segments, true, adam)?;
        let in_bf16 = i32::from(semantics.state_dtype == StateDtype::Bf16);
        self.add(pairs, &sorted, &classes, &rows, in_bf16)?;
        queue.synchronize()?;
        self.rows += new;
        self.steps += 1;
        Ok(())
    }

    /// `[R + 1]`: for each segment's row, the number of earlier rows without a slot; and the total
    /// number.
    fn new_rows(&self, pairs: &Pairs, segments: &Segments) -> Result<(Buffer<u32>, usize), Error> {
        let Pairs { queue, rows, .. } = pairs;
        let Segments {
            values,
            starts,
            count,
            ..
        } = segments;
        let grid = threads(*count as usize + 1);
        let marks = queue.buffer::<u32>(*count as usize + 1)?;
        // SAFETY: marks and starts are `[R + 1]`, values `[P]`, indices into `[N, S]`; rows are
        // below V.
        unsafe {
            queue.launch(
                "mark_new_rows",
                grid,
                &[count, values, starts, rows, &self.of_row, &marks],
            )
        }?;
        let new = scan(queue, &marks, *count as usize)? as usize;
        Ok((marks, new))
    }

    /// Allocates slabs for `new` more rows, all or none.
    fn make_room(&mut self, queue: &Queue, new: usize) -> Result<(), Error> {
        let missing = (self.rows + new)
            .div_ceil(SLAB_ROWS)
            .saturating_sub(self.slabs.len());
        if missing == 0 {
            return Ok(());
        }
        let slabs = (0..missing)
            .map(|_| queue.buffer(SLAB_ROWS * 2 * self.width))
            .collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<u64> = self
            .slabs
            .iter()
            .chain(&slabs)
            .map(Buffer::address)
            .collect();
        self.addresses = queue.upload(addresses)?;
        self.slabs.extend(slabs);
        Ok(())
    }

    /// Gives slots to the segments' rows that have none; `prefix` is the result of `new_rows`.
    fn place(&self, pairs: &Pairs, segments: &Segments, prefix: &Buffer<u32>) -> Result<(), Error> {
        let Pairs { queue, rows, .. } = pairs;
        let Segments {
            values,
            starts,
            count,
            ..
        } = segments;
        let grid = threads(*count as usize);
        let known = self.rows as u32;
        let slots = self.slots();
        // SAFETY: as in `new_rows`; there are slots for all new rows, at most V.
        unsafe {
            queue.launch(
                "place_new_rows",
                grid,
                &[count, values, starts, rows, prefix, &known, &slots],
            )
        }
    }

    /// Adam's rule for the segments' rows, in `out`. With `write`, all rows have slots, slots from
    /// `self.rows` on are new, and all are marked as written.
    pub(super) fn rows_of(
        &self,
        out: Buffer<Row>,
        pairs: &Pairs,
        segments: &Segments,
        write: bool,
        adam: AdamArgument,
    ) -> Result<Buffer<Row>, Error> {
        let Pairs {
            queue,
            rows,
            hidden: Hidden { width, .. },
            ..
        } = pairs;
        let Segments {
            values,
            starts,
            count,
            ..
        } = segments;
        let slots = self.slots();
        let known = self.rows as u32;
        let write = i32::from(write);
        // SAFETY: as in `place`; the result is `[R]`.
        unsafe {
            queue.launch(
                "own_rows",
                threads(*count as usize),
                &[
                    count, values, starts, rows, &slots, &known, &write, width, &adam, &out,
                ],
            )?;
        }
        Ok(out)
    }

    /// Adds the segments' gradients to their rows.
    fn add(
        &self,
        pairs: &Pairs,
        sorted: &Sorted,
        classes: &[Class],
        rows: &Buffer<Row>,
        in_bf16: i32,
    ) -> Result<(), Error> {
        let Sorted {
            segments,
            features,
            kept,
            everything,
        } = sorted;
        let Hidden {
            address,
            width,
            vector,
            ..
        } = &pairs.hidden;
        let tiles = (*width as usize).div_ceil(TILE) as u32;
        let batch: [&dyn Argument; 9] = [
            &segments.starts,
            rows,
            address,
            *features,
            width,
            vector,
            kept,
            everything,
            &in_bf16,
        ];
        let kernels = [
            ["update_long_f32", "update_long_f16", "update_long_bf16"],
            [
                "update_medium_f32",
                "update_medium_f16",
                "update_medium_bf16",
            ],
            ["update_short_f32", "update_short_f16", "update_short_bf16"],
        ];
        for (class, kernels) in classes.iter().zip(kernels) {
            let [list, listed] = class.arguments();
            let grid = class.grid(tiles);
            // SAFETY: starts are `[R + 1]`, rows `[R]` with moments of the features' width; the
            // sorted pairs' features and coefficients are `[P]`, those of all tokens may be absent.
            // No two segments share a row.
            unsafe {
                pairs.queue.launch(
                    pairs.hidden.of_dtype(kernels),
                    grid,
                    &[&list, &listed, &batch],
                )
            }?;
        }
        Ok(())
    }

    fn slots(&self) -> SlotsArgument {
        SlotsArgument {
            slabs: self.addresses.address(),
            of_row: self.of_row.address(),
            written: self.written.address(),
            row: self.row.address(),
        }
    }
}
