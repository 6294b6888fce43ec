// CUDA's functions on single values, and its vector types. Included by cuda_on_cpu.h.
#pragma once

// Bits.
inline int __ffs(int value) { return __builtin_ffs(value); }

#define CUDA_EMULATOR_BITS(name, To, From)               \
    inline To name(From from) {                          \
        static_assert(sizeof(To) == sizeof(From), #name); \
        To to;                                           \
        memcpy(&to, &from, sizeof to);                   \
        return to;                                       \
    }
CUDA_EMULATOR_BITS(__float_as_uint, unsigned, float)
CUDA_EMULATOR_BITS(__uint_as_float, float, unsigned)
CUDA_EMULATOR_BITS(__longlong_as_double, double, long long)

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

// Vector types.
struct __attribute__((aligned(16))) float4 {
    float x, y, z, w;
};
struct __attribute__((aligned(8))) uint2 {
    unsigned x, y;
};
struct __attribute__((aligned(16))) uint4 {
    unsigned x, y, z, w;
};
