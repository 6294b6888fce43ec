#include "queue.h"

#include "memory.h"
#include "settings.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace cuda_emulator {

struct Lane {
    struct Piece {
        Work work;
        std::vector<Point> after;  // in other lanes
    };

    Context* context;
    bool blocking;
    Word stream, thread;  // a default stream's handle, and who it belongs to
    bool eager = false;   // whether work runs as soon as it may
    Word queued = 0, done = 0;
    Word needed = 0;  // as far as somebody waits
    std::deque<Piece> pieces{};
};

namespace {

constexpr Word LEGACY = 1, PER_THREAD = 2;

// Never destroyed: threads may still be here when the process ends.
std::mutex& lock = *new std::mutex;
// Lanes are never destroyed: points are in them.
auto& defaults = *new std::vector<Lane*>;  // those of default streams
auto& busy = *new std::vector<Lane*>;      // those with work
auto& streams = *new std::set<const void*>;
// Freed memory that a lane may use again, by size, with the place behind which nobody uses it.
using Freed = std::multimap<std::pair<const Lane*, std::size_t>, std::pair<CUdeviceptr, Point>>;
auto& freed = *new Freed;
auto& reusable = *new std::set<CUdeviceptr>;  // the same memory
std::atomic<Word> pending{0}, threads{0};
Word chance = settings().seed;

// One time in `n`, drawn.
bool one_in(Word n) { return (draw(chance) >> 32) % n == 0; }

Lane& lane_of(const void* handle) {
    auto stream = reinterpret_cast<Word>(handle);
    if (stream > PER_THREAD) return *static_cast<Lane*>(const_cast<void*>(handle));
    if (stream == 0) stream = LEGACY;
    if (!self.thread) self.thread = ++threads;
    Word thread = stream == PER_THREAD ? self.thread : 0;
    for (Lane* lane : defaults) {
        if (lane->context == self.context && lane->stream == stream && lane->thread == thread) return *lane;
    }
    defaults.push_back(new Lane{self.context, true, stream, thread, one_in(2)});
    return *defaults.back();
}

bool is_done(Point point) { return !point.lane || point.lane->done >= point.number; }

// What the next piece of `lane` waits for in other lanes: the legacy default stream waits for all blocking ones, and they for it.
std::vector<Point> implied(const Lane& lane) {
    std::vector<Point> points;
    for (Lane* other : busy) {
        bool ordered = other->context == lane.context && lane.blocking && other->blocking &&
                       (lane.stream == LEGACY) != (other->stream == LEGACY);
        if (ordered) points.push_back({other, other->queued});
    }
    return points;
}

bool is_ready(const Lane& lane) {
    return !lane.pieces.empty() && std::all_of(lane.pieces[0].after.begin(), lane.pieces[0].after.end(), is_done);
}

void run_first(Lane& lane) {
    Work work = std::move(lane.pieces.front().work);
    // After an error a context does nothing more.
    if (work && lane.context->error == CUDA_SUCCESS) lane.context->error = work();
    lane.pieces.pop_front();
    lane.done++;
    pending--;
    if (lane.pieces.empty()) busy.erase(std::find(busy.begin(), busy.end(), &lane));
}

template <class Keep>
Lane* draw_ready(Keep keep) {
    Lane* drawn = nullptr;
    Word seen = 0;
    for (Lane* lane : busy) {
        if (keep(*lane) && is_ready(*lane) && one_in(++seen)) drawn = lane;
    }
    return drawn;
}

void need(Point point) {
    if (is_done(point) || point.lane->needed >= point.number) return;
    Lane& lane = *point.lane;
    Word from = std::max(lane.needed, lane.done);
    lane.needed = point.number;
    for (Word i = from; i < point.number; i++) {
        for (Point before : lane.pieces[i - lane.done].after) need(before);
    }
}

bool is_needed(const Lane& lane) { return lane.done < lane.needed; }

// Runs what `point` needs, and by chance other work; all of it, or one piece.
void advance(Point point, bool all) {
    if (is_done(point)) return;
    for (Lane* lane : busy) lane->needed = 0;
    need(point);
    bool mixed = one_in(2);  // or one lane goes as far ahead as it can
    Lane* next = nullptr;
    while (!is_done(point)) {
        if (one_in(16)) {
            next = draw_ready([](const Lane&) { return true; });
        } else if (mixed || !next || !is_needed(*next) || !is_ready(*next)) {
            next = draw_ready(is_needed);
        }
        run_first(*next);
        if (!all) return;
    }
}

void push(Lane& lane, Work work, std::vector<Point> after) {
    if (lane.pieces.empty()) busy.push_back(&lane);
    lane.pieces.push_back({std::move(work), std::move(after)});
    lane.queued++;
    pending++;
    if (one_in(8)) lane.eager = one_in(2);
    if (!settings().late) {
        advance({&lane, lane.queued}, true);
    } else if (lane.eager) {
        while (Lane* next = draw_ready([](const Lane& other) { return other.eager; })) run_first(*next);
    }
}

CUresult check(const void* stream) {
    CUresult checked = check_context();
    return checked == CUDA_SUCCESS ? check_stream(stream) : checked;
}

// Returns memory that nobody may use any more.
void trim(const Context* context) {
    for (auto next = freed.begin(); next != freed.end();) {
        auto [pointer, point] = next->second;
        if (point.lane->context != context || !is_done(point)) {
            ++next;
            continue;
        }
        reusable.erase(pointer);
        release(pointer);
        next = freed.erase(next);
    }
}

void wait_for_all(const Context* context) {
    auto own = [=](const Lane* lane) { return lane->context == context; };
    for (auto next = busy.begin(); (next = std::find_if(busy.begin(), busy.end(), own)) != busy.end();) {
        advance({*next, (*next)->queued}, true);
    }
}

// Behind a wait.
CUresult settle(Context* context) {
    if (context->error == CUDA_SUCCESS && one_in(2)) trim(context);
    return context->error;
}

CUresult allocate_or_trim(Context* context, std::size_t bytes, CUdeviceptr* pointer) {
    CUresult made = allocate(context->device, bytes, pointer);
    if (made != CUDA_ERROR_OUT_OF_MEMORY) return made;
    wait_for_all(context);
    trim(context);
    return allocate(context->device, bytes, pointer);
}

Work fill(CUdeviceptr pointer, std::size_t bytes) {
    return [=] {
        Access access;
        std::memset(reinterpret_cast<void*>(pointer), static_cast<int>(settings().fill), bytes);
        return CUDA_SUCCESS;
    };
}

}  // namespace

