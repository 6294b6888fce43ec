// Projections of each pair on the Adam direction of its own token's gradient, from the moments before the batch.
//
// A block takes a window of 32 sorted pairs and TOKEN_WARPS tiles of D, a warp each: a run of pairs shares its row's moments in
// registers while the features of its tokens stream by. Launches follow each other over D, so that the columns of all features that
// one of them reads stay in the cache. The bound is the special-function unit: a root and a reciprocal per element.

constexpr u32 TOKEN_WARPS = 4;

// A pair of the window. Its gradient is `c h`: in the direction's numerator `first h`, in its denominator `second h^2` beside the
// moments of a row, and `second |h|` where there are none.
struct alignas(16) Item {
    u32 feature, segment;
    float first, second;
};

// NaN as `first` where an intermediate would leave the range of float, or lose digits below it: the wide kernel computes such a pair.
__device__ inline Item item_of(u32 feature, u32 segment, const Row& row, double c, double squared_norm, double eps) {
    constexpr double SMALLEST = 1.1754943508222875e-38, STEP = 1.401298464324817e-45;
    double first = row.new1 * c, second = row.new2 * c * c, negligible = 1e-14 * eps * eps;
    bool seen = row.exp_avg != nullptr, fits = squared_norm * first * first < 1e74;
    if (seen) {
        fits = fits && squared_norm < 1e37 && second * squared_norm < 1e37 && second * SMALLEST < negligible &&
               (second > SMALLEST || STEP * squared_norm < negligible);
    } else {
        fits = fits && second * squared_norm < 1e74;
    }
    float nan = __uint_as_float(0x7fffffffu);
    return Item{feature, segment, fits ? (float)first : nan, (float)(seen ? second : sqrt(second))};
}

template <class H>
__device__ inline void project_tokens(
    u32 pairs, const u32* values, const u32* segments, const Row* rows, const H* hidden, const u32* features, u32 width, int vector,
    u32 stride, const double* coefficients, const double* squared_norms, u32 first_tile, float eps, double* v, double* norms) {
    __shared__ Item items[WARP];
    __shared__ float sums[TOKEN_WARPS][2][WARP];
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, first = blockIdx.x * WARP, count = min(WARP, pairs - first);
    if (warp == 0) {
        // Beyond the end the last pair again, whose sums are not stored.
        u32 at = first + min(lane, count - 1), index = values[at], n = index / stride;
        items[lane] = item_of(features[n], segments[at], rows[segments[at]], coefficients[index], squared_norms[n], eps);
    }
    __syncthreads();
    u32 column = (first_tile + warp) * TILE + lane * PER_LANE, current = NONE;
    float mean[PER_LANE], square[PER_LANE];
    bool seen = false;
    Raw<H> ahead[2];
#pragma unroll
    for (u32 p = 0; p < 2; p++) load_raw(hidden + (size_t)items[p].feature * width, column, width, vector, ahead[p]);
    for (u32 p = 0; p < count; p += 2) {
        float both[2];
#pragma unroll
        for (u32 of = 0; of < 2; of++) {
            Item item = items[p + of];
            float h[PER_LANE];
            widen_columns(ahead[of], h);
            if (p + of + 2 < WARP) load_raw(hidden + (size_t)items[p + of + 2].feature * width, column, width, vector, ahead[of]);
            if (item.segment != current) {
                current = item.segment;
                Row row = rows[current];
                seen = row.exp_avg != nullptr;
                if (seen) {
                    float old1 = (float)row.old1, old2 = (float)row.old2;
                    load_columns(row.exp_avg, column, width, vector, mean);
                    load_columns(row.exp_avg_sq, column, width, vector, square);
#pragma unroll
                    for (u32 at = 0; at < PER_LANE; at++) {
                        square[at] *= old2;
                        // As in `item_of`: both addends of the denominator fit, or the wide kernel takes over.
                        mean[at] = square[at] < 1e37f ? mean[at] * old1 : __uint_as_float(0x7fffffffu);
                    }
                }
            }
            float total = 0.0f, norm = 0.0f;
            if (seen) {
#pragma unroll
                for (u32 at = 0; at < PER_LANE; at++) {
                    float size = root(fmaf(item.second, h[at] * h[at], square[at])) + eps;
                    float direction = quotient(fmaf(item.first, h[at], mean[at]), size);
                    total = fmaf(h[at], direction, total), norm = fmaf(direction, direction, norm);
                }
            } else {
#pragma unroll
                for (u32 at = 0; at < PER_LANE; at++) {
                    float direction = quotient(item.first * h[at], fmaf(item.second, fabsf(h[at]), eps));
                    total = fmaf(h[at], direction, total), norm = fmaf(direction, direction, norm);
                }
            }
            // From here on the lower lanes have `D h`, the upper ones `|D|^2`.
            bool upper = lane & 16;
            both[of] = (upper ? norm : total) + __shfl_xor_sync(ALL_LANES, upper ? total : norm, 16);
        }
        // And now eight lanes have one of the two pairs, and add.
        bool later = lane & 8;
        float sum = (later ? both[1] : both[0]) + __shfl_xor_sync(ALL_LANES, later ? both[0] : both[1], 8);
#pragma unroll
        for (u32 distance = 4; distance > 0; distance /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, distance);
        if (lane % 8 == 0) sums[warp][lane / 16][p + lane / 8 % 2] = sum;
    }
    __syncthreads();
    for (u32 at = threadIdx.x; at < 2 * WARP; at += blockDim.x) {
        u32 what = at / WARP, p = at % WARP;
        if (p >= count) continue;
        float total = 0.0f;
        for (u32 of = 0; of < blockDim.x / WARP; of++) total += sums[of][what][p];
        (what == 0 ? v : norms)[values[first + p]] += total;
    }
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
        u32 width, int vector, u32 stride, const double* coefficients, const double* squared_norms, u32 first_tile,     \
        float eps, double* v, double* norms) {                                                                          \
        project_tokens(pairs, values, segments, rows, hidden, features, width, vector, stride, coefficients,            \
                       squared_norms, first_tile, eps, v, norms);                                                       \
    }                                                                                                                   \
    extern "C" __global__ void project_tokens_wide_##SUFFIX(                                                            \
        u32 pairs, const u32* values, const u32* segments, const Row* rows, const H* hidden, const u32* features,       \
        u32 width, u32 stride, const double* coefficients, double eps, double* v, double* norms) {                      \
        project_tokens_wide(pairs, values, segments, rows, hidden, features, width, stride, coefficients, eps, v, norms); \
    }
PROJECT_TOKENS(f32, float)
PROJECT_TOKENS(f16, f16)
PROJECT_TOKENS(bf16, bf16)
