// CUDA's 8-bit floats, which candle's headers name and no kernel here uses.
#pragma once

#include "cuda_fp16.h"

struct __nv_fp8_e4m3 {
    unsigned char __x;
    __nv_fp8_e4m3() = default;
    explicit __nv_fp8_e4m3(float) { __builtin_trap(); }
};
constexpr int __NV_E4M3 = 0;
inline __half __nv_cvt_fp8_to_halfraw(unsigned char, int) { __builtin_trap(); }
