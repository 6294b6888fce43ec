#include "trace.h"

#include <cstdio>
#include <cstdlib>

void cuda_emulator::trace(const char* what) {
    static std::FILE* const file = [] {
        const char* name = std::getenv("CUDA_EMULATOR_TRACE");
        std::FILE* opened = name ? std::fopen(name, "a") : nullptr;
        // A process may end without leave.
        if (opened) std::setvbuf(opened, nullptr, _IOLBF, BUFSIZ);
        return opened;
    }();
    if (file) std::fprintf(file, "%s\n", what);
}
