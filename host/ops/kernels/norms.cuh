// RMSNorm over rows of `width` numbers, and sums over rows. LANES threads share a row: a warp, or the block for a wide one.
// Widest row that a warp takes.
constexpr unsigned WARP_WIDTH = 1024;
// Numbers per thread whose sums over rows a thread holds. So a block takes rows of up to 256 * 32 numbers.
constexpr unsigned PER_THREAD = 32;

// Two sums that are made together.
struct Pair {
    float a, b;
};

// The sum over the LANES threads of a row, for each of them.
template <unsigned LANES>
__device__ __forceinline__ float over_row(float value) {
    if constexpr (LANES == 32) {
        return over_warp(value, Sum());
    } else {
        return over_block(value, Sum());
    }
}

// out = x weight / sqrt(mean(x^2) + eps). With `plus`, x is the sum of `x` and `plus`, and is written to `sum`.
template <unsigned LANES, unsigned N, class T>
__device__ void rms_norm(const T* x, const T* plus, const T* weight, T* sum, T* out, unsigned long long rows, unsigned width, float eps) {
    const unsigned long long row = static_cast<unsigned long long>(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES;
    const unsigned first = threadIdx.x % LANES * N;
    if (row >= rows) return;  // whole warps
    const T* own = x + row * width;
    float squares = 0.0f;
    #pragma unroll 4
    for (unsigned c = first; c < width; c += LANES * N) {
        Few<N> v = take<N>(own + c);
        if (plus) {
            const Few<N> more = take<N>(plus + row * width + c);
            for (unsigned n = 0; n < N; ++n) v.at[n] += more.at[n];
            put(sum + row * width + c, v);
            v = take<N>(sum + row * width + c);  // as it was rounded
        }
        for (unsigned n = 0; n < N; ++n) squares += v.at[n] * v.at[n];
    }
    const float inverse = 1.0f / sqrtf(over_row<LANES>(squares) / static_cast<float>(width) + eps);
    if (plus) own = sum + row * width;
    #pragma unroll 4
    for (unsigned c = first; c < width; c += LANES * N) {
        Few<N> v = take<N>(own + c);
        const Few<N> w = take<N>(weight + c);
        for (unsigned n = 0; n < N; ++n) v.at[n] = v.at[n] * inverse * w.at[n];
        put(out + row * width + c, v);
    }
}

// dx = plus + r (w g - x r^2 mean(w g x)), with r = 1 / rms(x); `plus` may be null. partial [blocks, width] gets each block's sum of g x r
// over its rows. Mirrors `RmsNormBackward` of ops/src/rms_norm.rs.
template <unsigned LANES, unsigned N, class T>
__device__ void rms_norm_backward(const T* x, const T* weight, const T* g, const T* plus, T* dx, float* partial,
                                  unsigned long long rows, unsigned width, float eps) {
    constexpr unsigned GROUPS = THREADS / LANES, STEPS = PER_THREAD / N;
    __shared__ float block_sums[THREADS * N];
    const unsigned group = threadIdx.x / LANES, first = threadIdx.x % LANES * N;
    Few<N> sums[STEPS];
    #pragma unroll
    for (unsigned k = 0; k < STEPS; ++k) sums[k] = {};
    for (unsigned long long row = blockIdx.x * GROUPS + group; row < rows; row += static_cast<unsigned long long>(gridDim.x) * GROUPS) {
        const unsigned long long start = row * width;
        Pair pair = {0.0f, 0.0f};
    #pragma unroll 4
        for (unsigned c = first; c < width; c += LANES * N) {
            const Few<N> v = take<N>(x + start + c), d = take<N>(g + start + c), w = take<N>(weight + c);
            for (unsigned n = 0; n < N; ++n) {
                pair.a += v.at[n] * v.at[n];
                pair.b += d.at[n] * w.at[n] * v.at[n];
            }
        }
        const float size = static_cast<float>(width);
        const float r = 1.0f / sqrtf(over_row<LANES>(pair.a) / size + eps);
        const float shift = r * r * over_row<LANES>(pair.b) / size;
    #pragma unroll
        for (unsigned k = 0; k < STEPS; ++k) {
            const unsigned c = first + k * LANES * N;
            if (c >= width) break;
            const Few<N> v = take<N>(x + start + c), d = take<N>(g + start + c), w = take<N>(weight + c);
            Few<N> out = {};
            if (plus) out = take<N>(plus + start + c);
            for (unsigned n = 0; n < N; ++n) {
                out.at[n] += r * (d.at[n] * w.at[n] - v.at[n] * shift);
                sums[k].at[n] += d.at[n] * v.at[n] * r;
            }
            put(dx + start + c, out);
        }
    }
    // The groups' sums, in their order.
    #pragma unroll
    for (unsigned k = 0; k < STEPS; ++k) {
        if (k * LANES * N >= width) break;
        __syncthreads();
        for (unsigned n = 0; n < N; ++n) block_sums[threadIdx.x * N + n] = sums[k].at[n];
        __syncthreads();
        for (unsigned i = threadIdx.x; i < LANES * N; i += THREADS) {
            float sum = 0.0f;
            for (unsigned other = 0; other < GROUPS; ++other) sum += block_sums[other * LANES * N + i];
            const unsigned c = k * LANES * N + i;
            if (c < width) partial[static_cast<unsigned long long>(blockIdx.x) * width + c] = sum;
        }
    }
}

#define NORM_KERNELS(suffix, T)                                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                  \
        rms_norm_##suffix(const T* x, const T* plus, const T* weight, T* sum, T* out, unsigned long long rows,             \
                          unsigned width, float eps) {                                                                     \
        const bool fours = in_fours(width, x, plus, weight, sum, out), narrow = width <= WARP_WIDTH;                       \
        if (narrow && fours) rms_norm<32, 4>(x, plus, weight, sum, out, rows, width, eps);                                 \
        else if (narrow) rms_norm<32, 1>(x, plus, weight, sum, out, rows, width, eps);                                     \
        else if (fours) rms_norm<THREADS, 4>(x, plus, weight, sum, out, rows, width, eps);                                 \
        else rms_norm<THREADS, 1>(x, plus, weight, sum, out, rows, width, eps);                                            \
    }                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                  \
        rms_norm_backward_##suffix(const T* x, const T* weight, const T* g, const T* plus, T* dx, float* partial,          \
                                   unsigned long long rows, unsigned width, float eps) {                                   \
        const bool fours = in_fours(width, x, weight, g, plus, dx), narrow = width <= WARP_WIDTH;                          \
        if (narrow && fours) rms_norm_backward<32, 4>(x, weight, g, plus, dx, partial, rows, width, eps);                  \
        else if (narrow) rms_norm_backward<32, 1>(x, weight, g, plus, dx, partial, rows, width, eps);                      \
        else if (fours) rms_norm_backward<THREADS, 4>(x, weight, g, plus, dx, partial, rows, width, eps);                  \
        else rms_norm_backward<THREADS, 1>(x, weight, g, plus, dx, partial, rows, width, eps);                             \
    }
