// The kernels, and the list of their names.
#include "cuda_on_cpu.h"

#include CAPO_UNIT

#include <type_traits>
#include <utility>

namespace cuda_emulator {

namespace {

extern const Unit UNIT;

template <auto function, class... A, std::size_t... I>
void call_with(void (*)(A...), [[maybe_unused]] void** arguments, std::index_sequence<I...>) {
    function(*static_cast<std::remove_cv_t<A>*>(arguments[I])...);
}

template <auto function, class... A>
void call(void** arguments) {
    call_with<function>(static_cast<void (*)(A...)>(function), arguments, std::index_sequence_for<A...>());
}

template <class... A>
constexpr bool IS_POINTER[sizeof...(A) + 1] = {std::is_pointer_v<A>..., false};

template <class... A>
constexpr unsigned BYTES[sizeof...(A) + 1] = {sizeof(A)..., 0};

template <auto function, class... A>
constexpr Kernel kernel(const char* name, void (*)(A...)) {
    return {name, call<function, A...>, sizeof...(A), IS_POINTER<A...>, BYTES<A...>, &UNIT};
}

#define CUDA_EMULATOR_KERNEL(name) kernel<&::name>(#name, &::name),

constexpr Kernel KERNELS[] = {FOR_EACH_KERNEL(CUDA_EMULATOR_KERNEL)};

void touch_locals() {
    static thread_local char any;
    asm volatile("" ::"r"(&any));
}

const Unit UNIT{KERNELS, sizeof KERNELS / sizeof *KERNELS, touch_locals};

__attribute__((constructor)) void on_load() { introduce(UNIT); }

}  // namespace

}  // namespace cuda_emulator
