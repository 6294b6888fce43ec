// The driver API: streams and events.
#include "driver.h"

#include "executor.h"
#include "queue.h"
#include "trace.h"

#include <chrono>
#include <mutex>
#include <set>

using cuda_emulator::check_context;
using cuda_emulator::Point;
using cuda_emulator::self;

namespace {

struct Event {
    bool timed, recorded;
    Point point;  // behind the latest record
    std::chrono::steady_clock::time_point time;
};

// Never destroyed: threads may still be here when the process ends.
std::mutex& lock = *new std::mutex;
auto& events = *new std::set<Event*>;

// Where the event was recorded last.
CUresult find(Event* event, Point* point) {
    CUresult checked = check_context();
    if (checked != CUDA_SUCCESS) return checked;
    std::lock_guard<std::mutex> guard(lock);
    if (events.count(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
    *point = event->point;
    return CUDA_SUCCESS;
}

}  // namespace

API CUresult cuStreamCreate(const void** stream, unsigned flags) {
    CUresult checked = check_context();
    if (checked != CUDA_SUCCESS) return checked;
    constexpr unsigned NON_BLOCKING = 1;
    *stream = cuda_emulator::create_stream(!(flags & NON_BLOCKING));
    return CUDA_SUCCESS;
}
API CUresult cuStreamCreateWithPriority(const void** stream, unsigned flags, int) { return cuStreamCreate(stream, flags); }
API CUresult cuStreamDestroy_v2(const void* stream) {
    CUresult checked = check_context();
    return checked == CUDA_SUCCESS ? cuda_emulator::destroy_stream(stream) : checked;
}
API CUresult cuStreamSynchronize(const void* stream) {
    cuda_emulator::trace("(wait)");
    return cuda_emulator::synchronize(stream);
}
API CUresult cuStreamQuery(const void* stream) {
    Point point;
    CUresult checked = cuda_emulator::end_of(stream, &point);
    return checked == CUDA_SUCCESS ? cuda_emulator::query(point) : checked;
}
API CUresult cuStreamWaitEvent(const void* stream, Event* event, unsigned) {
    Point point;
    CUresult checked = find(event, &point);
    return checked == CUDA_SUCCESS ? cuda_emulator::wait_in_stream(stream, point) : checked;
}

API CUresult cuEventCreate(Event** event, unsigned flags) {
    CUresult checked = check_context();
    if (checked != CUDA_SUCCESS) return checked;
    constexpr unsigned DISABLE_TIMING = 2;
    std::lock_guard<std::mutex> guard(lock);
    *event = *events.insert(new Event{!(flags & DISABLE_TIMING), false, {}, {}}).first;
    return CUDA_SUCCESS;
}
// The handle stays allocated, for records that are late, and so that no later event has its address.
API CUresult cuEventDestroy_v2(Event* event) {
    Point point;
    CUresult checked = find(event, &point);
    if (checked != CUDA_SUCCESS) return checked;
    std::lock_guard<std::mutex> guard(lock);
    events.erase(event);
    return CUDA_SUCCESS;
}
API CUresult cuEventRecord(Event* event, const void* stream) {
    Point point;
    CUresult checked = find(event, &point);
    if (checked != CUDA_SUCCESS) return checked;
    auto note_time = [=] {
        event->time = std::chrono::steady_clock::now();
        return CUDA_SUCCESS;
    };
    checked = cuda_emulator::enqueue(stream, note_time, &point);
    if (checked != CUDA_SUCCESS) return checked;
    std::lock_guard<std::mutex> guard(lock);
    event->recorded = true;
    event->point = point;
    return CUDA_SUCCESS;
}
API CUresult cuEventQuery(Event* event) {
    Point point;
    CUresult checked = find(event, &point);
    return checked == CUDA_SUCCESS ? cuda_emulator::query(point) : checked;
}
API CUresult cuEventSynchronize(Event* event) {
    Point point;
    CUresult checked = find(event, &point);
    return checked == CUDA_SUCCESS ? cuda_emulator::wait_for(point) : checked;
}
API CUresult cuEventElapsedTime_v2(float* milliseconds, Event* begin, Event* end) {
    for (Event* event : {begin, end}) {
        Point point;
        CUresult checked = find(event, &point);
        if (checked != CUDA_SUCCESS) return checked;
        if (!event->timed || !event->recorded) return CUDA_ERROR_INVALID_HANDLE;
        checked = cuda_emulator::query(point);
        if (checked != CUDA_SUCCESS) return checked;
    }
    *milliseconds = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
    return CUDA_SUCCESS;
}
API CUresult cuEventElapsedTime(float* milliseconds, Event* begin, Event* end) { return cuEventElapsedTime_v2(milliseconds, begin, end); }
