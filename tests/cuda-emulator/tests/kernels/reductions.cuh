// The sum of each block's elements: a tree in shared memory.
extern "C" __global__ void __launch_bounds__(256) sum_blocks(const float* __restrict__ values, float* sums, unsigned n) {
    __shared__ float partial[256];
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    partial[threadIdx.x] = i < n ? values[i] : 0.0f;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
}

template <class T>
__device__ __forceinline__ T warp_sum(T value) {
    for (int bits = 16; bits > 0; bits /= 2) value += __shfl_xor_sync(0xffffffffu, value, bits);
    return value;
}

// Per thread: the warp's sums of its doubles and of its lanes' numbers, and what the four shuffles move.
extern "C" __global__ void warp_sums(const double* values, double* sums, int* lanes) {
    unsigned i = threadIdx.x;
    int lane = static_cast<int>(i % 32);
    sums[i] = warp_sum(values[i]);
    lanes[4 * i] = __shfl_sync(0xffffffffu, lane, 7);
    lanes[4 * i + 1] = __shfl_up_sync(0xffffffffu, lane, 3u);
    lanes[4 * i + 2] = __shfl_down_sync(0xffffffffu, lane, 3u, 8);
    lanes[4 * i + 3] = __shfl_xor_sync(0xffffffffu, lane, 5);
}

// Half-warps vote by themselves.
extern "C" __global__ void votes(const unsigned* values, unsigned* ballots) {
    unsigned i = threadIdx.x, mask = i % 32 < 16 ? 0xffffu : 0xffff0000u;
    unsigned ballot = __ballot_sync(mask, values[i] > 10);
    ballots[i] = __all_sync(mask, values[i] > 10) ? 100u : __any_sync(mask, values[i] > 10) ? ballot : 0u;
}

// Lanes that returned, or never were, do not block the others.
extern "C" __global__ void partial_warp(unsigned* counts) {
    if (threadIdx.x % 2 == 1) return;
    __syncthreads();
    counts[threadIdx.x] = static_cast<unsigned>(__popc(__ballot_sync(0xffffffffu, 1)));
}

extern "C" __global__ void count(const unsigned* values, unsigned n, unsigned* total, unsigned* least, unsigned* most, unsigned* bits) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        atomicAdd(total, values[i]);
        atomicMin(least, values[i]);
        atomicMax(most, values[i]);
        atomicOr(bits, values[i]);
    }
}

// Reverses 128 elements; `tile` has a row more than it needs, in two dimensions.
extern "C" __global__ void reverse(float4* values) {
    __shared__ float4 tile[2][64];
    unsigned i = threadIdx.x + threadIdx.y * blockDim.x;
    tile[i / 64][i % 64] = values[i];
    __syncthreads();
    values[i] = tile[1 - i / 64][63 - i % 64];
}
