// Faults that the emulator must find.

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

// On a GPU, 0 and the least and greatest integer; whatever comes on a CPU.
extern "C" __global__ void undefined(const float* numbers, int what, int* result) {
    switch (what) {
        case 32: *result = 1 << what; break;
        case 0: *result = 7 / what; break;
        case 0x7fffffff: *result = what + 1; break;
        default: *result = static_cast<int>(numbers[0]);
    }
}

extern "C" __global__ void give_up(const float* values) {
    if (values[threadIdx.x] == 0.0f && threadIdx.x == 3) __trap();
}

extern "C" __global__ void overflow_stack(float* values) {
    volatile float local[100000];
    for (int i = 0; i < 100000; i += 100) local[i] = values[0];
    values[1] = local[100];
}
