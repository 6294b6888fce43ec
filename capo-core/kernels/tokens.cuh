// Projections of each pair on the Adam direction of its own token's gradient, from the moments before the batch.
//
// A warp takes a window of 32 sorted pairs: a run of pairs shares its row's moments in registers while the features of its tokens stream by.
// They are read once a pair, so a launch takes so few tiles of D that the features' columns stay in the cache. The bound is the
// special-function unit: a root and a reciprocal per element.

constexpr u32 TOKEN_WARPS = 4;
// Pairs whose features a warp asks for, and whose sums it adds up, at a time.
constexpr u32 TOGETHER = 4;

// A tile's addends to a pair, `D h` and `|D|^2`; the first is infinite where an intermediate left the range of float.
struct Part {
    float v, norm;
};
constexpr u32 LOST = 0x7f800000u;

// Sums over the lanes of a warp of eight numbers, as `warp_sum` has them; lane l gets that of number l / 4.
__device__ inline float warp_sums(float (&x)[2 * TOGETHER]) {
    u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (u32 left = TOGETHER; left > 0; left /= 2) {
        u32 distance = left * (WARP / 2 / TOGETHER);
        bool upper = lane & distance;
#pragma unroll
        for (u32 at = 0; at < left; at++) {
            float own = upper ? x[at + left] : x[at], other = upper ? x[at] : x[at + left];
            x[at] = own + __shfl_xor_sync(ALL_LANES, other, distance);
        }
    }
    x[0] += __shfl_xor_sync(ALL_LANES, x[0], 2);
    return x[0] + __shfl_xor_sync(ALL_LANES, x[0], 1);
}

// A row with moments, old ones decayed and bias-corrected.
__device__ inline Part project_seen(
    const float (&h)[PER_LANE], const float (&mean)[PER_LANE], const float (&square)[PER_LANE], float new1, float new2, float eps, float c) {
    float v = 0.0f, norm = 0.0f, squares = 0.0f;
#pragma unroll
    for (u32 at = 0; at < PER_LANE; at++) {
        float g = c * h[at];
        float second = fmaf(new2, g * g, square[at]);
        float direction = quotient(fmaf(new1, g, mean[at]), root(second) + eps);
        v = fmaf(h[at], direction, v);
        norm = fmaf(direction, direction, norm);
        // A square that overflows would vanish in the quotient; their sum tells.
        squares += second;
    }
    return Part{isfinite(squares) ? v : __uint_as_float(LOST), norm};
}

// A row whose moments are zero.
__device__ inline Part project_unseen(const float (&h)[PER_LANE], float new1, float root2, float eps, float c) {
    float v = 0.0f, norm = 0.0f, largest = 0.0f;
#pragma unroll
    for (u32 at = 0; at < PER_LANE; at++) {
        float g = c * h[at], size = root2 * fabsf(g) + eps;
        float direction = quotient(new1 * g, size);
        v = fmaf(h[at], direction, v);
        norm = fmaf(direction, direction, norm);
        largest = fmaxf(largest, size);
    }
    // Beyond this the fast quotient is 0.
    return Part{largest < 8e37f ? v : __uint_as_float(LOST), norm};
}

