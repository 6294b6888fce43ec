// What a decoder layer does between its matrix products.
// 1 / sqrt(mean(values^2) + eps), for every thread of the block.
template <class T>
__device__ float inverse_rms(const T* values, unsigned width, float eps) {
    float sum = 0.0f;
    for (unsigned i = threadIdx.x; i < width; i += THREADS) sum += widen(values[i]) * widen(values[i]);
    return 1.0f / sqrtf(over_block(sum, Sum()) / static_cast<float>(width) + eps);
}

// out = weight x / sqrt(mean(x^2) + eps) for x [N, width]; one block per row. Mirrors `RmsNorm` of model/ops/rms_norm.rs.
template <class T>
__device__ void rms_norm(const T* x, const T* weight, T* out, unsigned width, float eps) {
    const unsigned long long first = static_cast<unsigned long long>(blockIdx.x) * width;
    const float inverse = inverse_rms(x + first, width, eps);
    for (unsigned i = threadIdx.x; i < width; i += THREADS) store(out + first + i, widen(x[first + i]) * inverse * widen(weight[i]));
}

// out [2, N, width]: the gradient by x, and the terms whose sum over rows is the gradient by the weight. Mirrors
// `RmsNormBackward`.
template <class T>
__device__ void rms_norm_backward(const T* x, const T* weight, const T* grad, T* out, unsigned width, float eps) {
    const unsigned long long first = static_cast<unsigned long long>(blockIdx.x) * width;
    const unsigned long long terms = static_cast<unsigned long long>(gridDim.x) * width + first;
    const float r = inverse_rms(x + first, width, eps);
    float shift = 0.0f;
    for (unsigned i = threadIdx.x; i < width; i += THREADS) {
        shift += widen(grad[first + i]) * widen(weight[i]) * widen(x[first + i]);
    }
    shift = r * r * over_block(shift, Sum()) / static_cast<float>(width);
    for (unsigned i = threadIdx.x; i < width; i += THREADS) {
        const float value = widen(x[first + i]), g = widen(grad[first + i]);
        store(out + first + i, r * (g * widen(weight[i]) - value * shift));
        store(out + terms + i, g * value * r);
    }
}

// out = silu(gate) up; one thread per element. Mirrors `SwiGlu` of model/ops/swiglu.rs.
template <class T>
__device__ void swiglu(const T* gate, const T* up, T* out, unsigned long long count) {
    const unsigned long long i = static_cast<unsigned long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= count) return;
    const float g = widen(gate[i]);
    store(out + i, g * widen(up[i]) / (1.0f + expf(-g)));
}

// out [2, count]: grad up s (1 + gate (1 - s)) and grad gate s, with s = 1 / (1 + e^-gate). Mirrors `SwiGluBackward`.
template <class T>
__device__ void swiglu_backward(const T* gate, const T* up, const T* grad, T* out, unsigned long long count) {
    const unsigned long long i = static_cast<unsigned long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= count) return;
    const float g = widen(gate[i]), d = widen(grad[i]), s = 1.0f / (1.0f + expf(-g));
    store(out + i, d * widen(up[i]) * s * (1.0f + g * (1.0f - s)));
    store(out + count + i, d * g * s);
}

// Rotates x [B, S, H, 2 half] by the angles with these cosines and sines [B, S, half] into out [B, H, S, 2 half]; where
// `inverse`, back from [B, H, S, 2 half] by the opposite angles. One thread per pair. Mirrors `Rotate` of model/ops/rope.rs.
template <class T>
__device__ void rotate(const T* x, const float* cosines, const float* sines, T* out, unsigned long long pairs, unsigned tokens,
                       unsigned heads, unsigned half, unsigned inverse) {
    const unsigned long long pair = static_cast<unsigned long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (pair >= pairs) return;
    const unsigned long long line = pair / half;
    const unsigned i = static_cast<unsigned>(pair % half);
    // `line` walks the lines of x.
    const unsigned inner = inverse ? tokens : heads, outer = inverse ? heads : tokens;
    const unsigned last = static_cast<unsigned>(line % inner), middle = static_cast<unsigned>(line / inner % outer);
    const unsigned long long row = line / inner / outer;
    const unsigned long long angle = (row * tokens + (inverse ? last : middle)) * half + i;
    const float cosine = cosines[angle], sine = inverse ? -sines[angle] : sines[angle];
    const unsigned long long from = line * 2 * half + i, to = ((row * inner + last) * outer + middle) * 2 * half + i;
    const float first = widen(x[from]), second = widen(x[from + half]);
    store(out + to, first * cosine - second * sine);
    store(out + to + half, second * cosine + first * sine);
}

// The sums of rows [N, width] that belong to one id: out[ids[u]] += sum of rows[order[j]] for offsets[u] <= j < offsets[u + 1].
// One block per id, so that no two blocks write the same row of out [V, width] and the order of additions is fixed.
extern "C" __global__ void __launch_bounds__(THREADS)
    add_rows_f32(float* out, const float* rows, const unsigned* ids, const unsigned* offsets, const unsigned* order,
                 unsigned width) {
    const unsigned from = offsets[blockIdx.x], to = offsets[blockIdx.x + 1];
    float* target = out + static_cast<unsigned long long>(ids[blockIdx.x]) * width;
    for (unsigned i = threadIdx.x; i < width; i += THREADS) {
        float sum = 0.0f;
        for (unsigned j = from; j < to; ++j) sum += rows[static_cast<unsigned long long>(order[j]) * width + i];
        target[i] += sum;
    }
}

#define LAYER_KERNELS(T)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                     \
        rms_norm_##T(const T##_t* x, const T##_t* weight, T##_t* out, unsigned width, float eps) {                            \
        rms_norm(x, weight, out, width, eps);                                                                                 \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS) rms_norm_backward_##T(                                              \
        const T##_t* x, const T##_t* weight, const T##_t* grad, T##_t* out, unsigned width, float eps) {                      \
        rms_norm_backward(x, weight, grad, out, width, eps);                                                                  \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                     \
        swiglu_##T(const T##_t* gate, const T##_t* up, T##_t* out, unsigned long long count) {                                \
        swiglu(gate, up, out, count);                                                                                         \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS) swiglu_backward_##T(                                                \
        const T##_t* gate, const T##_t* up, const T##_t* grad, T##_t* out, unsigned long long count) {                        \
        swiglu_backward(gate, up, grad, out, count);                                                                          \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                     \
        rotate_##T(const T##_t* x, const float* cosines, const float* sines, T##_t* out, unsigned long long pairs,            \
                   unsigned tokens, unsigned heads, unsigned half, unsigned inverse) {                                        \
        rotate(x, cosines, sines, out, pairs, tokens, heads, half, inverse);                                                  \
    }

LAYER_KERNELS(f32)
LAYER_KERNELS(bf16)
