// Softmax over the valid keys of each query: a warp per line of scores [B, H, Q, S] of the last Q of S queries.
struct Line {
    unsigned from, to;        // valid keys
    unsigned long long start;  // of the line
    bool is_there;
};

__device__ __forceinline__ Line line_of_warp(const unsigned* starts, unsigned long long lines, unsigned heads, unsigned queries, unsigned tokens) {
    const unsigned long long line = static_cast<unsigned long long>(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (line >= lines) return {0, 0, 0, false};
    const unsigned end = static_cast<unsigned>(line % queries) + tokens - queries + 1;
    return {min(starts[line / (static_cast<unsigned long long>(heads) * queries)], end), end, line * tokens, true};
}

// softmax(scale scores) over the keys starts[b]..=i of query i, 0 elsewhere. Mirrors `CausalSoftmax` of ops/src/softmax.rs.
template <class T>
__device__ void causal_softmax(const T* scores, const unsigned* starts, T* out, unsigned long long lines, unsigned heads,
                               unsigned queries, unsigned tokens, float scale) {
    const Line line = line_of_warp(starts, lines, heads, queries, tokens);
    if (!line.is_there) return;  // whole warps
    const unsigned lane = threadIdx.x % 32;
    const T* own = scores + line.start;
    float largest = negative_infinity(), sum = 0.0f;
    #pragma unroll 4
    for (unsigned k = line.from + lane; k < line.to; k += 32) largest = larger(largest, widened(own[k]));
    largest = over_warp(largest, Largest());
    #pragma unroll 4
    for (unsigned k = line.from + lane; k < line.to; k += 32) sum += expf(scale * (widened(own[k]) - largest));
    const float inverse = 1.0f / over_warp(sum, Sum());
    #pragma unroll 4
    for (unsigned k = lane; k < tokens; k += 32) {
        const bool is_valid = k >= line.from && k < line.to;
        out[line.start + k] = narrowed<T>(is_valid ? expf(scale * (widened(own[k]) - largest)) * inverse : 0.0f);
    }
}

// scale p (g - p.g). Mirrors `CausalSoftmaxBackward` of ops/src/softmax.rs.
template <class T>
__device__ void causal_softmax_backward(const T* probs, const T* g, const unsigned* starts, T* out, unsigned long long lines,
                                        unsigned heads, unsigned queries, unsigned tokens, float scale) {
    const Line line = line_of_warp(starts, lines, heads, queries, tokens);
    if (!line.is_there) return;
    const unsigned lane = threadIdx.x % 32;
    const T *own = probs + line.start, *by_own = g + line.start;
    float mean = 0.0f;
    #pragma unroll 4
    for (unsigned k = line.from + lane; k < line.to; k += 32) mean += widened(own[k]) * widened(by_own[k]);
    mean = over_warp(mean, Sum());
    #pragma unroll 4
    for (unsigned k = lane; k < tokens; k += 32) {
        const bool is_valid = k >= line.from && k < line.to;
        out[line.start + k] = narrowed<T>(is_valid ? scale * widened(own[k]) * (widened(by_own[k]) - mean) : 0.0f);
    }
}

#define SOFTMAX_KERNELS(suffix, T)                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                      \
        causal_softmax_##suffix(const T* scores, const unsigned* starts, T* out, unsigned long long lines, unsigned heads,     \
                                unsigned queries, unsigned tokens, float scale) {                                              \
        causal_softmax(scores, starts, out, lines, heads, queries, tokens, scale);                                             \
    }                                                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                      \
        causal_softmax_backward_##suffix(const T* probs, const T* g, const unsigned* starts, T* out, unsigned long long lines, \
                                         unsigned heads, unsigned queries, unsigned tokens, float scale) {                     \
        causal_softmax_backward(probs, g, starts, out, lines, heads, queries, tokens, scale);                                  \
    }
SOFTMAX_KERNELS(f32, float)
SOFTMAX_KERNELS(bf16, bf16)
