//! Sums of rows by id.

use candle_core::{DType, Result, Tensor};

use super::super::kernel::layout_error;
use super::THREADS;
use super::launch::{Launch, MOST_PARTS};

/// The table that the kernel reads, and the number of different ids. The table holds these ids, the
/// place at which the list of rows of each id begins, and the lists, each in ascending order.
fn lists(ids: &[u32]) -> (Vec<u32>, usize) {
    let mut order: Vec<u32> = (0..ids.len() as u32).collect();
    order.sort_by_key(|row| ids[*row as usize]);
    let groups: Vec<&[u32]> = order
        .chunk_by(|a, b| ids[*a as usize] == ids[*b as usize])
        .collect();
    let mut lists: Vec<u32> = groups.iter().map(|group| ids[group[0] as usize]).collect();
    let mut start = 0;
    lists.push(0);
    for group in &groups {
        start += group.len() as u32;
        lists.push(start);
    }
    let count = groups.len();
    lists.extend(&order);
    (lists, count)
}

/// Adds each of the `rows` `[N, D]` to the row of `sums` `[V, D]` f32 that `ids` `[N]` names, in
/// place and in order.
pub(crate) fn add_rows(sums: &Tensor, ids: &[u32], rows: &Tensor) -> Result<()> {
    let (all, width) = sums.dims2()?;
    if rows.dims() != [ids.len(), width] || ids.iter().any(|id| *id as usize >= all) {
        return layout_error(
            "add-rows",
            format!("rows {:?} of {} ids below {all}", rows.dims(), ids.len()),
        );
    }
    let rows = rows.contiguous()?;
    let (lists, count) = lists(ids);
    let len = lists.len();
    let lists = Tensor::new(lists, rows.device())?;
    let launch = Launch::new("add_rows", &rows)?.memory(sums, DType::F32, all * width)?;
    let launch = launch
        .memory(&rows, rows.dtype(), ids.len() * width)?
        .memory(&lists, DType::U32, len)?;
    let columns = width.div_ceil(THREADS);
    if columns > MOST_PARTS {
        return layout_error("add-rows", format!("rows of {width} numbers are too wide"));
    }
    // SAFETY: a block for each id that occurs and each part of the columns; ids are rows of `sums`,
    // and the lists hold rows of `rows`.
    unsafe { launch.words([count, width])?.run(count, columns) }
}
