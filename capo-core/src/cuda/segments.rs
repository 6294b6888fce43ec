//! Pairs sorted by subset, row and token, so that sums over a row always run in the same order; and
//! the segments of one row.

#![allow(unsafe_code, reason = "kernel launches")]

use std::sync::Arc;

use super::driver::{Argument, Buffer, Queue};
use super::{Grid, LONG, LONG_WARPS, MEDIUM, MEDIUM_WARPS, Pairs, THREADS, WARP, threads};
use crate::Error;

/// Entries of a tile of the scan and of the sort.
const SCAN_TILE: usize = 2048;

/// Bits of a digit of the sort.
const DIGIT_BITS: u32 = 4;

/// The sorted pairs of all proposals, and their segments. A segment's pairs share subset and row.
#[derive(Debug)]
pub(super) struct Segments {
    /// `[P]` and beyond: index of each sorted pair.
    pub values: Arc<Buffer<u32>>,
    /// `[P]`: segment of each sorted pair.
    pub of_pair: Buffer<u32>,
    /// `[R + 1]`: start of each segment.
    pub starts: Buffer<u32>,
    /// P: number of pairs.
    pub pairs: u32,
    /// R: number of segments.
    pub count: u32,
}

/// Selection of pairs: their token is in a subset and they contribute something.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice<'a> {
    /// `[N]`: subset of each token, or `u32::MAX`; `None` puts all tokens in one.
    pub subset_of: Option<&'a Buffer<u32>>,
    /// Number of subsets.
    pub subsets: usize,
    /// `[N, S]`: coefficient of each pair's feature. Pairs with 0 are left out; `None` leaves out
    /// none.
    pub nonzero: Option<&'a Buffer<f64>>,
}

impl Segments {
    pub fn of(pairs: &Pairs, choice: Choice) -> Result<Self, Error> {
        let Pairs {
            queue,
            rows,
            stride,
            ..
        } = pairs;
        let Choice {
            subset_of,
            subsets,
            nonzero,
        } = choice;
        let slots = rows.len();
        let total = slots as u32;
        let nonzero = nonzero.map_or(0, Buffer::address);
        let subset_or_null = subset_of.map_or(0, Buffer::address);
        let chosen: [&dyn Argument; 5] = [&total, rows, &subset_or_null, stride, &nonzero];
        let mut values = pairs.by_row()?;
        if subset_of.is_some() {
            let subsets = subsets as u32;
            let keys = queue.buffer(slots)?;
            // SAFETY: the arguments are the kernel's; subsets are `[N]`, rows, keys, values and
            // coefficients `[N, S]`. Values are a permutation of the indices.
            unsafe {
                queue.launch(
                    "subset_keys",
                    threads(slots),
                    &[&chosen, &subsets, &values, &keys],
                )
            }?;
            let mut sorter = Sorter {
                queue,
                keys,
                values,
            };
            sorter.sort(subsets)?;
            values = sorter.values;
        }
        // One entry more than is scanned: the number of pairs, which is read together with the
        // number of segments.
        let heads = queue.buffer::<u32>(slots + 2)?;
        let known = heads.address() + ((slots + 1) * size_of::<u32>()) as u64;
        // SAFETY: as above; heads are `[N S + 1]`, and one number follows them.
        unsafe {
            queue.launch(
                "mark_heads",
                threads(slots + 1),
                &[&chosen, &values, &heads, &known],
            )
        }?;
        scan_in_place(queue, &heads, slots + 1)?;
        let [count, known] = queue.read(heads.slice(), slots, 2)?[..] else {
            unreachable!("two numbers were asked for")
        };
        let of_pair = queue.buffer(known as usize)?;
        let starts = queue.buffer(count as usize + 1)?;
        // SAFETY: `heads` holds the sums before each of the P pairs and after the last, at most R.
        unsafe {
            queue.launch(
                "write_segments",
                threads(known as usize + 1),
                &[&known, &heads, &of_pair, &starts],
            )
        }?;
        Ok(Self {
            values,
            of_pair,
            starts,
            pairs: known,
            count,
        })
    }

    /// Features and coefficients of the sorted pairs, `[P]` each.
    pub fn ordered(
        &self,
        from: &Pairs,
        coefficients: &Buffer<f64>,
    ) -> Result<(Buffer<u32>, Buffer<f64>), Error> {
        let Pairs {
            queue,
            features,
            stride,
            ..
        } = from;
        let Self { values, pairs, .. } = self;
        let grid = threads(*pairs as usize);
        let sorted = (
            queue.buffer(*pairs as usize)?,
            queue.buffer(*pairs as usize)?,
        );
        // SAFETY: values are `[P]`, indices into the coefficients, `[N, S]`; features are `[N]`,
        // the results `[P]`.
        unsafe {
            queue.launch(
                "order_pairs",
                grid,
                &[
                    pairs,
                    values,
                    features,
                    stride,
                    coefficients,
                    &sorted.0,
                    &sorted.1,
                ],
            )?;
        }
        Ok(sorted)
    }

    /// The segments by their lengths, the longest first, whose blocks take longest.
    pub fn by_length(&self, queue: &Queue) -> Result<[Class; 3], Error> {
        Ok([
            self.class(queue, LONG_WARPS, LONG, u32::MAX)?,
            self.class(queue, MEDIUM_WARPS, MEDIUM, LONG)?,
            self.class(queue, 1, 0, MEDIUM)?,
        ])
    }

