//! Attention over packed rows as compositions of candle's operations: blocks of queries with the keys that they read, gathered into
//! rectangles.

use std::collections::BTreeMap;
use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};

use super::packing::{BLOCK, HeadSizes, Others, Packing, Piece, Stem, Tile};
use crate::rope::{heads_first, tokens_first};
use crate::softmax::{causal_softmax, causal_softmax_backward};

/// An index whose row is gathered as zeros.
const NONE: u32 = u32::MAX;

/// Rows that all queries of a piece attend to, and the piece.
type Item = (Range<usize>, Piece);

impl Tile {
    /// One tile for the first blocks of all prompts, one for their second blocks, and so on; then the same for the completions.
    pub(super) fn all(stems: &[Stem], device: &Device) -> Result<Vec<Self>> {
        let mut tiles: BTreeMap<(bool, usize), Vec<Item>> = BTreeMap::new();
        for block in stems.iter().flat_map(|stem| &stem.blocks) {
            for piece in &block.pieces {
                let kind = (!block.context.is_empty(), (piece.rows.start - piece.first) / BLOCK);
                tiles.entry(kind).or_default().push((block.context.clone(), piece.clone()));
            }
        }
        let rows = stems.last().map_or(0, |stem| stem.rows.end);
        tiles.values().map(|items| Self::new(items, rows, device)).collect()
    }

    fn new(items: &[Item], rows: usize, device: &Device) -> Result<Self> {
        let count = |(context, piece): &Item| context.len() + piece.own();
        let longest = items.iter().map(|(_, piece)| piece.rows.len()).max().unwrap_or(0);
        let most = items.iter().map(count).max().unwrap_or(0);
        let (mut queries, mut keys) = (Vec::new(), Vec::new());
        for (context, piece) in items {
            queries.extend(padded(piece.rows.clone(), longest));
            keys.extend(padded(context.clone().chain(piece.first..piece.rows.end), most));
        }
        let (mut places, mut reads) = (vec![NONE; rows], vec![Vec::new(); rows]);
        for (place, row) in (0..).zip(&queries).filter(|(_, row)| **row != NONE) {
            places[*row as usize] = place;
        }
        for (place, row) in (0..).zip(&keys).filter(|(_, row)| **row != NONE) {
            reads[*row as usize].push(place);
        }
        let first: Vec<u32> = reads.iter().map(|places| places.first().copied().unwrap_or(NONE)).collect();
        Ok(Self {
            starts: items.iter().map(|item| most - count(item)).collect::<Vec<_>>().into(),
            queries: Tensor::new(queries, device)?,
            keys: Tensor::new(keys, device)?,
            places: Tensor::new(places, device)?,
            first: Tensor::new(first, device)?,
            others: Others::new(&reads, device)?,
        })
    }

    /// The rows `index` `[R * S]` of `x` `[N, heads * width]`, as `[R, heads, S, width]`.
    fn gather(&self, x: &Tensor, index: &Tensor, width: usize) -> Result<Tensor> {
        let (rows, tokens) = (self.starts.len(), index.elem_count() / self.starts.len());
        let (all, count) = (x.index_select(index, 0)?, x.dim(1)?);
        heads_first(&all.reshape((rows, tokens, count))?, count / width)
    }

    /// Queries with the heads that share a key head behind each other, keys and values: `[R, KV, H / KV * Q or K, width]`.
    fn heads(&self, [queries, keys, values]: [&Tensor; 3], sizes: HeadSizes) -> Result<[Tensor; 3]> {
        let queries = self.stacked(&self.gather(queries, &self.queries, sizes.width)?, sizes)?;
        Ok([queries, self.gather(keys, &self.keys, sizes.width)?, self.gather(values, &self.keys, sizes.width)?])
    }

    /// Reshapes `[R, H, Q, n]` to `[R, KV, H / KV * Q, n]`.
    fn stacked(&self, by_head: &Tensor, sizes: HeadSizes) -> Result<Tensor> {
        let (rows, _, count, last) = by_head.dims4()?;
        by_head.reshape((rows, sizes.kv_heads, sizes.shared() * count, last))
    }

    /// Reshapes `[R, KV, H / KV * Q, n]` to `[R, H, Q, n]`.
    fn by_head(&self, stacked: &Tensor, sizes: HeadSizes) -> Result<Tensor> {
        let count = self.queries.elem_count() / self.starts.len();
        stacked.reshape((self.starts.len(), sizes.heads, count, ()))
    }

    /// Attention probabilities, `[R, H, Q, K]`.
    fn probs(&self, queries: &Tensor, keys: &Tensor, sizes: HeadSizes) -> Result<Tensor> {
        let scores = self.by_head(&queries.matmul(&keys.t()?)?, sizes)?;
        causal_softmax(&scores, &self.starts, sizes.scale())
    }

