// Types for running a kernel on the CPU, which the kernels' header, the executor and the driver share. It includes nothing, so that the
// kernels see no type that NVRTC does not have.
#pragma once

struct uint3 {
    unsigned x, y, z;
};

// Kernels are libraries of their own that call what stands here.
#pragma GCC visibility push(default)

namespace cuda_emulator {

using Word = unsigned long long;

constexpr unsigned MAX_THREADS = 1024;
constexpr unsigned WARP = 32;

// Where in the kernels' source a thread waits.
struct Site {
    const char* file;
    int line;
};

// Operations at which threads of a warp meet.
enum class Operation : unsigned char { Sync, Shuffle, Ballot };

struct Worker;
struct Fiber;
struct Context;
struct Unit;

// State of one OS thread. A kernel's library has no thread-locals but `__shared__` memory: all are filled with garbage before each block.
struct Self {
    uint3 thread_idx, block_idx, block_dim, grid_dim;
    Worker* worker;    // null outside a kernel
    Context* context;  // the current context of the driver API
    const Unit* unit;           // whose thread-locals these are on this OS thread:
    char *locals, *locals_end;
    const void* only_stream;    // the one that may have work, or null
    Word allocations_end;       // how many more allocations succeed, and one; 0 for no end
    Word thread;                // the number of this OS thread, 0 before it uses its default stream
};
extern __thread Self self;

// Waits until every thread of the block is here or has returned.
void meet_block(Site at);

// Waits until every lane in `mask` is here or has returned. A shuffle gives the value of lane `source`, a ballot the lanes with a value that
// is not 0.
Word meet_warp(Operation operation, unsigned mask, Word value, unsigned source, Site at);

// Ends the launch: the kernel executed `__trap()`.
[[noreturn]] void trap(Site at);

// A kernel, compiled for the CPU.
struct Kernel {
    const char* name;
    void (*call)(void** arguments);
    unsigned arguments;
    const bool* is_pointer;  // per argument
    const unsigned* bytes;   // per argument
    const Unit* unit;
};

// The kernels of one translation unit.
struct Unit {
    const Kernel* kernels;
    unsigned count;
    void (*touch_locals)();  // makes sure that this OS thread has the unit's thread-locals
};

// What a library with kernels calls when it is loaded.
void introduce(const Unit& unit);

// Runs a grid to its end. 0 or the driver's error code; what went wrong is on stderr.
int launch(const Kernel& kernel, uint3 grid, uint3 block, void** arguments);

// Makes faults of this OS thread into reports.
void catch_faults();

// Writes one line to stderr, led by the kernel, block and thread that this OS thread runs.
__attribute__((format(printf, 1, 2))) void report(const char* format, ...);

}  // namespace cuda_emulator

#pragma GCC visibility pop
