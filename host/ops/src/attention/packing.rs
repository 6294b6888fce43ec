//! Which rows of packed matrices attend to which.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use candle_core::{Result, Tensor};

use super::super::Starts;
use super::super::kernel::layout_error;

/// Most queries that are computed at once.
pub const BLOCK: usize = 128;

/// Prompts, each with the completions that continue it, as consecutive rows of one matrix.
#[derive(Debug, Clone)]
pub struct Packing {
    pub(super) stems: Arc<[Stem]>,
    /// Tiles of the device that has no kernel.
    tiles: Arc<OnceLock<Vec<Tile>>>,
}

/// A prompt with its completions: rows of the packed matrices.
#[derive(Debug)]
pub(super) struct Stem {
    pub(super) rows: Range<usize>,
    pub(super) blocks: Vec<Block>,
}

/// Consecutive queries of one prompt or of its completions.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) rows: Range<usize>,
    /// Rows that all queries attend to: none for a prompt, the prompt for completions.
    pub(super) context: Range<usize>,
    pub(super) pieces: Vec<Piece>,
}

/// Consecutive queries of one prompt or completion.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub(super) rows: Range<usize>,
    /// First row of the prompt or completion.
    pub(super) first: usize,
}

impl Piece {
    /// Number of its own keys that the last query reads.
    pub(super) fn own(&self) -> usize {
        self.rows.end - self.first
    }
}

impl Block {
    /// Largest number of keys of a query.
    pub(super) fn keys(&self) -> usize {
        self.context.len() + self.pieces.iter().map(Piece::own).max().unwrap_or(0)
    }

    /// The piece that holds the query `row`.
    pub(super) fn piece(&self, row: usize) -> &Piece {
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

    /// The tiles, which `make` makes once.
    pub(super) fn tiles(&self, make: impl FnOnce(&[Stem]) -> Result<Vec<Tile>>) -> Result<&[Tile]> {
        if let Some(tiles) = self.tiles.get() {
            return Ok(tiles);
        }
        let tiles = make(&self.stems)?;
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
    pub(super) fn shared(self) -> usize {
        self.heads / self.kv_heads
    }

    /// Factor of attention scores, `1 / √width`.
    pub(super) fn scale(self) -> f64 {
        (self.width as f64).powf(-0.5)
    }

    pub(super) fn check(self, packing: &Packing, [queries, keys, values]: [&Tensor; 3]) -> Result<()> {
        let (rows, all) = (packing.rows(), self.kv_heads * self.width);
        if queries.dims() != [rows, self.heads * self.width] || [keys, values].iter().any(|x| x.dims() != [rows, all]) {
            let dims = [queries, keys, values].map(Tensor::dims);
            return layout_error("attention", format!("{dims:?} do not fit {rows} rows of {self:?}"));
        }
        Ok(())
    }
}

/// Blocks of queries with their keys, `R` at a time, each aligned at its end.
#[derive(Debug)]
pub(super) struct Tile {
    /// Packed row of each query, `[R * Q]`.
    pub(super) queries: Tensor,
    /// Packed row of each key, `[R * K]`.
    pub(super) keys: Tensor,
    /// `[R]`: number of places before the first key.
    pub(super) starts: Starts,
    /// Place of each packed row among the queries, `[N]`.
    pub(super) places: Tensor,
    /// First place of each packed row among the keys, `[N]`.
    pub(super) first: Tensor,
    /// For rows with several places, those of a prompt with several completions.
    pub(super) others: Option<Others>,
}

/// Places of M packed rows behind their first ones.
#[derive(Debug)]
pub(super) struct Others {
    /// `[most - 1, M]`.
    pub(super) places: Tensor,
    /// Which of the M rows each packed row is, `[N]`.
    pub(super) rows: Tensor,
}