CUresult check_stream(const void* stream) {
    if (self.only_stream && stream != self.only_stream) {
        report("work on another stream than the one that `set_stream` named");
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (reinterpret_cast<Word>(stream) <= PER_THREAD) return CUDA_SUCCESS;
    std::lock_guard<std::mutex> guard(lock);
    return streams.count(stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

const void* create_stream(bool blocking) {
    std::lock_guard<std::mutex> guard(lock);
    return *streams.insert(new Lane{self.context, blocking, 0, 0, one_in(2)}).first;
}

CUresult destroy_stream(const void* stream) {
    std::lock_guard<std::mutex> guard(lock);
    // The lane does what it has to do, and no later stream has its address.
    return streams.erase(stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult enqueue(const void* stream, Work work, Point* point) {
    if (point) *point = {};
    CUresult checked = check(stream);
    if (checked != CUDA_SUCCESS) return checked;
    if (!settings().late && pending == 0) return work();
    std::lock_guard<std::mutex> guard(lock);
    Lane& lane = lane_of(stream);
    push(lane, std::move(work), implied(lane));
    if (point) *point = {&lane, lane.queued};
    return CUDA_SUCCESS;
}

CUresult wait_in_stream(const void* stream, Point point) {
    CUresult checked = check(stream);
    if (checked != CUDA_SUCCESS) return checked;
    std::lock_guard<std::mutex> guard(lock);
    if (is_done(point)) return CUDA_SUCCESS;
    Lane& lane = lane_of(stream);
    std::vector<Point> after = implied(lane);
    if (point.lane != &lane) after.push_back(point);
    push(lane, {}, std::move(after));
    return CUDA_SUCCESS;
}

CUresult end_of(const void* stream, Point* point) {
    CUresult checked = check(stream);
    if (checked != CUDA_SUCCESS) return checked;
    std::lock_guard<std::mutex> guard(lock);
    Lane& lane = lane_of(stream);
    // The end of the legacy default stream lies behind all that its next piece waits for.
    if (std::vector<Point> after = implied(lane); !after.empty() && lane.stream == LEGACY) push(lane, {}, std::move(after));
    *point = {&lane, lane.queued};
    return CUDA_SUCCESS;
}

CUresult wait_for(Point point) {
    CUresult checked = check_context();
    if (checked != CUDA_SUCCESS || !point.lane) return checked;
    std::lock_guard<std::mutex> guard(lock);
    advance(point, true);
    return settle(point.lane->context);
}

CUresult query(Point point) {
    CUresult checked = check_context();
    if (checked != CUDA_SUCCESS || !point.lane) return checked;
    std::lock_guard<std::mutex> guard(lock);
    if (!is_done(point) && one_in(2)) advance(point, false);
    return is_done(point) ? settle(point.lane->context) : CUDA_ERROR_NOT_READY;
}

CUresult synchronize(const void* stream) {
    Point point;
    CUresult checked = end_of(stream, &point);
    return checked == CUDA_SUCCESS ? wait_for(point) : checked;
}

CUresult synchronize() {
    CUresult checked = check_context();
    if (checked != CUDA_SUCCESS) return checked;
    std::lock_guard<std::mutex> guard(lock);
    wait_for_all(self.context);
    return settle(self.context);
}

CUresult allocate_in_order(const void* stream, std::size_t bytes, CUdeviceptr* pointer) {
    CUresult checked = check(stream);
    if (checked != CUDA_SUCCESS) return checked;
    std::lock_guard<std::mutex> guard(lock);
    Lane& lane = lane_of(stream);
    if (auto known = freed.find({&lane, bytes}); known != freed.end()) {
        *pointer = known->second.first;
        reusable.erase(*pointer);
        freed.erase(known);
    } else {
        checked = allocate_or_trim(self.context, bytes, pointer);
        if (checked != CUDA_SUCCESS) return checked;
    }
    // Fresh memory is filled once more in order: what was written too early is lost.
    if (settings().late) push(lane, fill(*pointer, bytes), implied(lane));
    return CUDA_SUCCESS;
}

CUresult free_in_order(const void* stream, CUdeviceptr pointer) {
    CUresult checked = check(stream);
    if (checked != CUDA_SUCCESS || pointer == 0) return checked;
    std::lock_guard<std::mutex> guard(lock);
    std::size_t bytes = allocation_bytes(pointer);
    if (bytes == 0 || reusable.count(pointer)) return CUDA_ERROR_INVALID_VALUE;
    Lane& lane = lane_of(stream);
    if (!settings().late && pending == 0) return release(pointer);
    push(lane, fill(pointer, bytes), implied(lane));
    freed.insert({{&lane, bytes}, {pointer, {&lane, lane.queued}}});
    reusable.insert(pointer);
    return CUDA_SUCCESS;
}

CUresult allocate_now(std::size_t bytes, CUdeviceptr* pointer) {
    CUresult checked = check_context();
    if (checked != CUDA_SUCCESS) return checked;
    std::lock_guard<std::mutex> guard(lock);
    return allocate_or_trim(self.context, bytes, pointer);
}

CUresult free_now(CUdeviceptr pointer) {
    CUresult checked = check_context();
    if (checked != CUDA_SUCCESS) return checked;
    std::lock_guard<std::mutex> guard(lock);
    if (reusable.count(pointer)) return CUDA_ERROR_INVALID_VALUE;
    wait_for_all(self.context);
    checked = settle(self.context);
    return checked == CUDA_SUCCESS ? release(pointer) : checked;
}

void drop_work(Context& context) {
    std::lock_guard<std::mutex> guard(lock);
    // A context with an error does nothing.
    context.error = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    wait_for_all(&context);
    trim(&context);
    context.error = CUDA_SUCCESS;
}

void restart_order() {
    std::lock_guard<std::mutex> guard(lock);
    chance = settings().seed;
    // How many threads there were before changes nothing.
    for (Lane* lane : defaults) lane->eager = chance % 2 == lane->stream % 2;
}

void set_late(bool late) {
    std::lock_guard<std::mutex> guard(lock);
    settings().late = late;
    while (!late && !busy.empty()) wait_for_all(busy[0]->context);
    for (Lane* lane : defaults) trim(lane->context);
}

}  // namespace cuda_emulator
