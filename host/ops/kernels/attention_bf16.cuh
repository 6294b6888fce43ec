// The kernels of attention.cuh by tensor cores, for bf16 and heads of up to WIDTH numbers, 64 or 128. Rows begin at multiples of 16 bytes.
//
// A block has four warps, each with 16 lines of a tile. Sums are f32. Weights, and gradients by scores, are rounded to bf16 before they are
// multiplied.
constexpr unsigned MATRIX_THREADS = 128;
// Queries that are taken at a time beside a tile of keys: more would not fit shared memory.
constexpr unsigned FEW_QUERIES = 32;

// Takes ROWS rows of a head from `from` on. Rows that are not below `end` are 0, and so is what is beyond the head's width.
template <unsigned ROWS, unsigned WIDTH>
__device__ __forceinline__ void stage(const Rows<WIDTH>& to, const Head<bf16>& head, unsigned from, unsigned end) {
    constexpr unsigned RUNS = WIDTH / 8;
    #pragma unroll
    for (unsigned i = 0; i < ROWS * RUNS; i += MATRIX_THREADS) {
        const unsigned row = (i + threadIdx.x) / RUNS, run = (i + threadIdx.x) % RUNS;
        const bool is_there = from + row < end && run * 8 < head.width;
        uint4 x = {0, 0, 0, 0};
        if (is_there) x = *reinterpret_cast<const uint4*>(head.at(from + row, run * 8));
        *reinterpret_cast<uint4*>(to.at(row, run)) = x;
    }
}

// The first of a warp's lines, and the line and column of a thread's first sum.
__device__ __forceinline__ unsigned line_of_warp() { return threadIdx.x / 32 * 16; }
__device__ __forceinline__ unsigned line_in_piece() { return threadIdx.x % 32 / 4; }
__device__ __forceinline__ unsigned column_in_piece() { return threadIdx.x % 4 * 2; }

// The 16 rows of a warp, to be multiplied by several tiles.
template <unsigned WIDTH>
struct Held {
    unsigned at[WIDTH / 16][4];

    __device__ explicit Held(const Rows<WIDTH>& rows) {
        #pragma unroll
        for (unsigned k = 0; k < WIDTH; k += 16) rows.left(at[k / 16], line_of_warp(), k);
    }
    __device__ void operator()(unsigned (&to)[4], unsigned k) const {
        #pragma unroll
        for (unsigned i = 0; i < 4; ++i) to[i] = at[k / 16][i];
    }
};

// The same, read whenever they are multiplied.
template <unsigned WIDTH>
struct Read {
    Rows<WIDTH> rows;
    __device__ void operator()(unsigned (&to)[4], unsigned k) const { rows.left(to, line_of_warp(), k); }
};

// sums = left right^T.
template <unsigned WIDTH, unsigned COLUMNS, class Left>
__device__ __forceinline__ void multiply_rows(Piece (&sums)[COLUMNS], const Left& left, const Rows<WIDTH>& right) {
    #pragma unroll
    for (unsigned n = 0; n < COLUMNS; ++n) sums[n] = {};
    #pragma unroll
    for (unsigned k = 0; k < WIDTH; k += 16) {
        unsigned a[4], b[4];
        left(a, k);
        #pragma unroll
        for (unsigned n = 0; n < COLUMNS; n += 2) {
            right.by_rows(b, 8 * n, k);
            multiply_16_8_16(sums[n].at, a, b[0], b[1]);
            multiply_16_8_16(sums[n + 1].at, a, b[2], b[3]);
        }
    }
}

// sums += factors right, for as many rows of `right` as factors have columns.
template <unsigned WIDTH, unsigned COUNT>
__device__ __forceinline__ void mix_rows(Piece (&sums)[WIDTH / 8], const Piece (&factors)[COUNT], const Rows<WIDTH>& right) {
    #pragma unroll
    for (unsigned k = 0; k < COUNT; k += 2) {
        const float(&low)[4] = factors[k].at, (&high)[4] = factors[k + 1].at;
        const unsigned a[4] = {both(low[0], low[1]), both(low[2], low[3]), both(high[0], high[1]), both(high[2], high[3])};
        #pragma unroll
        for (unsigned n = 0; n < WIDTH / 8; n += 2) {
            unsigned b[4];
            right.by_columns(b, 8 * k, 8 * n);
            multiply_16_8_16(sums[n].at, a, b[0], b[1]);
            multiply_16_8_16(sums[n + 1].at, a, b[2], b[3]);
        }
    }
}

