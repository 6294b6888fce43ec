// The driver API: memory, streams and events. All work is done before a call returns.
#include "driver.h"

#include "executor.h"
#include "memory.h"
#include "queue.h"
#include "settings.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

using cuda_emulator::Access;
using cuda_emulator::check_context;
using cuda_emulator::check_stream;
using cuda_emulator::is_device_memory;
using cuda_emulator::self;
using cuda_emulator::Word;

namespace {

struct Event {
    bool timed, recorded;
    std::chrono::steady_clock::time_point time;
};

// Never destroyed: threads may still be here when the process ends.
std::mutex& lock = *new std::mutex;
std::set<const void*>&streams = *new std::set<const void*>, &host_memory = *new std::set<const void*>;
auto& events = *new std::set<Event*>;

void* host(CUdeviceptr pointer) { return reinterpret_cast<void*>(pointer); }

CUresult copy(void* to, const void* from, std::size_t bytes, CUdeviceptr device, CUdeviceptr other_device, void* stream) {
    CUresult checked = check_context();
    if (checked == CUDA_SUCCESS) checked = check_stream(stream);
    if (checked != CUDA_SUCCESS || bytes == 0) return checked;
    if (!to || !from) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device_memory(device, bytes) || !is_device_memory(other_device, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return cuda_emulator::enqueue(stream, [=] {
        Access access;
        std::memmove(to, from, bytes);
        return CUDA_SUCCESS;
    });
}

template <class T>
CUresult set(CUdeviceptr to, T value, std::size_t count, void* stream) {
    CUresult checked = check_context();
    if (checked == CUDA_SUCCESS) checked = check_stream(stream);
    if (checked != CUDA_SUCCESS || count == 0) return checked;
    if (to % sizeof(T) != 0 || !is_device_memory(to, count * sizeof(T))) return CUDA_ERROR_INVALID_VALUE;
    return cuda_emulator::enqueue(stream, [=] {
        Access access;
        for (std::size_t i = 0; i < count; i++) static_cast<T*>(host(to))[i] = value;
        return CUDA_SUCCESS;
    });
}

CUresult check_event(Event* event) {
    CUresult checked = check_context();
    if (checked != CUDA_SUCCESS) return checked;
    std::lock_guard<std::mutex> guard(lock);
    return events.count(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

CUresult cuda_emulator::check_stream(const void* stream) {
    if (self.only_stream && stream != self.only_stream) {
        report("work on another stream than the one that `set_stream` named");
        return CUDA_ERROR_INVALID_HANDLE;
    }
    // 1 and 2 are the legacy and the per-thread default stream.
    if (reinterpret_cast<std::size_t>(stream) <= 2) return CUDA_SUCCESS;
    std::lock_guard<std::mutex> guard(lock);
    return streams.count(stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API CUresult cuMemAlloc_v2(CUdeviceptr* pointer, std::size_t bytes) {
    CUresult checked = check_context();
    if (checked != CUDA_SUCCESS) return checked;
    if (self.allocations_end == 1) return CUDA_ERROR_OUT_OF_MEMORY;
    if (self.allocations_end > 1) self.allocations_end--;
    return cuda_emulator::allocate(self.context->device, bytes, pointer);
}
API CUresult cuMemAllocAsync(CUdeviceptr* pointer, std::size_t bytes, void* stream) {
    CUresult checked = check_stream(stream);
    return checked == CUDA_SUCCESS ? cuMemAlloc_v2(pointer, bytes) : checked;
}
API CUresult cuMemFree_v2(CUdeviceptr pointer) {
    CUresult checked = check_context();
    return checked == CUDA_SUCCESS ? cuda_emulator::release(pointer) : checked;
}
API CUresult cuMemFreeAsync(CUdeviceptr pointer, void* stream) {
    CUresult checked = check_stream(stream);
    return checked == CUDA_SUCCESS ? cuMemFree_v2(pointer) : checked;
}

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
    host_memory.insert(memory);
    *pointer = memory;
    return CUDA_SUCCESS;
}
API CUresult cuMemFreeHost(void* pointer) {
    CUresult checked = check_context();
    if (checked != CUDA_SUCCESS) return checked;
    std::lock_guard<std::mutex> guard(lock);
    if (host_memory.erase(pointer) == 0) return CUDA_ERROR_INVALID_VALUE;
    std::free(pointer);
    return CUDA_SUCCESS;
}

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes, void* stream) {
    return copy(host(to), from, bytes, to, to, stream);
}
API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes, void* stream) {
    return copy(to, host(from), bytes, from, from, stream);
}
API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, void* stream) {
    return copy(host(to), host(from), bytes, from, to, stream);
}
API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t bytes) { return cuMemcpyHtoDAsync_v2(to, from, bytes, nullptr); }
API CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t bytes) { return cuMemcpyDtoHAsync_v2(to, from, bytes, nullptr); }
API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) { return cuMemcpyDtoDAsync_v2(to, from, bytes, nullptr); }

