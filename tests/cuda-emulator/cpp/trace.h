// What a process asked the driver for, in order: CUDA_EMULATOR_TRACE names a file, to which each request adds a line.
#pragma once

namespace cuda_emulator {

// Notes `what`: a kernel's name, or words in parentheses for another kind of work.
void trace(const char* what);

}  // namespace cuda_emulator
