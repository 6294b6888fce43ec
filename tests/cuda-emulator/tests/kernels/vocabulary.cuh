// Words of CUDA that the kernels may use. `x` is 2, `n` is 0x00f0; the results are in computes.rs.
extern "C" __global__ void vocabulary(float* numbers, unsigned* words, float x, unsigned n) {
    double y = x;
    float4 four = make_float4(x, x + 1.0f, x + 2.0f, x + 3.0f);
    float2 two = make_float2(four.w, four.z);
    const float values[] = {
        rsqrtf(x), fmaf(x, x, 1.0f), sqrtf(x), fabsf(-x), min(x, 1.0f), max(x, __uint_as_float(0x7fc00000u)),
        static_cast<float>(fma(y, y, 1.0)), static_cast<float>(exp(y)), static_cast<float>(expm1(y)), static_cast<float>(log(y)),
        static_cast<float>(log1p(y)), static_cast<float>(pow(y, 3.0)), static_cast<float>(sqrt(y)), static_cast<float>(fabs(-y)),
        expf(x), logf(x), two.x, two.y, __ldg(numbers), isfinite(x / 0.0f) ? 1.0f : 0.0f,
    };
    for (unsigned i = 0; i < sizeof values / sizeof *values; i++) numbers[i] = values[i];
    uint4 bits = make_uint4(__float_as_uint(x), static_cast<unsigned>(__popc(n)), static_cast<unsigned>(__ffs(static_cast<int>(n))),
                            static_cast<unsigned>(__clz(static_cast<int>(n))));
    reinterpret_cast<uint4*>(words)[0] = bits;
    words[4] = static_cast<unsigned>(__double_as_longlong(y) >> 32);
    words[5] = min(n, 7u);
    words[6] = static_cast<unsigned>(max(-1, 3));
    words[7] = static_cast<unsigned>(__longlong_as_double(0x4008000000000000ll));
    words[8] = atomicMax(&words[9], n);
    words[10] = static_cast<unsigned>(warpSize);
    words[11] = static_cast<unsigned>(__syncthreads_count(1));
}
