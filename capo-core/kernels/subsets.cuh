// Gradients of rows, summed over the tokens of a subset: what their direction does to the pairs, and what they do to moments.
//
// A block takes one segment and one tile of D. Short segments have a warp, medium and long ones MEDIUM_WARPS and LONG_WARPS of them,
// which share the pairs out in equal parts; the caller sorts them by length. The sum over tokens stays in registers, the direction in
// shared memory: nothing of size R D is written.

constexpr u32 MEDIUM_WARPS = 4;
constexpr u32 LONG_WARPS = 16;
// Bytes of features that a lane asks for before it needs the first.
constexpr u32 AHEAD = 64;
// Blocks of so many warps leave room for others on a multiprocessor: while one waits for its first pairs, or writes, those work.
#define RESIDENT(WARPS) __launch_bounds__((WARPS) * WARP, 32 / (WARPS))

// Features and coefficients of sorted pairs, one after another, so that each tile of D need not gather them: `[P]`.
extern "C" __global__ void order_pairs(
    u32 pairs, const u32* values, const u32* features, u32 stride, const double* coefficients, u32* sorted_features,
    double* sorted_coefficients) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= pairs) return;
    u32 index = values[at];
    sorted_features[at] = features[index / stride];
    sorted_coefficients[at] = coefficients[index];
}

// 1 where a segment has more than `least` and at most `most` pairs, `[count + 1]`.
extern "C" __global__ void mark_lengths(u32 count, const u32* starts, u32 least, u32 most, u32* marks) {
    u32 segment = blockIdx.x * blockDim.x + threadIdx.x;
    if (segment > count) return;
    u32 length = segment < count ? starts[segment + 1] - starts[segment] : 0;
    marks[segment] = length > least && length <= most;
}

// The marked segments, in their order.
extern "C" __global__ void list_marked(u32 count, const u32* prefix, u32* list) {
    u32 segment = blockIdx.x * blockDim.x + threadIdx.x;
    if (segment < count && prefix[segment + 1] != prefix[segment]) list[prefix[segment]] = segment;
}

// The block's segment, or NONE: of those that `list` names, as many as `listed` says.
__device__ inline u32 own_segment(const u32* list, const u32* listed) { return blockIdx.x < *listed ? list[blockIdx.x] : NONE; }

// Where a tile keeps a column. Lanes write theirs PER_LANE at a time, and would meet in the same banks.
__device__ inline u32 place(u32 column) { return column + column / PER_LANE; }
constexpr u32 PLACES = TILE + WARP;

// The pairs that a warp of the block works on.
struct Span {
    u32 first, last;
};

template <u32 WARPS>
__device__ inline Span own_span(u32 first, u32 last) {
    u32 warp = threadIdx.x / WARP, each = (last - first + WARPS - 1) / WARPS;
    u32 begin = min(last, first + warp * each);
    return Span{begin, min(last, begin + each)};
}

// `take(pair, coefficient, h)` for each pair of the span, with the lane's columns of its feature; beyond the end for the last pair again,
// with a coefficient of 0.
template <class H, class Take>
__device__ inline void for_each_pair(
    Span span, const H* hidden, const u32* features, const double* coefficients, u32 column, u32 width, bool vector, Take take) {
    constexpr u32 AT_ONCE = AHEAD / sizeof(Raw<H>);
    u32 lane = threadIdx.x % WARP;
    for (u32 from = span.first; from < span.last; from += WARP) {
        // Lane p knows pair p.
        u32 own = min(from + lane, span.last - 1), feature = features[own], count = min(WARP, span.last - from);
        double coefficient = coefficients && from + lane < span.last ? coefficients[own] : 0.0;
        for (u32 at = 0; at < count; at += AT_ONCE) {
            Raw<H> raw[AT_ONCE];
#pragma unroll
            for (u32 next = 0; next < AT_ONCE; next++) {
                const H* row = hidden + (size_t)__shfl_sync(ALL_LANES, feature, at + next) * width;
                load_raw(row, column, width, vector, raw[next]);
            }
#pragma unroll
            for (u32 next = 0; next < AT_ONCE; next++) {
                float h[PER_LANE];
                widen_columns(raw[next], h);
                take(from + at + next, coefficients ? __shfl_sync(ALL_LANES, coefficient, at + next) : 0.0, h);
            }
        }
    }
}

