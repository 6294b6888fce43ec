// Work of streams. It is done when the call that queues it returns, or late (`Settings::late`): then it runs when somebody waits for it, or
// by chance before, in an order that CUDA permits.
#pragma once

#include "driver.h"
#include "executor.h"

#include <functional>

namespace cuda_emulator {

// What a stream does at once: a kernel, a copy, a product of matrices. It may run long after the call that queued it, on another OS thread
// and with another current context: it holds copies of all values that the caller may change, checks device memory when it runs, and
// neither queues work nor waits for any. It reports its own mistakes.
using Work = std::function<CUresult()>;

// A queue whose work runs in order: a stream, and for the per-thread default stream (handle 2) also the OS thread.
struct Lane;

// A place in the work of a lane: its first `number` pieces are done. Without a lane it is always reached.
struct Point {
    Lane* lane;
    Word number;
};

// Makes a stream of this OS thread's context. One that is not `blocking` does not wait for the legacy default stream, nor that for it.
const void* create_stream(bool blocking);
CUresult destroy_stream(const void* stream);

// Queues `work` behind the work of `stream`, of this OS thread's context; `point` is behind it. An error: of the context, of the stream, or
// of earlier late work; of `work` itself where it is not late.
CUresult enqueue(const void* stream, Work work, Point* point = nullptr);

// Later work of `stream` waits for `point`.
CUresult wait_in_stream(const void* stream, Point point);

// Where `stream` stands, behind all that it has to wait for. An error as from `enqueue`.
CUresult end_of(const void* stream, Point* point);

// Runs work until `point` is reached. An error of late work, now or earlier, comes from here.
CUresult wait_for(Point point);

// CUDA_SUCCESS or CUDA_ERROR_NOT_READY. Who asks again and again gets CUDA_SUCCESS in the end.
CUresult query(Point point);

// Waits for the work of `stream`, or of all streams of this OS thread's context.
CUresult synchronize(const void* stream);
CUresult synchronize();

// Memory that may be used behind this place in the stream's order, and until `free_in_order`. A later allocation of the stream reuses it at
// once, until a synchronisation may return it.
CUresult allocate_in_order(const void* stream, std::size_t bytes, CUdeviceptr* pointer);
CUresult free_in_order(const void* stream, CUdeviceptr pointer);

// Memory that may be used at once, of this OS thread's context; it is freed when all work of the context is done.
CUresult allocate_now(std::size_t bytes, CUdeviceptr* pointer);
CUresult free_now(CUdeviceptr pointer);

// Drops all work of a context that goes.
void drop_work(Context& context);

// Begins the order of work anew, for the present seed.
void restart_order();

// Work from now on is late, or not; none is left from before.
void set_late(bool late);

}  // namespace cuda_emulator
