//! Attention over packed rows, and of single tokens over a cache.

use candle_core::{DType, Result, Tensor};

use super::super::kept::DecodeRows;
use super::super::kernel::layout_error;
use super::super::packing::{HeadSizes, Packing, TILE};
use super::THREADS;
use super::launch::{Launch, MOST_PARTS, unwritten};

/// As in `decode.cuh`: scores and numbers of queries that a block holds, and numbers of a head.
const MOST_SCORES: usize = 8192;
const MOST_QUERIES: usize = 2048;
const WIDEST_HEAD: usize = 256;
/// Blocks that occupy a large GPU, and fewest keys for which a block pays off.
const ENOUGH_BLOCKS: usize = 256;
const FEWEST_KEYS: usize = 128;

/// As in `attention_bf16.cuh`: threads of a block, the widest head, and numbers that are read at
/// once.
const MATRIX_THREADS: usize = 128;
const WIDEST_MATRIX: usize = 128;
const RUN: usize = 8;

/// Sizes and tables of packed rows, which their kernels read besides the matrices.
struct Packed<'a> {
    packing: &'a Packing,
    sizes: HeadSizes,
    /// As in `Tables`.
    tables: [Tensor; 4],
}

impl<'a> Packed<'a> {
    fn new(x: &Tensor, packing: &'a Packing, sizes: HeadSizes) -> Result<Self> {
        if sizes.width > WIDEST_HEAD {
            return layout_error(
                "attention",
                format!(
                    "heads of {} numbers, at most {WIDEST_HEAD} on a GPU",
                    sizes.width
                ),
            );
        }
        let mut tables = packing.on_device.iter().zip(&packing.tables().arrays);
        let mut next = || {
            let (kept, table) = tables.next().expect("four tables");
            // A device cannot allocate an empty array.
            let table = if table.is_empty() {
                &[0]
            } else {
                table.as_slice()
            };
            kept.get(x.device(), || Tensor::new(table, x.device()))
        };
        Ok(Self {
            packing,
            sizes,
            tables: [next()?, next()?, next()?, next()?],
        })
    }

    /// Runs the kernel `name` in a block for each head of each tile. It writes `outs` and reads the
    /// other tensors.
    fn run<'b>(
        &'b self,
        name: &str,
        [queries, keys, values]: [&'b Tensor; 3],
        grad: Option<&'b Tensor>,
        tiles: Tiles<'b>,
        outs: &[&'b Tensor],
    ) -> Result<()> {
        let rows = self.packing.rows();
        let HeadSizes {
            heads: all,
            kv_heads,
            width,
        } = self.sizes;
        let dtype = queries.dtype();
        let form = [64, 128, WIDEST_HEAD]
            .into_iter()
            .find(|widest| width <= *widest)
            .unwrap_or(WIDEST_HEAD);
        let by_matrix = width <= WIDEST_MATRIX
            && width.is_multiple_of(RUN)
            && [queries, keys, values].into_iter().chain(grad).all(in_runs);
        let (name, threads) = match dtype {
            DType::BF16 if by_matrix => (format!("{name}_{form}_matrix"), MATRIX_THREADS),
            DType::BF16 => (format!("{name}_{WIDEST_HEAD}"), THREADS),
            _ => (format!("{name}_{form}"), THREADS),
        };
        let mut launch = Launch::new(&name, queries)?.threads(threads);
        let mut lines = [0; 3];
        for ((x, heads), line) in [(queries, all), (keys, kv_heads), (values, kv_heads)]
            .into_iter()
            .zip(&mut lines)
        {
            (launch, *line) = launch.lines(x, dtype, [rows, heads * width])?;
        }
        if let Some(grad) = grad {
            launch = launch.memory(grad, dtype, rows * all * width)?;
        }
        launch = launch.memory(&self.tables[0], DType::U32, rows)?;
        launch = launch.memory(tiles.table, DType::U32, tiles.table.elem_count())?;
        for out in outs {
            launch = launch.memory(out, out.dtype(), out.elem_count())?;
        }
        launch = launch.words(lines)?.words([all, all / kv_heads, width])?;
        if grad.is_some() {
            launch = launch.words([rows])?;
        }
        // SAFETY: `HeadSizes::check` compared the matrices with the packing, whose tiles cover its
        // rows, each once. `form` is as wide as a head.
        unsafe {
            launch
                .float(self.sizes.scale())
                .run(tiles.count * tiles.heads, 1)
        }
    }
}

/// Tiles for each of which and each head a block runs.
#[derive(Clone, Copy)]
struct Tiles<'a> {
    table: &'a Tensor,
    count: usize,
    heads: usize,
}