// The block's tile of `sum coefficient h`, its columns in `tile` for all threads.
template <u32 WARPS, class H>
__device__ inline void sum_gradient(
    Span span, const H* hidden, const u32* features, u32 column, u32 width, bool vector, const double* coefficients,
    double (&tile)[WARPS][PLACES]) {
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    double total[PER_LANE] = {};
    for_each_pair(span, hidden, features, coefficients, column, width, vector, [&](u32, double c, const float (&h)[PER_LANE]) {
#pragma unroll
        for (u32 own = 0; own < PER_LANE; own++) total[own] = fma(c, (double)h[own], total[own]);
    });
#pragma unroll
    for (u32 own = 0; own < PER_LANE; own++) tile[warp][place(lane * PER_LANE + own)] = total[own];
    __syncthreads();
    if (WARPS > 1) {
        for (u32 own = threadIdx.x; own < TILE; own += WARPS * WARP) {
            double all = 0.0;
            for (u32 other = 0; other < WARPS; other++) all += tile[other][place(own)];
            tile[0][place(own)] = all;
        }
        __syncthreads();
    }
}

// For each pair of the segment the tile's part of `D h`, and for the segment that of `|D|^2`: `parts[blockIdx.y]`, `[P]` and `[R]`.
// `rows` absent means SGD, where D is the gradient.
template <u32 WARPS, class H>
__device__ inline void project_segment(
    u32 segment, u32 pairs, u32 count, const u32* starts, const Row* rows, const H* hidden, const u32* features, u32 first_tile,
    u32 width, int vector, const double* coefficients, double eps, double* parts, double* norms) {
    __shared__ double tile[WARPS][PLACES];
    __shared__ double squares[WARPS];
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, base = (first_tile + blockIdx.y) * TILE, column = base + lane * PER_LANE;
    Span span = own_span<WARPS>(starts[segment], starts[segment + 1]);
    sum_gradient<WARPS>(span, hidden, features, column, width, vector, coefficients, tile);
    double norm = 0.0;
    for (u32 own = threadIdx.x; own < TILE; own += WARPS * WARP) {
        double direction = tile[0][place(own)];
        if (rows && base + own < width) {
            Row row = rows[segment];
            double mean = row.new1 * direction, square = row.new2 * direction * direction;
            if (row.exp_avg) {
                mean = row.old1 * (double)row.exp_avg[base + own] + mean;
                square = row.old2 * (double)row.exp_avg_sq[base + own] + square;
            }
            direction = mean / (sqrt(square) + eps);
        }
        tile[0][place(own)] = direction;
        norm += direction * direction;
    }
    norm = warp_sum(norm);
    if (lane == 0) squares[warp] = norm;
    __syncthreads();
    if (threadIdx.x == 0) {
        double all = 0.0;
        for (u32 other = 0; other < WARPS; other++) all += squares[other];
        norms[(size_t)blockIdx.y * count + segment] = all;
    }
    double direction[PER_LANE];
#pragma unroll
    for (u32 own = 0; own < PER_LANE; own++) direction[own] = tile[0][place(lane * PER_LANE + own)];
    for_each_pair(span, hidden, features, nullptr, column, width, vector, [&](u32 pair, double, const float (&h)[PER_LANE]) {
        double part = 0.0;
#pragma unroll
        for (u32 own = 0; own < PER_LANE; own++) part = fma(direction[own], (double)h[own], part);
        part = warp_sum(part);
        if (lane == 0 && pair < span.last) parts[(size_t)blockIdx.y * pairs + pair] = part;
    });
}

__device__ inline float saturate(double x) {
    float y = (float)x;
    return isnan(y) ? y : fminf(fmaxf(y, -3.4028234663852886e38f), 3.4028234663852886e38f);
}

