#include "worker.h"

#include "driver.h"
#include "settings.h"

#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

namespace cuda_emulator {

__thread Self self;

// splitmix64: a few nanoseconds, and every seed is as good as another.
Word draw(Word& state) {
    Word z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

namespace {

void make_ready(Worker& w, unsigned thread) { w.ready[w.ready_count++] = static_cast<unsigned short>(thread); }

// Goes on with a ready fiber, drawn by chance or the latest one; with the code that runs blocks when there is none.
void run_next(Worker& w, Paused* from) {
    if (w.ready_count == 0) {
        resume(from, w.main);
        return;
    }
    unsigned pick = w.order == Order::Random ? static_cast<unsigned>((draw(w.random) >> 32) * w.ready_count >> 32) : w.ready_count - 1;
    unsigned thread = w.ready[pick];
    w.ready[pick] = w.ready[--w.ready_count];
    Fiber& fiber = w.fibers[thread];
    bool itself = from == &fiber.paused;
    w.running = thread;
    self.thread_idx = fiber.index;
    if (!itself) resume(from, fiber.paused);
}

// Lets go on who waits at the barrier, if all that live are there.
void try_block(Worker& w) {
    if (w.waiting == 0 || w.waiting != w.alive) return;
    const Site* first = nullptr;
    for (unsigned at = 0; at < w.threads; at++) {
        unsigned i = w.order == Order::FirstAhead ? w.threads - 1 - at : at;
        Fiber& fiber = w.fibers[i];
        if (!fiber.at_barrier) continue;
        if (!first) first = &fiber.at;
        if (first->line != fiber.at.line || std::strcmp(first->file, fiber.at.file) != 0) {
            report("threads of the block meet at different barriers: thread %u at %s:%d, another at %s:%d", i, fiber.at.file,
                   fiber.at.line, first->file, first->line);
            abandon(CUDA_ERROR_LAUNCH_FAILED);
        }
        fiber.at_barrier = false;
        make_ready(w, i);
    }
    w.waiting = 0;
}

// Lets go on the lanes of `mask`, if all of them that live have come with this mask.
void try_warp(Worker& w, unsigned number, unsigned mask) {
    WarpState& warp = w.warps[number];
    unsigned needed = mask & warp.alive;
    if ((warp.waiting & needed) != needed || needed == 0) return;
    Operation operation = warp.operation[__builtin_ctz(needed)];
    Word ballot = 0;
    for (unsigned left = needed; left; left &= left - 1) {
        unsigned lane = static_cast<unsigned>(__builtin_ctz(left));
        if (warp.mask[lane] != mask || warp.operation[lane] != operation) return;
        ballot |= Word(warp.value[lane] != 0) << lane;
    }
    for (unsigned left = needed; left; left &= left - 1) {
        unsigned lane = static_cast<unsigned>(__builtin_ctz(left)), source = warp.source[lane];
        if (operation == Operation::Ballot) {
            warp.result[lane] = ballot;
        } else if (needed >> source & 1) {
            warp.result[lane] = warp.value[source];
        } else {
            std::memset(&warp.result[lane], static_cast<int>(settings().fill), sizeof(Word));  // undefined in CUDA
        }
        make_ready(w, number * WARP + lane);
    }
    warp.waiting &= ~needed;
}

// The first code of every fiber.
void run_thread() {
    Worker& w = *self.worker;
    w.launch->kernel.call(w.launch->arguments);
    unsigned thread = w.running, number = thread / WARP;
    WarpState& warp = w.warps[number];
    w.fibers[thread].done = true;
    w.alive--;
    warp.alive &= ~(1u << thread % WARP);
    for (unsigned left = warp.waiting; left; left &= left - 1) {
        unsigned lane = static_cast<unsigned>(__builtin_ctz(left));
        if (warp.waiting >> lane & 1) try_warp(w, number, warp.mask[lane]);
    }
    try_block(w);
    run_next(w, &w.dropped);
    __builtin_unreachable();
}

std::string waits_at(const Worker& w, unsigned thread) {
    const Fiber& fiber = w.fibers[thread];
    const WarpState& warp = w.warps[thread / WARP];
    static const char* const NAMES[] = {"__syncwarp", "a shuffle", "a vote"};
    unsigned lane = thread % WARP;
    char text[512];
    if (fiber.done) return "returned";
    if (fiber.at_barrier) {
        std::snprintf(text, sizeof text, "at __syncthreads (%s:%d)", fiber.at.file, fiber.at.line);
    } else {
        std::snprintf(text, sizeof text, "at %s of lanes 0x%08x (%s:%d)", NAMES[static_cast<int>(warp.operation[lane])],
                      warp.mask[lane], fiber.at.file, fiber.at.line);
    }
    return text;
}

// Tells who waits for what, threads of one fate together.
void report_deadlock(const Worker& w) {
    std::string all;
    for (unsigned begin = 0, groups = 0; begin < w.threads; groups++) {
        std::string fate = waits_at(w, begin);
        unsigned end = begin + 1;
        while (end < w.threads && waits_at(w, end) == fate) end++;
        if (groups == 8) {
            all += "; ...";
            break;
        }
        std::string who = end == begin + 1 ? "thread " + std::to_string(begin)
                                           : "threads " + std::to_string(begin) + "-" + std::to_string(end - 1);
        all += (all.empty() ? "" : "; ") + who + " " + fate;
        begin = end;
    }
    report("deadlock: %s", all.c_str());
}

void begin_block(Worker& w, Word block) {
    Launch& launch = *w.launch;
    w.block_idx = {static_cast<unsigned>(block % launch.grid.x), static_cast<unsigned>(block / launch.grid.x % launch.grid.y),
                   static_cast<unsigned>(block / launch.grid.x / launch.grid.y)};
    w.threads = w.alive = launch.block.x * launch.block.y * launch.block.z;
    w.waiting = w.ready_count = 0;
    w.random = launch.seed ^ (block * 0xd1342543de82ef95u);
    constexpr Order ORDERS[] = {Order::FirstAhead, Order::Random, Order::Random, Order::LastAhead};
    w.order = ORDERS[(launch.seed + block) % 4];
    for (unsigned at = 0; at < w.threads; at++) {
        unsigned i = w.order == Order::FirstAhead ? w.threads - 1 - at : at;
        uint3 index = {i % launch.block.x, i / launch.block.x % launch.block.y, i / launch.block.x / launch.block.y};
        w.fibers[i] = {new_fiber(stack_top(w.stacks, i), run_thread), index, false, false, {}};
        make_ready(w, i);
    }
    for (unsigned i = 0; i * WARP < w.threads; i++) {
        unsigned lanes = w.threads - i * WARP;
        w.warps[i].alive = lanes >= WARP ? ~0u : (1u << lanes) - 1;
        w.warps[i].waiting = 0;
    }
    spoil_shared(*launch.kernel.unit, settings().fill);
    self.block_idx = w.block_idx;
}

}  // namespace

void meet_block(Site at) {
    Worker& w = *self.worker;
    Fiber& fiber = w.fibers[w.running];
    fiber.at = at;
    fiber.at_barrier = true;
    w.waiting++;
    try_block(w);
    run_next(w, &fiber.paused);
}

Word meet_warp(Operation operation, unsigned mask, Word value, unsigned source, Site at) {
    Worker& w = *self.worker;
    unsigned thread = w.running, lane = thread % WARP;
    WarpState& warp = w.warps[thread / WARP];
    if (!(mask >> lane & 1)) {
        report("lane %u is not in its own mask 0x%08x (%s:%d)", lane, mask, at.file, at.line);
        abandon(CUDA_ERROR_LAUNCH_FAILED);
    }
    w.fibers[thread].at = at;
    warp.operation[lane] = operation;
    warp.mask[lane] = mask;
    warp.source[lane] = source % WARP;
    warp.value[lane] = value;
    warp.waiting |= 1u << lane;
    try_warp(w, thread / WARP, mask);
    run_next(w, &w.fibers[thread].paused);
    return warp.result[lane];
}

void trap(Site at) {
    report("__trap() (%s:%d)", at.file, at.line);
    abandon(CUDA_ERROR_LAUNCH_FAILED);
}

void abandon(int error) {
    Worker& w = *self.worker;
    w.error = error;
    resume(&w.dropped, w.main);
    __builtin_unreachable();
}

void run_blocks(Worker& w, Launch& launch) {
    Word blocks = Word(launch.grid.x) * launch.grid.y * launch.grid.z;
    // Blocks run in an order of its own: a step that shares no factor with their number visits each once.
    Word step = launch.seed % blocks | 1, rest = blocks, factor = step;
    for (; rest; std::swap(factor, rest)) factor %= rest;
    if (factor != 1) step = 1;
    catch_faults();
    w.launch = &launch;
    w.error = 0;
    self.grid_dim = launch.grid;
    self.block_dim = launch.block;
    self.worker = &w;
    for (Word i; !launch.error && (i = launch.next++) < blocks;) {
        begin_block(w, static_cast<Word>((static_cast<unsigned __int128>(i) * step + launch.seed) % blocks));
        run_next(w, &w.main);
        if (!w.error && w.alive) {
            w.running = MAX_THREADS;
            report_deadlock(w);
            w.error = CUDA_ERROR_LAUNCH_FAILED;
        }
        int none = 0;
        if (w.error) launch.error.compare_exchange_strong(none, w.error);
    }
    self.worker = nullptr;
}

}  // namespace cuda_emulator
