// Types, loads and warp sums that the kernels share.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// No row, no subset, no slot.
constexpr u32 NONE = 0xffffffffu;
constexpr u32 ALL_LANES = 0xffffffffu;
constexpr u32 WARP = 32;
// Columns that a lane holds of a tile, and columns of a tile.
constexpr u32 PER_LANE = 8;
constexpr u32 TILE = WARP * PER_LANE;

struct f16 { u16 bits; };
struct bf16 { u16 bits; };

__device__ inline float widen(float x) { return x; }

__device__ inline float widen(bf16 x) { return __uint_as_float((u32)x.bits << 16); }

__device__ inline float widen(f16 x) {
#ifdef CAPO_EMULATED
    // Exponents meet by a multiplication with 2^112, subnormals included; infinities and NaN keep theirs.
    u32 magnitude = (u32)(x.bits & 0x7fff) << 13, sign = (u32)(x.bits & 0x8000) << 16;
    u32 special = (x.bits & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;
    return __uint_as_float(__float_as_uint(__uint_as_float(magnitude) * 5.192296858534828e33f) | special | sign);
#else
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
#endif
}

#ifdef CAPO_EMULATED
__device__ inline float flushed(float x) { return fabsf(x) < 1.1754943508222875e-38f ? 0.0f : x; }

// As inexact as the special-function unit may be: up to `ulps` off, which way and how far depends on the bits alone. The `^ 1` is one of
// the choices whose sums are as far off as an H200's.
__device__ inline float inexact(float x, u32 ulps) {
    u32 bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
    if (magnitude < 0x00800000u + ulps || magnitude >= 0x7f800000u - ulps) return x;
    return __uint_as_float(bits - ulps + ((bits ^ 1) * 2654435761u >> 16) % (2 * ulps + 1));
}
#endif

// Square root to one or two ulps, one instruction of the special-function unit; 0 below 2^-126.
__device__ inline float root(float x) {
#ifdef CAPO_EMULATED
    return inexact(sqrtf(flushed(x)), 1);
#else
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// Quotient to two ulps, for divisors between 2^-126 and 2^126; 0 for larger ones, and below 2^-126.
__device__ inline float quotient(float x, float y) {
#ifdef CAPO_EMULATED
    return fabsf(y) > 8.507059173023462e37f && isfinite(x) ? 0.0f : inexact(flushed(flushed(x) / flushed(y)), 2);
#else
    float z;
    asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
#endif
}

__device__ inline bool is_finite(double x) { return fabs(x) <= 1.7976931348623157e308; }

// A lane's columns of a row as they lie in memory. They take fewer registers than floats do, so that more can be under way.
template <class H>
struct Raw {
    uint4 parts[PER_LANE * sizeof(H) / sizeof(uint4)];
};

// Both halves of a word.
__device__ inline void widen_word(u32 word, bf16, float* x) {
    x[0] = __uint_as_float(word << 16), x[1] = __uint_as_float(word & 0xffff0000u);
}
__device__ inline void widen_word(u32 word, f16, float* x) {
    x[0] = widen(f16{(u16)word}), x[1] = widen(f16{(u16)(word >> 16)});
}
__device__ inline void widen_word(u32 word, float, float* x) { x[0] = __uint_as_float(word); }

template <class H>
__device__ inline void widen_columns(const Raw<H>& raw, float (&x)[PER_LANE]) {
    constexpr u32 PER_WORD = sizeof(u32) / sizeof(H);
#pragma unroll
    for (u32 part = 0; part < PER_LANE / PER_WORD / 4; part++) {
        u32 words[4] = {raw.parts[part].x, raw.parts[part].y, raw.parts[part].z, raw.parts[part].w};
#pragma unroll
        for (u32 at = 0; at < 4; at++) widen_word(words[at], H{}, x + (part * 4 + at) * PER_WORD);
    }
}

// A lane's columns of a row, 0 beyond its end. `vector`: rows start at multiples of 16 bytes.
template <class H>
__device__ inline void load_raw(const H* row, u32 column, u32 width, bool vector, Raw<H>& raw) {
    if (vector && column + PER_LANE <= width) {
        const uint4* source = reinterpret_cast<const uint4*>(row + column);
#pragma unroll
        for (u32 part = 0; part < PER_LANE * sizeof(H) / sizeof(uint4); part++) raw.parts[part] = source[part];
    } else {
        H x[PER_LANE];
#pragma unroll
        for (u32 at = 0; at < PER_LANE; at++) x[at] = column + at < width ? row[column + at] : H{};
        memcpy(raw.parts, x, sizeof(x));
    }
}

template <class H>
__device__ inline void load_columns(const H* row, u32 column, u32 width, bool vector, float (&x)[PER_LANE]) {
    Raw<H> raw;
    load_raw(row, column, width, vector, raw);
    widen_columns(raw, x);
}

// Sum over the lanes of a warp, in all of them; the order is fixed.
template <class T>
__device__ inline T warp_sum(T x) {
#pragma unroll
    for (u32 distance = WARP / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(ALL_LANES, x, distance);
    return x;
}

__device__ inline double warp_max(double x) {
#pragma unroll
    for (u32 distance = WARP / 2; distance > 0; distance /= 2) x = fmax(x, __shfl_xor_sync(ALL_LANES, x, distance));
    return x;
}
