// Causal attention over packed rows (ops/src/attention). A row reads the rows of its own prompt or completion up to itself, whose first one
// `first` [N] names, and of a completion the rows of its prompt. Matrices are [N, heads * width].
//
// A block takes TILE rows of one head and goes through the other rows in tiles. It holds one tile of scores at a time, in registers and
// shared memory, and stores none. Every sum goes over the rows in their order.
constexpr unsigned TILE = 64;
// Numbers of a head that a product of two tiles reads at a time.
constexpr unsigned STEP = 32;
// Distances of lines in shared memory: lines that a warp reads at a time lie in different banks.
constexpr unsigned STEP_LINE = STEP + 4;
constexpr unsigned TILE_LINE = TILE + 4;

// Rows of a block, all of one stem (a prompt with its completions), whose prompt ends at `shared`. `other`: where the stem begins, if the
// rows are queries; where the rows that read them end, if they are keys.
struct Tile {
    unsigned from, to, other, shared;
};

// A share of the queries that read a tile of keys: those from `first_reader` on that are below `tile.other`. `number`: which one of the
// shares that are added later, or ALONE.
struct Share {
    Tile tile;
    unsigned first_reader, number;
};
constexpr unsigned ALONE = 0xffffffffu;

// Where a share's sums lie: those by the tile's keys, then those by its values.
template <class T>
__device__ __forceinline__ T* share_of(T* shares, unsigned number, unsigned line) {
    return shares + static_cast<unsigned long long>(number) * 2 * TILE * line;
}

// What a block holds.
struct alignas(16) AttentionRoom {
    float staged[TILE * TILE_LINE];   // two factors of a product over STEP numbers, or one tile of TILE numbers
    float factors[TILE * TILE_LINE];  // what a tile's scores became
};
static_assert(TILE * STEP_LINE + STEP * TILE <= TILE * TILE_LINE, "both factors have room");

// A head's part of a matrix, whose rows are `line` numbers apart.
template <class T>
struct Head {
    const T* numbers;
    unsigned line, width;
    bool fours;  // its numbers can be read four at a time

    __device__ const T* at(unsigned row, unsigned column) const {
        return numbers + static_cast<unsigned long long>(row) * line + column;
    }
};

// Takes TILE rows from `from` on, of each COLUMNS numbers from `column` on, and calls f(row, column, numbers) with four of them at a time, or
// with one. Rows that are not below `end` are 0, and so is what is beyond the head's width. ALONG: neighbouring threads take numbers of one
// row, else of rows next to each other.
template <unsigned COLUMNS, bool ALONG, class T, class F>
__device__ __forceinline__ void each_of_tile(const Head<T>& head, unsigned from, unsigned end, unsigned column, F f) {
    constexpr unsigned FOURS = COLUMNS / 4, ROUNDS = TILE * FOURS / THREADS;
    if (head.fours) {
        #pragma unroll
        for (unsigned round = 0; round < ROUNDS; ++round) {
            const unsigned i = round * THREADS + threadIdx.x, row = ALONG ? i / FOURS : i % TILE, c = (ALONG ? i % FOURS : i / TILE) * 4;
            const bool is_there = from + row < end && column + c < head.width;
            f(row, c, is_there ? take<4>(head.at(from + row, column + c)) : Few<4>{});
        }
    } else {
        #pragma unroll 1
        for (unsigned i = threadIdx.x; i < TILE * COLUMNS; i += THREADS) {
            const unsigned row = ALONG ? i / COLUMNS : i % TILE, c = ALONG ? i % COLUMNS : i / TILE;
            const bool is_there = from + row < end && column + c < head.width;
            f(row, c, is_there ? take<1>(head.at(from + row, column + c)) : Few<1>{});
        }
    }
}

// A thread's 4 x 4 of a tile: lines line_of_thread().. and columns column_of_thread()... The 16 threads of a line are half a warp.
struct Sums {
    float at[4][4];
};
__device__ __forceinline__ unsigned line_of_thread() { return threadIdx.x / 16 * 4; }
__device__ __forceinline__ unsigned column_of_thread() { return threadIdx.x % 16 * 4; }

