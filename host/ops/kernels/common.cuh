// What the kernels share. No header of CUDA's is included: NVRTC compiles this as it is.
// Threads of every block.
constexpr unsigned THREADS = 256;
constexpr unsigned WARPS = THREADS / 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

__device__ __forceinline__ float negative_infinity() { return __uint_as_float(0xff800000u); }

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