// Two numbers that follow each other.
__device__ __forceinline__ void put_two(bf16* to, float low, float high) { *reinterpret_cast<unsigned*>(to) = both(low, high); }
__device__ __forceinline__ void put_two(float* to, float low, float high) {
    *reinterpret_cast<uint2*>(to) = {__float_as_uint(low), __float_as_uint(high)};
}

// Writes a warp's sums, times the factors of a thread's two lines, to the rows of a head from `from` on that are below `end`.
template <class T, unsigned COUNT>
__device__ __forceinline__ void write_pieces(T* to, const Piece (&sums)[COUNT], unsigned from, unsigned end, unsigned line, unsigned width,
                                             const float (&factor)[2]) {
    #pragma unroll
    for (unsigned i = 0; i < 2; ++i) {
        const unsigned row = from + line_of_warp() + line_in_piece() + 8 * i;
        if (row >= end) continue;
        T* own = to + static_cast<unsigned long long>(row) * line;
        #pragma unroll
        for (unsigned n = 0; n < COUNT; ++n) {
            const unsigned column = 8 * n + column_in_piece();
            if (column < width) put_two(own + column, sums[n].at[2 * i] * factor[i], sums[n].at[2 * i + 1] * factor[i]);
        }
    }
}

// A thread's two queries, and which keys they read.
struct TwoReaders {
    unsigned query[2], first[2], shared;
    bool is_there[2];

    __device__ TwoReaders(const Tile& tile, const unsigned* firsts) : shared(tile.shared) {
        for (unsigned i = 0; i < 2; ++i) {
            query[i] = tile.from + line_of_warp() + line_in_piece() + 8 * i;
            is_there[i] = query[i] < tile.to;
            first[i] = is_there[i] ? firsts[query[i]] : 0;
        }
    }
    __device__ bool read(unsigned i, unsigned key, unsigned end) const {
        return key < end && is_there[i] && reads(query[i], first[i], key, shared);
    }
};

// Combines the numbers of the four threads that have a line.
template <class Combine>
__device__ __forceinline__ float over_four(float value, Combine combine) {
    for (unsigned step = 2; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(ALL_LANES, value, step));
    return value;
}

// As `Running`, of a thread's two lines.
struct TwoRunning {
    float largest[2], sum[2], by_other[2];

    // As `take_in`, for keys from `from` on that are below `end`. Returns in `factor` what earlier sums are to be multiplied by.
    template <unsigned COUNT>
    __device__ void take_in(Piece (&scores)[COUNT], const Piece* by, const TwoReaders& readers, unsigned from, unsigned end, float scale,
                            float (&factor)[2]) {
        #pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
            float most = negative_infinity(), total = 0.0f, other = 0.0f;
            #pragma unroll
            for (unsigned n = 0; n < 2 * COUNT; ++n) {
                float& score = scores[n / 2].at[2 * i + n % 2];
                if (!readers.read(i, from + 8 * (n / 2) + column_in_piece() + n % 2, end)) score = negative_infinity();
                most = larger(most, score);
            }
            most = larger(largest[i], over_four(most, Largest()));
            #pragma unroll
            for (unsigned n = 0; n < 2 * COUNT; ++n) {
                float& score = scores[n / 2].at[2 * i + n % 2];
                // Without a key so far, both are -infinity.
                score = score == negative_infinity() ? 0.0f : expf(scale * (score - most));
                total += score;
                if (by) other = fmaf(score, by[n / 2].at[2 * i + n % 2], other);
            }
            factor[i] = largest[i] == most ? 1.0f : expf(scale * (largest[i] - most));
            largest[i] = most;
            sum[i] = fmaf(sum[i], factor[i], over_four(total, Sum()));
            if (by) by_other[i] = fmaf(by_other[i], factor[i], over_four(other, Sum()));
        }
    }
};