template <class Combine>
__device__ __forceinline__ float over_line(float value, Combine combine) {
    for (unsigned step = 8; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(ALL_LANES, value, step));
    return value;
}

// A tile's rows as lines of shared memory.
template <unsigned LINE>
struct Lines {
    float* to;
    template <unsigned N>
    __device__ void operator()(unsigned row, unsigned c, const Few<N>& x) const { put(to + row * LINE + c, x); }
};

// A tile's rows as columns.
struct Columns {
    float* to;
    template <unsigned N>
    __device__ void operator()(unsigned row, unsigned c, const Few<N>& x) const {
        for (unsigned n = 0; n < N; ++n) to[(c + n) * TILE + row] = x.at[n];
    }
};

// sums += left right, for `left` [TILE, STEPS] with lines of LINE numbers, and `right` [STEPS, TILE].
template <unsigned STEPS, unsigned LINE>
__device__ __forceinline__ void multiply(Sums& sums, const float* left, const float* right) {
    left += line_of_thread() * LINE;
    right += column_of_thread();
    #pragma unroll 1
    for (unsigned k = 0; k < STEPS; k += 4) {
        Few<4> a[4];
        #pragma unroll
        for (unsigned i = 0; i < 4; ++i) a[i] = take<4>(left + i * LINE + k);
        #pragma unroll
        for (unsigned n = 0; n < 4; ++n) {
            const Few<4> b = take<4>(right + (k + n) * TILE);
            #pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                for (unsigned j = 0; j < 4; ++j) sums.at[i][j] = fmaf(a[i].at[n], b.at[j], sums.at[i][j]);
            }
        }
    }
}

// left right^T, for TILE rows of each.
template <class T>
__device__ Sums scores_of(AttentionRoom& room, const Head<T>& left, unsigned left_from, unsigned left_end, const Head<T>& right,
                          unsigned right_from, unsigned right_end) {
    Sums sums = {};
    float* transposed = room.staged + TILE * STEP_LINE;
    for (unsigned column = 0; column < left.width; column += STEP) {
        __syncthreads();
        each_of_tile<STEP, true>(left, left_from, left_end, column, Lines<STEP_LINE>{room.staged});
        each_of_tile<STEP, false>(right, right_from, right_end, column, Columns{transposed});
        __syncthreads();
        multiply<STEP, STEP_LINE>(sums, room.staged, transposed);
    }
    return sums;
}

// sums += factors right, for each of the PARTS of TILE numbers of a head.
template <unsigned PARTS, class T>
__device__ void mix(AttentionRoom& room, Sums (&sums)[PARTS], const Head<T>& right, unsigned from, unsigned end) {
    #pragma unroll
    for (unsigned part = 0; part < PARTS; ++part) {
        __syncthreads();
        each_of_tile<TILE, true>(right, from, end, part * TILE, Lines<TILE>{room.staged});
        __syncthreads();
        multiply<TILE, TILE_LINE>(sums[part], room.factors, room.staged);
    }
}

// Keeps line i of a thread's factors.
__device__ __forceinline__ void keep(AttentionRoom& room, unsigned i, const Few<4>& line) {
    put<4>(room.factors + (line_of_thread() + i) * TILE_LINE + column_of_thread(), line);
}

// Writes the sums, times the factor of each line, to the rows from..to of a head.
template <unsigned PARTS, class T>
__device__ void write(T* to, const Sums (&sums)[PARTS], unsigned from, unsigned end, unsigned line, unsigned width, bool fours,
                      const float (&factor)[4]) {
    #pragma unroll
    for (unsigned part = 0; part < PARTS; ++part) {
        const unsigned column = part * TILE + column_of_thread();
        #pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
            const unsigned row = from + line_of_thread() + i;
            if (row >= end) continue;
            T* out = to + static_cast<unsigned long long>(row) * line + column;
            Few<4> x;
            for (unsigned j = 0; j < 4; ++j) x.at[j] = sums[part].at[i][j] * factor[i];
            if (fours && column < width) {
                put<4>(out, x);
            } else {
                for (unsigned j = 0; j < 4 && column + j < width; ++j) out[j] = narrowed<T>(x.at[j]);
            }
        }
    }
}

