// Settings that tests may change.
#pragma once

#include "executor.h"

#include <atomic>

namespace cuda_emulator {

// From the environment; a process that holds the emulator can set the atomic ones later.
struct Settings {
    std::atomic<Word> seed;      // CUDA_EMULATOR_SEED: of the order in which threads, blocks and late work run
    std::atomic<unsigned> fill;  // CUDA_EMULATOR_FILL: the byte that memory is filled with before anyone writes it
    std::atomic<bool> late;      // CUDA_EMULATOR_LATE: work may run after the call that queues it
    unsigned threads;            // CUDA_EMULATOR_THREADS: OS threads that run blocks
    unsigned devices;            // CUDA_EMULATOR_DEVICES
    Word memory;                 // CUDA_EMULATOR_MEMORY: bytes per device
    bool strict;                 // CUDA_EMULATOR_STRICT: device memory is out of the host's reach
};
Settings& settings();

// The next of the numbers that follow from `state`.
Word draw(Word& state);

}  // namespace cuda_emulator
