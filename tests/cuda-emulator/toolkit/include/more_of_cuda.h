// What candle's kernels use of CUDA beyond the vocabulary of cuda_on_cpu.h.
#pragma once

#include "cuda_on_cpu.h"

#include <math.h>
#include <string.h>

#include <assert.h>

#define __host__
#define INFINITY __builtin_inff()
#define __restrict__ __restrict
#define __align__(bytes) __attribute__((aligned(bytes)))

template <class To, class From>
inline To cuda_emulator_cast(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline int __float_as_int(float value) { return cuda_emulator_cast<int>(value); }
inline float __int_as_float(int value) { return cuda_emulator_cast<float>(value); }
inline long long __double_as_longlong(double value) { return cuda_emulator_cast<long long>(value); }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline double rsqrt(double x) { return 1 / sqrt(x); }
inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678118654752f); }
inline double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752); }

template <class T>
T atomicCAS(T* address, T compare, T value) {
    __atomic_compare_exchange_n(address, &compare, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return compare;
}
template <class T, class F>
T cuda_emulator_atomic(T* address, F change) {
    T old, changed;
    __atomic_load(address, &old, __ATOMIC_RELAXED);
    do changed = change(old);
    while (!__atomic_compare_exchange(address, &old, &changed, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}
template <class T, class V>
T atomicMin(T* address, V given) {
    T value = static_cast<T>(given);
    return cuda_emulator_atomic(address, [=](T old) { return value < old ? value : old; });
}
template <class T, class V>
T atomicMax(T* address, V given) {
    T value = static_cast<T>(given);
    return cuda_emulator_atomic(address, [=](T old) { return old < value ? value : old; });
}
inline float atomicAdd(float* address, float value) {
    return cuda_emulator_atomic(address, [=](float old) { return old + value; });
}
inline double atomicAdd(double* address, double value) {
    return cuda_emulator_atomic(address, [=](double old) { return old + value; });
}

#include "cuda_bf16.h"
#include "cuda_fp16.h"

template <class Format>
CudaEmulatorFloat16<Format> atomicAdd(CudaEmulatorFloat16<Format>* address, CudaEmulatorFloat16<Format> value) {
    return cuda_emulator_atomic(address, [=](CudaEmulatorFloat16<Format> old) { return old + value; });
}
