// Exclusive prefix sums of u32, in tiles of SCAN_TILE entries.

constexpr u32 SCAN_THREADS = 256;
constexpr u32 SCAN_ITEMS = 8;
constexpr u32 SCAN_TILE = SCAN_THREADS * SCAN_ITEMS;

// Exclusive prefix of `x` over the threads of a block of SCAN_THREADS, and the sum of all in `total`.
__device__ inline u32 block_prefix(u32 x, u32* total) {
    __shared__ u32 sums[SCAN_THREADS / WARP];
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, inclusive = x;
#pragma unroll
    for (u32 distance = 1; distance < WARP; distance *= 2) {
        u32 below = __shfl_up_sync(ALL_LANES, inclusive, distance);
        if (lane >= distance) inclusive += below;
    }
    if (lane == WARP - 1) sums[warp] = inclusive;
    __syncthreads();
    u32 before = 0, all = 0;
#pragma unroll
    for (u32 at = 0; at < SCAN_THREADS / WARP; at++) {
        before += at < warp ? sums[at] : 0;
        all += sums[at];
    }
    // The next call writes `sums`.
    __syncthreads();
    *total = all;
    return before + inclusive - x;
}

// Each tile's prefix sums in place, and its sum in `sums`.
extern "C" __global__ void scan_tiles(u32* data, u32 count, u32* sums) {
    u32 items[SCAN_ITEMS], own = 0, first = blockIdx.x * SCAN_TILE + threadIdx.x * SCAN_ITEMS;
#pragma unroll
    for (u32 at = 0; at < SCAN_ITEMS; at++) {
        items[at] = first + at < count ? data[first + at] : 0;
        own += items[at];
    }
    u32 total, prefix = block_prefix(own, &total);
#pragma unroll
    for (u32 at = 0; at < SCAN_ITEMS; at++) {
        if (first + at < count) data[first + at] = prefix;
        prefix += items[at];
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

// Adds to each tile the sum of those before it.
extern "C" __global__ void add_offsets(u32* data, u32 count, const u32* offsets) {
    for (u32 at = threadIdx.x; at < SCAN_TILE; at += blockDim.x) {
        u32 index = blockIdx.x * SCAN_TILE + at;
        if (index < count) data[index] += offsets[blockIdx.x];
    }
}
