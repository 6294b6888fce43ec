// A fiber: a stack and the place where its code goes on. Fibers of one worker run on one OS thread, one at a time.
#pragma once

#include <cstddef>

namespace cuda_emulator {

// The state of code that does not run: its stack pointer (registers lie on the stack), or a ucontext where there is no assembly for the target.
using Paused = void*;

constexpr std::size_t STACK_BYTES = 64 * 1024;

// `count` stacks with a guard page below each; null without memory.
char* map_stacks(unsigned count);

// The upper end of stack `number`.
char* stack_top(char* stacks, unsigned number);

// True if `address` lies in a guard page of `stacks`.
bool is_stack_overflow(const char* stacks, unsigned count, const void* address);

// A fiber that will begin with `entry`, which never returns.
Paused new_fiber(char* top, void (*entry)());

// Stores the running code in `from` and goes on with `to`.
void resume(Paused* from, Paused to);

}  // namespace cuda_emulator