// As `attention`. The room holds two tiles.
template <unsigned WIDTH>
__device__ void attention_bf16(bf16* room, const bf16* queries, const bf16* keys, const bf16* values, const unsigned* first,
                               const Tile* tiles, bf16* out, HeadGroups sizes, float scale) {
    const Tile tile = tiles[blockIdx.x / sizes.heads];
    const unsigned head = blockIdx.x % sizes.heads, kv = head / sizes.group, width = sizes.width;
    const Head<bf16> query = {queries + head * width, sizes.queries, width, true};
    const Head<bf16> key = {keys + kv * width, sizes.keys, width, true}, value = {values + kv * width, sizes.values, width, true};
    const Rows<WIDTH> key_rows = {room}, value_rows = {room + TILE * WIDTH};
    const TwoReaders readers(tile, first);
    stage<TILE>(key_rows, query, tile.from, tile.to);
    __syncthreads();
    const Held<WIDTH> held(key_rows);
    TwoRunning lines = {{negative_infinity(), negative_infinity()}, {}, {}};
    Piece mixed[WIDTH / 8] = {};
    each_tile_of_keys(tile, first, [&](unsigned from, unsigned to) {
        __syncthreads();
        stage<TILE>(key_rows, key, from, to);
        stage<TILE>(value_rows, value, from, to);
        __syncthreads();
        Piece weights[TILE / 8];
        float factor[2];
        multiply_rows(weights, held, key_rows);
        lines.take_in(weights, nullptr, readers, from, to, scale, factor);
        #pragma unroll
        for (unsigned n = 0; n < WIDTH / 8; ++n) {
            for (unsigned i = 0; i < 4; ++i) mixed[n].at[i] *= factor[i / 2];
        }
        mix_rows<WIDTH>(mixed, weights, value_rows);
    });
    const float inverse[2] = {1.0f / lines.sum[0], 1.0f / lines.sum[1]};
    write_pieces(out + head * width, mixed, tile.from, tile.to, sizes.heads * width, width, inverse);
}

// As `attention_by_queries`. The room holds three tiles.
template <unsigned WIDTH>
__device__ void attention_by_queries_bf16(bf16* room, const bf16* queries, const bf16* keys, const bf16* values, const bf16* grad,
                                          const unsigned* first, const Tile* tiles, bf16* out, float* stats, HeadGroups sizes, unsigned rows,
                                          float scale) {
    const Tile tile = tiles[blockIdx.x / sizes.heads];
    const unsigned head = blockIdx.x % sizes.heads, kv = head / sizes.group, width = sizes.width;
    const Head<bf16> query = {queries + head * width, sizes.queries, width, true};
    const Head<bf16> key = {keys + kv * width, sizes.keys, width, true}, value = {values + kv * width, sizes.values, width, true};
    const Head<bf16> by_mixed = {grad + head * width, sizes.heads * width, width, true};
    const Rows<WIDTH> key_rows = {room}, value_rows = {room + TILE * WIDTH}, grad_rows = {room + 2 * TILE * WIDTH};
    const TwoReaders readers(tile, first);
    stage<TILE>(key_rows, query, tile.from, tile.to);
    stage<TILE>(grad_rows, by_mixed, tile.from, tile.to);
    __syncthreads();
    const Held<WIDTH> held(key_rows);
    TwoRunning lines = {{negative_infinity(), negative_infinity()}, {}, {}};
    float inverse[2] = {}, mean[2] = {};
    Piece by_query[WIDTH / 8] = {};
    // First what a query has in common for all keys, then the gradient.
    #pragma unroll 1
    for (unsigned pass = 0; pass < 2; ++pass) {
        each_tile_of_keys(tile, first, [&](unsigned from, unsigned to) {
            __syncthreads();
            stage<TILE>(key_rows, key, from, to);
            stage<TILE>(value_rows, value, from, to);
            __syncthreads();
            Piece scores[TILE / 8], by_probs[TILE / 8];
            multiply_rows(scores, held, key_rows);
            multiply_rows(by_probs, Read<WIDTH>{grad_rows}, value_rows);
            if (pass == 0) {
                float factor[2];
                lines.take_in(scores, by_probs, readers, from, to, scale, factor);
                return;
            }
            #pragma unroll
            for (unsigned n = 0; n < TILE / 8; ++n) {
                for (unsigned i = 0; i < 4; ++i) {
                    const bool valid = readers.read(i / 2, from + 8 * n + column_in_piece() + i % 2, to);
                    const float prob = expf(scale * (scores[n].at[i] - lines.largest[i / 2])) * inverse[i / 2];
                    scores[n].at[i] = valid ? scale * prob * (by_probs[n].at[i] - mean[i / 2]) : 0.0f;
                }
            }
            mix_rows<WIDTH>(by_query, scores, key_rows);
        });
        if (pass == 1) break;
        for (unsigned i = 0; i < 2; ++i) {
            inverse[i] = 1.0f / lines.sum[i];
            mean[i] = lines.by_other[i] * inverse[i];
            if (column_in_piece() == 0 && readers.is_there[i]) {
                const unsigned long long all = static_cast<unsigned long long>(sizes.heads) * rows;
                float* own = stats + static_cast<unsigned long long>(head) * rows + readers.query[i];
                own[0] = lines.largest[i];
                own[all] = inverse[i];
                own[2 * all] = mean[i];
            }
        }
    }
    const float once[2] = {1.0f, 1.0f};
    write_pieces(out + head * width, by_query, tile.from, tile.to, sizes.heads * width, width, once);
}

