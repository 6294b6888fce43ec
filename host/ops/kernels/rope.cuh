// Rotation of heads, and their move between [B, S, H * width] (tokens first) and [B, H, S, width] (heads first).
struct HeadSizes {
    unsigned tokens, heads, width;
};

// Where a run of `width` numbers begins, for head h of token s of row b.
__device__ __forceinline__ unsigned long long head_start(HeadSizes sizes, bool heads_first, unsigned b, unsigned h, unsigned s) {
    const unsigned long long run = heads_first ? (static_cast<unsigned long long>(b) * sizes.heads + h) * sizes.tokens + s
                                               : (static_cast<unsigned long long>(b) * sizes.tokens + s) * sizes.heads + h;
    return run * sizes.width;
}

// Rotates N pairs (x_i, x_{i + half}) by the angles at `at`; `sign` -1 rotates back. Without `cos` it does nothing.
template <unsigned N>
__device__ __forceinline__ void rotate(Few<N>& a, Few<N>& b, const float* cos, const float* sin, unsigned long long at, float sign) {
    if (!cos) return;
    const Few<N> c = take<N>(cos + at), s = take<N>(sin + at);
    for (unsigned n = 0; n < N; ++n) {
        const float x = a.at[n], y = b.at[n], turn = sign * s.at[n];
        a.at[n] = x * c.at[n] - y * turn;
        b.at[n] = y * c.at[n] + x * turn;
    }
}

// Moves heads from tokens first to heads first, or back if `to_heads_first` is false. cos and sin are [positions, width / 2], starts [B]; token s of row b has the position
// first_index + s - starts[b], or 0 before the start. Mirrors `Rotate` of ops/src/rope.rs.
template <unsigned N, class T>
__device__ void move_heads(const T* x, const float* cos, const float* sin, const unsigned* starts, T* out, unsigned rows, HeadSizes sizes,
                           unsigned first_index, bool to_heads_first, float sign) {
    const unsigned half = sizes.width / 2, runs = half / N;
    const unsigned count = rows * sizes.tokens * sizes.heads * runs;  // the launcher checks that this fits 32 bits
    for (unsigned i = blockIdx.x * THREADS + threadIdx.x; i < count; i += gridDim.x * THREADS) {
        const unsigned pair = i % runs * N, h = i / runs % sizes.heads, token = i / runs / sizes.heads;
        const unsigned s = token % sizes.tokens, b = token / sizes.tokens;
        const T* from = x + head_start(sizes, !to_heads_first, b, h, s);
        T* to = out + head_start(sizes, to_heads_first, b, h, s);
        Few<N> left = take<N>(from + pair), right = take<N>(from + half + pair);
        const unsigned index = first_index + s, position = index > starts[b] ? index - starts[b] : 0;
        rotate(left, right, cos, sin, static_cast<unsigned long long>(position) * half + pair, sign);
        put(to + pair, left);
        put(to + half + pair, right);
    }
}

#define MOVE_HEADS_KERNEL(suffix, T)                                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                       \
        move_heads_##suffix(const T* x, const float* cos, const float* sin, const unsigned* starts, T* out, unsigned rows,      \
                            unsigned tokens, unsigned heads, unsigned width, unsigned first_index, unsigned to_heads_first,     \
                            float sign) {                                                                                       \
        const HeadSizes sizes = {tokens, heads, width};                                                                         \
        if (in_fours(width / 2, x, cos, sin, out)) {                                                                            \
            move_heads<4>(x, cos, sin, starts, out, rows, sizes, first_index, to_heads_first, sign);                            \
        } else {                                                                                                                \
            move_heads<1>(x, cos, sin, starts, out, rows, sizes, first_index, to_heads_first, sign);                            \
        }                                                                                                                       \
    }
MOVE_HEADS_KERNEL(f32, float)
MOVE_HEADS_KERNEL(bf16, bf16)
