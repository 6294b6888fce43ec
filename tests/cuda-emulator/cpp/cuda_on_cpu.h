// CUDA's vocabulary for code that is compiled for the CPU. It has what the kernels use, and no more: an unknown name is a compiler error.
#pragma once

#include "executor.h"

#include <math.h>
#include <string.h>

// Macros of the CPU's headers that NVRTC does not have.
#undef HUGE_VAL
#undef HUGE_VALF
#undef INFINITY
#undef M_E
#undef M_PI
#undef NAN

#define __global__
#define __device__ __attribute__((unused))
// `used`: the compiler must not believe that it sees all that is written there.
#define __shared__ static thread_local __attribute__((used))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

#define threadIdx (::cuda_emulator::self.thread_idx)
#define blockIdx (::cuda_emulator::self.block_idx)
#define blockDim (::cuda_emulator::self.block_dim)
#define gridDim (::cuda_emulator::self.grid_dim)
constexpr int warpSize = 32;

// The place of a call, as last parameters. They are the caller's, as defaults are evaluated there.
#define CUDA_EMULATOR_AT const char *file = __builtin_FILE(), int line = __builtin_LINE()

// Barriers. The asm statement keeps the compiler from holding memory in registers across them.
#define CUDA_EMULATOR_FENCE() asm volatile("" ::: "memory")

inline void __syncthreads(CUDA_EMULATOR_AT) {
    CUDA_EMULATOR_FENCE();
    ::cuda_emulator::meet_block({file, line});
    CUDA_EMULATOR_FENCE();
}
inline void __syncwarp(unsigned mask = 0xffffffffu, CUDA_EMULATOR_AT) {
    CUDA_EMULATOR_FENCE();
    ::cuda_emulator::meet_warp(::cuda_emulator::Operation::Sync, mask, 0, 0, {file, line});
    CUDA_EMULATOR_FENCE();
}
inline void __trap(CUDA_EMULATOR_AT) { ::cuda_emulator::trap({file, line}); }

// Votes.
inline unsigned __ballot_sync(unsigned mask, int vote, CUDA_EMULATOR_AT) {
    return static_cast<unsigned>(
        ::cuda_emulator::meet_warp(::cuda_emulator::Operation::Ballot, mask, vote != 0, 0, {file, line}));
}
inline int __any_sync(unsigned mask, int vote, CUDA_EMULATOR_AT) { return __ballot_sync(mask, vote, file, line) != 0; }
inline int __all_sync(unsigned mask, int vote, CUDA_EMULATOR_AT) { return __ballot_sync(mask, !vote, file, line) == 0; }

// Shuffles, of values of up to 8 bytes. A lane whose source lies outside its segment of `width` lanes gets its own value.
namespace cuda_emulator {

inline unsigned lane() {
    return (self.thread_idx.x + self.block_dim.x * (self.thread_idx.y + self.block_dim.y * self.thread_idx.z)) % WARP;
}

template <class T>
T shuffle(unsigned mask, T value, unsigned source, Site at) {
    static_assert(sizeof(T) <= 8, "shuffles move up to 8 bytes");
    Word word = 0;
    memcpy(&word, &value, sizeof value);
    word = meet_warp(Operation::Shuffle, mask, word, source, at);
    memcpy(&value, &word, sizeof value);
    return value;
}

}  // namespace cuda_emulator

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize, CUDA_EMULATOR_AT) {
    unsigned segment = ::cuda_emulator::lane() & ~static_cast<unsigned>(width - 1);
    return ::cuda_emulator::shuffle(mask, value, segment | (static_cast<unsigned>(source) & static_cast<unsigned>(width - 1)),
                                    {file, line});
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize, CUDA_EMULATOR_AT) {
    unsigned lane = ::cuda_emulator::lane(), segment = lane & ~static_cast<unsigned>(width - 1);
    return ::cuda_emulator::shuffle(mask, value, lane >= segment + delta ? lane - delta : lane, {file, line});
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = warpSize, CUDA_EMULATOR_AT) {
    unsigned lane = ::cuda_emulator::lane(), source = lane ^ static_cast<unsigned>(bits);
    // A source in a later segment is out of reach, one in an earlier segment is not.
    return ::cuda_emulator::shuffle(mask, value, source <= (lane | static_cast<unsigned>(width - 1)) ? source : lane, {file, line});
}

template <class T>
T atomicAdd(T* address, T value) {
    return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}

#include "device_functions.h"
#include "matrix.h"
