// CUDA's functions on single values, and its vector types. Included by cuda_on_cpu.h.
#pragma once

// Bits.
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __popcll(unsigned long long value) { return __builtin_popcountll(value); }
inline int __ffs(int value) { return __builtin_ffs(value); }
inline int __ffsll(long long value) { return __builtin_ffsll(value); }
inline int __clz(int value) { return value ? __builtin_clz(static_cast<unsigned>(value)) : 32; }
inline int __clzll(long long value) { return value ? __builtin_clzll(static_cast<unsigned long long>(value)) : 64; }
inline unsigned __brev(unsigned value) {
    unsigned reversed = 0;
    for (int i = 0; i < 32; i++) reversed |= (value >> i & 1) << (31 - i);
    return reversed;
}

#define CUDA_EMULATOR_BITS(name, To, From)               \
    inline To name(From from) {                          \
        static_assert(sizeof(To) == sizeof(From), #name); \
        To to;                                           \
        memcpy(&to, &from, sizeof to);                   \
        return to;                                       \
    }
CUDA_EMULATOR_BITS(__float_as_uint, unsigned, float)
CUDA_EMULATOR_BITS(__float_as_int, int, float)
CUDA_EMULATOR_BITS(__uint_as_float, float, unsigned)
CUDA_EMULATOR_BITS(__int_as_float, float, int)
CUDA_EMULATOR_BITS(__double_as_longlong, long long, double)
CUDA_EMULATOR_BITS(__longlong_as_double, double, long long)

// Arithmetic whose rounding is named. Nothing is contracted here (-ffp-contract=off), so the plain operators have it.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }

// Approximations of CUDA, exact here.
inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }
inline double rsqrt(double a) { return 1.0 / sqrt(a); }
inline float __expf(float a) { return expf(a); }
inline float __logf(float a) { return logf(a); }
inline float __fdividef(float a, float b) { return a / b; }

// Conversions.
inline int __float2int_rn(float a) { return static_cast<int>(lrintf(a)); }
inline float __double2float_rn(double a) { return static_cast<float>(a); }
inline float __uint2float_rn(unsigned a) { return static_cast<float>(a); }
inline float __int2float_rn(int a) { return static_cast<float>(a); }

// `min` and `max` of floats ignore a NaN, as fmin does. A mix of int and unsigned is compared as unsigned.
#define CUDA_EMULATOR_EXTREMES(T)                         \
    inline T min(T a, T b) { return b < a ? b : a; }      \
    inline T max(T a, T b) { return a < b ? b : a; }
CUDA_EMULATOR_EXTREMES(int)
CUDA_EMULATOR_EXTREMES(unsigned)
CUDA_EMULATOR_EXTREMES(long)
CUDA_EMULATOR_EXTREMES(unsigned long)
CUDA_EMULATOR_EXTREMES(long long)
CUDA_EMULATOR_EXTREMES(unsigned long long)
inline unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
inline unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
inline unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
inline unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(a, b); }
inline double min(double a, float b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double max(double a, float b) { return fmax(a, b); }

// Loads and stores with a hint for the cache.
template <class T>
T __ldg(const T* address) {
    return *address;
}
template <class T>
T __ldcs(const T* address) {
    return *address;
}
template <class T>
T __ldcg(const T* address) {
    return *address;
}
template <class T>
void __stcs(T* address, T value) {
    *address = value;
}

// Vector types.
#define CUDA_EMULATOR_VECTORS(T, name)                                                           \
    struct __attribute__((aligned(2 * sizeof(T)))) name##2 {                                     \
        T x, y;                                                                                  \
    };                                                                                           \
    struct __attribute__((aligned(sizeof(T) < 4 ? 4 * sizeof(T) : 16))) name##4 {                \
        T x, y, z, w;                                                                            \
    };                                                                                           \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                   \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CUDA_EMULATOR_VECTORS(float, float)
CUDA_EMULATOR_VECTORS(double, double)
CUDA_EMULATOR_VECTORS(int, int)
CUDA_EMULATOR_VECTORS(unsigned, uint)
CUDA_EMULATOR_VECTORS(unsigned short, ushort)
CUDA_EMULATOR_VECTORS(unsigned char, uchar)
