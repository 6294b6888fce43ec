// The driver API: memory.
#include "driver.h"

#include "executor.h"
#include "memory.h"
#include "queue.h"
#include "settings.h"
#include "trace.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

using cuda_emulator::Access;
using cuda_emulator::check_context;
using cuda_emulator::check_stream;
using cuda_emulator::is_device_memory;
using cuda_emulator::self;
using cuda_emulator::Word;

namespace {

// Never destroyed: threads may still be here when the process ends.
std::mutex& lock = *new std::mutex;
auto& pinned = *new std::map<const void*, std::size_t>;  // host memory of `cuMemHostAlloc`, with its bytes

enum class Copy { ToDevice, ToHost, OnDevice };

void* host(CUdeviceptr pointer) { return reinterpret_cast<void*>(pointer); }

bool is_pinned(const void* memory) {
    std::lock_guard<std::mutex> guard(lock);
    auto next = pinned.upper_bound(memory);
    if (next == pinned.begin()) return false;
    auto [start, bytes] = *std::prev(next);
    return static_cast<const char*>(memory) < static_cast<const char*>(start) + bytes;
}

// Whether device memory is still there when a copy or a fill runs; says so if not.
bool find(CUdeviceptr memory, std::size_t bytes) {
    if (is_device_memory(memory, bytes)) return true;
    char where[160];
    cuda_emulator::describe(host(memory), where, sizeof where);
    cuda_emulator::report("%zu bytes to copy or fill at %p, %s", bytes, host(memory), where);
    return false;
}

CUresult copy(void* to, const void* from, std::size_t bytes, Copy way, void* stream) {
    CUresult checked = check_context();
    if (checked == CUDA_SUCCESS) checked = check_stream(stream);
    if (checked != CUDA_SUCCESS || bytes == 0) return checked;
    if (!to || !from) return CUDA_ERROR_INVALID_VALUE;
    auto source = reinterpret_cast<CUdeviceptr>(from), target = reinterpret_cast<CUdeviceptr>(to);
    if (way != Copy::ToDevice && !is_device_memory(source, bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (way != Copy::ToHost && !is_device_memory(target, bytes)) return CUDA_ERROR_INVALID_VALUE;
    // Pageable memory is read before the call returns, or written.
    std::shared_ptr<std::vector<char>> staged;
    if (way == Copy::ToDevice && !is_pinned(from)) {
        auto first = static_cast<const char*>(from);
        staged = std::make_shared<std::vector<char>>(first, first + bytes);
    }
    checked = cuda_emulator::enqueue(stream, [=] {
        if (way != Copy::ToDevice && !find(source, bytes)) return CUDA_ERROR_ILLEGAL_ADDRESS;
        if (way != Copy::ToHost && !find(target, bytes)) return CUDA_ERROR_ILLEGAL_ADDRESS;
        Access access;
        std::memmove(to, staged ? staged->data() : from, bytes);
        return CUDA_SUCCESS;
    });
    bool waits = way == Copy::ToHost && !is_pinned(to);
    return checked == CUDA_SUCCESS && waits ? cuda_emulator::synchronize(stream) : checked;
}

template <class T>
CUresult set(CUdeviceptr to, T value, std::size_t count, void* stream) {
    CUresult checked = check_context();
    if (checked == CUDA_SUCCESS) checked = check_stream(stream);
    if (checked != CUDA_SUCCESS || count == 0) return checked;
    cuda_emulator::trace("(fill)");
    if (to % sizeof(T) != 0 || !is_device_memory(to, count * sizeof(T))) return CUDA_ERROR_INVALID_VALUE;
    return cuda_emulator::enqueue(stream, [=] {
        if (!find(to, count * sizeof(T))) return CUDA_ERROR_ILLEGAL_ADDRESS;
        Access access;
        for (std::size_t i = 0; i < count; i++) static_cast<T*>(host(to))[i] = value;
        return CUDA_SUCCESS;
    });
}

// Counts an allocation; whether it may succeed.
bool may_allocate() {
    if (self.allocations_end == 1) return false;
    if (self.allocations_end > 1) self.allocations_end--;
    return true;
}

}  // namespace

API CUresult cuMemAlloc_v2(CUdeviceptr* pointer, std::size_t bytes) {
    CUresult checked = check_context();
    if (checked != CUDA_SUCCESS) return checked;
    return may_allocate() ? cuda_emulator::allocate_now(bytes, pointer) : CUDA_ERROR_OUT_OF_MEMORY;
}
API CUresult cuMemAllocAsync(CUdeviceptr* pointer, std::size_t bytes, void* stream) {
    CUresult checked = check_context();
    if (checked == CUDA_SUCCESS) checked = check_stream(stream);
    if (checked != CUDA_SUCCESS) return checked;
    cuda_emulator::trace("(allocation)");
    return may_allocate() ? cuda_emulator::allocate_in_order(stream, bytes, pointer) : CUDA_ERROR_OUT_OF_MEMORY;
}
API CUresult cuMemFree_v2(CUdeviceptr pointer) { return cuda_emulator::free_now(pointer); }
API CUresult cuMemFreeAsync(CUdeviceptr pointer, void* stream) { return cuda_emulator::free_in_order(stream, pointer); }

API CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
    CUresult checked = check_context();
    if (checked != CUDA_SUCCESS) return checked;
    *total = cuda_emulator::settings().memory;
    *free = *total - cuda_emulator::used_memory(self.context->device);
    return CUDA_SUCCESS;
}

API CUresult cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned) {
    CUresult checked = check_context();
    if (checked != CUDA_SUCCESS) return checked;
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    void* memory = std::malloc(bytes);
    if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
    std::memset(memory, static_cast<int>(cuda_emulator::settings().fill), bytes);
    std::lock_guard<std::mutex> guard(lock);
    pinned[memory] = bytes;
    *pointer = memory;
    return CUDA_SUCCESS;
}
API CUresult cuMemFreeHost(void* pointer) {
    CUresult checked = cuda_emulator::synchronize();
    if (checked != CUDA_SUCCESS) return checked;
    std::lock_guard<std::mutex> guard(lock);
    if (pinned.erase(pointer) == 0) return CUDA_ERROR_INVALID_VALUE;
    std::free(pointer);
    return CUDA_SUCCESS;
}

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes, void* stream) {
    cuda_emulator::trace("(copy to the device)");
    return copy(host(to), from, bytes, Copy::ToDevice, stream);
}
API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes, void* stream) {
    cuda_emulator::trace("(copy to the host)");
    return copy(to, host(from), bytes, Copy::ToHost, stream);
}
API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, void* stream) {
    cuda_emulator::trace("(copy on the device)");
    return copy(host(to), host(from), bytes, Copy::OnDevice, stream);
}
// Without a stream: the legacy default stream is waited for, before a copy from pageable memory and after one from pinned memory.
API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t bytes) {
    bool after = is_pinned(from);
    CUresult checked = after ? CUDA_SUCCESS : cuda_emulator::synchronize(nullptr);
    if (checked == CUDA_SUCCESS) checked = cuMemcpyHtoDAsync_v2(to, from, bytes, nullptr);
    return checked == CUDA_SUCCESS && after ? cuda_emulator::synchronize(nullptr) : checked;
}
API CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t bytes) {
    CUresult checked = cuMemcpyDtoHAsync_v2(to, from, bytes, nullptr);
    return checked == CUDA_SUCCESS ? cuda_emulator::synchronize(nullptr) : checked;
}
API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) { return cuMemcpyDtoDAsync_v2(to, from, bytes, nullptr); }

API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count, void* stream) { return set(to, value, count, stream); }
API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, std::size_t count) { return set(to, value, count, nullptr); }
API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count, void* stream) { return set(to, value, count, stream); }
API CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, std::size_t count) { return set(to, value, count, nullptr); }

// For the thread that calls.
API void cuda_emulator_set_stream(const void* stream) { self.only_stream = stream; }
API void cuda_emulator_set_allocations(Word left) { self.allocations_end = left + 1; }
