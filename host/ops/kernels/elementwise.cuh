// Operations on each number of tensors of one shape.
// Rows of `width` numbers, whose starts are `line` apart in `gate` and in `up`.
template <unsigned N, class T>
__device__ void swiglu(const T* gate, const T* up, T* out, unsigned long long count, unsigned long long width, unsigned long long line) {
    each_run<N>(count, [=](unsigned long long i) {
        const unsigned long long at = line == width ? i : i / width * line + i % width;
        Few<N> x = take<N>(gate + at);
        const Few<N> y = take<N>(up + at);
        for (unsigned n = 0; n < N; ++n) x.at[n] = x.at[n] * y.at[n] / (1.0f + expf(-x.at[n]));
        put(out + i, x);
    });
}

// Mirrors `SwiGluBackward` of ops/src/swiglu.rs.
template <unsigned N, class T>
__device__ void swiglu_backward(const T* gate, const T* up, const T* d_out, T* d_gate, T* d_up, unsigned long long count) {
    each_run<N>(count, [=](unsigned long long i) {
        const Few<N> x = take<N>(gate + i), y = take<N>(up + i), d = take<N>(d_out + i);
        Few<N> by_gate, by_up;
        for (unsigned n = 0; n < N; ++n) {
            const float s = 1.0f / (1.0f + expf(-x.at[n]));
            by_gate.at[n] = d.at[n] * y.at[n] * s * (1.0f + x.at[n] * (1.0f - s));
            by_up.at[n] = d.at[n] * x.at[n] * s;
        }
        put(d_gate + i, by_gate);
        put(d_up + i, by_up);
    });
}

template <unsigned N, class T>
__device__ void add(const T* a, const T* b, T* out, unsigned long long count) {
    each_run<N>(count, [=](unsigned long long i) {
        Few<N> x = take<N>(a + i);
        const Few<N> y = take<N>(b + i);
        for (unsigned n = 0; n < N; ++n) x.at[n] += y.at[n];
        put(out + i, x);
    });
}

// x + bias for x [.., width].
template <unsigned N, class T>
__device__ void add_bias(const T* x, const T* bias, T* out, unsigned long long count, unsigned width) {
    each_run<N>(count, [=](unsigned long long i) {
        Few<N> sum = take<N>(x + i);
        const Few<N> b = take<N>(bias + i % width);
        for (unsigned n = 0; n < N; ++n) sum.at[n] += b.at[n];
        put(out + i, sum);
    });
}

#define ELEMENTWISE_KERNELS(suffix, T)                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                            \
        swiglu_##suffix(const T* gate, const T* up, T* out, unsigned long long count, unsigned long long width,      \
                        unsigned long long line) {                                                                   \
        if (in_fours(width, gate, up, out) && line % 4 == 0) swiglu<4>(gate, up, out, count, width, line);           \
        else swiglu<1>(gate, up, out, count, width, line);                                                           \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS) swiglu_backward_##suffix(                                  \
        const T* gate, const T* up, const T* d_out, T* d_gate, T* d_up, unsigned long long count) {                  \
        if (in_fours(count, gate, up, d_out, d_gate, d_up)) swiglu_backward<4>(gate, up, d_out, d_gate, d_up, count); \
        else swiglu_backward<1>(gate, up, d_out, d_gate, d_up, count);                                               \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                            \
        add_##suffix(const T* a, const T* b, T* out, unsigned long long count) {                                     \
        if (in_fours(count, a, b, out)) add<4>(a, b, out, count);                                                    \
        else add<1>(a, b, out, count);                                                                               \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                            \
        add_bias_##suffix(const T* x, const T* bias, T* out, unsigned long long count, unsigned width) {             \
        if (in_fours(width, x, bias, out)) add_bias<4>(x, bias, out, count, width);                                  \
        else add_bias<1>(x, bias, out, count, width);                                                                \
    }
ELEMENTWISE_KERNELS(f32, float)
ELEMENTWISE_KERNELS(bf16, bf16)