API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count, void* stream) { return set(to, value, count, stream); }
API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, std::size_t count) { return set(to, value, count, nullptr); }
API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count, void* stream) { return set(to, value, count, stream); }
API CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, std::size_t count) { return set(to, value, count, nullptr); }

API CUresult cuStreamCreate(void** stream, unsigned) {
    CUresult checked = check_context();
    if (checked != CUDA_SUCCESS) return checked;
    std::lock_guard<std::mutex> guard(lock);
    *stream = std::malloc(16);
    streams.insert(*stream);
    return CUDA_SUCCESS;
}
API CUresult cuStreamCreateWithPriority(void** stream, unsigned flags, int) { return cuStreamCreate(stream, flags); }
API CUresult cuStreamDestroy_v2(void* stream) {
    CUresult checked = check_context();
    if (checked != CUDA_SUCCESS) return checked;
    std::lock_guard<std::mutex> guard(lock);
    // The handle stays allocated, so that no later stream has its address.
    return streams.erase(stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
API CUresult cuStreamSynchronize(void* stream) { return cuda_emulator::synchronize(stream); }
API CUresult cuStreamQuery(void* stream) { return cuda_emulator::synchronize(stream); }
API CUresult cuStreamWaitEvent(void* stream, Event* event, unsigned) {
    CUresult checked = check_event(event);
    return checked == CUDA_SUCCESS ? check_stream(stream) : checked;
}

API CUresult cuEventCreate(Event** event, unsigned flags) {
    CUresult checked = check_context();
    if (checked != CUDA_SUCCESS) return checked;
    constexpr unsigned DISABLE_TIMING = 2;
    std::lock_guard<std::mutex> guard(lock);
    *event = *events.insert(new Event{!(flags & DISABLE_TIMING), false, {}}).first;
    return CUDA_SUCCESS;
}
API CUresult cuEventDestroy_v2(Event* event) {
    CUresult checked = check_event(event);
    if (checked != CUDA_SUCCESS) return checked;
    std::lock_guard<std::mutex> guard(lock);
    events.erase(event);
    return CUDA_SUCCESS;
}
API CUresult cuEventRecord(Event* event, void* stream) {
    CUresult checked = cuStreamWaitEvent(stream, event, 0);
    if (checked != CUDA_SUCCESS) return checked;
    event->recorded = true;
    event->time = std::chrono::steady_clock::now();
    return CUDA_SUCCESS;
}
API CUresult cuEventQuery(Event* event) { return check_event(event); }
API CUresult cuEventSynchronize(Event* event) { return check_event(event); }
API CUresult cuEventElapsedTime_v2(float* milliseconds, Event* begin, Event* end) {
    for (Event* event : {begin, end}) {
        CUresult checked = check_event(event);
        if (checked != CUDA_SUCCESS) return checked;
        if (!event->timed || !event->recorded) return CUDA_ERROR_INVALID_HANDLE;
    }
    *milliseconds = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
    return CUDA_SUCCESS;
}
API CUresult cuEventElapsedTime(float* milliseconds, Event* begin, Event* end) { return cuEventElapsedTime_v2(milliseconds, begin, end); }

// For the thread that calls.
API void cuda_emulator_set_stream(const void* stream) { self.only_stream = stream; }
API void cuda_emulator_set_allocations(Word left) { self.allocations_end = left + 1; }
