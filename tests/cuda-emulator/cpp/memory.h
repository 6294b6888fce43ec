// Device memory: host memory between pages that nobody may touch.
#pragma once

#include "driver.h"

namespace cuda_emulator {

// Gives `bytes` of fresh memory, filled with `Settings::fill`, that ends at a guard page (start and end are aligned to 16 bytes).
CUresult allocate(CUdevice device, std::size_t bytes, CUdeviceptr* pointer);

// Unmaps an allocation; its addresses are never used again.
CUresult release(CUdeviceptr pointer);

// Unmaps all that `device` holds.
void release_all(CUdevice device);

// True if `pointer .. pointer + bytes` lies in one allocation; the end of an allocation is part of it when `bytes` is 0.
bool is_device_memory(CUdeviceptr pointer, std::size_t bytes);

// Bytes of the allocation that begins at `pointer`; 0 where none does.
std::size_t allocation_bytes(CUdeviceptr pointer);

// Bytes that `device` holds.
std::size_t used_memory(CUdevice device);

// Reports bytes that `kernel` wrote beside an allocation, in the pages that it shares. True if there were any.
bool find_overruns(const char* kernel);

// Writes where `address` lies, in words. Takes no lock if it cannot have it at once: it is called where a signal is handled.
void describe(const void* address, char* text, std::size_t size);

// While one lives, device memory is within reach; outside, with `Settings::strict`, it is not.
struct Access {
    Access();
    ~Access();
    Access(const Access&) = delete;
};

}  // namespace cuda_emulator
