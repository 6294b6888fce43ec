// What goes wrong inside a kernel, in words: faults of the CPU, and the compiler's checks of indices and alignment.
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

constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE};
struct sigaction former[NSIG];

// Runs on the thread's alternate stack. Within a kernel it leaves the fiber, so that the launch ends with an error.
void on_fault(int signal, siginfo_t* info, void*) {
    Worker* w = self.worker;
    char where[160] = "";
    if (signal != SIGFPE) describe(info->si_addr, where, sizeof where);
    if (!w || w->running == MAX_THREADS) {
        if (settings().strict && std::strstr(where, "byte ")) report("the host touches device memory at %p, %s", info->si_addr, where);
        // Not ours: the same instruction faults once more, with the former handler.
        sigaction(signal, &former[signal], nullptr);
        return;
    }
    if (signal == SIGFPE) {
        report("integer division by zero");
        abandon(CUDA_ERROR_LAUNCH_FAILED);
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

// Finds where this library's thread-locals lie on this OS thread.
int find_thread_locals(dl_phdr_info* info, std::size_t, void*) {
    auto inside = reinterpret_cast<std::uintptr_t>(&KERNEL_COUNT) - info->dlpi_addr;
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

void spoil_shared(unsigned byte) {
    if (!self.locals) dl_iterate_phdr(find_thread_locals, nullptr);
    auto own = reinterpret_cast<char*>(&self), own_end = own + sizeof self;
    std::memset(self.locals, static_cast<int>(byte), static_cast<std::size_t>(own - self.locals));
    std::memset(own_end, static_cast<int>(byte), static_cast<std::size_t>(self.locals_end - own_end));
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

// What code compiled with -fsanitize=alignment,bounds calls. The structs are the compiler's; only their first members are read.
struct SourceLocation {
    const char* file;
    unsigned line, column;
};
struct Checked {
    SourceLocation at;
};

extern "C" __attribute__((visibility("hidden"))) void __ubsan_handle_out_of_bounds_abort(Checked* check, std::uintptr_t index) {
    cuda_emulator::report("index %zd is out of the array's bounds (%s:%u)", static_cast<std::intptr_t>(index), check->at.file,
                          check->at.line);
    cuda_emulator::abandon(CUDA_ERROR_ILLEGAL_ADDRESS);
}

extern "C" __attribute__((visibility("hidden"))) void __ubsan_handle_type_mismatch_v1_abort(Checked* check, std::uintptr_t pointer) {
    cuda_emulator::report("misaligned address %#zx (%s:%u)", pointer, check->at.file, check->at.line);
    cuda_emulator::abandon(CUDA_ERROR_MISALIGNED_ADDRESS);
}
