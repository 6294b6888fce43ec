// Kernels that use what the emulator offers, and some that go wrong.

extern "C" __global__ void add(const float* a, const float* b, float* sum, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) sum[i] = a[i] + b[i];
}

// Lanes that returned, or never were, do not block the others.
extern "C" __global__ void partial_warp(unsigned* counts) {
    if (threadIdx.x % 2 == 1) return;
    __syncthreads();
    counts[threadIdx.x] = __ballot_sync(0xffffffffu, 1);
}

#include "sins.cuh"

#define FOR_EACH_KERNEL(X)                                                                                            \
    X(add) X(partial_warp) X(reverse_without_barrier) X(write_at) X(read_at) X(read_fresh) X(shared_index) X(misaligned) \
    X(divergent_barrier) X(different_barriers) X(lost_lane) X(undefined) X(give_up) X(overflow_stack)
