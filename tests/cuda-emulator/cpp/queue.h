// Work of streams. It is done when the call that queues it returns, or late: then it runs when somebody waits for it, or by chance before.
#pragma once

#include "driver.h"

#include <functional>

namespace cuda_emulator {

// What a stream does at once: a kernel, a copy, a product of matrices. It may run long after the call that queued it, on another OS thread
// and with another current context: it holds copies of all values that the caller may change, checks device memory when it runs, and
// neither queues work nor waits for any. It reports its own mistakes.
using Work = std::function<CUresult()>;

// Queues `work` behind the work of `stream`, of this OS thread's context. An error: of the context, of the stream, or of earlier late
// work; of `work` itself where it is not late.
CUresult enqueue(const void* stream, Work work);

// Waits for the work of `stream`. An error of late work, now or earlier, comes from here.
CUresult synchronize(const void* stream);

// Waits for the work of all streams of this OS thread's context.
CUresult synchronize();

}  // namespace cuda_emulator
