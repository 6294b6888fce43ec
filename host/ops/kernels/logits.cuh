// One block per row of logits [N, V].
// Statistics of a row: log-probability of the target, logsumexp, entropy (nats, all of logits / temperature), the target's raw
// logit. out: [N, 4]. Mirrors `Stats` of ops/src/logps.rs.
extern "C" __global__ void __launch_bounds__(THREADS)
    logit_stats_f32(const float* logits, const unsigned* targets, float* out, unsigned vocab, double temperature) {
    const float* row = logits + static_cast<unsigned long long>(blockIdx.x) * vocab;
    const float largest = largest_of(row, vocab);
    const float inverse = static_cast<float>(1.0 / temperature);
    double sum = 0.0, weighted = 0.0;
    for (unsigned v = threadIdx.x; v < vocab; v += THREADS) {
        const float below = (row[v] - largest) * inverse, weight = expf(below);
        sum += weight;
        weighted += static_cast<double>(below) * weight;
    }
    sum = over_block(sum, Sum());
    weighted = over_block(weighted, Sum());
    if (threadIdx.x != 0) return;
    const float action = row[targets[blockIdx.x]];
    const double scaled = largest / temperature, log_sum = log(sum);
    float* stats = out + 4ull * blockIdx.x;
    stats[0] = static_cast<float>(action / temperature - scaled - log_sum);
    stats[1] = static_cast<float>(scaled + log_sum);
    stats[2] = static_cast<float>(log_sum - weighted / sum);
    stats[3] = action;
}

// The gradient by the logits of row n: d_logps_n / temperature (1[v = target] - softmax(logits / temperature)_v).
// Mirrors `LogitGradient` of ops/src/logps.rs.
extern "C" __global__ void __launch_bounds__(THREADS)
    logit_gradient_f32(const float* logits, const unsigned* targets, const float* d_logps, float* out, unsigned vocab,
                       double temperature) {
    const unsigned long long start = static_cast<unsigned long long>(blockIdx.x) * vocab;
    const float inverse = static_cast<float>(1.0 / temperature), weight = d_logps[blockIdx.x] * inverse;
    if (weight == 0.0f) {
        for (unsigned v = threadIdx.x; v < vocab; v += THREADS) out[start + v] = 0.0f;
        return;
    }
    const float* row = logits + start;
    const float largest = largest_of(row, vocab);
    double sum = 0.0;
    for (unsigned v = threadIdx.x; v < vocab; v += THREADS) sum += expf((row[v] - largest) * inverse);
    sum = over_block(sum, Sum());
    const float scale = -weight * static_cast<float>(1.0 / sum);
    const unsigned target = targets[blockIdx.x];
    for (unsigned v = threadIdx.x; v < vocab; v += THREADS) {
        const float probability = scale * expf((row[v] - largest) * inverse);
        out[start + v] = v == target ? probability + weight : probability;
    }
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

// The ids of the k largest logits of each row, descending, the lower id first among equals: [N, K], K at most V and MOST_TOP.
// Mirrors `top_k` of ops/src/top.rs.
extern "C" __global__ void __launch_bounds__(THREADS)
    top_ids_f32(const float* logits, unsigned* out, unsigned vocab, unsigned k) {
    __shared__ unsigned long long keys[MOST_TOP];
    __shared__ unsigned found;
    const float* row = logits + static_cast<unsigned long long>(blockIdx.x) * vocab;
    const unsigned long long least = least_of_top(row, vocab, k);
    unsigned size = 1;
    while (size < k) size *= 2;
    for (unsigned i = threadIdx.x; i < size; i += THREADS) keys[i] = 0;
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
    for (unsigned v = threadIdx.x; v < vocab; v += THREADS) {
        const unsigned long long key = rank_key(row[v], v);
        if (key >= least) keys[atomicAdd(&found, 1u)] = key;
    }
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
