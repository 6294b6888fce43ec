#include "memory.h"

#include "executor.h"
#include "settings.h"

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

namespace cuda_emulator {

namespace {

constexpr unsigned char CANARY = 0xa5;
constexpr std::size_t NEAR = 1 << 20;  // what is farther from an allocation is not said to be beside it

struct Allocation {
    CUdevice device;
    std::size_t bytes;
    char* pages;  // between the guards
    std::size_t pages_bytes;
};
using Allocations = std::map<std::uintptr_t, Allocation>;  // by first byte

// Never destroyed: threads may still be here when the process ends.
std::mutex& lock = *new std::mutex;
Allocations &live = *new Allocations, &freed = *new Allocations;  // freed ones are kept to be named in reports
auto& used = *new std::map<CUdevice, std::size_t>;
unsigned accesses = 0;

std::size_t page() {
    static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return bytes;
}

std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

char* at(std::uintptr_t address) { return reinterpret_cast<char*>(address); }

void protect(const Allocation& a, bool open) { mprotect(a.pages, a.pages_bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE); }

void set_reach(bool open) {
    for (const auto& [start, a] : live) protect(a, open);
}

// Gives the next live allocation.
Allocations::iterator unmap(Allocations::iterator which) {
    const Allocation& a = which->second;
    // The addresses stay reserved, so that a pointer to freed memory never points to something else.
    mmap(a.pages, a.pages_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    used[a.device] -= a.bytes;
    freed.insert(*which);
    return live.erase(which);
}

}  // namespace

CUresult allocate(CUdevice device, std::size_t bytes, CUdeviceptr* pointer) {
    if (bytes == 0 || !pointer) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard<std::mutex> guard(lock);
    if (bytes > settings().memory - used[device]) return CUDA_ERROR_OUT_OF_MEMORY;
    std::size_t inner = round_up(bytes, page());
    void* map = mmap(nullptr, inner + 2 * page(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    char* pages = static_cast<char*>(map) + page();
    if (mprotect(pages, inner, PROT_READ | PROT_WRITE) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
    char* start = pages + inner - round_up(bytes, 16);
    std::memset(pages, CANARY, static_cast<std::size_t>(start - pages));
    std::memset(start, static_cast<int>(settings().fill), bytes);
    std::memset(start + bytes, CANARY, round_up(bytes, 16) - bytes);
    Allocation made{device, bytes, pages, inner};
    if (settings().strict && accesses == 0) protect(made, false);
    used[device] += bytes;
    auto address = reinterpret_cast<std::uintptr_t>(start);
    live[address] = made;
    *pointer = address;
    return CUDA_SUCCESS;
}

CUresult release(CUdeviceptr pointer) {
    if (pointer == 0) return CUDA_SUCCESS;
    std::lock_guard<std::mutex> guard(lock);
    auto found = live.find(pointer);
    if (found == live.end()) return CUDA_ERROR_INVALID_VALUE;
    unmap(found);
    return CUDA_SUCCESS;
}

void release_all(CUdevice device) {
    std::lock_guard<std::mutex> guard(lock);
    for (auto next = live.begin(); next != live.end();) next = next->second.device == device ? unmap(next) : std::next(next);
}

bool is_device_memory(CUdeviceptr pointer, std::size_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    auto next = live.upper_bound(pointer);
    if (next == live.begin()) return false;
    const auto& [start, a] = *std::prev(next);
    std::size_t offset = pointer - start;
    return offset <= a.bytes && bytes <= a.bytes - offset;
}

std::size_t allocation_bytes(CUdeviceptr pointer) {
    std::lock_guard<std::mutex> guard(lock);
    auto found = live.find(pointer);
    return found == live.end() ? 0 : found->second.bytes;
}

std::size_t used_memory(CUdevice device) {
    std::lock_guard<std::mutex> guard(lock);
    return used[device];
}

bool find_overruns(const char* kernel) {
    std::lock_guard<std::mutex> guard(lock);
    bool any = false;
    for (auto& [start, a] : live) {
        char *first = at(start), *end = first + a.bytes, *limit = a.pages + a.pages_bytes;
        char* low = first - a.pages < 64 ? a.pages : first - 64;
        for (char* byte = low; byte < limit; byte++) {
            if (byte == first) byte = end;
            if (byte == limit) break;
            if (static_cast<unsigned char>(*byte) == CANARY) continue;
            report("kernel `%s` wrote to byte %td of an allocation of %zu bytes", kernel, byte - first, a.bytes);
            *byte = static_cast<char>(CANARY);
            any = true;
            break;
        }
    }
    return any;
}

void describe(const void* address, char* text, std::size_t size) {
    std::unique_lock<std::mutex> guard(lock, std::try_to_lock);
    auto where = reinterpret_cast<std::uintptr_t>(address);
    std::snprintf(text, size, "not device memory");
    if (!guard.owns_lock()) return;
    auto nearest = NEAR;
    for (auto [all, kind] : {std::pair(&live, "an allocation"), std::pair(&freed, "a freed allocation")}) {
        auto consider = [&, kind = kind](Allocations::const_iterator found) {
            auto [start, a] = *found;
            std::size_t distance = where < start ? start - where : where - start < a.bytes ? 0 : where - start - a.bytes + 1;
            if (distance >= nearest) return;
            nearest = distance;
            std::snprintf(text, size, "byte %td of %s of %zu bytes", static_cast<std::ptrdiff_t>(where - start), kind, a.bytes);
        };
        auto next = all->upper_bound(where);
        if (next != all->end()) consider(next);
        if (next != all->begin()) consider(std::prev(next));
    }
}

Access::Access() {
    std::lock_guard<std::mutex> guard(lock);
    if (accesses++ == 0 && settings().strict) set_reach(true);
}

Access::~Access() {
    std::lock_guard<std::mutex> guard(lock);
    if (--accesses == 0 && settings().strict) set_reach(false);
}

}  // namespace cuda_emulator
