//! Pairs sorted by subset, row and token, so that sums over a row always run in the same order; and the segments of one row.

#![allow(unsafe_code, reason = "kernel launches")]

use std::sync::Arc;

use super::driver::{Argument, Buffer, Queue};
use super::{Pairs, THREADS, threads};
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
    /// `[N, S]`: coefficient of each pair's feature. Pairs with 0 are left out; `None` leaves out none.
    pub nonzero: Option<&'a Buffer<f64>>,
}

impl Segments {
    pub fn of(pairs: &Pairs, choice: Choice) -> Result<Self, Error> {
        let Pairs { queue, rows, stride, .. } = pairs;
        let Choice { subset_of, subsets, nonzero } = choice;
        let slots = rows.len();
        let (total, nonzero) = (slots as u32, nonzero.map_or(0, Buffer::address));
        let subset_or_null = subset_of.map_or(0, Buffer::address);
        let chosen: [&dyn Argument; 5] = [&total, rows, &subset_or_null, stride, &nonzero];
        let mut values = pairs.by_row()?;
        if subset_of.is_some() {
            let (subsets, keys) = (subsets as u32, queue.buffer(slots)?);
            // SAFETY: the arguments are the kernel's; subsets are `[N]`, rows, keys, values and coefficients `[N, S]`. Values are a
            // permutation of the indices.
            unsafe { queue.launch("subset_keys", threads(slots), &[&chosen, &subsets, &values, &keys]) }?;
            let mut sorter = Sorter { queue, keys, values };
            sorter.sort(subsets)?;
            values = sorter.values;
        }
        let (heads, known) = (queue.buffer::<u32>(slots + 1)?, queue.filled::<u32>(1, 0)?);
        // SAFETY: as above; heads are `[N S + 1]`.
        unsafe { queue.launch("mark_heads", threads(slots + 1), &[&chosen, &values, &heads, &known]) }?;
        let count = scan(queue, &heads, slots)?;
        let known = queue.download(&known, 1)?[0];
        let (of_pair, starts) = (queue.buffer(known as usize)?, queue.buffer(count as usize + 1)?);
        // SAFETY: `heads` holds the sums before each of the P pairs and after the last, at most R.
        unsafe { queue.launch("write_segments", threads(known as usize + 1), &[&known, &heads, &of_pair, &starts]) }?;
        Ok(Self { values, of_pair, starts, pairs: known, count })
    }

    /// The segments that `mark_long` marks, in order, and their number.
    pub fn long(&self, queue: &Queue) -> Result<(Buffer<u32>, u32), Error> {
        let count = self.count as usize;
        let marks = queue.buffer::<u32>(count + 1)?;
        // SAFETY: starts and marks are `[R + 1]`.
        unsafe { queue.launch("mark_long", threads(count + 1), &[&self.count, &self.starts, &marks]) }?;
        let long = scan(queue, &marks, count)?;
        let list = queue.buffer(long as usize)?;
        // SAFETY: the list holds as many entries as were marked.
        unsafe { queue.launch("list_long", threads(count), &[&self.count, &marks, &list]) }?;
        Ok((list, long))
    }
}

impl Pairs {
    /// `[N, S]`: the indices of all slots by row, those without one last. They are sorted once, and each selection keeps their order.
    fn by_row(&self) -> Result<Arc<Buffer<u32>>, Error> {
        if let Some(sorted) = self.sorted.get() {
            return Ok(sorted.clone());
        }
        let Self { queue, rows, vocab_size, .. } = self;
        let slots = rows.len();
        let mut sorter = Sorter { queue, keys: queue.buffer(slots)?, values: Arc::new(queue.buffer(slots)?) };
        let (total, Sorter { keys, values, .. }) = (slots as u32, &sorter);
        // SAFETY: the arguments are the kernel's; rows, keys and values are `[N, S]`.
        unsafe { queue.launch("row_keys", threads(slots), &[&total, rows, vocab_size, keys, values]) }?;
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
        let (queue, count) = (self.queue, self.keys.len());
        let tiles = count.div_ceil(SCAN_TILE);
        let digits = (u32::BITS - largest.leading_zeros()).div_ceil(DIGIT_BITS);
        let counts = queue.buffer::<u32>((tiles << DIGIT_BITS) + 1)?;
        for shift in (0..digits).map(|digit| digit * DIGIT_BITS) {
            let (keys, values) = (queue.buffer(count)?, queue.buffer(count)?);
            let (grid, total, from) = (((tiles as u32, 1), THREADS), count as u32, &*self);
            // SAFETY: counts are `[16, tiles]`, keys and values `[count]`, with targets of their own.
            unsafe {
                queue.launch("count_digits", grid, &[&total, &from.keys, &shift, &counts])?;
                scan_in_place(queue, &counts, tiles << DIGIT_BITS)?;
                queue.launch(
                    "scatter_digits",
                    grid,
                    &[&total, &from.keys, &from.values, &shift, &counts, &keys, &values],
                )?;
            }
            (self.keys, self.values) = (keys, Arc::new(values));
        }
        Ok(())
    }
}

/// Replaces `[count]` numbers and a final 0 by the sums of the numbers before them; returns the total.
pub(super) fn scan(queue: &Queue, data: &Buffer<u32>, count: usize) -> Result<u32, Error> {
    scan_in_place(queue, data, count + 1)?;
    let sums = queue.read(data.slice(), count, 1)?;
    Ok(sums[0])
}

/// Replaces the first `count` numbers by the sums of the numbers before them.
fn scan_in_place(queue: &Queue, data: &Buffer<u32>, count: usize) -> Result<(), Error> {
    let tiles = count.div_ceil(SCAN_TILE);
    let (grid, count, sums) = (((tiles as u32, 1), THREADS), count as u32, queue.buffer::<u32>(tiles)?);
    // SAFETY: `data` holds at least `count` numbers, `sums` one for each tile.
    unsafe { queue.launch("scan_tiles", grid, &[data, &count, &sums]) }?;
    if tiles > 1 {
        scan_in_place(queue, &sums, tiles)?;
        // SAFETY: as above.
        unsafe { queue.launch("add_offsets", grid, &[data, &count, &sums]) }?;
    }
    Ok(())
}