impl<'a> Tiles<'a> {
    /// The tiles of a table with `width` numbers for each.
    fn new(table: &'a Tensor, width: usize, heads: usize) -> Self {
        Self {
            table,
            count: table.elem_count() / width,
            heads,
        }
    }
}

/// True if the rows of `x`, and the heads in them, begin at whole runs.
fn in_runs(x: &Tensor) -> bool {
    let layout = x.layout();
    layout.start_offset().is_multiple_of(RUN)
        && layout
            .stride()
            .first()
            .is_some_and(|line| line.is_multiple_of(RUN))
}

pub(crate) fn attention(
    heads: [&Tensor; 3],
    packing: &Packing,
    sizes: HeadSizes,
) -> Result<Tensor> {
    let packed = Packed::new(heads[0], packing, sizes)?;
    let out = unwritten(heads[0], heads[0].shape(), heads[0].dtype())?;
    let tiles = Tiles::new(&packed.tables[1], 4, sizes.heads);
    packed.run("attention", heads, None, tiles, &[&out])?;
    Ok(out)
}

pub(crate) fn attention_backward(
    heads: [&Tensor; 3],
    grad: &Tensor,
    packing: &Packing,
    sizes: HeadSizes,
) -> Result<[Tensor; 3]> {
    let packed = Packed::new(heads[0], packing, sizes)?;
    let grad = grad.contiguous()?;
    let stats = unwritten(&grad, (3, sizes.heads, packing.rows()), DType::F32)?;
    let [by_queries, by_keys, by_values] = heads.map(|x| unwritten(x, x.shape(), x.dtype()));
    let by_queries = by_queries?;
    let by_keys = by_keys?;
    let by_values = by_values?;
    let [_, of_queries, of_keys, joined] = &packed.tables;
    let tiles = Tiles::new(of_queries, 4, sizes.heads);
    packed.run(
        "attention_by_queries",
        heads,
        Some(&grad),
        tiles,
        &[&by_queries, &stats],
    )?;
    // No tensor is empty, so that each has an address.
    let line = sizes.kv_heads * sizes.width;
    let count = packing.tables().shares;
    let shares = unwritten(&grad, (count.max(1), 2, TILE, line), DType::F32)?;
    let tiles = Tiles::new(of_keys, 6, sizes.kv_heads);
    packed.run(
        "attention_by_keys",
        heads,
        Some(&grad),
        tiles,
        &[&stats, &by_keys, &by_values, &shares],
    )?;
    if count > 0 {
        let launch =
            Launch::new("join_shares", &grad)?.memory(joined, DType::U32, joined.elem_count())?;
        let launch = launch.memory(&shares, DType::F32, shares.elem_count())?;
        let all = packing.rows() * line;
        let launch =
            launch
                .memory(&by_keys, grad.dtype(), all)?
                .memory(&by_values, grad.dtype(), all)?;
        // SAFETY: a block for each matrix and tile of several shares, which have TILE lines each;
        // the rows of tiles are the packing's.
        unsafe { launch.words([line])?.run(joined.elem_count() / 4, 2) }?;
    }
    Ok([by_queries, by_keys, by_values])
}

/// Sizes of a decoding step: active rows, query heads, key heads, columns of the cache, numbers of
/// a head.
struct Sizes {
    active: usize,
    heads: usize,
    kv_heads: usize,
    tokens: usize,
    width: usize,
}

impl Sizes {
    fn of(queries: &Tensor, cache: &Tensor, rows: &DecodeRows) -> Result<Self> {
        let (all, kv_heads, tokens, width) = cache.dims4()?;
        let active = rows.cache_rows.len();
        let heads = queries.elem_count() / (active * width).max(1);
        let fits = queries.elem_count() == active * heads * width
            && rows.positions.len() == active
            && heads.is_multiple_of(kv_heads.max(1))
            && rows.longest() <= tokens
            && rows.cache_rows.iter().all(|row| *row < all);
        if !fits {
            return layout_error(
                "decode",
                format!("queries {:?} do not fit {:?}", queries.dims(), cache.dims()),
            );
        }
        Ok(Self {
            active,
            heads,
            kv_heads,
            tokens,
            width,
        })
    }
}

/// True if `decode_attention` has a kernel for queries of these heads.
pub(crate) fn attends(queries: &Tensor, cache: &Tensor) -> Result<bool> {
    let (_, kv_heads, _, width) = cache.dims4()?;
    let group = queries.elem_count() / (queries.dim(0)? * kv_heads * width).max(1);
    Ok(width <= WIDEST_HEAD && group * width <= MOST_QUERIES && 2 * group <= group * width)
}

