// The rows that each token's gradient touches, with probabilities and `u = e_a - pi`. A warp per token.

// How probabilities come from logits.
struct Softmax {
    double temperature;
    // Top logits of a token that take part, of K.
    u32 columns;
    u32 k;
    // Over the whole vocabulary, by its logsumexp; else over the rows alone.
    int full;
    // True if a sampled token outside of the columns joins, in slot `columns`.
    int add_action;
};

enum Flag : u32 { FINE = 0, NOT_FINITE = 1, BAD_ID = 2 };

extern "C" __global__ void collect_supports(
    u32 tokens, const u32* positions, const u32* actions, const u32* topk_ids, const float* topk_logits, const float* action_logits,
    const float* logsumexp, u32 vocab_size_less_1, Softmax softmax, u32* rows, float* logits, double* pi, double* u, double* tails,
    double* spreads, u32* flags) {
    u32 n = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (n >= tokens) return;
    u32 position = positions[n], action = actions[n], stride = softmax.columns + 1;
    const u32* ids = topk_ids + (size_t)position * softmax.k;
    const float* top = topk_logits + (size_t)position * softmax.k;
    size_t start = (size_t)n * stride;
    rows += start, logits += start, pi += start, u += start;

    // The token's own slot: the first column that has it, or the one beyond, or none.
    u32 chosen = NONE;
    bool known = action <= vocab_size_less_1, sound = true;
    for (u32 j = lane; j < softmax.columns; j += WARP) {
        if (ids[j] == action) chosen = min(chosen, j);
        known = known && ids[j] <= vocab_size_less_1;
        sound = sound && isfinite(top[j]);
    }
    for (u32 distance = WARP / 2; distance > 0; distance /= 2) chosen = min(chosen, __shfl_xor_sync(ALL_LANES, chosen, distance));
    bool added = chosen == NONE && softmax.add_action;
    if (softmax.add_action) sound = sound && isfinite(action_logits[position]);
    if (softmax.full) sound = sound && isfinite(logsumexp[position]);
    known = __all_sync(ALL_LANES, known), sound = __all_sync(ALL_LANES, sound);
    u32 count = softmax.columns + (added ? 1 : 0);
    if (added) chosen = softmax.columns;

    // Logits over temperature, less what makes the largest of them, or of all probabilities, no more than 1.
    double shift = softmax.full ? 0.0 : -__longlong_as_double(0x7ff0000000000000ll);
    double lse = softmax.full ? (double)logsumexp[position] : 0.0;
    for (u32 j = lane; j < stride; j += WARP) {
        float logit = j < softmax.columns ? top[j] : added ? action_logits[position] : 0.0f;
        logits[j] = logit;
        rows[j] = j < softmax.columns ? ids[j] : added ? action : NONE;
        double x = softmax.full ? (double)logit / softmax.temperature - lse : (double)logit;
        if (j < count) shift = fmax(shift, x);
    }
    shift = warp_max(shift);
    double total = 0.0;
    for (u32 j = lane; j < stride; j += WARP) {
        double x = logits[j];
        double exponent = softmax.full ? x / softmax.temperature - lse - shift : (x - shift) / softmax.temperature;
        pi[j] = j < count ? exp(exponent) : 0.0;
        total += pi[j];
    }
    total = warp_sum(total);
    double tail = softmax.full ? 1.0 - total : 0.0, scale = !softmax.full || tail < 0.0 ? total : 1.0;
    tail = fmax(tail, 0.0);

    // 1 - p without cancellation, for tokens that were all but certain.
    double others = 0.0, realised = 0.0, variance = 0.0;
    for (u32 j = lane; j < stride; j += WARP) {
        double p = pi[j] / scale;
        pi[j] = p, u[j] = -p;
        if (j != chosen) others += p, realised += p * p;
        variance = fmax(variance, 2.0 * p * (1.0 - p));
    }
    others = warp_sum(others) + tail, realised = warp_sum(realised), variance = warp_max(variance);
    if (chosen != NONE) {
        realised += others * others;
        // The lane that wrote the slot's -p is the one that replaces it.
        if (lane == chosen % WARP) u[chosen] = others;
    }
    if (lane == 0) {
        tails[n] = tail;
        spreads[n] = fmax(realised, variance);
        flags[n] = !known ? BAD_ID : sound ? FINE : NOT_FINITE;
    }
}

// `|h|^2` of each token's feature, `[N]`; not finite if an entry is not.
template <class H>
__device__ inline void squared_norms(u32 tokens, const H* hidden, const u32* features, u32 width, int vector, double* norms) {
    u32 n = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (n >= tokens) return;
    const H* row = hidden + (size_t)features[n] * width;
    double total = 0.0;
    for (u32 column = lane * PER_LANE; column < width; column += TILE) {
        float h[PER_LANE];
        load_columns(row, column, width, vector, h);
#pragma unroll
        for (u32 at = 0; at < PER_LANE; at++) total += (double)h[at] * (double)h[at];
    }
    total = warp_sum(total);
    if (lane == 0) norms[n] = total;
}

#define SQUARED_NORMS(NAME, H)                                                                                          \
    extern "C" __global__ void NAME(                                                                                    \
        u32 tokens, const H* hidden, const u32* features, u32 width, int vector, double* norms) {                       \
        squared_norms(tokens, hidden, features, width, vector, norms);                                                  \
    }
SQUARED_NORMS(squared_norms_f32, float)
SQUARED_NORMS(squared_norms_f16, f16)
SQUARED_NORMS(squared_norms_bf16, bf16)