    /// Results of the queries, `[R, KV, H / KV * Q, width]`, as packed rows `[N, H * width]`; 0 for queries of other tiles.
    fn of_queries(&self, stacked: &Tensor, sizes: HeadSizes) -> Result<Tensor> {
        let lines = tokens_first(&self.by_head(stacked, sizes)?)?;
        lines.reshape((self.queries.elem_count(), ()))?.index_select(&self.places, 0)
    }

    /// Gradients by the keys, `[R, KV, K, width]`, summed over those of one packed row: `[N, KV * width]`, f32 or f64.
    fn of_keys(&self, by_head: &Tensor) -> Result<Tensor> {
        let (rows, _, tokens, _) = by_head.dims4()?;
        let lines = tokens_first(by_head)?.reshape((rows * tokens, ()))?;
        let dtype = if lines.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let first = lines.index_select(&self.first, 0)?.to_dtype(dtype)?;
        let Some(Others { places, rows }) = &self.others else { return Ok(first) };
        let (most, count) = places.dims2()?;
        let read = lines.index_select(&places.flatten_all()?, 0)?.to_dtype(dtype)?.reshape((most, count, ()))?;
        first + read.sum(0)?.index_select(rows, 0)?
    }
}

impl Others {
    /// From the places of each packed row; `None` if none has several.
    fn new(reads: &[Vec<u32>], device: &Device) -> Result<Option<Self>> {
        let several: Vec<&Vec<u32>> = reads.iter().filter(|places| places.len() > 1).collect();
        let most = several.iter().map(|places| places.len()).max().unwrap_or(1);
        if most == 1 {
            return Ok(None);
        }
        let mut numbers = 0..;
        let number = |places: &Vec<u32>| if places.len() > 1 { numbers.next() } else { None }.unwrap_or(NONE);
        let rows: Vec<u32> = reads.iter().map(number).collect();
        let place = |read: usize| several.iter().map(move |places| places.get(read).copied().unwrap_or(NONE));
        let places: Vec<u32> = (1..most).flat_map(place).collect();
        let places = Tensor::from_vec(places, (most - 1, several.len()), device)?;
        Ok(Some(Self { places, rows: Tensor::new(rows, device)? }))
    }
}

/// The numbers `rows`, behind so many of `NONE` that there are `count`.
fn padded(rows: impl Iterator<Item = usize> + Clone, count: usize) -> impl Iterator<Item = u32> {
    let before = count - rows.clone().count();
    std::iter::repeat_n(NONE, before).chain(rows.map(|row| row as u32))
}

/// The sum of some tensors in their order.
fn total(parts: impl IntoIterator<Item = Result<Tensor>>, dtype: DType) -> Result<Tensor> {
    let sum = parts.into_iter().reduce(|sum, part| sum? + part?);
    sum.unwrap_or_else(|| candle_core::bail!("attention: there are no rows"))?.to_dtype(dtype)
}

pub(super) fn attention(heads: [&Tensor; 3], packing: &Packing, sizes: HeadSizes) -> Result<Tensor> {
    let mixed = packing.tiles(|stems| Tile::all(stems, heads[0].device()))?.iter().map(|tile| {
        let [queries, keys, values] = tile.heads(heads, sizes)?;
        let probs = tile.probs(&queries, &keys, sizes)?;
        tile.of_queries(&tile.stacked(&probs, sizes)?.matmul(&values)?, sizes)
    });
    total(mixed, heads[0].dtype())
}

pub(super) fn attention_backward(
    heads: [&Tensor; 3],
    grad: &Tensor,
    packing: &Packing,
    sizes: HeadSizes,
) -> Result<[Tensor; 3]> {
    let mut gradients = [const { Vec::new() }; 3];
    for tile in packing.tiles(|stems| Tile::all(stems, grad.device()))? {
        let [queries, keys, values] = tile.heads(heads, sizes)?;
        let probs = tile.probs(&queries, &keys, sizes)?;
        let grad = tile.stacked(&tile.gather(grad, &tile.queries, sizes.width)?, sizes)?;
        let d_probs = tile.by_head(&grad.matmul(&values.t()?)?, sizes)?;
        let d_scores = causal_softmax_backward(&probs, &d_probs, &tile.starts, sizes.scale())?;
        let (probs, d_scores) = (tile.stacked(&probs, sizes)?, tile.stacked(&d_scores, sizes)?);
        gradients[0].push(tile.of_queries(&d_scores.matmul(&keys)?, sizes));
        gradients[1].push(tile.of_keys(&d_scores.t()?.matmul(&queries)?));
        gradients[2].push(tile.of_keys(&probs.t()?.matmul(&grad)?));
    }
    let [queries, keys, values] = gradients.map(|parts| total(parts, grad.dtype()));
    Ok([queries?, keys?, values?])
}
