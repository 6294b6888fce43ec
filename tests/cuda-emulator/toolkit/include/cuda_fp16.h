// CUDA's 16-bit floats for code that is compiled for the CPU: stored in 16 bits, computed in f32. Only what candle's kernels use.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

inline uint32_t cuda_emulator_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline float cuda_emulator_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Rounds to nearest, ties to even, as the GPU does.
struct CudaEmulatorHalf {
    static uint16_t narrow(float value) {
        _Float16 half = static_cast<_Float16>(value);
        uint16_t bits;
        memcpy(&bits, &half, sizeof bits);
        return bits;
    }
    static float widen(uint16_t bits) {
        _Float16 half;
        memcpy(&half, &bits, sizeof half);
        return static_cast<float>(half);
    }
};
struct CudaEmulatorBfloat16 {
    static uint16_t narrow(float value) {
        uint32_t bits = cuda_emulator_bits(value);
        if (value != value) return 0x7fff;
        return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    static float widen(uint16_t bits) { return cuda_emulator_float(static_cast<uint32_t>(bits) << 16); }
};

template <class Format>
struct CudaEmulatorFloat16 {
    uint16_t bits;

    CudaEmulatorFloat16() = default;
    template <class T, class = decltype(static_cast<float>(T{}))>
    CudaEmulatorFloat16(T value) : bits(Format::narrow(static_cast<float>(value))) {}
    operator float() const { return Format::widen(bits); }
    CudaEmulatorFloat16& operator+=(CudaEmulatorFloat16 other) { return *this = *this + other; }
    CudaEmulatorFloat16& operator*=(CudaEmulatorFloat16 other) { return *this = *this * other; }

    friend CudaEmulatorFloat16 operator-(CudaEmulatorFloat16 a) { return -float(a); }
#define CUDA_EMULATOR_ARITHMETIC(op) \
    friend CudaEmulatorFloat16 operator op(CudaEmulatorFloat16 a, CudaEmulatorFloat16 b) { return float(a) op float(b); }
    CUDA_EMULATOR_ARITHMETIC(+)
    CUDA_EMULATOR_ARITHMETIC(-)
    CUDA_EMULATOR_ARITHMETIC(*)
    CUDA_EMULATOR_ARITHMETIC(/)
#undef CUDA_EMULATOR_ARITHMETIC
#define CUDA_EMULATOR_COMPARISON(op) \
    friend bool operator op(CudaEmulatorFloat16 a, CudaEmulatorFloat16 b) { return float(a) op float(b); }
    CUDA_EMULATOR_COMPARISON(==)
    CUDA_EMULATOR_COMPARISON(!=)
    CUDA_EMULATOR_COMPARISON(<)
    CUDA_EMULATOR_COMPARISON(<=)
    CUDA_EMULATOR_COMPARISON(>)
    CUDA_EMULATOR_COMPARISON(>=)
#undef CUDA_EMULATOR_COMPARISON
};

using __half = CudaEmulatorFloat16<CudaEmulatorHalf>;
using __nv_bfloat16 = CudaEmulatorFloat16<CudaEmulatorBfloat16>;

inline __half __float2half(float value) { return value; }
inline float __half2float(__half value) { return value; }
inline unsigned short __half_as_ushort(__half value) { return value.bits; }
inline __half __ushort_as_half(unsigned short bits) {
    __half value;
    value.bits = bits;
    return value;
}

#define CUDA_EMULATOR_FUNCTIONS(T)                                                                \
    inline bool __hisnan(T a) { return isnan(float(a)); }                                         \
    inline T hsqrt(T a) { return sqrtf(a); }                                                      \
    inline T hcos(T a) { return cosf(a); }                                                        \
    inline T hsin(T a) { return sinf(a); }                                                        \
    inline T hlog(T a) { return logf(a); }                                                        \
    inline T hexp(T a) { return expf(a); }                                                        \
    inline T __habs(T a) { return fabsf(a); }                                                     \
    inline T __hmax_nan(T a, T b) { return __hisnan(a) || a >= b ? a : b; }                         \
    inline T __hmin_nan(T a, T b) { return __hisnan(a) || a <= b ? a : b; }
CUDA_EMULATOR_FUNCTIONS(__half)
CUDA_EMULATOR_FUNCTIONS(__nv_bfloat16)
#undef CUDA_EMULATOR_FUNCTIONS