NORM_KERNELS(f32, float)
NORM_KERNELS(bf16, bf16)

// out [chunks, width]: sums of `length` consecutive rows of x [rows, width] each. Block (b, c) has columns 32 b.. of chunk c; its warps
// take turns at the rows.
template <class In, class Out>
__device__ void sum_rows(const In* x, Out* out, unsigned long long rows, unsigned width, unsigned long long length) {
    __shared__ float sums[THREADS];
    const unsigned column = blockIdx.x * 32 + threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned long long from = blockIdx.y * length, to = min(from + length, rows);
    float sum = 0.0f;
    if (column < width) {
    #pragma unroll 8
        for (unsigned long long row = from + warp; row < to; row += WARPS) sum += widened(x[row * width + column]);
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (warp != 0 || column >= width) return;
    for (unsigned other = 1; other < WARPS; ++other) sum += sums[other * 32 + threadIdx.x];
    out[static_cast<unsigned long long>(blockIdx.y) * width + column] = narrowed<Out>(sum);
}

#define SUM_ROWS_KERNEL(name, In, Out)                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS)                                               \
        name(const In* x, Out* out, unsigned long long rows, unsigned width, unsigned long long length) { \
        sum_rows(x, out, rows, width, length);                                                          \
    }
SUM_ROWS_KERNEL(sum_rows_f32, float, float)
SUM_ROWS_KERNEL(sum_rows_bf16, bf16, float)
SUM_ROWS_KERNEL(sum_rows_to_bf16, float, bf16)
