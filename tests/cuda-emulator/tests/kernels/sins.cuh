// What the emulator must find.

extern "C" __global__ void reverse_without_barrier(float* values) {
    __shared__ float tile[128];
    unsigned i = threadIdx.x;
    tile[i] = values[i];
    values[i] = tile[127 - i];
}

extern "C" __global__ void write_at(float* values, int index) { values[index] = 1.0f; }

extern "C" __global__ void read_at(const float* values, int index, float* to) { *to = values[index]; }

extern "C" __global__ void read_fresh(const unsigned* fresh, unsigned* to) {
    __shared__ unsigned tile[4];
    if (fresh[0] == 1) tile[3] = 5;
    to[0] = fresh[0];
    to[1] = tile[3];
}

extern "C" __global__ void shared_index(float* values, unsigned index) {
    __shared__ float tile[32];
    tile[index + threadIdx.x] = 1.0f;
    values[0] = tile[0];
}

extern "C" __global__ void misaligned(const float* values, float* to) {
    to[0] = reinterpret_cast<const float4*>(values + 1)->x;
}

extern "C" __global__ void divergent_barrier(float* values) {
    if (threadIdx.x < 16) {
        __syncthreads();
    } else {
        __syncwarp();
    }
    values[threadIdx.x] = 0.0f;
}

extern "C" __global__ void different_barriers(float* values) {
    if (threadIdx.x < 16) {
        __syncthreads();
        values[threadIdx.x] = 0.0f;
    } else {
        __syncthreads();
        values[threadIdx.x] = 1.0f;
    }
}

extern "C" __global__ void lost_lane(unsigned* ballots) {
    ballots[threadIdx.x] = __ballot_sync(threadIdx.x == 3 ? 0x0fu : 0xffu, 1);
}
