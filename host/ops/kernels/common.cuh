// Functions that the kernels share. No CUDA header is included, so that NVRTC compiles this text as it is.
// Threads of every block.
constexpr unsigned THREADS = 256;
constexpr unsigned WARPS = THREADS / 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

__device__ __forceinline__ float negative_infinity() { return __uint_as_float(0xff800000u); }

// The larger of two numbers; NaN if one of them is NaN.
__device__ __forceinline__ float larger(float a, float b) { return a > b || a != a ? a : b; }

struct Largest {
    __device__ float operator()(float a, float b) const { return larger(a, b); }
};

struct Sum {
    template <class T>
    __device__ T operator()(T a, T b) const { return a + b; }
};

// Combines the `value` of every thread in a fixed order and returns the result to every thread. All threads of the block call it.
template <class T, class Combine>
__device__ T over_block(T value, Combine combine) {
    __shared__ T partial[WARPS];
    for (unsigned step = 16; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(ALL_LANES, value, step));
    __syncthreads();  // the results of an earlier call have been read
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    T all = partial[0];
    for (unsigned warp = 1; warp < WARPS; ++warp) all = combine(all, partial[warp]);
    return all;
}

// The largest of `count` numbers that lie together; NaN if one of them is NaN.
__device__ inline float largest_of(const float* values, unsigned count) {
    float largest = negative_infinity();
    for (unsigned i = threadIdx.x; i < count; i += THREADS) largest = larger(largest, values[i]);
    return over_block(largest, Largest());
}

// A 16-bit float in memory. Arithmetic is in f32.
struct bf16 {
    unsigned short bits;
};

__device__ __forceinline__ float widened(float x) { return x; }
__device__ __forceinline__ float widened(bf16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }

template <class T>
__device__ T narrowed(float x);
template <>
__device__ __forceinline__ float narrowed<float>(float x) { return x; }
// Rounds to the nearest bf16, ties to even, as `round_to_bf16` of host/ops/src/number.rs does.
template <>
__device__ __forceinline__ bf16 narrowed<bf16>(float x) {
    const unsigned bits = __float_as_uint(x);
    const unsigned rounded = x != x ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u);
    return {static_cast<unsigned short>(rounded >> 16)};
}

// N numbers that lie together, 1 or 4.
template <unsigned N>
struct Few {
    float at[N];
};

template <unsigned N>
__device__ __forceinline__ Few<N> take(const float* from) {
    if constexpr (N == 4) {
        const float4 x = *reinterpret_cast<const float4*>(from);
        return {{x.x, x.y, x.z, x.w}};
    } else {
        return {{*from}};
    }
}
template <unsigned N>
__device__ __forceinline__ Few<N> take(const bf16* from) {
    if constexpr (N == 4) {
        const uint2 x = *reinterpret_cast<const uint2*>(from);
        return {{__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u), __uint_as_float(x.y << 16),
                 __uint_as_float(x.y & 0xffff0000u)}};
    } else {
        return {{widened(*from)}};
    }
}

template <unsigned N>
__device__ __forceinline__ void put(float* to, const Few<N>& x) {
    if constexpr (N == 4) {
        *reinterpret_cast<float4*>(to) = {x.at[0], x.at[1], x.at[2], x.at[3]};
    } else {
        *to = x.at[0];
    }
}
template <unsigned N>
__device__ __forceinline__ void put(bf16* to, const Few<N>& x) {
    if constexpr (N == 4) {
        unsigned bits[4];
        for (unsigned n = 0; n < 4; ++n) bits[n] = narrowed<bf16>(x.at[n]).bits;
        *reinterpret_cast<uint2*>(to) = {bits[0] | bits[1] << 16, bits[2] | bits[3] << 16};
    } else {
        *to = narrowed<bf16>(x.at[0]);
    }
}

// True if runs of 4 numbers from the start of each array, each `count` long, can be read at once.
template <class... T>
__device__ __forceinline__ bool in_fours(unsigned long long count, const T*... arrays) {
    return count % 4 == 0 && (... && (reinterpret_cast<unsigned long long>(arrays) % (4 * sizeof(T)) == 0));
}

// Calls `f(i)` for the first element i of each run of N elements, of `count`. The threads of the grid share the runs.
template <unsigned N, class F>
__device__ __forceinline__ void each_run(unsigned long long count, F f) {
    const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * THREADS * N;
    for (unsigned long long i = (static_cast<unsigned long long>(blockIdx.x) * THREADS + threadIdx.x) * N; i < count; i += step) f(i);
}

// Combines the `value` of every lane of a warp in a fixed order and returns the result to all of them.
template <class T, class Combine>
__device__ __forceinline__ T over_warp(T value, Combine combine) {
    for (unsigned step = 16; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(ALL_LANES, value, step));
    return value;
}