// True if `query` reads `key`, both of one stem. Mirrors `reads` of ops/src/attention/packing.rs.
__device__ __forceinline__ bool reads(unsigned query, unsigned first, unsigned key, unsigned shared) {
    return key <= query && (key >= first || key < shared);
}

// Calls f(from, to) for each tile of the keys that queries read: those of the prompt, then their own.
template <class F>
__device__ __forceinline__ void each_tile_of_keys(const Tile& tile, const unsigned* first, F f) {
    unsigned end = min(tile.shared, tile.to), from = tile.other;
    #pragma unroll 1
    while (true) {
        if (from >= end) {
            if (end == tile.to) return;
            from = max(end, first[tile.from]);
            end = tile.to;
        }
        f(from, end);
        from += TILE;
    }
}

// Of a thread's four lines: the largest score, the sum of weights relative to it, and that of the products with other numbers.
struct Running {
    float largest[4], sum[4], by_other[4];
};

// Takes in a tile of scores, which become weights. `by` are other numbers of the same keys, or null. Returns the factors of what was summed so far.
__device__ __forceinline__ Few<4> take_in(Running& lines, Sums& scores, const bool (&valid)[4][4], const Sums* by, float scale) {
    Few<4> factors;
    #pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
        float largest = negative_infinity(), sum = 0.0f, by_other = 0.0f;
        for (unsigned j = 0; j < 4; ++j) {
            if (valid[i][j]) largest = larger(largest, scores.at[i][j]);
        }
        largest = larger(lines.largest[i], over_line(largest, Largest()));
        for (unsigned j = 0; j < 4; ++j) {
            scores.at[i][j] = valid[i][j] ? expf(scale * (scores.at[i][j] - largest)) : 0.0f;
            sum += scores.at[i][j];
            if (by) by_other = fmaf(scores.at[i][j], by->at[i][j], by_other);
        }
        // Without a key so far, both are -infinity.
        const float factor = lines.largest[i] == largest ? 1.0f : expf(scale * (lines.largest[i] - largest));
        lines.largest[i] = largest;
        lines.sum[i] = fmaf(lines.sum[i], factor, over_line(sum, Sum()));
        if (by) lines.by_other[i] = fmaf(lines.by_other[i], factor, over_line(by_other, Sum()));
        factors.at[i] = factor;
    }
    return factors;
}

// A thread's queries, and which of them read which keys.
struct Readers {
    unsigned query[4], first[4], shared;

    __device__ Readers(const Tile& tile, const unsigned* firsts) : shared(tile.shared) {
        for (unsigned i = 0; i < 4; ++i) {
            query[i] = tile.from + line_of_thread() + i;
            first[i] = query[i] < tile.to ? firsts[query[i]] : 0;
        }
    }
    // Which of the thread's keys, the first of them below `keys`, its queries below `queries` read.
    __device__ void all(bool (&valid)[4][4], unsigned from, unsigned keys, unsigned queries) const {
        for (unsigned i = 0; i < 4; ++i) {
            for (unsigned j = 0; j < 4; ++j) {
                const unsigned key = from + column_of_thread() + j;
                valid[i][j] = key < keys && query[i] < queries && reads(query[i], first[i], key, shared);
            }
        }
    }
};

// Sizes of a launch: query heads, query heads that share a key head, numbers of a head, and distances of the rows of queries, keys and values.
struct HeadGroups {
    unsigned heads, group, width, queries, keys, values;
};

