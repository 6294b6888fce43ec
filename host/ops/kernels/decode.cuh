// Attention of A new tokens over a cache [B, KV, S, width]. `places` [2, A] are the cache row of each token, and its position there.

// Rotates the queries q [A, H * width] into `queries`, and writes the rotated keys k and the values v, [A, KV * width] each, to the caches.
// `lines` are the distances of the rows of q, k and v.
template <unsigned N, class T>
__device__ void decode_heads(const T* q, const T* k, const T* v, const float* cos, const float* sin, const unsigned* places, T* queries,
                             T* keys, T* values, uint3 lines, unsigned active, unsigned heads, unsigned kv_heads, unsigned tokens,
                             unsigned width) {
    const unsigned half = width / 2, runs = half / N, all = heads + 2 * kv_heads;
    const unsigned i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= active * all * runs) return;
    const unsigned pair = i % runs * N, a = i / runs / all;
    unsigned head = i / runs % all;
    const T* from;
    T* to;
    const unsigned position = places[active + a];
    const bool is_query = head < heads;
    if (is_query) {
        from = q + static_cast<unsigned long long>(a) * lines.x + head * width;
        to = queries + (static_cast<unsigned long long>(a) * heads + head) * width;
    } else {
        head -= heads;
        const bool is_key = head < kv_heads;
        if (!is_key) head -= kv_heads;
        from = (is_key ? k : v) + static_cast<unsigned long long>(a) * (is_key ? lines.y : lines.z) + head * width;
        to = (is_key ? keys : values) + ((static_cast<unsigned long long>(places[a]) * kv_heads + head) * tokens + position) * width;
        if (!is_key) cos = nullptr;
    }
    Few<N> left = take<N>(from + pair), right = take<N>(from + half + pair);
    rotate(left, right, cos, sin, static_cast<unsigned long long>(position) * half + pair, 1.0f);
    put(to + pair, left);
    put(to + half + pair, right);
}

// Limits: scores of a block, numbers of the queries of a block, numbers of a head.
constexpr unsigned MOST_SCORES = 8192;
constexpr unsigned MOST_QUERIES = 2048;
constexpr unsigned WIDEST_HEAD = 256;
// Threads that share a key, and queries whose sums a thread holds at a time.
constexpr unsigned KEY_LANES = 8;
constexpr unsigned AT_ONCE = 4;

// Shared memory of a block, for all forms of the kernel.
struct DecodeRoom {
    float scores[MOST_SCORES];
    float own[MOST_QUERIES];
    float parts_of_sum[THREADS * 4];
};

// Block (a * KV + head, part) attends with the `group` queries that share a key head, over the part's `length` keys. With one part, `out`
// [A, H * width] is written. With more, `mixed` [A * H, parts, width] gets the unnormalised sums, and `sizes` [A * H, parts] the
// largest score and the sum of weights.
template <unsigned N, class T>
__device__ void decode_attention(DecodeRoom& room, const T* queries, const T* keys, const T* values, const unsigned* places, T* out, float* mixed,
                                 Pair* sizes, unsigned active, unsigned kv_heads, unsigned group, unsigned tokens, unsigned width,
                                 unsigned length, float scale) {
    auto& [scores, own, parts_of_sum] = room;
    const unsigned a = blockIdx.x / kv_heads, head = blockIdx.x % kv_heads, parts = gridDim.y;
    const unsigned from = blockIdx.y * length, to = min(from + length, places[active + a] + 1);
    const unsigned count = to > from ? to - from : 0;
    const unsigned long long run = static_cast<unsigned long long>(places[a]) * kv_heads + head;
    const unsigned long long first_query = static_cast<unsigned long long>(blockIdx.x) * group;
    for (unsigned i = threadIdx.x; i < group * width; i += THREADS) own[i] = widened(queries[first_query * width + i]);
    __syncthreads();

    // Scores: KEY_LANES threads share a key. All threads of a warp run the same number of rounds.
    const unsigned lane = threadIdx.x % KEY_LANES;
    for (unsigned round = 0; round < count; round += THREADS / KEY_LANES) {
        const unsigned key = round + threadIdx.x / KEY_LANES;
        constexpr unsigned STEPS = WIDEST_HEAD / (KEY_LANES * N);
        Few<N> numbers[STEPS];
        const T* own_key = keys + (run * tokens + from + min(key, count - 1)) * width;
    #pragma unroll
        for (unsigned step = 0; step < STEPS; ++step) {
            const unsigned c = (step * KEY_LANES + lane) * N;
            if (c < width) numbers[step] = take<N>(own_key + c);
        }
        for (unsigned g = 0; g < group; ++g) {
            float score = 0.0f;
    #pragma unroll
            for (unsigned step = 0; step < STEPS; ++step) {
                const unsigned c = (step * KEY_LANES + lane) * N;
                if (c >= width) break;
                for (unsigned n = 0; n < N; ++n) score += own[g * width + c + n] * numbers[step].at[n];
            }
            for (unsigned step = KEY_LANES / 2; step > 0; step /= 2) score += __shfl_xor_sync(ALL_LANES, score, step);
            if (lane == 0 && key < count) scores[g * length + key] = score * scale;
        }
    }
    __syncthreads();

    // Weights: one warp for each query. The queries in `own` are no longer needed, and their largest scores and sums of weights replace them.
    for (unsigned g = threadIdx.x / 32; g < group; g += WARPS) {
        float* line = scores + g * length;
        float largest = negative_infinity(), sum = 0.0f;
        for (unsigned i = threadIdx.x % 32; i < count; i += 32) largest = larger(largest, line[i]);
        largest = over_warp(largest, Largest());
        for (unsigned i = threadIdx.x % 32; i < count; i += 32) {
            line[i] = expf(line[i] - largest);
            sum += line[i];
        }
        sum = over_warp(sum, Sum());
        if (threadIdx.x % 32 == 0) {
            own[2 * g] = largest;
            own[2 * g + 1] = sum;
        }
    }
    __syncthreads();

    // Mixed values: the `wide` threads of a crew share the columns, and the crews of a block share the keys.
    const unsigned wide = width / N, crews = THREADS / wide, crew = threadIdx.x / wide, c = threadIdx.x % wide * N;
    for (unsigned first = 0; first < group; first += AT_ONCE) {
        Few<N> sums[AT_ONCE];
    #pragma unroll
        for (unsigned g = 0; g < AT_ONCE; ++g) sums[g] = {};
        if (crew < crews) {
    #pragma unroll 2
            for (unsigned key = crew; key < count; key += crews) {
                const Few<N> value = take<N>(values + (run * tokens + from + key) * width + c);
    #pragma unroll
                for (unsigned g = 0; g < AT_ONCE; ++g) {
                    if (first + g >= group) break;
                    const float weight = scores[(first + g) * length + key];
                    for (unsigned n = 0; n < N; ++n) sums[g].at[n] += weight * value.at[n];
                }
            }
        }
    #pragma unroll
        for (unsigned g = 0; g < AT_ONCE; ++g) {
            if (first + g >= group) break;
            __syncthreads();
            for (unsigned n = 0; n < N; ++n) parts_of_sum[threadIdx.x * N + n] = sums[g].at[n];
            __syncthreads();
            const float total = own[2 * (first + g) + 1];
            const unsigned long long query = first_query + first + g;
            for (unsigned i = threadIdx.x; i < width; i += THREADS) {
                float sum = 0.0f;
                for (unsigned other = 0; other < crews; ++other) sum += parts_of_sum[other * width + i];
                if (parts == 1) out[query * width + i] = narrowed<T>(sum / total);
                else mixed[(query * parts + blockIdx.y) * width + i] = sum;
            }
            if (parts > 1 && threadIdx.x == 0) sizes[query * parts + blockIdx.y] = {own[2 * (first + g)], total};
        }
    }
}

