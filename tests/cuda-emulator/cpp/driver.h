// The part of CUDA's driver API that is emulated: types and error codes.
#pragma once

#include <atomic>
#include <cstddef>

using CUdevice = int;
using CUdeviceptr = unsigned long long;

enum CUresult : int {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_MISALIGNED_ADDRESS = 716,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_NOT_SUPPORTED = 801,
};

// A function of the library that others find by name.
#define API extern "C" __attribute__((visibility("default")))

namespace cuda_emulator {

// A device's primary context.
struct Context {
    CUdevice device;
    unsigned retained;
    std::atomic<CUresult> error;  // the first of late work; it stays
};

// CUDA_SUCCESS where this OS thread has a living context without an error of late work.
CUresult check_context();

// CUDA_SUCCESS where `stream` is the default one or was created and not destroyed.
CUresult check_stream(const void* stream);

}  // namespace cuda_emulator
