// One block per row of logits [N, V].

// `f(id, logit)` for a thread's logits of a row, in their order. Four are under way at a time.
template <class F>
__device__ __forceinline__ void each_logit(const float* row, unsigned vocab, F f) {
    unsigned v = threadIdx.x;
    for (; v + 3 * THREADS < vocab; v += 4 * THREADS) {
        float x[4];
        #pragma unroll
        for (unsigned n = 0; n < 4; ++n) x[n] = row[v + n * THREADS];
        #pragma unroll
        for (unsigned n = 0; n < 4; ++n) f(v + n * THREADS, x[n]);
    }
    for (; v < vocab; v += THREADS) f(v, row[v]);
}

// A row's largest logit; and over all, with y = (logit - largest) / temperature, the sums of e^y and of y e^y.
struct RowSums {
    float largest;
    double sum, weighted;
};

// In one pass: a thread's sums grow with the largest logit that it has seen so far.
__device__ inline RowSums sums_of(const float* row, unsigned vocab, float inverse) {
    float largest = negative_infinity();
    double sum = 0.0, weighted = 0.0;
    // The sums by another largest logit.
    auto rescale = [&](float to) {
        const double by = static_cast<double>(largest - to) * inverse, factor = largest == negative_infinity() ? 0.0 : exp(by);
        weighted = factor == 0.0 ? 0.0 : factor * (weighted + by * sum);
        sum *= factor;
        largest = to;
    };
    each_logit(row, vocab, [&](unsigned, float logit) {
        if (larger(largest, logit) != largest) rescale(larger(largest, logit));
        // Without a finite logit so far this one weighs nothing.
        const float below = (logit - largest) * inverse, weight = largest == negative_infinity() ? 0.0f : expf(below);
        sum += weight;
        weighted += weight == 0.0f ? 0.0 : static_cast<double>(below) * weight;
    });
    rescale(over_block(largest, Largest()));
    return {largest, over_block(sum, Sum()), over_block(weighted, Sum())};
}

// Statistics of a row: log-probability of the target, logsumexp, entropy (nats, all of logits / temperature), the target's raw
// logit. out: [N, 4]. Mirrors `Stats` of ops/src/logps.rs.
extern "C" __global__ void __launch_bounds__(THREADS)
    logit_stats_f32(const float* logits, const unsigned* targets, float* out, unsigned vocab, double temperature) {
    const float* row = logits + static_cast<unsigned long long>(blockIdx.x) * vocab;
    const RowSums sums = sums_of(row, vocab, static_cast<float>(1.0 / temperature));
    if (threadIdx.x != 0) return;
    const float action = row[targets[blockIdx.x]];
    const double scaled = sums.largest / temperature, log_sum = log(sums.sum);
    float* stats = out + 4ull * blockIdx.x;
    stats[0] = static_cast<float>(action / temperature - scaled - log_sum);
    stats[1] = static_cast<float>(scaled + log_sum);
    stats[2] = static_cast<float>(log_sum - sums.weighted / sums.sum);
    stats[3] = action;
}

// The gradient by the logits of row n: d_logps_n / temperature (1[v = target] - softmax(logits / temperature)_v).
// Mirrors `LogitGradient` of ops/src/logps.rs.
template <class T>
__device__ void logit_gradient(const float* logits, const unsigned* targets, const float* d_logps, T* out, unsigned vocab, double temperature) {
    const unsigned long long start = static_cast<unsigned long long>(blockIdx.x) * vocab;
    const float inverse = static_cast<float>(1.0 / temperature), weight = d_logps[blockIdx.x] * inverse;
    if (weight == 0.0f) {
        for (unsigned v = threadIdx.x; v < vocab; v += THREADS) out[start + v] = narrowed<T>(0.0f);
        return;
    }
    const float* row = logits + start;
    const RowSums sums = sums_of(row, vocab, inverse);
    const float scale = -weight * static_cast<float>(1.0 / sums.sum);
    const unsigned target = targets[blockIdx.x];
    each_logit(row, vocab, [&](unsigned v, float logit) {
        const float probability = scale * expf((logit - sums.largest) * inverse);
        out[start + v] = narrowed<T>(v == target ? probability + weight : probability);
    });
}
extern "C" __global__ void __launch_bounds__(THREADS)
    logit_gradient_f32(const float* logits, const unsigned* targets, const float* d_logps, float* out, unsigned vocab, double temperature) {
    logit_gradient(logits, targets, d_logps, out, vocab, temperature);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    logit_gradient_to_bf16(const float* logits, const unsigned* targets, const float* d_logps, bf16* out, unsigned vocab, double temperature) {
    logit_gradient(logits, targets, d_logps, out, vocab, temperature);
}

// Orders logits as f32::total_cmp does, and equal ones by the lower id first: larger keys come first, no two are equal.
__device__ __forceinline__ unsigned long long rank_key(float logit, unsigned id) {
    const unsigned bits = __float_as_uint(logit);
    const unsigned order = bits >> 31 ? ~bits : bits | 0x80000000u;
    return static_cast<unsigned long long>(order) << 32 | ~id;
}

// Most ids that top_ids_f32 can give.
constexpr unsigned MOST_TOP = 1024;

// The least of the `k` largest keys of a row, or a bound that the same keys reach, byte by byte from the highest.
__device__ inline unsigned long long least_of_top(const float* row, unsigned vocab, unsigned k) {
    __shared__ unsigned counts[256];
    __shared__ unsigned chosen, left;
    unsigned long long prefix = 0, known = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        __syncthreads();
        counts[threadIdx.x] = 0;
        __syncthreads();
        for (unsigned v = threadIdx.x; v < vocab; v += THREADS) {
            const unsigned long long key = rank_key(row[v], v);
            if ((key & known) == prefix) atomicAdd(&counts[key >> shift & 255u], 1u);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            unsigned bin = 255, wanted = k;
            for (; counts[bin] < wanted; --bin) wanted -= counts[bin];
            chosen = bin;
            left = wanted;
        }
        __syncthreads();
        prefix |= static_cast<unsigned long long>(chosen) << shift;
        known |= 255ull << shift;
        k = left;
        if (counts[chosen] == k) break;  // the rest of the bin is wanted whole
    }
    return prefix;
}