// Adds the columns of `tiles` tiles to the pairs' projections.
template <class H>
__device__ inline void project_tokens(
    u32 pairs, const u32* values, const u32* segments, const Row* rows, const H* hidden, const u32* features, u32 first_tile, u32 tiles,
    u32 width, int vector, u32 stride, const double* coefficients, float eps, double* v, double* norms) {
    u32 lane = threadIdx.x % WARP, first = (blockIdx.x * TOKEN_WARPS + threadIdx.x / WARP) * WARP;
    if (first >= pairs) return;
    // Lane p knows pair p of the window, and in the end its sums. Beyond the end there are pairs of no segment.
    u32 count = min(WARP, pairs - first), index = lane < count ? values[first + lane] : 0;
    u32 segment = lane < count ? segments[first + lane] : NONE, feature = features[index / stride];
    float coefficient = (float)coefficients[index], total = 0.0f, total_norm = 0.0f;
    for (u32 tile = first_tile; tile < first_tile + tiles; tile++) {
        u32 column = tile * TILE + lane * PER_LANE, current = NONE;
        float mean[PER_LANE], square[PER_LANE], new1 = 0.0f, new2 = 0.0f;
        bool seen = false;
        for (u32 p = 0; p < count; p += TOGETHER) {
            float h[TOGETHER][PER_LANE], sums[2 * TOGETHER] = {};
#pragma unroll
            for (u32 at = 0; at < TOGETHER; at++) {
                const H* row = hidden + (size_t)__shfl_sync(ALL_LANES, feature, p + at) * width;
                load_columns(row, column, width, vector, h[at]);
            }
#pragma unroll
            for (u32 at = 0; at < TOGETHER; at++) {
                u32 own = __shfl_sync(ALL_LANES, segment, p + at);
                float c = __shfl_sync(ALL_LANES, coefficient, p + at);
                if (own == NONE) continue;
                if (own != current) {
                    current = own;
                    Row row = rows[own];
                    seen = row.exp_avg != nullptr;
                    new1 = (float)row.new1, new2 = seen ? (float)row.new2 : sqrtf((float)row.new2);
                    if (seen) {
                        float old1 = (float)row.old1, old2 = (float)row.old2;
                        load_columns(row.exp_avg, column, width, vector, mean);
                        load_columns(row.exp_avg_sq, column, width, vector, square);
#pragma unroll
                        for (u32 i = 0; i < PER_LANE; i++) mean[i] *= old1, square[i] *= old2;
                    }
                }
                Part part = seen ? project_seen(h[at], mean, square, new1, new2, eps, c) : project_unseen(h[at], new1, new2, eps, c);
                sums[at] = part.v, sums[TOGETHER + at] = part.norm;
            }
            float sum = warp_sums(sums);
            float own = __shfl_sync(ALL_LANES, sum, lane % TOGETHER * 4), norm = __shfl_sync(ALL_LANES, sum, WARP / 2 + lane % TOGETHER * 4);
            if (lane / TOGETHER == p / TOGETHER) total += own, total_norm += norm;
        }
    }
    if (lane < count) v[index] += total, norms[index] += total_norm;
}

// The projections in double, for pairs whose projection is not finite. A warp per window.
template <class H>
__device__ inline void project_tokens_wide(
    u32 pairs, const u32* values, const u32* segments, const Row* rows, const H* hidden, const u32* features, u32 width, u32 stride,
    const double* coefficients, double eps, double* v, double* norms) {
    u32 lane = threadIdx.x % WARP, first = (blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP) * WARP;
    if (first >= pairs) return;
    u32 index = first + lane < pairs ? values[first + lane] : NONE;
    u32 left = __ballot_sync(ALL_LANES, index != NONE && !(is_finite(v[index]) && is_finite(norms[index])));
    for (; left != 0; left &= left - 1) {
        u32 p = __ffs((int)left) - 1, pair = __shfl_sync(ALL_LANES, index, p);
        Row row = rows[segments[first + p]];
        const H* h = hidden + (size_t)features[pair / stride] * width;
        double coefficient = coefficients[pair], total = 0.0, norm = 0.0;
        for (u32 column = lane; column < width; column += WARP) {
            double x = widen(h[column]), g = coefficient * x;
            double mean = row.new1 * g, square = row.new2 * g * g;
            if (row.exp_avg) mean += row.old1 * row.exp_avg[column], square += row.old2 * row.exp_avg_sq[column];
            double direction = mean / (sqrt(square) + eps);
            total += x * direction, norm += direction * direction;
        }
        total = warp_sum(total), norm = warp_sum(norm);
        if (lane == p) v[pair] = total, norms[pair] = norm;
    }
}

#define PROJECT_TOKENS(SUFFIX, H)                                                                                       \
    extern "C" __global__ void __launch_bounds__(TOKEN_WARPS * WARP) project_tokens_##SUFFIX(                           \
        u32 pairs, const u32* values, const u32* segments, const Row* rows, const H* hidden, const u32* features,       \
        u32 first_tile, u32 tiles, u32 width, int vector, u32 stride, const double* coefficients, float eps, double* v, \
        double* norms) {                                                                                                \
        project_tokens(pairs, values, segments, rows, hidden, features, first_tile, tiles, width, vector, stride,       \
                       coefficients, eps, v, norms);                                                                    \
    }                                                                                                                   \
    extern "C" __global__ void project_tokens_wide_##SUFFIX(                                                            \
        u32 pairs, const u32* values, const u32* segments, const Row* rows, const H* hidden, const u32* features,       \
        u32 width, u32 stride, const double* coefficients, double eps, double* v, double* norms) {                      \
        project_tokens_wide(pairs, values, segments, rows, hidden, features, width, stride, coefficients, eps, v, norms); \
    }
PROJECT_TOKENS(f32, float)
PROJECT_TOKENS(f16, f16)
PROJECT_TOKENS(bf16, bf16)