// Block tile * heads + head: the mixed values of its queries, to `out` [N, heads * width].
template <unsigned PARTS, class T>
__device__ void attention(AttentionRoom& room, const T* queries, const T* keys, const T* values, const unsigned* first, const Tile* tiles,
                          T* out, HeadGroups sizes, bool fours, float scale) {
    const Tile tile = tiles[blockIdx.x / sizes.heads];
    const unsigned head = blockIdx.x % sizes.heads, kv = head / sizes.group, width = sizes.width;
    const Head<T> query = {queries + head * width, sizes.queries, width, fours};
    const Head<T> key = {keys + kv * width, sizes.keys, width, fours}, value = {values + kv * width, sizes.values, width, fours};
    const Readers readers(tile, first);
    Running lines = {{negative_infinity(), negative_infinity(), negative_infinity(), negative_infinity()}, {}, {}};
    Sums mixed[PARTS] = {};
    each_tile_of_keys(tile, first, [&](unsigned from, unsigned to) {
        Sums weights = scores_of(room, query, tile.from, tile.to, key, from, to);
        bool valid[4][4];
        readers.all(valid, from, to, tile.to);
        const Few<4> factors = take_in(lines, weights, valid, nullptr, scale);
        #pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
            keep(room, i, {{weights.at[i][0], weights.at[i][1], weights.at[i][2], weights.at[i][3]}});
            for (unsigned part = 0; part < PARTS; ++part) {
                for (unsigned j = 0; j < 4; ++j) mixed[part].at[i][j] *= factors.at[i];
            }
        }
        mix(room, mixed, value, from, to);
    });
    float inverse[4];
    for (unsigned i = 0; i < 4; ++i) inverse[i] = 1.0f / lines.sum[i];
    write(out + head * width, mixed, tile.from, tile.to, sizes.heads * width, width, fours, inverse);
}

// Block tile * heads + head: the gradient by its queries, from that of the mixed values, `grad` [N, heads * width]. `stats` [3, heads, N] gets
// of each query its largest score, the inverse of its sum of weights, and the mean of the gradient by its weights.
template <unsigned PARTS, class T>
__device__ void attention_by_queries(AttentionRoom& room, const T* queries, const T* keys, const T* values, const T* grad,
                                     const unsigned* first, const Tile* tiles, T* out, float* stats, HeadGroups sizes, unsigned rows,
                                     bool fours, float scale) {
    const Tile tile = tiles[blockIdx.x / sizes.heads];
    const unsigned head = blockIdx.x % sizes.heads, kv = head / sizes.group, width = sizes.width;
    const Head<T> query = {queries + head * width, sizes.queries, width, fours};
    const Head<T> key = {keys + kv * width, sizes.keys, width, fours}, value = {values + kv * width, sizes.values, width, fours};
    const Head<T> by_mixed = {grad + head * width, sizes.heads * width, width, fours};
    const Readers readers(tile, first);
    Running lines = {{negative_infinity(), negative_infinity(), negative_infinity(), negative_infinity()}, {}, {}};
    float inverse[4] = {}, mean[4] = {};
    Sums by_query[PARTS] = {};
    // First what a query has in common for all keys, then the gradient.
    #pragma unroll 1
    for (unsigned pass = 0; pass < 2; ++pass) {
        each_tile_of_keys(tile, first, [&](unsigned from, unsigned to) {
            Sums scores = scores_of(room, query, tile.from, tile.to, key, from, to);
            const Sums by_probs = scores_of(room, by_mixed, tile.from, tile.to, value, from, to);
            bool valid[4][4];
            readers.all(valid, from, to, tile.to);
            if (pass == 0) {
                take_in(lines, scores, valid, &by_probs, scale);
                return;
            }
            #pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                Few<4> by_scores;
                for (unsigned j = 0; j < 4; ++j) {
                    const float prob = expf(scale * (scores.at[i][j] - lines.largest[i])) * inverse[i];
                    by_scores.at[j] = valid[i][j] ? scale * prob * (by_probs.at[i][j] - mean[i]) : 0.0f;
                }
                keep(room, i, by_scores);
            }
            mix(room, by_query, key, from, to);
        });
        if (pass == 1) break;
        for (unsigned i = 0; i < 4; ++i) {
            inverse[i] = 1.0f / lines.sum[i];
            mean[i] = lines.by_other[i] * inverse[i];
            if (column_of_thread() == 0 && readers.query[i] < tile.to) {
                const unsigned long long all = static_cast<unsigned long long>(sizes.heads) * rows;
                float* own = stats + static_cast<unsigned long long>(head) * rows + readers.query[i];
                own[0] = lines.largest[i];
                own[all] = inverse[i];
                own[2 * all] = mean[i];
            }
        }
    }
    const float once[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    write(out + head * width, by_query, tile.from, tile.to, sizes.heads * width, width, fours, once);
}

