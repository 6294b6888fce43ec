//! Causal attention over packed rows: completions that share a prompt read its keys and values, and no product reads padding.

mod generic;
mod kernel;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use candle_core::{Device, Result, Tensor};

use super::by_kernel;
use super::kernel::layout_error;
use generic::Tile;

/// Most queries that are computed at once.
pub const BLOCK: usize = 128;

/// Prompts, each with the completions that continue it, as consecutive rows of one matrix.
#[derive(Debug, Clone)]
pub struct Packing {
    stems: Arc<[Stem]>,
    /// Tiles of the device that has no kernel.
    tiles: Arc<OnceLock<Vec<Tile>>>,
}

/// A prompt with its completions: rows of the packed matrices.
#[derive(Debug)]
struct Stem {
    rows: Range<usize>,
    blocks: Vec<Block>,
}

/// Consecutive queries of one prompt or of its completions.
#[derive(Debug)]
struct Block {
    rows: Range<usize>,
    /// Rows that all queries attend to: none for a prompt, the prompt for completions.
    context: Range<usize>,
    pieces: Vec<Piece>,
}

/// Consecutive queries of one prompt or completion.
#[derive(Debug, Clone)]
struct Piece {
    rows: Range<usize>,
    /// First row of the prompt or completion.
    first: usize,
}

impl Piece {
    /// Number of its own keys that the last query reads.
    fn own(&self) -> usize {
        self.rows.end - self.first
    }
}

impl Block {
    /// Largest number of keys of a query.
    fn keys(&self) -> usize {
        self.context.len() + self.pieces.iter().map(Piece::own).max().unwrap_or(0)
    }

    /// The piece that holds the query `row`.
    fn piece(&self, row: usize) -> &Piece {
        &self.pieces[self.pieces.partition_point(|piece| piece.rows.end <= row)]
    }
}

impl Stem {
    fn new(first: usize, prompt: usize, completions: &[usize]) -> Self {
        let context = first..first + prompt;
        let mut blocks = Vec::new();
        cut(&mut blocks, &(first..first), first, prompt);
        let mut end = context.end;
        for tokens in completions {
            cut(&mut blocks, &context, end, *tokens);
            end += tokens;
        }
        Self { rows: first..end, blocks }
    }
}

/// Adds the queries of `tokens` rows from `first` on: to the last block if they fit and attend to the same rows, else in blocks of their own.
fn cut(blocks: &mut Vec<Block>, context: &Range<usize>, first: usize, tokens: usize) {
    let whole = Piece { rows: first..first + tokens, first };
    match blocks.last_mut() {
        Some(last) if last.context == *context && last.rows.len() + tokens <= BLOCK => {
            last.rows.end = whole.rows.end;
            last.pieces.extend((tokens > 0).then_some(whole));
        }
        _ => blocks.extend(whole.rows.step_by(BLOCK).map(|from| {
            let rows = from..(from + BLOCK).min(first + tokens);
            Block { rows: rows.clone(), context: context.clone(), pieces: vec![Piece { rows, first }] }
        })),
    }
}

impl Packing {
    /// Prompts of some numbers of tokens, each with the numbers of tokens of its completions.
    pub fn new<'a>(stems: impl IntoIterator<Item = (usize, &'a [usize])>) -> Self {
        let mut first = 0;
        let stem = |(prompt, completions): (usize, &[usize])| {
            let stem = Stem::new(first, prompt, completions);
            first = stem.rows.end;
            stem
        };
        Self { stems: stems.into_iter().map(stem).collect(), tiles: Arc::default() }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.stems.last().map_or(0, |stem| stem.rows.end)
    }

    fn tiles(&self, device: &Device) -> Result<&[Tile]> {
        if let Some(tiles) = self.tiles.get() {
            return Ok(tiles);
        }
        let tiles = Tile::all(&self.stems, device)?;
        Ok(self.tiles.get_or_init(|| tiles))
    }
}

/// Numbers of query heads and of key heads, and the width of each.
#[derive(Debug, Clone, Copy)]
pub struct HeadSizes {
    /// Number of query heads, H.
    pub heads: usize,
    /// Number of key heads, KV, which divides H.
    pub kv_heads: usize,
    /// Numbers in a head.
    pub width: usize,
}

impl HeadSizes {
    /// Number of query heads that share one key head.
    fn shared(self) -> usize {
        self.heads / self.kv_heads
    }

    /// Factor of attention scores, `1 / √width`.
    fn scale(self) -> f64 {
        (self.width as f64).powf(-0.5)
    }

    fn check(self, packing: &Packing, [queries, keys, values]: [&Tensor; 3]) -> Result<()> {
        let (rows, all) = (packing.rows(), self.kv_heads * self.width);
        if queries.dims() != [rows, self.heads * self.width] || [keys, values].iter().any(|x| x.dims() != [rows, all]) {
            let dims = [queries, keys, values].map(Tensor::dims);
            return layout_error("attention", format!("{dims:?} do not fit {rows} rows of {self:?}"));
        }
        Ok(())
    }
}

/// Values mixed by the attention of each query, `[N, H * width]`, from `queries` `[N, H * width]` and `keys` and `values` `[N, KV * width]`.
///
/// A token of a prompt attends to the prompt up to itself, a token of a completion to its prompt and to the completion up to itself.
pub fn attention([queries, keys, values]: [&Tensor; 3], packing: &Packing, sizes: HeadSizes) -> Result<Tensor> {
    sizes.check(packing, [queries, keys, values])?;
    by_kernel(
        [queries, keys, values],
        || generic::attention([queries, keys, values], packing, sizes),
        |heads| kernel::attention(&heads, packing, sizes),
    )
}

/// Gradients of `attention` by queries, keys and values, from the gradient `grad` of its result.
///
/// The gradient of a prompt's keys and values is the sum over its completions, in the order of the rows.
pub fn attention_backward(
    [queries, keys, values]: [&Tensor; 3],
    grad: &Tensor,
    packing: &Packing,
    sizes: HeadSizes,
) -> Result<[Tensor; 3]> {
    sizes.check(packing, [queries, keys, values])?;
    by_kernel(
        [queries, keys, values, grad],
        || generic::attention_backward([queries, keys, values], grad, packing, sizes),
        |all| kernel::attention_backward(&all, packing, sizes),
    )
}
