// What the kernels share. No header of CUDA's is included: NVRTC compiles this as it is.
typedef float f32_t;
typedef unsigned short bf16_t;  // the upper half of an f32

// Threads of every block.
constexpr unsigned THREADS = 256;
constexpr unsigned WARPS = THREADS / 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

__device__ __forceinline__ float negative_infinity() { return __uint_as_float(0xff800000u); }

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(bf16_t value) { return __uint_as_float(static_cast<unsigned>(value) << 16); }

__device__ __forceinline__ void store(float* out, float value) { *out = value; }

// To nearest, ties to even; a NaN stays one.
__device__ __forceinline__ void store(bf16_t* out, float value) {
    const unsigned bits = __float_as_uint(value);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    *out = static_cast<bf16_t>(nan ? bits >> 16 | 0x40u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// The larger one; NaN where either is.
__device__ __forceinline__ float larger(float a, float b) { return a > b || a != a ? a : b; }

struct Largest {
    __device__ float operator()(float a, float b) const { return larger(a, b); }
};

struct Sum {
    template <class T>
    __device__ T operator()(T a, T b) const { return a + b; }
};

// Every thread's `value` combined in a fixed order, for every thread. All threads of the block call it.
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

// The largest of `count` numbers that lie together; NaN where one is.
__device__ inline float largest_of(const float* values, unsigned count) {
    float largest = negative_infinity();
    for (unsigned i = threadIdx.x; i < count; i += THREADS) largest = larger(largest, values[i]);
    return over_block(largest, Largest());
}