// Block share * key heads + key head: the gradients by its keys and values, [N, key heads * width] each, over the share's queries, those of
// the first query head first. Where a tile has several shares, they go to `shares`, [shares, 2, TILE, key heads * width].
template <unsigned PARTS, class T>
__device__ void attention_by_keys(AttentionRoom& room, const T* queries, const T* keys, const T* values, const T* grad,
                                  const unsigned* first, const Share* all_shares, const float* stats, T* d_keys, T* d_values, float* shares,
                                  HeadGroups sizes, unsigned rows, bool fours, float scale) {
    const unsigned kv_heads = sizes.heads / sizes.group, width = sizes.width, kv = blockIdx.x % kv_heads;
    const Share share = all_shares[blockIdx.x / kv_heads];
    const Tile tile = share.tile;
    const Head<T> key = {keys + kv * width, sizes.keys, width, fours}, value = {values + kv * width, sizes.values, width, fours};
    const unsigned long long all = static_cast<unsigned long long>(sizes.heads) * rows;
    Sums by_key[PARTS] = {}, by_value[PARTS] = {};
    for (unsigned head = kv * sizes.group; head < (kv + 1) * sizes.group; ++head) {
        const Head<T> query = {queries + head * width, sizes.queries, width, fours};
        const Head<T> by_mixed = {grad + head * width, sizes.heads * width, width, fours};
        const float* own = stats + static_cast<unsigned long long>(head) * rows;
        for (unsigned from = share.first_reader; from < tile.other; from += TILE) {
            // Both with a line for each key, and a column for each query.
            Sums probs = scores_of(room, key, tile.from, tile.to, query, from, tile.other);
            Sums by_scores = scores_of(room, value, tile.from, tile.to, by_mixed, from, tile.other);
            #pragma unroll
            for (unsigned j = 0; j < 4; ++j) {
                const unsigned reader = from + column_of_thread() + j;
                const bool is_there = reader < tile.other;
                const unsigned start = is_there ? first[reader] : 0;
                const float largest = is_there ? own[reader] : 0.0f, inverse = is_there ? own[all + reader] : 0.0f;
                const float mean = is_there ? own[2 * all + reader] : 0.0f;
                for (unsigned i = 0; i < 4; ++i) {
                    const unsigned row = tile.from + line_of_thread() + i;
                    const bool valid = is_there && row < tile.to && reads(reader, start, row, tile.shared);
                    const float prob = valid ? expf(scale * (probs.at[i][j] - largest)) * inverse : 0.0f;
                    by_scores.at[i][j] = valid ? scale * prob * (by_scores.at[i][j] - mean) : 0.0f;
                    probs.at[i][j] = prob;
                }
            }
            for (unsigned i = 0; i < 4; ++i) keep(room, i, {{probs.at[i][0], probs.at[i][1], probs.at[i][2], probs.at[i][3]}});
            mix(room, by_value, by_mixed, from, tile.other);
            __syncthreads();
            for (unsigned i = 0; i < 4; ++i) {
                keep(room, i, {{by_scores.at[i][0], by_scores.at[i][1], by_scores.at[i][2], by_scores.at[i][3]}});
            }
            mix(room, by_key, query, from, tile.other);
        }
    }
    const float once[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    const unsigned line = kv_heads * width;
    if (share.number == ALONE) {
        write(d_keys + kv * width, by_key, tile.from, tile.to, line, width, fours, once);
        write(d_values + kv * width, by_value, tile.from, tile.to, line, width, fours, once);
    } else {
        float* own = share_of(shares, share.number, line) + kv * width;
        write(own, by_key, 0, tile.to - tile.from, line, width, fours, once);
        write(own + TILE * line, by_value, 0, tile.to - tile.from, line, width, fours, once);
    }
}

// For heads of up to TILE * parts numbers. attention_bf16.cuh has most heads of bf16.
#define ATTENTION_KERNELS(suffix, parts, T)                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_##suffix(                                                           \
        const T* queries, const T* keys, const T* values, const unsigned* first, const Tile* tiles, T* out, unsigned line_q,            \
        unsigned line_k, unsigned line_v, unsigned heads, unsigned group, unsigned width, float scale) {                                \
        __shared__ AttentionRoom room;                                                                                                  \
        const bool fours = in_fours(width, queries, keys, values, out) && (line_q | line_k | line_v) % 4 == 0;                          \
        attention<parts>(room, queries, keys, values, first, tiles, out, {heads, group, width, line_q, line_k, line_v}, fours, scale);  \
    }                                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_by_queries_##suffix(                                                \
        const T* queries, const T* keys, const T* values, const T* grad, const unsigned* first, const Tile* tiles, T* out,              \
        float* stats, unsigned line_q, unsigned line_k, unsigned line_v, unsigned heads, unsigned group, unsigned width, unsigned rows, \
        float scale) {                                                                                                                  \
        __shared__ AttentionRoom room;                                                                                                  \
        const bool fours = in_fours(width, queries, keys, values, grad, out) && (line_q | line_k | line_v) % 4 == 0;                    \
        attention_by_queries<parts>(room, queries, keys, values, grad, first, tiles, out, stats,                                        \
                                    {heads, group, width, line_q, line_k, line_v}, rows, fours, scale);                                 \
    }                                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_by_keys_##suffix(                                                   \
        const T* queries, const T* keys, const T* values, const T* grad, const unsigned* first, const Share* all_shares,                \
        const float* stats, T* d_keys, T* d_values, float* shares, unsigned line_q, unsigned line_k, unsigned line_v, unsigned heads,   \
        unsigned group, unsigned width, unsigned rows, float scale) {                                                                   \
        __shared__ AttentionRoom room;                                                                                                  \
        const bool fours = in_fours(width, queries, keys, values, grad, d_keys, d_values) && (line_q | line_k | line_v) % 4 == 0;       \
        attention_by_keys<parts>(room, queries, keys, values, grad, first, all_shares, stats, d_keys, d_values, shares,                 \
                                 {heads, group, width, line_q, line_k, line_v}, rows, fours, scale);                                    \
    }
