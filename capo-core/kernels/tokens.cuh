// Projections of each pair on the Adam direction of its own token's gradient, from the moments before the batch.
//
// A block takes a window of 32 sorted pairs, its warps the tiles of D in turn: a run of pairs shares its row's moments in
// registers while the features of its tokens stream by. The bound is the special-function unit: a root and a reciprocal per element.

constexpr u32 TOKEN_WARPS = 4;

// A tile's addends to a pair: `D h`, `|D|^2`, and whether an intermediate left the range of float.
struct Part {
    float v, norm;
    bool lost;
};

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
    return Part{v, norm, !isfinite(squares)};
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
    return Part{v, norm, !(largest < 8e37f)};
}

template <class H>
__device__ inline void project_tokens(
    u32 pairs, const u32* values, const u32* segments, const Row* rows, const H* hidden, const u32* features, u32 width, int vector,
    u32 stride, const double* coefficients, float eps, double* v, double* norms) {
    __shared__ float parts[2][TOKEN_WARPS][WARP];
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, first = blockIdx.x * WARP;
    u32 count = min(WARP, pairs - first);
    // Lane p knows pair p of the window, and in the end its sums.
    u32 index = lane < count ? values[first + lane] : 0, segment = lane < count ? segments[first + lane] : NONE;
    u32 feature = features[index / stride];
    float coefficient = (float)coefficients[index], total = 0.0f, total_norm = 0.0f;
    bool lost = false;
    for (u32 tile = warp * TILE; tile < width; tile += TOKEN_WARPS * TILE) {
        u32 column = tile + lane * PER_LANE, current = NONE;
        float mean[PER_LANE], square[PER_LANE], new1 = 0.0f, new2 = 0.0f;
        bool seen = false;
        for (u32 p = 0; p < count; p++) {
            u32 own = __shfl_sync(ALL_LANES, segment, p);
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
                    for (u32 at = 0; at < PER_LANE; at++) mean[at] *= old1, square[at] *= old2;
                }
            }
            float h[PER_LANE], c = __shfl_sync(ALL_LANES, coefficient, p);
            load_columns(hidden + (size_t)__shfl_sync(ALL_LANES, feature, p) * width, column, width, vector, h);
            Part part = seen ? project_seen(h, mean, square, new1, new2, eps, c) : project_unseen(h, new1, new2, eps, c);
            part.v = warp_sum(part.v), part.norm = warp_sum(part.norm);
            part.lost = __any_sync(ALL_LANES, part.lost);
            if (lane == p) total += part.v, total_norm += part.norm, lost = lost || part.lost;
        }
    }
    parts[0][warp][lane] = lost ? __uint_as_float(0x7f800000u) : total;
    parts[1][warp][lane] = total_norm;
    __syncthreads();
    if (warp > 0 || lane >= count) return;
    total = total_norm = 0.0f;
#pragma unroll
    for (u32 at = 0; at < TOKEN_WARPS; at++) total += parts[0][at][lane], total_norm += parts[1][at][lane];
    v[index] = total, norms[index] = total_norm;
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
        u32 width, int vector, u32 stride, const double* coefficients, float eps, double* v, double* norms) {           \
        project_tokens(pairs, values, segments, rows, hidden, features, width, vector, stride, coefficients, eps, v, norms); \
    }                                                                                                                   \
    extern "C" __global__ void project_tokens_wide_##SUFFIX(                                                            \
        u32 pairs, const u32* values, const u32* segments, const Row* rows, const H* hidden, const u32* features,       \
        u32 width, u32 stride, const double* coefficients, double eps, double* v, double* norms) {                      \
        project_tokens_wide(pairs, values, segments, rows, hidden, features, width, stride, coefficients, eps, v, norms); \
    }
PROJECT_TOKENS(f32, float)
PROJECT_TOKENS(f16, f16)
PROJECT_TOKENS(bf16, bf16)