// The nearest number that bf16 has, ties to even; a finite one stays finite.
__device__ inline float round_to_bf16(float x) {
    const float largest = 3.3895313892515355e38f;
    u32 bits = __float_as_uint(isnan(x) ? x : fminf(fmaxf(x, -largest), largest));
    return __uint_as_float((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
}

// Takes the segment's gradient into the moments of its row. Where `everything` has the coefficients with nothing rejected, what that
// gradient has beyond this one enters the second moment by its own square.
template <u32 WARPS, class H>
__device__ inline void update_segment(
    u32 segment, const u32* starts, const Row* rows, const H* hidden, const u32* features, u32 width, int vector,
    const double* coefficients, const double* everything, int in_bf16) {
    __shared__ double tile[WARPS][PLACES], all[TILE];
    u32 lane = threadIdx.x % WARP, base = blockIdx.y * TILE, column = base + lane * PER_LANE;
    Span span = own_span<WARPS>(starts[segment], starts[segment + 1]);
    // One loop, so that the sum is in the code once.
#pragma unroll 1
    for (bool first = everything;; first = false) {
        const double* of = first ? everything : coefficients;
        sum_gradient<WARPS>(span, hidden, features, column, width, vector, of, tile);
        if (!first) break;
        for (u32 own = threadIdx.x; own < TILE; own += WARPS * WARP) all[own] = tile[0][place(own)];
        __syncthreads();
    }
    Row row = rows[segment];
    // The memory of a new row is not read: it holds no moments yet.
    bool fresh = row.old1 == 0.0 && row.old2 == 0.0;
    for (u32 own = threadIdx.x; own < TILE && base + own < width; own += WARPS * WARP) {
        float *m = row.exp_avg + base + own, *v = row.exp_avg_sq + base + own;
        double g = tile[0][place(own)], mean = row.new1 * g, square = row.new2 * g * g;
        if (!fresh) mean = row.old1 * (double)*m + mean, square = row.old2 * (double)*v + square;
        if (everything) square = row.new2 * (all[own] - g) * (all[own] - g) + square;
        *m = in_bf16 ? round_to_bf16(saturate(mean)) : saturate(mean);
        *v = in_bf16 ? round_to_bf16(saturate(square)) : saturate(square);
    }
}

#define PROJECT_KERNEL(NAME, H, WARPS)                                                                         \
    extern "C" __global__ void RESIDENT(WARPS) NAME(                                                                    \
        const u32* list, const u32* listed, u32 pairs, u32 count, const u32* starts, const Row* rows, const H* hidden,  \
        const u32* features, u32 first_tile, u32 width, int vector, const double* coefficients, double eps,             \
        double* parts, double* norms) {                                                                                 \
        u32 segment = own_segment(list, listed);                                                                        \
        if (segment != NONE)                                                                                            \
            project_segment<WARPS>(segment, pairs, count, starts, rows, hidden, features, first_tile, width, vector,    \
                                   coefficients, eps, parts, norms);                                                    \
    }
#define UPDATE_KERNEL(NAME, H, WARPS)                                                                                   \
    extern "C" __global__ void RESIDENT(WARPS) NAME(                                                                    \
        const u32* list, const u32* listed, const u32* starts, const Row* rows, const H* hidden, const u32* features,   \
        u32 width, int vector, const double* coefficients, const double* everything, int in_bf16) {                     \
        u32 segment = own_segment(list, listed);                                                                        \
        if (segment != NONE)                                                                                            \
            update_segment<WARPS>(segment, starts, rows, hidden, features, width, vector, coefficients, everything,     \
                                  in_bf16);                                                                             \
    }
#define SEGMENT_KERNELS(SUFFIX, H)                                                                                      \
    PROJECT_KERNEL(project_short_##SUFFIX, H, 1)                                                                        \
    PROJECT_KERNEL(project_medium_##SUFFIX, H, MEDIUM_WARPS)                                                            \
    PROJECT_KERNEL(project_long_##SUFFIX, H, LONG_WARPS)                                                                \
    UPDATE_KERNEL(update_short_##SUFFIX, H, 1)                                                                          \
    UPDATE_KERNEL(update_medium_##SUFFIX, H, MEDIUM_WARPS)                                                              \
    UPDATE_KERNEL(update_long_##SUFFIX, H, LONG_WARPS)
SEGMENT_KERNELS(f32, float)
SEGMENT_KERNELS(f16, f16)
SEGMENT_KERNELS(bf16, bf16)

// Adds the parts of `tiles` tiles, in their order, to each pair's projection and to that of its segment's first pair `|D|^2`.
extern "C" __global__ void add_projections(
    u32 pairs, u32 count, u32 tiles, const u32* values, const u32* segments, const u32* starts, const double* parts,
    const double* part_norms, double* v, double* norms) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= pairs) return;
    u32 index = values[at], segment = segments[at];
    double total = v[index], norm = norms[index];
    for (u32 tile = 0; tile < tiles; tile++) {
        total += parts[(size_t)tile * pairs + at];
        if (starts[segment] == at) norm += part_norms[(size_t)tile * count + segment];
    }
    v[index] = total, norms[index] = norm;
}