ATTENTION_KERNELS(64_f32, 1, float)
ATTENTION_KERNELS(128_f32, 2, float)
ATTENTION_KERNELS(256_f32, 4, float)
ATTENTION_KERNELS(256_bf16, 4, bf16)

// Tiles of keys that have several shares: the first row, the end, the first share, and their number.
struct Joined {
    unsigned from, to, first, count;
};

// Block (tile, 0 or 1): the sums of the tile's shares by its keys, or by its values, in the order of the shares.
template <class T>
__device__ void join_shares(const Joined* tiles, const float* shares, T* d_keys, T* d_values, unsigned line) {
    const Joined tile = tiles[blockIdx.x];
    T* out = (blockIdx.y == 0 ? d_keys : d_values) + static_cast<unsigned long long>(tile.from) * line;
    for (unsigned i = threadIdx.x; i < (tile.to - tile.from) * line; i += THREADS) {
        float sum = 0.0f;
        for (unsigned n = 0; n < tile.count; ++n) sum += share_of(shares, tile.first + n, line)[blockIdx.y * TILE * line + i];
        out[i] = narrowed<T>(sum);
    }
}
extern "C" __global__ void __launch_bounds__(THREADS)
    join_shares_f32(const Joined* tiles, const float* shares, float* d_keys, float* d_values, unsigned line) {
    join_shares(tiles, shares, d_keys, d_values, line);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    join_shares_bf16(const Joined* tiles, const float* shares, bf16* d_keys, bf16* d_values, unsigned line) {
    join_shares(tiles, shares, d_keys, d_values, line);
}