/// Queries, keys and values of new tokens, `[A, .. * width]`, turned by cosines and sines
/// `[positions, width / 2]`: the keys and values go to the caches. Returns the queries.
pub(crate) fn decode_heads(
    [queries, keys, values]: [&Tensor; 3],
    [cos, sin]: &[Tensor; 2],
    [key_cache, value_cache]: [&Tensor; 2],
    rows: &DecodeRows,
) -> Result<Tensor> {
    let Sizes {
        active,
        heads,
        kv_heads,
        tokens,
        width,
    } = Sizes::of(queries, key_cache, rows)?;
    let longest = rows.longest();
    if width % 2 != 0 || cos.dims2()?.1 != width / 2 || longest > cos.dim(0)? {
        return layout_error(
            "decode",
            format!(
                "heads of {width} of {longest} tokens do not fit {:?}",
                cos.dims()
            ),
        );
    }
    let dtype = queries.dtype();
    let places = rows.places(queries.device())?;
    let out = unwritten(queries, (active, heads * width), dtype)?;
    let mut launch = Launch::new("decode_heads", queries)?;
    let mut lines = [0; 3];
    for ((tensor, heads), line) in [(queries, heads), (keys, kv_heads), (values, kv_heads)]
        .into_iter()
        .zip(&mut lines)
    {
        (launch, *line) = launch.lines(tensor, dtype, [active, heads * width])?;
    }
    for table in [cos, sin] {
        launch = launch.memory(table, DType::F32, cos.elem_count())?;
    }
    launch = launch.memory(&places, DType::U32, 2 * active)?.memory(
        &out,
        dtype,
        active * heads * width,
    )?;
    for cache in [key_cache, value_cache] {
        launch = launch.memory(cache, dtype, key_cache.elem_count())?;
    }
    let launch = launch
        .words(lines)?
        .words([active, heads, kv_heads, tokens, width])?;
    let pairs = active * (heads + 2 * kv_heads) * width / 2;
    // SAFETY: `Sizes::of` bounded rows, heads and positions by the caches, and the table has all
    // positions. A thread takes one or four pairs.
    unsafe { launch.run(pairs.div_ceil(THREADS), 1) }?;
    Ok(out)
}

pub(crate) fn decode_attention(
    queries: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    rows: &DecodeRows,
) -> Result<Tensor> {
    let Sizes {
        active,
        heads,
        kv_heads,
        tokens,
        width,
    } = Sizes::of(queries, keys, rows)?;
    let dtype = queries.dtype();
    let group = heads / kv_heads.max(1);
    let places = rows.places(queries.device())?;
    let queries = queries.contiguous()?;
    let out = unwritten(&queries, (active, heads * width), dtype)?;
    let longest = rows.longest();
    let wanted = ENOUGH_BLOCKS.div_ceil((active * kv_heads).max(1));
    let length = longest
        .div_ceil(wanted)
        .max(FEWEST_KEYS)
        .min(MOST_SCORES / group.max(1));
    let parts = longest.div_ceil(length).max(1);
    if parts > MOST_PARTS {
        return layout_error("decode", format!("{longest} keys are too many"));
    }
    let count = active * heads * parts;
    let mut mixed = None;
    let mut sizes = None;
    if parts > 1 {
        mixed = Some(unwritten(&queries, (count, width), DType::F32)?);
        sizes = Some(unwritten(&queries, (count, 2), DType::F32)?);
    }
    let launch = Launch::new("decode_attention", &queries)?.memory(
        &queries,
        dtype,
        active * heads * width,
    )?;
    let launch =
        launch
            .memory(keys, dtype, keys.elem_count())?
            .memory(values, dtype, keys.elem_count())?;
    let launch = launch.memory(&places, DType::U32, 2 * active)?.memory(
        &out,
        dtype,
        active * heads * width,
    )?;
    let launch = launch.optional(mixed.as_ref(), DType::F32, count * width)?;
    let launch = launch.optional(sizes.as_ref(), DType::F32, count * 2)?;
    let launch = launch.words([active, kv_heads, group, tokens, width, length])?;
    // SAFETY: `Sizes::of` bounded rows, heads and positions by the caches, and `attends` what a
    // block holds. There is a block for each key head and part.
    unsafe {
        launch
            .float((width as f64).powf(-0.5))
            .run(active * kv_heads, parts)
    }?;
    if let (Some(mixed), Some(sizes)) = (&mixed, &sizes) {
        let launch =
            Launch::new("join_parts", &queries)?.memory(mixed, DType::F32, count * width)?;
        let launch = launch.memory(sizes, DType::F32, count * 2)?.memory(
            &out,
            dtype,
            active * heads * width,
        )?;
        // SAFETY: a block for each query, which has `parts` parts in the first two.
        unsafe { launch.words([parts, width])?.run(active * heads, 1) }?;
    }
    Ok(out)
}
