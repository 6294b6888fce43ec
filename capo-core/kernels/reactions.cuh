// Reaction of a token's policy, from the projections of its rows; as `shift.rs` has it.

// For tokens whose direction is their own gradient: `v = w A |h|^2 u`.
extern "C" __global__ void follow_gradients(
    u32 count, const u32* rows, u32 stride, const double* u, const double* scales, const double* norms_of_features, double* v, double* norms) {
    u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    u32 n = index / stride;
    double along = scales[n] * norms_of_features[n];
    bool there = rows[index] != NONE;
    v[index] = there ? along * u[index] : 0.0;
    norms[index] = there ? scales[n] * along * u[index] * u[index] : 0.0;
}

struct Effect {
    double s, q, kl, gain;
    // The token's part of `g . D` and of `|D|^2`.
    double slope, squared_norm;
};

// `e^x - 1 - x` for `|x| < 1`, to a few ulps.
__device__ inline double exp_less_tangent(double x) {
    if (fabs(x) > 0.5) return expm1(x) - x;
    double series = 1.0;
    for (int n = 14; n >= 3; n--) series = 1.0 + series * x / n;
    return 0.5 * x * x * series;
}

// A warp per token. `decay` is what a raw logit loses, as a share of itself.
extern "C" __global__ void react(
    u32 tokens, u32 stride, const u32* rows, const float* logits, const double* pi, const double* u, const double* tails,
    const double* coefficients, const double* norms, double rate, double decay, const double* projections, Effect* effects) {
    u32 n = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (n >= tokens) return;
    size_t start = (size_t)n * stride;
    rows += start, logits += start, pi += start, u += start, coefficients += start, norms += start, projections += start;
    auto moved = [&](u32 j) { return projections[j] - (decay != 0.0 ? decay * (double)logits[j] : 0.0); };
    double s = 0.0, mean = 0.0, slope = 0.0, norm = 0.0, tail = tails[n], sampled = 0.0;
    for (u32 j = lane; j < stride; j += WARP) {
        if (rows[j] == NONE) continue;
        double v = moved(j);
        s += u[j] * v, mean += pi[j] * v, slope += coefficients[j] * v, norm += norms[j];
        // Only the sampled token's u is above 0.
        if (u[j] > 0.0) sampled = pi[j];
    }
    s = warp_sum(s), mean = warp_sum(mean), slope = warp_sum(slope), norm = warp_sum(norm), sampled = warp_sum(sampled);
    // Log of the mean of e^x less the mean of x, x = rate v, the tail at x = 0: without cancellation and without overflow.
    double outside = -rate * mean, q = 0.0, size = 0.0, largest = -__longlong_as_double(0x7ff0000000000000ll);
    double small = 0.0;
    for (u32 j = lane; j < stride; j += WARP) {
        if (rows[j] == NONE) continue;
        double distance = moved(j) - mean, x = rate * distance;
        q += pi[j] * distance * distance;
        if (pi[j] > 0.0) {
            size = fmax(size, fabs(x)), largest = fmax(largest, x);
            if (fabs(x) < 1.0) small += pi[j] * exp_less_tangent(x);
        }
    }
    q = warp_sum(q) + tail * mean * mean, small = warp_sum(small), size = warp_max(size), largest = warp_max(largest);
    if (tail > 0.0) size = fmax(size, fabs(outside)), largest = fmax(largest, outside);
    double kl;
    if (size < 1.0) {
        kl = log1p(small + (tail > 0.0 ? tail * exp_less_tangent(outside) : 0.0));
    } else {
        double total = 0.0;
        for (u32 j = lane; j < stride; j += WARP) {
            if (rows[j] != NONE && pi[j] > 0.0) total += pi[j] * exp(rate * (moved(j) - mean) - largest);
        }
        total = warp_sum(total) + (tail > 0.0 ? tail * exp(outside - largest) : 0.0);
        kl = largest + log(total);
        // `fmax` would make 0 of a NaN.
        if (kl < 0.0) kl = 0.0;
    }
    if (!is_finite(mean)) kl = mean - mean;
    if (lane > 0) return;
    // The sampled logit moves by rate v_a, its log-probability by rate (v_a - mean) - kl, and s is v_a - mean. No probability
    // rises above 1, where large terms cancel neither.
    double ratio = rate * s - kl, ceiling = sampled > 0.0 ? -log(sampled) : __longlong_as_double(0x7ff0000000000000ll);
    effects[n] = Effect{s, q, kl, expm1(ratio > ceiling ? ceiling : ratio), slope, norm};
}
