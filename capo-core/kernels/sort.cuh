// Pairs sorted by subset, row and token: a stable radix sort, four bits at a time, and the segments of the result.

constexpr u32 DIGITS = 16;

// True if a pair takes part: it has a row, its token is in a subset, where these are given, and its own coefficient is not 0, where those are.
__device__ inline bool takes_part(u32 index, const u32* rows, const u32* subsets, u32 stride, const double* coefficients) {
    return rows[index] != NONE && (!subsets || subsets[index / stride] != NONE) && (!coefficients || coefficients[index] != 0.0);
}

// Rows as keys, `last` where there is none, and all indices as values.
extern "C" __global__ void row_keys(u32 count, const u32* rows, u32 last, u32* keys, u32* values) {
    u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    keys[index] = min(rows[index], last);
    values[index] = index;
}

// Subsets as keys of pairs in their present order, `last` for what takes no part.
extern "C" __global__ void subset_keys(
    u32 count, const u32* rows, const u32* subsets, u32 stride, const double* coefficients, u32 last, const u32* values, u32* keys) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    u32 index = values[at];
    keys[at] = takes_part(index, rows, subsets, stride, coefficients) ? subsets[index / stride] : last;
}

// How often each digit occurs in each tile: `counts[digit * tiles + tile]`.
extern "C" __global__ void count_digits(u32 count, const u32* keys, u32 shift, u32* counts) {
    __shared__ u32 bins[DIGITS];
    if (threadIdx.x < DIGITS) bins[threadIdx.x] = 0;
    __syncthreads();
    for (u32 at = threadIdx.x; at < SCAN_TILE; at += blockDim.x) {
        u32 index = blockIdx.x * SCAN_TILE + at;
        if (index < count) atomicAdd(&bins[keys[index] >> shift & (DIGITS - 1)], 1u);
    }
    __syncthreads();
    if (threadIdx.x < DIGITS) counts[threadIdx.x * gridDim.x + blockIdx.x] = bins[threadIdx.x];
}

// Moves keys and values where `starts`, the prefix sums of `counts`, sends their digit; equal digits keep their order.
extern "C" __global__ void scatter_digits(
    u32 count, const u32* keys, const u32* values, u32 shift, const u32* starts, u32* sorted_keys, u32* sorted_values) {
    // A thread's share of each digit, thread after thread.
    __shared__ u32 places[DIGITS][SCAN_THREADS];
    u32 own[SCAN_ITEMS], first = blockIdx.x * SCAN_TILE + threadIdx.x * SCAN_ITEMS;
#pragma unroll
    for (u32 digit = 0; digit < DIGITS; digit++) places[digit][threadIdx.x] = 0;
#pragma unroll
    for (u32 at = 0; at < SCAN_ITEMS; at++) {
        own[at] = first + at < count ? keys[first + at] : 0;
        if (first + at < count) places[own[at] >> shift & (DIGITS - 1)][threadIdx.x]++;
    }
    __syncthreads();
    for (u32 digit = 0; digit < DIGITS; digit++) {
        u32 total, prefix = block_prefix(places[digit][threadIdx.x], &total);
        places[digit][threadIdx.x] = prefix + starts[digit * gridDim.x + blockIdx.x];
    }
#pragma unroll
    for (u32 at = 0; at < SCAN_ITEMS; at++) {
        if (first + at >= count) break;
        u32 place = places[own[at] >> shift & (DIGITS - 1)][threadIdx.x]++;
        sorted_keys[place] = own[at];
        sorted_values[place] = values[first + at];
    }
}

// 1 where a sorted pair begins a segment, `[count + 1]`, and how many pairs take part.
extern "C" __global__ void mark_heads(
    u32 count, const u32* rows, const u32* subsets, u32 stride, const double* coefficients, const u32* values, u32* heads, u32* pairs) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at > count) return;
    bool here = at < count && takes_part(values[at], rows, subsets, stride, coefficients);
    bool before = at > 0 && takes_part(values[at - 1], rows, subsets, stride, coefficients);
    bool same = here && before && rows[values[at]] == rows[values[at - 1]] &&
                (!subsets || subsets[values[at] / stride] == subsets[values[at - 1] / stride]);
    heads[at] = here && !same;
    // Those that take part come first.
    if (!here && (at == 0 || before)) *pairs = at;
}

// From the prefix sums of `heads`: each pair's segment, `[P]`, and where each segment starts, `[R + 1]`.
extern "C" __global__ void write_segments(u32 pairs, const u32* prefix, u32* segments, u32* starts) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at > pairs) return;
    if (at == pairs || prefix[at + 1] != prefix[at]) starts[prefix[at]] = at;
    if (at < pairs) segments[at] = prefix[at + 1] - 1;
}

// Coefficient of each pair's feature, by index: `weight slope A u`, 0 where there is no row.
extern "C" __global__ void weigh_tokens(
    u32 count, const u32* rows, u32 stride, const double* weights, const double* signals, double slope, const double* u,
    double* coefficients) {
    u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    u32 n = index / stride;
    coefficients[index] = rows[index] == NONE ? 0.0 : weights[n] * (slope * signals[n] * u[index]);
}

// As `weigh_tokens`, but the weight is 1 over the pairs of its row, times that of its token where `weights` are given.
extern "C" __global__ void weigh_rows(
    u32 pairs, const u32* values, const u32* segments, const u32* starts, u32 stride, const double* weights, const double* signals,
    double slope, const double* u, double* coefficients) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= pairs) return;
    u32 index = values[at], segment = segments[at];
    u32 n = index / stride;
    double weight = (weights ? weights[n] : 1.0) / (double)(starts[segment + 1] - starts[segment]);
    coefficients[index] = weight * (slope * signals[n] * u[index]);
}