// Joins the parts of a query, one block each, in their order.
template <class T>
__device__ void join_parts(const float* mixed, const Pair* sizes, T* out, unsigned parts, unsigned width) {
    const unsigned long long query = blockIdx.x;
    float largest = negative_infinity(), total = 0.0f;
    for (unsigned part = 0; part < parts; ++part) largest = larger(largest, sizes[query * parts + part].a);
    for (unsigned part = 0; part < parts; ++part) {
        total += sizes[query * parts + part].b * expf(sizes[query * parts + part].a - largest);
    }
    for (unsigned i = threadIdx.x; i < width; i += THREADS) {
        float sum = 0.0f;
        for (unsigned part = 0; part < parts; ++part) {
            sum += mixed[(query * parts + part) * width + i] * expf(sizes[query * parts + part].a - largest);
        }
        out[query * width + i] = narrowed<T>(sum / total);
    }
}

#define DECODE_KERNELS(suffix, T)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                              \
        decode_heads_##suffix(const T* q, const T* k, const T* v, const float* cos, const float* sin, const unsigned* places,          \
                              T* queries, T* keys, T* values, unsigned line_q, unsigned line_k, unsigned line_v, unsigned active,      \
                              unsigned heads, unsigned kv_heads, unsigned tokens, unsigned width) {                                    \
        const uint3 lines = {line_q, line_k, line_v};                                                                                  \
        const bool fours = in_fours(width / 2, q, k, v, cos, sin, queries, keys, values) && (line_q | line_k | line_v) % 4 == 0;       \
        if (fours) {                                                                                                                   \
            decode_heads<4>(q, k, v, cos, sin, places, queries, keys, values, lines, active, heads, kv_heads, tokens, width);          \
        } else {                                                                                                                       \
            decode_heads<1>(q, k, v, cos, sin, places, queries, keys, values, lines, active, heads, kv_heads, tokens, width);          \
        }                                                                                                                              \
    }                                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                              \
        decode_attention_##suffix(const T* queries, const T* keys, const T* values, const unsigned* places, T* out, float* mixed,      \
                                  Pair* sizes, unsigned active, unsigned kv_heads, unsigned group, unsigned tokens,                    \
                                  unsigned width, unsigned length, float scale) {                                                      \
        __shared__ DecodeRoom room;                                                                                                    \
        if (in_fours(width, queries, keys, values)) {                                                                                  \
            decode_attention<4>(room, queries, keys, values, places, out, mixed, sizes, active, kv_heads, group, tokens, width,        \
                                length, scale);                                                                                        \
        } else {                                                                                                                       \
            decode_attention<1>(room, queries, keys, values, places, out, mixed, sizes, active, kv_heads, group, tokens, width,        \
                                length, scale);                                                                                        \
        }                                                                                                                              \
    }                                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                              \
        join_parts_##suffix(const float* mixed, const Pair* sizes, T* out, unsigned parts, unsigned width) {                           \
        join_parts(mixed, sizes, out, parts, width);                                                                                   \
    }
DECODE_KERNELS(f32, float)
DECODE_KERNELS(bf16, bf16)