// As `attention_by_keys`. The room holds three tiles.
template <unsigned WIDTH>
__device__ void attention_by_keys_bf16(bf16* room, const bf16* queries, const bf16* keys, const bf16* values, const bf16* grad,
                                       const unsigned* first, const Share* all_shares, const float* stats, bf16* d_keys, bf16* d_values,
                                       float* shares, HeadGroups sizes, unsigned rows, float scale) {
    const unsigned kv_heads = sizes.heads / sizes.group, width = sizes.width, kv = blockIdx.x % kv_heads;
    const Share share = all_shares[blockIdx.x / kv_heads];
    const Tile tile = share.tile;
    const Head<bf16> key = {keys + kv * width, sizes.keys, width, true}, value = {values + kv * width, sizes.values, width, true};
    const Rows<WIDTH> key_rows = {room}, value_rows = {room + TILE * WIDTH}, query_rows = {room + 2 * TILE * WIDTH};
    const Rows<WIDTH> grad_rows = {query_rows.numbers + FEW_QUERIES * WIDTH};
    const unsigned long long all = static_cast<unsigned long long>(sizes.heads) * rows;
    stage<TILE>(key_rows, key, tile.from, tile.to);
    stage<TILE>(value_rows, value, tile.from, tile.to);
    Piece by_key[WIDTH / 8] = {}, by_value[WIDTH / 8] = {};
    #pragma unroll 1
    for (unsigned head = kv * sizes.group; head < (kv + 1) * sizes.group; ++head) {
        const Head<bf16> query = {queries + head * width, sizes.queries, width, true};
        const Head<bf16> by_mixed = {grad + head * width, sizes.heads * width, width, true};
        const float* own = stats + static_cast<unsigned long long>(head) * rows;
        #pragma unroll 1
        for (unsigned from = share.first_reader; from < tile.other; from += FEW_QUERIES) {
            __syncthreads();
            stage<FEW_QUERIES>(query_rows, query, from, tile.other);
            stage<FEW_QUERIES>(grad_rows, by_mixed, from, tile.other);
            __syncthreads();
            // Both with a line for each key, and a column for each query.
            Piece probs[FEW_QUERIES / 8], by_scores[FEW_QUERIES / 8];
            multiply_rows(probs, Read<WIDTH>{key_rows}, query_rows);
            multiply_rows(by_scores, Read<WIDTH>{value_rows}, grad_rows);
            #pragma unroll
            for (unsigned n = 0; n < FEW_QUERIES / 8; ++n) {
                for (unsigned j = 0; j < 2; ++j) {
                    const unsigned reader = from + 8 * n + column_in_piece() + j;
                    const bool is_there = reader < tile.other;
                    const unsigned start = is_there ? first[reader] : 0;
                    const float largest = is_there ? own[reader] : 0.0f, inverse = is_there ? own[all + reader] : 0.0f;
                    const float mean = is_there ? own[2 * all + reader] : 0.0f;
                    for (unsigned i = 0; i < 2; ++i) {
                        const unsigned row = tile.from + line_of_warp() + line_in_piece() + 8 * i;
                        const bool valid = is_there && row < tile.to && reads(reader, start, row, tile.shared);
                        float& score = probs[n].at[2 * i + j];
                        float& by_score = by_scores[n].at[2 * i + j];
                        score = valid ? expf(scale * (score - largest)) * inverse : 0.0f;
                        by_score = valid ? scale * score * (by_score - mean) : 0.0f;
                    }
                }
            }
            mix_rows<WIDTH>(by_value, probs, grad_rows);
            mix_rows<WIDTH>(by_key, by_scores, query_rows);
        }
    }
    const float once[2] = {1.0f, 1.0f};
    const unsigned line = kv_heads * width;
    if (share.number == ALONE) {
        write_pieces(d_keys + kv * width, by_key, tile.from, tile.to, line, width, once);
        write_pieces(d_values + kv * width, by_value, tile.from, tile.to, line, width, once);
    } else {
        float* own = share_of(shares, share.number, line) + kv * width;
        write_pieces(own, by_key, 0, tile.to - tile.from, line, width, once);
        write_pieces(own + TILE * line, by_value, 0, tile.to - tile.from, line, width, once);
    }
}

