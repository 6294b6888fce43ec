#include "fiber.h"

#include <cstdint>
#include <cstring>
#include <sys/mman.h>

namespace cuda_emulator {

namespace {
constexpr std::size_t GUARD_BYTES = 64 * 1024;  // a multiple of the page size everywhere
constexpr std::size_t STRIDE = GUARD_BYTES + STACK_BYTES;
}  // namespace

char* map_stacks(unsigned count) {
    void* stacks = mmap(nullptr, count * STRIDE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) return nullptr;
    for (unsigned i = 0; i < count; i++) {
        char* stack = static_cast<char*>(stacks) + i * STRIDE + GUARD_BYTES;
        if (mprotect(stack, STACK_BYTES, PROT_READ | PROT_WRITE) != 0) return nullptr;
    }
    return static_cast<char*>(stacks);
}

char* stack_top(char* stacks, unsigned number) {
    // Stacks begin at different places in their pages, so that they do not all need the same lines of the cache.
    return stacks + (number + 1) * STRIDE - (number * 192) % 4096;
}

bool is_stack_overflow(const char* stacks, unsigned count, const void* address) {
    auto offset = reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(stacks);
    return offset < count * STRIDE && offset % STRIDE < GUARD_BYTES;
}

}  // namespace cuda_emulator

#if defined(__x86_64__) && !defined(CUDA_EMULATOR_UCONTEXT)

// rdi: where to store the stack pointer, rsi: the one to go on with.
asm(R"(
.text
.p2align 4
.hidden cuda_emulator_switch
.globl cuda_emulator_switch
.type cuda_emulator_switch, @function
cuda_emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size cuda_emulator_switch, . - cuda_emulator_switch
)");
extern "C" __attribute__((visibility("hidden"))) void cuda_emulator_switch(void** from, void* to);

namespace cuda_emulator {

Paused new_fiber(char* top, void (*entry)()) {
    // Six registers, the address that `ret` takes, and a return address of `entry` that aligns the stack as after a call.
    auto frame = reinterpret_cast<void**>(top) - 8;
    std::memset(frame, 0, 8 * sizeof(void*));
    frame[6] = reinterpret_cast<void*>(entry);
    return frame;
}

void resume(Paused* from, Paused to) { cuda_emulator_switch(from, to); }

}  // namespace cuda_emulator

#elif defined(__aarch64__) && !defined(CUDA_EMULATOR_UCONTEXT)

// x0: where to store the stack pointer, x1: the one to go on with.
asm(R"(
.text
.p2align 4
.hidden cuda_emulator_switch
.globl cuda_emulator_switch
.type cuda_emulator_switch, %function
cuda_emulator_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size cuda_emulator_switch, . - cuda_emulator_switch
)");
extern "C" __attribute__((visibility("hidden"))) void cuda_emulator_switch(void** from, void* to);

namespace cuda_emulator {

Paused new_fiber(char* top, void (*entry)()) {
    auto frame = reinterpret_cast<void**>(top) - 20;
    std::memset(frame, 0, 20 * sizeof(void*));
    frame[11] = reinterpret_cast<void*>(entry);  // x30, the link register
    return frame;
}

void resume(Paused* from, Paused to) { cuda_emulator_switch(from, to); }

}  // namespace cuda_emulator

#else

#include <ucontext.h>

namespace cuda_emulator {

Paused new_fiber(char* top, void (*entry)()) {
    // The context lies at the upper end of the fiber's own stack.
    auto space = reinterpret_cast<std::uintptr_t>(top) - sizeof(ucontext_t);
    auto context = reinterpret_cast<ucontext_t*>(space & ~std::uintptr_t(63));
    getcontext(context);
    context->uc_stack.ss_size = STACK_BYTES / 2;
    context->uc_stack.ss_sp = reinterpret_cast<char*>(context) - context->uc_stack.ss_size;
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
    return context;
}

void resume(Paused* from, Paused to) {
    ucontext_t here;
    *from = &here;
    swapcontext(&here, static_cast<ucontext_t*>(to));
}

}  // namespace cuda_emulator

#endif
