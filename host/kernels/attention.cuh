// Attention: softmax over the keys of whole sequences, and one new token per row over a key-value cache.
// softmax(scale * scores) over the keys starts[b] <= j <= i of query i, 0 elsewhere. scores, out: [B, H, Q, S],
// the last Q of S queries; one block per query. Mirrors `CausalSoftmax` of model/ops/softmax.rs.
template <class T>
__device__ void causal_softmax(const T* scores, const unsigned* starts, T* out, unsigned heads, unsigned queries,
                               unsigned tokens, float scale) {
    const unsigned query = blockIdx.x % queries + tokens - queries, start = starts[blockIdx.x / queries / heads];
    const T* line = scores + static_cast<unsigned long long>(blockIdx.x) * tokens;
    T* result = out + static_cast<unsigned long long>(blockIdx.x) * tokens;
    float largest = negative_infinity();
    for (unsigned j = start + threadIdx.x; j <= query; j += THREADS) largest = larger(largest, widen(line[j]));
    largest = over_block(largest, Largest());
    float sum = 0.0f;
    for (unsigned j = start + threadIdx.x; j <= query; j += THREADS) sum += expf(scale * (widen(line[j]) - largest));
    sum = over_block(sum, Sum());
    for (unsigned j = threadIdx.x; j < tokens; j += THREADS) {
        const bool valid = start <= j && j <= query;
        store(result + j, valid ? expf(scale * (widen(line[j]) - largest)) / sum : 0.0f);
    }
}

// The gradient by the scores: scale * p * (g - p.g), 0 where the key is not valid. Mirrors `CausalSoftmaxBackward`.
template <class T>
__device__ void causal_softmax_backward(const T* weights, const T* grad, const unsigned* starts, T* out, unsigned heads,
                                        unsigned queries, unsigned tokens, float scale) {
    const unsigned query = blockIdx.x % queries + tokens - queries, start = starts[blockIdx.x / queries / heads];
    const unsigned long long first = static_cast<unsigned long long>(blockIdx.x) * tokens;
    float mean = 0.0f;
    for (unsigned j = start + threadIdx.x; j <= query; j += THREADS) mean += widen(weights[first + j]) * widen(grad[first + j]);
    mean = over_block(mean, Sum());
    for (unsigned j = threadIdx.x; j < tokens; j += THREADS) {
        const bool valid = start <= j && j <= query;
        store(out + first + j, valid ? scale * widen(weights[first + j]) * (widen(grad[first + j]) - mean) : 0.0f);
    }
}

// Writes fresh [A, H, 1, width] into cache [B, H, S, width] at `index` of the rows cache_rows [A]; one thread per element.
template <class T>
__device__ void append_to_cache(T* cache, const T* fresh, const unsigned* cache_rows, unsigned count, unsigned heads,
                                unsigned tokens, unsigned width, unsigned index) {
    const unsigned i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const unsigned run = i / width;
    const unsigned long long line = static_cast<unsigned long long>(cache_rows[run / heads]) * heads + run % heads;
    cache[(line * tokens + index) * width + i % width] = fresh[i];
}

// Widest head of decode_attention.
constexpr unsigned MOST_WIDTH = 256;
constexpr unsigned LANE_WIDTH = MOST_WIDTH / 32;