// What a block holds.
template <unsigned COUNT>
struct alignas(16) MatrixRoom {
    bf16 numbers[COUNT];
};

#define MATRIX_ATTENTION_KERNELS(size)                                                                                                         \
    extern "C" __global__ void __launch_bounds__(MATRIX_THREADS) attention_##size##_matrix_bf16(                                               \
        const bf16* queries, const bf16* keys, const bf16* values, const unsigned* first, const Tile* tiles, bf16* out, unsigned line_q,       \
        unsigned line_k, unsigned line_v, unsigned heads, unsigned group, unsigned width, float scale) {                                       \
        __shared__ MatrixRoom<2 * TILE * size> room;                                                                                           \
        attention_bf16<size>(room.numbers, queries, keys, values, first, tiles, out, {heads, group, width, line_q, line_k, line_v}, scale);    \
    }                                                                                                                                          \
    extern "C" __global__ void __launch_bounds__(MATRIX_THREADS) attention_by_queries_##size##_matrix_bf16(                                    \
        const bf16* queries, const bf16* keys, const bf16* values, const bf16* grad, const unsigned* first, const Tile* tiles, bf16* out,      \
        float* stats, unsigned line_q, unsigned line_k, unsigned line_v, unsigned heads, unsigned group, unsigned width, unsigned rows,        \
        float scale) {                                                                                                                         \
        __shared__ MatrixRoom<3 * TILE * size> room;                                                                                           \
        attention_by_queries_bf16<size>(room.numbers, queries, keys, values, grad, first, tiles, out, stats,                                   \
                                        {heads, group, width, line_q, line_k, line_v}, rows, scale);                                           \
    }                                                                                                                                          \
    extern "C" __global__ void __launch_bounds__(MATRIX_THREADS) attention_by_keys_##size##_matrix_bf16(                                       \
        const bf16* queries, const bf16* keys, const bf16* values, const bf16* grad, const unsigned* first, const Share* all_shares,           \
        const float* stats, bf16* d_keys, bf16* d_values, float* shares, unsigned line_q, unsigned line_k, unsigned line_v, unsigned heads,    \
        unsigned group, unsigned width, unsigned rows, float scale) {                                                                          \
        __shared__ MatrixRoom<3 * TILE * size> room;                                                                                           \
        attention_by_keys_bf16<size>(room.numbers, queries, keys, values, grad, first, all_shares, stats, d_keys, d_values, shares,            \
                                     {heads, group, width, line_q, line_k, line_v}, rows, scale);                                              \
    }
MATRIX_ATTENTION_KERNELS(64)
MATRIX_ATTENTION_KERNELS(128)
