// Faults inside a kernel, in words: faults of the CPU, and the compiler's checks of indices and alignment.
#include "driver.h"
#include "memory.h"
#include "settings.h"
#include "worker.h"

#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <link.h>
#include <mutex>
#include <unistd.h>

namespace cuda_emulator {

namespace {

constexpr int SIGNALS[] = {SIGSEGV, SIGBUS};
struct sigaction former[NSIG];

// Runs on the thread's alternate stack. Within a kernel it leaves the fiber, so that the launch ends with an error.
void on_fault(int signal, siginfo_t* info, void*) {
    Worker* w = self.worker;
    char where[160];
    describe(info->si_addr, where, sizeof where);
    if (!w || w->running == MAX_THREADS) {
        if (settings().strict && std::strstr(where, "byte ")) report("the host touches device memory at %p, %s", info->si_addr, where);
        // Not ours: the same instruction faults once more, with the former handler.
        sigaction(signal, &former[signal], nullptr);
        return;
    }
    if (is_stack_overflow(w->stacks, MAX_THREADS, info->si_addr)) {
        report("a thread's stack of %zu KiB overflows", STACK_BYTES / 1024);
        abandon(CUDA_ERROR_LAUNCH_FAILED);
    }
    report("illegal address %p, %s", info->si_addr, where);
    abandon(CUDA_ERROR_ILLEGAL_ADDRESS);
}

void install_handlers() {
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int signal : SIGNALS) sigaction(signal, &action, &former[signal]);
}

// Finds where the thread-locals of the unit's library lie on this OS thread.
int find_thread_locals(dl_phdr_info* info, std::size_t, void* unit) {
    auto inside = reinterpret_cast<std::uintptr_t>(unit) - info->dlpi_addr;
    bool ours = false;
    std::size_t bytes = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const auto& part = info->dlpi_phdr[i];
        if (part.p_type == PT_LOAD && inside - part.p_vaddr < part.p_memsz) ours = true;
        if (part.p_type == PT_TLS) bytes = part.p_memsz;
    }
    if (!ours || !info->dlpi_tls_data) return ours;
    self.locals = static_cast<char*>(info->dlpi_tls_data);
    self.locals_end = self.locals + bytes;
    return 1;
}

}  // namespace

void catch_faults() {
    static std::once_flag once;
    std::call_once(once, install_handlers);
    stack_t stack{};
    if (sigaltstack(nullptr, &stack) == 0 && !(stack.ss_flags & SS_DISABLE)) return;
    constexpr std::size_t BYTES = 64 * 1024;
    stack.ss_sp = std::malloc(BYTES);  // lives as long as the thread
    stack.ss_size = BYTES;
    stack.ss_flags = 0;
    sigaltstack(&stack, nullptr);
}

void spoil_shared(const Unit& unit, unsigned byte) {
    if (self.unit != &unit) {
        unit.touch_locals();
        dl_iterate_phdr(find_thread_locals, const_cast<Unit*>(&unit));
        self.unit = &unit;
    }
    std::memset(self.locals, static_cast<int>(byte), static_cast<std::size_t>(self.locals_end - self.locals));
}

void report(const char* format, ...) {
    char line[2048];
    int length = std::snprintf(line, sizeof line, "cuda-emulator: ");
    auto add = [&](int written) { length = length + written < int(sizeof line) - 1 ? length + written : int(sizeof line) - 2; };
    auto space = [&] { return sizeof line - static_cast<std::size_t>(length); };
    if (const Worker* w = self.worker) {
        add(std::snprintf(line + length, space(), "kernel `%s`, block (%u, %u, %u)", w->launch->kernel.name, w->block_idx.x,
                          w->block_idx.y, w->block_idx.z));
        if (w->running != MAX_THREADS) {
            uint3 thread = w->fibers[w->running].index;
            add(std::snprintf(line + length, space(), ", thread (%u, %u, %u)", thread.x, thread.y, thread.z));
        }
        add(std::snprintf(line + length, space(), ": "));
    }
    va_list arguments;
    va_start(arguments, format);
    add(std::vsnprintf(line + length, space(), format, arguments));
    va_end(arguments);
    line[length++] = '\n';
    for (int sent = 0; sent < length;) {
        auto count = write(STDERR_FILENO, line + sent, static_cast<std::size_t>(length - sent));
        if (count <= 0) return;
        sent += static_cast<int>(count);
    }
}

}  // namespace cuda_emulator

// Functions that code compiled with -fsanitize calls. The structs are the compiler's; only their first member is read.
struct Checked {
    const char* file;
    unsigned line, column;
};

#define CUDA_EMULATOR_CHECK(name, error, ...)                                                                        \
    extern "C" __attribute__((visibility("default"))) void __ubsan_handle_##name##_abort(Checked* at, std::uintptr_t what) { \
        cuda_emulator::report(__VA_ARGS__);                                                                          \
        cuda_emulator::abandon(error);                                                                               \
    }                                                                                                                \
    static_assert(true)

CUDA_EMULATOR_CHECK(out_of_bounds, CUDA_ERROR_ILLEGAL_ADDRESS, "index %zd is out of the array's bounds (%s:%u)",
                    static_cast<std::intptr_t>(what), at->file, at->line);
CUDA_EMULATOR_CHECK(type_mismatch_v1, CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address %#zx (%s:%u)", what, at->file, at->line);

// Legal on a GPU, where the result is another than on the CPU, and undefined in C++.
#define CUDA_EMULATOR_UNDEFINED(name, text)                                                                              \
    CUDA_EMULATOR_CHECK(name, CUDA_ERROR_LAUNCH_FAILED, text " (%s:%u)", (static_cast<void>(what), at->file), at->line)
CUDA_EMULATOR_UNDEFINED(shift_out_of_bounds, "a shift by more bits than there are");
CUDA_EMULATOR_UNDEFINED(float_cast_overflow, "a floating-point number is out of the integer's range");
CUDA_EMULATOR_UNDEFINED(add_overflow, "a signed sum overflows");
CUDA_EMULATOR_UNDEFINED(sub_overflow, "a signed difference overflows");
CUDA_EMULATOR_UNDEFINED(mul_overflow, "a signed product overflows");
CUDA_EMULATOR_UNDEFINED(negate_overflow, "a negated integer overflows");
CUDA_EMULATOR_UNDEFINED(divrem_overflow, "an integer division by zero, or one that overflows");