// Attention of queries [A, KV * G, width] over the caches [B, KV, S, width], positions starts[a] to index of row cache_rows[a].
// One block per query; each warp takes every WARPS-th position, and keeps the running largest score, sum and mixed values.
// Mirrors `Attend` of model/ops/decode.rs.
template <class T>
__device__ void decode_attention(const T* queries, const T* keys, const T* values, const unsigned* cache_rows,
                                 const unsigned* starts, T* out, unsigned kv_heads, unsigned group, unsigned tokens,
                                 unsigned width, unsigned index, float scale) {
    __shared__ float largests[WARPS], sums[WARPS], mixtures[WARPS][MOST_WIDTH];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned active = blockIdx.x / (kv_heads * group), kv_head = blockIdx.x / group % kv_heads;
    const unsigned long long line = static_cast<unsigned long long>(cache_rows[active]) * kv_heads + kv_head;
    const T* row_keys = keys + line * tokens * width;
    const T* row_values = values + line * tokens * width;
    float query[LANE_WIDTH], mixed[LANE_WIDTH];
    for (unsigned i = 0; i < LANE_WIDTH; ++i) {
        const unsigned w = i * 32 + lane;
        query[i] = w < width ? widen(queries[static_cast<unsigned long long>(blockIdx.x) * width + w]) : 0.0f;
        mixed[i] = 0.0f;
    }
    float largest = negative_infinity(), sum = 0.0f;
    for (unsigned position = starts[active] + warp; position <= index; position += WARPS) {
        const unsigned long long first = static_cast<unsigned long long>(position) * width;
        float score = 0.0f;
        for (unsigned i = 0; i < LANE_WIDTH; ++i) {
            const unsigned w = i * 32 + lane;
            if (w < width) score += query[i] * widen(row_keys[first + w]);
        }
        for (unsigned step = 16; step > 0; step /= 2) score += __shfl_xor_sync(ALL_LANES, score, step);
        score *= scale;
        const float next = larger(largest, score), shrink = expf(largest - next), weight = expf(score - next);
        largest = next;
        sum = sum * shrink + weight;
        for (unsigned i = 0; i < LANE_WIDTH; ++i) {
            const unsigned w = i * 32 + lane;
            if (w < width) mixed[i] = mixed[i] * shrink + weight * widen(row_values[first + w]);
        }
    }
    if (lane == 0) {
        largests[warp] = largest;
        sums[warp] = sum;
    }
    for (unsigned i = 0; i < LANE_WIDTH; ++i) mixtures[warp][i * 32 + lane] = mixed[i];
    __syncthreads();
    float top = largests[0];
    for (unsigned other = 1; other < WARPS; ++other) top = larger(top, largests[other]);
    for (unsigned w = threadIdx.x; w < width; w += THREADS) {
        float total = 0.0f, value = 0.0f;
        for (unsigned other = 0; other < WARPS; ++other) {
            const float share = expf(largests[other] - top);
            total += share * sums[other];
            value += share * mixtures[other][w];
        }
        store(out + static_cast<unsigned long long>(blockIdx.x) * width + w, value / total);
    }
}

#define ATTENTION_KERNELS(T)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) causal_softmax_##T(                                                 \
        const T##_t* scores, const unsigned* starts, T##_t* out, unsigned heads, unsigned queries, unsigned tokens,           \
        float scale) {                                                                                                        \
        causal_softmax(scores, starts, out, heads, queries, tokens, scale);                                                   \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                     \
        causal_softmax_backward_##T(const T##_t* weights, const T##_t* grad, const unsigned* starts, T##_t* out,              \
                                    unsigned heads, unsigned queries, unsigned tokens, float scale) {                         \
        causal_softmax_backward(weights, grad, starts, out, heads, queries, tokens, scale);                                   \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                     \
        append_to_cache_##T(T##_t* cache, const T##_t* fresh, const unsigned* cache_rows, unsigned count, unsigned heads,     \
                            unsigned tokens, unsigned width, unsigned index) {                                                \
        append_to_cache(cache, fresh, cache_rows, count, heads, tokens, width, index);                                        \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                     \
        decode_attention_##T(const T##_t* queries, const T##_t* keys, const T##_t* values, const unsigned* cache_rows,        \
                             const unsigned* starts, T##_t* out, unsigned kv_heads, unsigned group, unsigned tokens,          \
                             unsigned width, unsigned index, float scale) {                                                   \
        decode_attention(queries, keys, values, cache_rows, starts, out, kv_heads, group, tokens, width, index, scale);       \
    }

ATTENTION_KERNELS(f32)
ATTENTION_KERNELS(bf16)