// A key that the `k` largest keys of a row surely reach, for k up to THREADS: the k-th of the threads' largest ones. Few others reach it, unless
// they lie in an unusual order.
__device__ inline unsigned long long bound_of_top(const float* row, unsigned vocab, unsigned k) {
    __shared__ unsigned long long largest[THREADS];
    __shared__ unsigned long long bound;
    unsigned long long own = 0;
    each_logit(row, vocab, [&](unsigned v, float logit) { own = max(own, rank_key(logit, v)); });
    largest[threadIdx.x] = own;
    __syncthreads();
    unsigned above = 0;
    for (unsigned t = 0; t < THREADS; ++t) above += largest[t] > own;
    // Threads without a logit share the key 0, and are more than the others leave room for.
    if (above == k - 1) bound = own;
    __syncthreads();
    return bound;
}

// Puts the keys of at least `least` into `keys`, in any order, and counts them in `found`; at most MOST_TOP are there.
__device__ inline void collect_keys(const float* row, unsigned vocab, unsigned long long least, unsigned long long* keys, unsigned* found) {
    for (unsigned i = threadIdx.x; i < MOST_TOP; i += THREADS) keys[i] = 0;
    if (threadIdx.x == 0) *found = 0;
    __syncthreads();
    each_logit(row, vocab, [&](unsigned v, float logit) {
        const unsigned long long key = rank_key(logit, v);
        if (key < least) return;
        const unsigned place = atomicAdd(found, 1u);
        if (place < MOST_TOP) keys[place] = key;
    });
    __syncthreads();
}

// The ids of the k largest logits of each row, descending, the lower id first among equals: [N, K], K at most V and MOST_TOP.
// Mirrors `top_k` of ops/src/top.rs.
extern "C" __global__ void __launch_bounds__(THREADS)
    top_ids_f32(const float* logits, unsigned* out, unsigned vocab, unsigned k) {
    __shared__ unsigned long long keys[MOST_TOP];
    __shared__ unsigned found;
    const float* row = logits + static_cast<unsigned long long>(blockIdx.x) * vocab;
    bool is_exact = k > THREADS;
    if (!is_exact) {
        collect_keys(row, vocab, bound_of_top(row, vocab, k), keys, &found);
        is_exact = found > MOST_TOP;
        __syncthreads();
    }
    if (is_exact) collect_keys(row, vocab, least_of_top(row, vocab, k), keys, &found);
    unsigned size = 1;
    while (size < found) size *= 2;
    // Bitonic, descending. The keys differ, so the order in which they were found does not matter.
    for (unsigned run = 2; run <= size; run *= 2) {
        for (unsigned gap = run / 2; gap > 0; gap /= 2) {
            __syncthreads();
            for (unsigned i = threadIdx.x; i < size; i += THREADS) {
                const unsigned other = i ^ gap;
                if (other < i) continue;
                const unsigned long long a = keys[i], b = keys[other];
                if ((i & run) == 0 ? a < b : a > b) {
                    keys[i] = b;
                    keys[other] = a;
                }
            }
        }
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < k; i += THREADS) {
        out[static_cast<unsigned long long>(blockIdx.x) * k + i] = ~static_cast<unsigned>(keys[i]);
    }
}

// What draw_f32 gives for a row whose largest logit is not finite.
constexpr unsigned NOT_FINITE = 0xffffffffu;

// One id per row from softmax(logits / temperature), by inverting the cumulative distribution at uniform [N] in [0, 1).
// Mirrors `pick` of ops/src/draw.rs.
extern "C" __global__ void __launch_bounds__(THREADS)
    draw_f32(const float* logits, const double* uniform, unsigned* out, unsigned vocab, double temperature) {
    __shared__ double weights[THREADS];
    __shared__ double before;
    __shared__ unsigned owner;
    const float* row = logits + static_cast<unsigned long long>(blockIdx.x) * vocab;
    const float largest = largest_of(row, vocab);
    if (!isfinite(largest)) {
        if (threadIdx.x == 0) out[blockIdx.x] = NOT_FINITE;
        return;
    }
    const double top = largest;
    const unsigned length = (vocab + THREADS - 1) / THREADS;
    const unsigned from = min(threadIdx.x * length, vocab), to = min(from + length, vocab);
    double sum = 0.0;
    for (unsigned v = from; v < to; ++v) sum += exp((row[v] - top) / temperature);
    weights[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        double total = 0.0;
        for (unsigned t = 0; t < THREADS; ++t) total += weights[t];
        const double target = uniform[blockIdx.x] * total;
        double reached = 0.0;
        for (unsigned t = 0; t < THREADS; ++t) {
            if (weights[t] == 0.0) continue;
            owner = t;
            before = reached;
            reached += weights[t];
            if (reached > target) break;
        }
        weights[0] = target;
    }
    __syncthreads();
    if (threadIdx.x != owner) return;
    const double target = weights[0];
    double reached = before;
    unsigned last = from;
    for (unsigned v = from; v < to; ++v) {
        const double weight = exp((row[v] - top) / temperature);
        if (weight == 0.0) continue;
        last = v;
        reached += weight;
        if (reached > target) break;
    }
    out[blockIdx.x] = last;
}