    /// The segments of more than `least` pairs, and at most `most`, for blocks of so many warps.
    fn class(&self, queue: &Queue, warps: u32, least: u32, most: u32) -> Result<Class, Error> {
        let count = self.count as usize;
        let at_most = self.pairs / (least + 1);
        let marks = queue.buffer::<u32>(count + 1)?;
        let class = Class {
            warps,
            list: queue.buffer(count)?,
            marks,
            most: at_most.min(self.count),
        };
        let grid = threads(count + 1);
        // SAFETY: starts and marks are `[R + 1]`. The list is `[R]`, and no more than R are marked.
        unsafe {
            queue.launch(
                "mark_lengths",
                grid,
                &[&self.count, &self.starts, &least, &most, &class.marks],
            )?;
            scan_in_place(queue, &class.marks, count + 1)?;
            queue.launch(
                "list_marked",
                grid,
                &[&self.count, &class.marks, &class.list],
            )?;
        }
        Ok(class)
    }
}

/// Segments whose lengths are of one kind.
#[derive(Debug)]
pub(super) struct Class {
    /// Number of warps that work on a segment together.
    warps: u32,
    /// Largest possible number of segments, which is the number of blocks to start. Only the device
    /// knows how many segments there are.
    most: u32,
    list: Buffer<u32>,
    /// `[R + 1]`: number of marked segments before each, and of all.
    marks: Buffer<u32>,
}

impl Class {
    /// Blocks for all segments, in `rows` rows.
    pub fn grid(&self, rows: u32) -> Grid {
        Grid {
            columns: self.most,
            rows,
            threads: self.warps * WARP,
        }
    }

    /// Addresses of the list and of its length.
    pub fn arguments(&self) -> [u64; 2] {
        [
            self.list.address(),
            self.marks.address() + ((self.marks.len() - 1) * size_of::<u32>()) as u64,
        ]
    }
}

impl Pairs {
    /// `[N, S]`: the indices of all slots by row, those without one last. They are sorted once, and
    /// each selection keeps their order.
    fn by_row(&self) -> Result<Arc<Buffer<u32>>, Error> {
        if let Some(sorted) = self.sorted.get() {
            return Ok(sorted.clone());
        }
        let Self {
            queue,
            rows,
            vocab_size,
            ..
        } = self;
        let slots = rows.len();
        let mut sorter = Sorter {
            queue,
            keys: queue.buffer(slots)?,
            values: Arc::new(queue.buffer(slots)?),
        };
        let total = slots as u32;
        let Sorter { keys, values, .. } = &sorter;
        // SAFETY: the arguments are the kernel's; rows, keys and values are `[N, S]`.
        unsafe {
            queue.launch(
                "row_keys",
                threads(slots),
                &[&total, rows, vocab_size, keys, values],
            )
        }?;
        sorter.sort(*vocab_size)?;
        Ok(self.sorted.get_or_init(|| sorter.values).clone())
    }
}

/// A stable radix sort of keys and values, in place.
struct Sorter<'a> {
    queue: &'a Queue,
    keys: Buffer<u32>,
    values: Arc<Buffer<u32>>,
}

impl Sorter<'_> {
    /// Sorts by keys of at most `largest`.
    fn sort(&mut self, largest: u32) -> Result<(), Error> {
        let queue = self.queue;
        let count = self.keys.len();
        let tiles = count.div_ceil(SCAN_TILE);
        let digits = (u32::BITS - largest.leading_zeros()).div_ceil(DIGIT_BITS);
        let counts = queue.buffer::<u32>((tiles << DIGIT_BITS) + 1)?;
        for shift in (0..digits).map(|digit| digit * DIGIT_BITS) {
            let keys = queue.buffer(count)?;
            let values = queue.buffer(count)?;
            let grid = Grid {
                columns: tiles as u32,
                rows: 1,
                threads: THREADS,
            };
            let total = count as u32;
            let from = &*self;
            // SAFETY: counts are `[16, tiles]`, keys and values `[count]`, with targets of their
            // own.
            unsafe {
                queue.launch("count_digits", grid, &[&total, &from.keys, &shift, &counts])?;
                scan_in_place(queue, &counts, tiles << DIGIT_BITS)?;
                queue.launch(
                    "scatter_digits",
                    grid,
                    &[
                        &total,
                        &from.keys,
                        &from.values,
                        &shift,
                        &counts,
                        &keys,
                        &values,
                    ],
                )?;
            }
            (self.keys, self.values) = (keys, Arc::new(values));
        }
        Ok(())
    }
}

/// Replaces `[count]` numbers and a final 0 by the sums of the numbers before them; returns the
/// total.
pub(super) fn scan(queue: &Queue, data: &Buffer<u32>, count: usize) -> Result<u32, Error> {
    scan_in_place(queue, data, count + 1)?;
    let sums = queue.read(data.slice(), count, 1)?;
    Ok(sums[0])
}

/// Replaces the first `count` numbers by the sums of the numbers before them.
fn scan_in_place(queue: &Queue, data: &Buffer<u32>, count: usize) -> Result<(), Error> {
    let tiles = count.div_ceil(SCAN_TILE);
    let grid = Grid {
        columns: tiles as u32,
        rows: 1,
        threads: THREADS,
    };
    let count = count as u32;
    let sums = queue.buffer::<u32>(tiles)?;
    // SAFETY: `data` holds at least `count` numbers, `sums` one for each tile.
    unsafe { queue.launch("scan_tiles", grid, &[data, &count, &sums]) }?;
    if tiles > 1 {
        scan_in_place(queue, &sums, tiles)?;
        // SAFETY: as above.
        unsafe { queue.launch("add_offsets", grid, &[data, &count, &sums]) }?;
    }
    Ok(())
}
