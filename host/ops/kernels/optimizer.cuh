// Norms of all gradients, the step of AdamW in all weights, and their copies in bf16, in one launch each: a block per CHUNK numbers of a tensor.
constexpr unsigned CHUNK = 16384;

// A tensor of `count` numbers; `chunk` is the number of its first block. Gradients are f32, or bf16 where the flag says so.
struct Trained {
    float *weight, *mean, *square;
    const void *grad, *rejected;  // `rejected` may be null
    unsigned long long count;
    unsigned chunk;
    float decay_factor;
    unsigned grad_is_bf16, rejected_is_bf16;
};

// The tensor, of `count`, that holds the numbers of this block.
template <class T>
__device__ inline const T& tensor_of_block(const T* tensors, unsigned count) {
    unsigned low = 0, high = count;
    while (high - low > 1) {
        const unsigned middle = (low + high) / 2;
        if (tensors[middle].chunk <= blockIdx.x) low = middle;
        else high = middle;
    }
    return tensors[low];
}

__device__ __forceinline__ float gradient_at(const void* grad, unsigned is_bf16, unsigned long long i) {
    return is_bf16 ? widened(static_cast<const bf16*>(grad)[i]) : static_cast<const float*>(grad)[i];
}

// out [blocks, 3]: sums of squares of the gradients, of the rejected ones, and of their sums.
extern "C" __global__ void __launch_bounds__(THREADS) gradient_squares(const Trained* tensors, double* out, unsigned count) {
    const Trained own = tensor_of_block(tensors, count);
    const unsigned long long from = static_cast<unsigned long long>(blockIdx.x - own.chunk) * CHUNK, to = min(from + CHUNK, own.count);
    double sums[3] = {};
    #pragma unroll 4
    for (unsigned long long i = from + threadIdx.x; i < to; i += THREADS) {
        const double g = gradient_at(own.grad, own.grad_is_bf16, i);
        sums[0] += g * g;
        if (!own.rejected) continue;
        const double r = gradient_at(own.rejected, own.rejected_is_bf16, i), both = static_cast<float>(g) + static_cast<float>(r);
        sums[1] += r * r;
        sums[2] += both * both;
    }
    for (unsigned i = 0; i < 3; ++i) {
        const double sum = over_block(sums[i], Sum());
        if (threadIdx.x == 0) out[3ull * blockIdx.x + i] = sum;
    }
}

// out [3] = the sums of parts [count, 3], by one block.
extern "C" __global__ void __launch_bounds__(THREADS) sum_of_squares(const double* parts, double* out, unsigned count) {
    for (unsigned i = 0; i < 3; ++i) {
        double sum = 0.0;
        for (unsigned part = threadIdx.x; part < count; part += THREADS) sum += parts[3ull * part + i];
        sum = over_block(sum, Sum());
        if (threadIdx.x == 0) out[i] = sum;
    }
}

// Mirrors `Mean`, `MeanSquare` and `Update` of ops/src/optimizer.rs.
extern "C" __global__ void __launch_bounds__(THREADS)
    adamw(const Trained* tensors, unsigned count, float rest1, float beta2, float rest2, float scale, float rate, float root, float eps) {
    const Trained own = tensor_of_block(tensors, count);
    const unsigned long long from = static_cast<unsigned long long>(blockIdx.x - own.chunk) * CHUNK, to = min(from + CHUNK, own.count);
    #pragma unroll 4
    for (unsigned long long i = from + threadIdx.x; i < to; i += THREADS) {
        const float g = scale * gradient_at(own.grad, own.grad_is_bf16, i);
        float m = own.mean[i], v = own.square[i];
        m += rest1 * (g - m);
        if (own.rejected) {
            const float r = scale * gradient_at(own.rejected, own.rejected_is_bf16, i);
            v = beta2 * v + rest2 * (g * g + r * r);
        } else {
            v = beta2 * v + rest2 * g * g;
        }
        own.mean[i] = m;
        own.square[i] = v;
        own.weight[i] = own.weight[i] * own.decay_factor - rate * (m / (sqrtf(v) / root + eps));
    }
}

// A tensor of `count` numbers whose copy begins at number `to`; `chunk` is the number of its first block.
struct Narrowed {
    const float* from;
    unsigned long long to, count, chunk;
};

extern "C" __global__ void __launch_bounds__(THREADS) narrow_all(const Narrowed* tensors, bf16* out, unsigned count) {
    const Narrowed own = tensor_of_block(tensors, count);
    const unsigned long long from = (blockIdx.x - own.chunk) * CHUNK, to = min(from + CHUNK, own.count);
    bf16* copy = out + own.to;
    if (in_fours(own.count, own.from, copy)) {
        #pragma unroll 4
        for (unsigned long long i = from + threadIdx.x * 4; i < to; i += THREADS * 4) put(copy + i, take<4>(own.from + i));
    } else {
        for (unsigned long long i = from + threadIdx.x; i < to; i += THREADS) copy[i] = narrowed<bf16>(own.from[i]);
    }
}
