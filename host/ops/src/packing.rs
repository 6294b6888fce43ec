//! Which rows of packed matrices attend to which.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use candle_core::{Result, Tensor};

use super::kept::Kept;
use super::kernel::layout_error;

/// Most queries that are computed at once.
pub const BLOCK: usize = 128;
/// Rows in a tile of the kernels of a GPU, as in `attention.cuh`.
pub(crate) const TILE: usize = 64;
/// Number of queries for which one block adds the gradients of a tile of keys. A prompt's keys have
/// the queries of all its completions; a single block for them would finish last.
pub const SHARE: usize = 384;
/// The number of a tile's only share.
const ALONE: usize = u32::MAX as usize;

/// Prompts, each with the completions that continue it, as consecutive rows of one matrix.
#[derive(Debug, Clone)]
pub struct Packing {
    pub(crate) stems: Arc<[Stem]>,
    tables: Arc<OnceLock<Tables>>,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) on_device: [Kept; 4],
}

/// A prompt with its completions: rows of the packed matrices.
#[derive(Debug)]
pub(crate) struct Stem {
    pub(crate) rows: Range<usize>,
    /// Where the prompt ends.
    shared: usize,
    pub(crate) blocks: Vec<Block>,
}

/// Consecutive queries of one prompt or of its completions.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) rows: Range<usize>,
    /// Rows that all queries attend to: none for a prompt, the prompt for completions.
    pub(crate) context: Range<usize>,
    pub(crate) pieces: Vec<Piece>,
}

/// Consecutive queries of one prompt or completion.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) rows: Range<usize>,
    /// First row of the prompt or completion.
    pub(crate) first: usize,
}

impl Piece {
    /// Number of its own keys that the last query reads.
    pub(crate) fn own(&self) -> usize {
        self.rows.end - self.first
    }
}

impl Block {
    /// Largest number of keys of a query.
    pub(crate) fn keys(&self) -> usize {
        self.context.len() + self.pieces.iter().map(Piece::own).max().unwrap_or(0)
    }

    /// The piece that holds the query `row`.
    pub(crate) fn piece(&self, row: usize) -> &Piece {
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
        Self {
            rows: first..end,
            shared: context.end,
            blocks,
        }
    }
}

/// Adds the queries of `tokens` rows from `first` on: to the last block if they fit and attend to
/// the same rows, else in blocks of their own.
fn cut(blocks: &mut Vec<Block>, context: &Range<usize>, first: usize, tokens: usize) {
    let whole = Piece {
        rows: first..first + tokens,
        first,
    };
    match blocks.last_mut() {
        Some(last) if last.context == *context && last.rows.len() + tokens <= BLOCK => {
            last.rows.end = whole.rows.end;
            last.pieces.extend((tokens > 0).then_some(whole));
        }
        _ => blocks.extend(whole.rows.step_by(BLOCK).map(|from| {
            let rows = from..(from + BLOCK).min(first + tokens);
            Block {
                rows: rows.clone(),
                context: context.clone(),
                pieces: vec![Piece { rows, first }],
            }
        })),
    }
}

impl Packing {
    /// Prompts of some numbers of tokens, each with the numbers of tokens of its completions.
    pub fn new<'a>(stems: impl IntoIterator<Item = (usize, &'a [usize])>) -> Self {
        let mut all: Vec<Stem> = Vec::new();
        for (prompt, completions) in stems {
            let first = all.last().map_or(0, |stem| stem.rows.end);
            all.push(Stem::new(first, prompt, completions));
        }
        Self {
            stems: all.into(),
            tables: Arc::default(),
            on_device: Default::default(),
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.stems.last().map_or(0, |stem| stem.rows.end)
    }

    /// Arrays that the kernels of a GPU read. Tiles with the most work come first.
    pub fn tables(&self) -> &Tables {
        self.tables.get_or_init(|| self.make_tables())
    }

    fn make_tables(&self) -> Tables {
        let mut firsts = vec![0; self.rows()];
        let mut ends = vec![0; self.rows()];
        for Piece { rows, first } in self
            .stems
            .iter()
            .flat_map(|stem| &stem.blocks)
            .flat_map(|block| &block.pieces)
        {
            firsts[rows.clone()].fill(*first);
            ends[*first] = rows.end;
        }
        let mut of_queries = Vec::new();
        let mut of_keys = Vec::new();
        let mut joined = Vec::new();
        let mut shares = 0;
        for Stem { rows, shared, .. } in self.stems.iter() {
            for from in rows.clone().step_by(TILE) {
                let to = (from + TILE).min(rows.end);
                of_queries.push((
                    to - rows.start.max(firsts[from]),
                    [from, to, rows.start, *shared],
                ));
                let until = if from < *shared {
                    rows.end
                } else {
                    ends[firsts[to - 1]]
                };
                if until - from <= SHARE {
                    of_keys.push((until - from, [from, to, until, *shared, from, ALONE]));
                    continue;
                }
                let first_share = shares;
                for readers in (from..until).step_by(SHARE) {
                    let end = (readers + SHARE).min(until);
                    of_keys.push((end - readers, [from, to, end, *shared, readers, shares]));
                    shares += 1;
                }
                joined.push((
                    shares - first_share,
                    [from, to, first_share, shares - first_share],
                ));
            }
        }
        let firsts = firsts.iter().map(|row| *row as u32).collect();
        Tables {
            arrays: [firsts, sorted(of_queries), sorted(of_keys), sorted(joined)],
            shares,
        }
    }
}

/// Tables of rows and tiles for the kernels of a GPU.
#[derive(Debug)]
pub struct Tables {
    /// The first row of the prompt or completion of each row, `[N]`.
    ///
    /// Tiles of up to `TILE` queries, `[.., 4]`: the first one, the end, where the stem begins and
    /// where its prompt ends.
    ///
    /// Tiles of keys, `[.., 6]`: the first one, the end, the end of the queries that read them,
    /// where the prompt ends, the first of those queries, and the number of the share, or `ALONE`.
    /// Where there are more than `SHARE` queries, each so many are a share.
    ///
    /// Tiles with several shares, `[.., 4]`: the first key, the end, the first share and their
    /// number.
    pub arrays: [Vec<u32>; 4],
    /// Number of shares.
    pub shares: usize,
}

/// The numbers of all tiles. The tiles with the most work come first.
fn sorted<const N: usize>(mut tiles: Vec<(usize, [usize; N])>) -> Vec<u32> {
    tiles.sort_by_key(|(work, _)| std::cmp::Reverse(*work));
    tiles
        .iter()
        .flat_map(|(_, tile)| tile.map(|row| row as u32))
        .collect()
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
    pub(crate) fn shared(self) -> usize {
        self.heads / self.kv_heads
    }

    /// Factor of attention scores, `1 / √width`.
    pub(crate) fn scale(self) -> f64 {
        (self.width as f64).powf(-0.5)
    }

    pub(crate) fn check(
        self,
        packing: &Packing,
        [queries, keys, values]: [&Tensor; 3],
    ) -> Result<()> {
        let rows = packing.rows();
        let all = self.kv_heads * self.width;
        if queries.dims() != [rows, self.heads * self.width]
            || [keys, values].iter().any(|x| x.dims() != [rows, all])
        {
            let dims = [queries, keys, values].map(Tensor::dims);
            return layout_error(
                "attention",
                format!("{dims:?} do not fit {rows} rows of {self:?}"),
            );
        }
        Ok(())
    }
}
