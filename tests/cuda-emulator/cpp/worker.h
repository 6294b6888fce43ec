// A worker: runs one block at a time, a fiber per thread of the block.
#pragma once

#include "executor.h"
#include "fiber.h"

#include <atomic>

namespace cuda_emulator {

struct Launch {
    const Kernel& kernel;
    uint3 grid, block;
    void** arguments;
    Word seed;
    std::atomic<Word> next{0};  // blocks that some worker has taken
    std::atomic<int> error{0};  // the first error of any block
};

// One warp: who lives, who waits, and what each lane brought along.
struct WarpState {
    unsigned alive, waiting;
    Operation operation[WARP];
    unsigned mask[WARP], source[WARP];
    Word value[WARP], result[WARP];
};

struct Fiber {
    Paused paused;
    uint3 index;
    bool done, at_barrier;
    Site at;
};

// Who goes on of those that can: anyone; or warps and lanes that run ahead of all others as far as they can.
enum class Order { Random, FirstAhead, LastAhead };

struct Worker {
    char* stacks = nullptr;
    Launch* launch = nullptr;
    uint3 block_idx{};
    Paused main = nullptr;  // the code that runs blocks, while a fiber runs
    Paused dropped = nullptr;
    unsigned running = MAX_THREADS;  // the thread whose fiber runs, MAX_THREADS for none
    unsigned threads = 0, alive = 0, waiting = 0, ready_count = 0;
    int error = 0;
    Word random = 0;
    Order order = Order::Random;
    unsigned short ready[MAX_THREADS];
    Fiber fibers[MAX_THREADS];
    WarpState warps[MAX_THREADS / WARP];
};

// Runs blocks of `launch` until none is left or one failed.
void run_blocks(Worker& worker, Launch& launch);

// Leaves the running fiber for good and ends the launch with `error`.
[[noreturn]] void abandon(int error);

// Fills the `__shared__` memory that the unit has on this OS thread with `byte`.
void spoil_shared(const Unit& unit, unsigned byte);

}  // namespace cuda_emulator
