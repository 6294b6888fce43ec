//! Rotation of heads, and their move to the front and back.

use candle_core::{DType, Result, Tensor};

use super::super::kernel::layout_error;
use super::THREADS;
use super::launch::{Launch, unwritten};

/// Angles of a rotation: cosines and sines `[positions, width / 2]`, first tokens of the rows
/// `[B]`, index of the first token.
pub(crate) struct Turn {
    pub(crate) table: [Tensor; 2],
    pub(crate) starts: Tensor,
    pub(crate) first_index: usize,
}

/// Moves the heads of `x` `[B, S, H * width]` to the front, `[B, H, S, width]`, or back if `back`.
/// Turns them by the angles of `turn`, back by the opposite ones. The caller has seen to it that
/// positions are within the table.
pub(crate) fn move_heads(x: &Tensor, heads: usize, turn: &Turn, back: bool) -> Result<Tensor> {
    let (rows, tokens, width) = match (back, x.dims()) {
        (false, &[rows, tokens, all]) if heads > 0 && all % heads == 0 => {
            (rows, tokens, all / heads)
        }
        (true, &[rows, there, tokens, width]) if there == heads => (rows, tokens, width),
        (_, other) => {
            return layout_error(
                "move-heads",
                format!("x has shape {other:?}, with {heads} heads"),
            );
        }
    };
    if width % 2 != 0 {
        return layout_error(
            "move-heads",
            format!("heads of {width} numbers are not pairs"),
        );
    }
    let shape: Vec<usize> = if back {
        vec![rows, tokens, heads * width]
    } else {
        vec![rows, heads, tokens, width]
    };
    let count = x.elem_count();
    let x = x.contiguous()?;
    let out = unwritten(&x, shape, x.dtype())?;
    let mut launch = Launch::new("move_heads", &x)?.memory(&x, x.dtype(), count)?;
    for table in &turn.table {
        launch = launch.memory(table, DType::F32, table.elem_count())?;
    }
    launch = launch
        .memory(&turn.starts, DType::U32, rows)?
        .memory(&out, x.dtype(), count)?;
    let launch = launch.words([
        rows,
        tokens,
        heads,
        width,
        turn.first_index,
        usize::from(!back),
    ])?;
    let Ok(pairs) = u32::try_from(count / 2) else {
        return layout_error(
            "move-heads",
            format!(
                "{count} numbers, at most {} (use a smaller batch)",
                u32::MAX
            ),
        );
    };
    // A block takes as many runs of 4 pairs as it has threads; single pairs take more rounds.
    let blocks = (pairs as usize).div_ceil(4 * THREADS);
    // SAFETY: `x` and `out` have the elements of the four sizes, whose pairs fit 32 bits; positions
    // are within the table.
    unsafe { launch.float(if back { -1.0 } else { 1.0 }).run(blocks, 1) }?;
    Ok(out)
}
