// The driver API: devices, contexts, modules and launches.
#include "driver.h"

#include "executor.h"
#include "memory.h"
#include "queue.h"
#include "settings.h"
#include "trace.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

using cuda_emulator::check_context;
using cuda_emulator::Context;
using cuda_emulator::Kernel;
using cuda_emulator::self;
using cuda_emulator::settings;
using cuda_emulator::Unit;

namespace {

constexpr CUdevice MAX_DEVICES = 64;

struct Module {
    CUdevice device;
    const Unit* unit;  // null for one of the library's own kernels
};
// A value's bytes. Memory of its own is aligned for any type.
using Argument = std::vector<char>;
struct Function {
    Module* module;
    const Kernel* kernel;
};

bool initialized = false;
Context contexts[MAX_DEVICES];
// Never destroyed: threads may still be here when the process ends.
std::mutex& lock = *new std::mutex;
auto& modules = *new std::set<Module*>;
auto& functions = *new std::set<Function*>;

// The units beside this library, and the one of the library that is being opened.
auto& own_units = *new std::vector<const Unit*>;
const Unit* introduced = nullptr;

// The unit in the library `path`; null, with a line on stderr, where there is none.
const Unit* open_unit(const std::string& path) {
    static auto& units = *new std::map<std::string, const Unit*>;
    const Unit*& unit = units[path];
    if (unit) return unit;
    introduced = nullptr;
    if (!dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) cuda_emulator::report("%s", dlerror());
    return unit = introduced;
}

// Opens all units in this library's folder.
void open_own_units() {
    Dl_info own;
    if (!own_units.empty() || !dladdr(reinterpret_cast<void*>(&open_own_units), &own)) return;
    std::set<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(own.dli_fname).parent_path())) {
        if (entry.path().string().find(".kernels.so") != std::string::npos) paths.insert(entry.path().string());
    }
    for (const std::string& path : paths) {
        if (const Unit* unit = open_unit(path)) own_units.push_back(unit);
    }
}

// An image is text: the path of a library with kernels on a line that begins so; or nothing that matters, for this library's own kernels.
constexpr char PATH[] = "// kernels for the CUDA emulator: ";

CUresult read_image(const char* image, const Unit** unit) {
    *unit = nullptr;
    if (std::strncmp(image, PATH, sizeof PATH - 1) != 0) return CUDA_SUCCESS;
    std::string path(image + sizeof PATH - 1);
    *unit = open_unit(path.substr(0, path.find('\n')));
    return *unit ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

const Kernel* find_kernel(const Module& module, const char* name) {
    auto find = [=](const Unit& unit) {
        auto end = unit.kernels + unit.count;
        auto found = std::find_if(unit.kernels, end, [=](const Kernel& kernel) { return std::strcmp(kernel.name, name) == 0; });
        return found == end ? nullptr : found;
    };
    if (module.unit) return find(*module.unit);
    for (const Unit* unit : own_units) {
        if (const Kernel* kernel = find(*unit)) return kernel;
    }
    return nullptr;
}

// A removed handle stays allocated, so that no later handle has its address.
template <class T, class F>
void remove_if(std::set<T>& handles, F goes) {
    for (auto next = handles.begin(); next != handles.end();) next = goes(*next) ? handles.erase(next) : std::next(next);
}

int devices() { return static_cast<int>(settings().devices < MAX_DEVICES ? settings().devices : MAX_DEVICES); }

CUresult check_device(CUdevice device) {
    if (!initialized) return CUDA_ERROR_NOT_INITIALIZED;
    return device >= 0 && device < devices() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

struct Named {
    CUresult code;
    const char *name, *text;
};
constexpr Named ERRORS[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CUDA_ERROR_MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

const Named* find_error(CUresult code) {
    for (const Named& error : ERRORS) {
        if (error.code == code) return &error;
    }
    return nullptr;
}

// Attributes by their number in CUdevice_attribute; all others are 0.
int device_attribute(int attribute) {
    switch (attribute) {
        case 1: return cuda_emulator::MAX_THREADS;  // MAX_THREADS_PER_BLOCK
        case 2: case 3: return 1024;                // MAX_BLOCK_DIM_X, _Y
        case 4: return 64;                          // MAX_BLOCK_DIM_Z
        case 5: return 0x7fffffff;                  // MAX_GRID_DIM_X
        case 6: case 7: return 65535;               // MAX_GRID_DIM_Y, _Z
        case 8: return 49152;                       // MAX_SHARED_MEMORY_PER_BLOCK
        case 9: return 65536;                       // TOTAL_CONSTANT_MEMORY
        case 10: return cuda_emulator::WARP;        // WARP_SIZE
        case 12: return 65536;                      // MAX_REGISTERS_PER_BLOCK
        case 13: return 1000000;                    // CLOCK_RATE, in kHz
        case 16: return 4;                          // MULTIPROCESSOR_COUNT: few, so that small grids loop
        case 36: return 1000000;                    // MEMORY_CLOCK_RATE, in kHz
        case 37: return 64;                         // GLOBAL_MEMORY_BUS_WIDTH, in bits
        case 38: return 1 << 20;                    // L2_CACHE_SIZE
        case 39: return 2048;                       // MAX_THREADS_PER_MULTIPROCESSOR
        case 41: return 1;                          // UNIFIED_ADDRESSING
        case 75: return 9;                          // COMPUTE_CAPABILITY_MAJOR
        case 76: return 0;                          // COMPUTE_CAPABILITY_MINOR
        case 81: return 233472;                     // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
        case 82: return 65536;                      // MAX_REGISTERS_PER_MULTIPROCESSOR
        case 97: return 232448;                     // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        case 106: return 32;                        // MAX_BLOCKS_PER_MULTIPROCESSOR
        case 115: return 1;                         // MEMORY_POOLS_SUPPORTED
        default: return 0;
    }
}

bool is_launchable(const unsigned (&grid)[3], const unsigned (&block)[3]) {
    for (unsigned size : {grid[0], grid[1], grid[2], block[0], block[1], block[2]}) {
        if (size == 0) return false;
    }
    return grid[0] <= 0x7fffffff && grid[1] <= 65535 && grid[2] <= 65535 && block[0] <= 1024 && block[1] <= 1024 &&
           block[2] <= 64 && static_cast<unsigned long long>(block[0]) * block[1] * block[2] <= cuda_emulator::MAX_THREADS;
}

}  // namespace

CUresult cuda_emulator::check_context() {
    std::lock_guard<std::mutex> guard(lock);
    if (!initialized) return CUDA_ERROR_NOT_INITIALIZED;
    if (!self.context) return CUDA_ERROR_INVALID_CONTEXT;
    return self.context->retained ? self.context->error.load() : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

void cuda_emulator::introduce(const Unit& unit) { introduced = &unit; }

API CUresult cuInit(unsigned flags) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (devices() == 0) return CUDA_ERROR_NO_DEVICE;
    std::lock_guard<std::mutex> guard(lock);
    open_own_units();
    initialized = true;
    cuda_emulator::catch_faults();
    return CUDA_SUCCESS;
}

API CUresult cuDriverGetVersion(int* version) {
    *version = 13000;
    return CUDA_SUCCESS;
}

API CUresult cuGetErrorName(CUresult code, const char** name) {
    const Named* error = find_error(code);
    *name = error ? error->name : nullptr;
    return error ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGetErrorString(CUresult code, const char** text) {
    const Named* error = find_error(code);
    *text = error ? error->text : nullptr;
    return error ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuDeviceGetCount(int* count) {
    if (!initialized) return CUDA_ERROR_NOT_INITIALIZED;
    *count = devices();
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    CUresult checked = check_device(ordinal);
    if (checked == CUDA_SUCCESS) *device = ordinal;
    return checked;
}

API CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
    CUresult checked = check_device(device);
    if (checked == CUDA_SUCCESS) std::snprintf(name, static_cast<std::size_t>(size), "CUDA on the CPU");
    return checked;
}

API CUresult cuDeviceGetUuid_v2(char* uuid, CUdevice device) {
    CUresult checked = check_device(device);
    if (checked != CUDA_SUCCESS) return checked;
    std::memcpy(uuid, "CUDA on the CPU", 16);
    uuid[15] = static_cast<char>(device);
    return checked;
}
API CUresult cuDeviceGetUuid(char* uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }

API CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device) {
    CUresult checked = check_device(device);
    if (checked == CUDA_SUCCESS) *bytes = settings().memory;
    return checked;
}

API CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
    CUresult checked = check_device(device);
    if (checked == CUDA_SUCCESS) *value = device_attribute(attribute);
    return checked;
}

API CUresult cuDevicePrimaryCtxRetain(Context** context, CUdevice device) {
    std::lock_guard<std::mutex> guard(lock);
    CUresult checked = check_device(device);
    if (checked != CUDA_SUCCESS) return checked;
    contexts[device].device = device;
    contexts[device].retained++;
    *context = &contexts[device];
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    std::lock_guard<std::mutex> guard(lock);
    CUresult checked = check_device(device);
    if (checked != CUDA_SUCCESS) return checked;
    if (contexts[device].retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--contexts[device].retained == 0) {
        cuda_emulator::drop_work(contexts[device]);
        cuda_emulator::release_all(device);
        remove_if(functions, [=](Function* function) { return function->module->device == device; });
        remove_if(modules, [=](Module* module) { return module->device == device; });
    }
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    std::lock_guard<std::mutex> guard(lock);
    CUresult checked = check_device(device);
    if (checked != CUDA_SUCCESS) return checked;
    *flags = 0;
    *active = contexts[device].retained != 0;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetCurrent(Context* context) {
    if (!initialized) return CUDA_ERROR_NOT_INITIALIZED;
    if (context && (context < contexts || context >= contexts + MAX_DEVICES)) return CUDA_ERROR_INVALID_CONTEXT;
    self.context = context;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(Context** context) {
    if (!initialized) return CUDA_ERROR_NOT_INITIALIZED;
    *context = self.context;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice(CUdevice* device) {
    CUresult checked = check_context();
    if (checked == CUDA_SUCCESS) *device = self.context->device;
    return checked;
}

API CUresult cuCtxSynchronize() { return cuda_emulator::synchronize(); }
API CUresult cuCtxSetFlags(unsigned) { return check_context(); }

API CUresult cuModuleLoadData(Module** module, const void* image) {
    CUresult checked = check_context();
    if (checked != CUDA_SUCCESS) return checked;
    if (!image) return CUDA_ERROR_INVALID_VALUE;
    // A GPU's machine code.
    if (std::strncmp(static_cast<const char*>(image), "\x7f" "ELF", 4) == 0) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    std::lock_guard<std::mutex> guard(lock);
    const Unit* unit;
    checked = read_image(static_cast<const char*>(image), &unit);
    if (checked == CUDA_SUCCESS) *module = *modules.insert(new Module{self.context->device, unit}).first;
    return checked;
}

API CUresult cuModuleUnload(Module* module) {
    CUresult checked = check_context();
    if (checked != CUDA_SUCCESS) return checked;
    std::lock_guard<std::mutex> guard(lock);
    if (modules.erase(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
    remove_if(functions, [=](Function* function) { return function->module == module; });
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetFunction(Function** function, Module* module, const char* name) {
    CUresult checked = check_context();
    if (checked != CUDA_SUCCESS) return checked;
    std::lock_guard<std::mutex> guard(lock);
    if (modules.count(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
    const Kernel* kernel = find_kernel(*module, name);
    if (!kernel) return CUDA_ERROR_NOT_FOUND;
    *function = *functions.insert(new Function{module, kernel}).first;
    return CUDA_SUCCESS;
}

API CUresult cuFuncGetAttribute(int* value, int attribute, Function* function) {
    std::lock_guard<std::mutex> guard(lock);
    if (functions.count(function) == 0) return CUDA_ERROR_INVALID_HANDLE;
    *value = attribute == 0 ? static_cast<int>(cuda_emulator::MAX_THREADS) : 0;  // MAX_THREADS_PER_BLOCK
    return CUDA_SUCCESS;
}

API CUresult cuFuncSetAttribute(Function* function, int, int) {
    std::lock_guard<std::mutex> guard(lock);
    return functions.count(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API CUresult cuFuncSetCacheConfig(Function* function, int) { return cuFuncSetAttribute(function, 0, 0); }

API CUresult cuLaunchKernel(Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                            unsigned block_z, unsigned shared_bytes, void* stream, void** arguments, void** extra) {
    CUresult checked = check_context();
    if (checked != CUDA_SUCCESS) return checked;
    const Kernel* kernel = nullptr;
    {
        std::lock_guard<std::mutex> guard(lock);
        if (functions.count(function) == 0 || function->module->device != self.context->device) return CUDA_ERROR_INVALID_HANDLE;
        kernel = function->kernel;
    }
    if (extra || shared_bytes) {
        cuda_emulator::report("kernel `%s`: dynamic shared memory and packed arguments are not emulated", kernel->name);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (!is_launchable({grid_x, grid_y, grid_z}, {block_x, block_y, block_z})) return CUDA_ERROR_INVALID_VALUE;
    if (!arguments && kernel->arguments) return CUDA_ERROR_INVALID_VALUE;
    cuda_emulator::trace(kernel->name);
    std::vector<Argument> values(kernel->arguments);
    for (unsigned i = 0; i < kernel->arguments; i++) {
        auto from = static_cast<const char*>(arguments[i]);
        values[i].assign(from, from + kernel->bytes[i]);
    }
    return cuda_emulator::enqueue(stream, [=]() mutable {
        std::vector<void*> places;
        for (Argument& value : values) places.push_back(value.data());
        return static_cast<CUresult>(
            cuda_emulator::launch(*kernel, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, places.data()));
    });
}

// What `cudarc` links to and a program on candle does not call, but for the memory pool, whose settings change nothing here.
API CUresult cuDeviceGetDefaultMemPool(void** pool, CUdevice device) {
    *pool = nullptr;
    return check_device(device);
}
API CUresult cuMemPoolSetAttribute(void*, int, void*) { return CUDA_SUCCESS; }
API CUresult cuCtxDestroy_v2(Context*) { return CUDA_ERROR_NOT_SUPPORTED; }
API CUresult cuModuleLoad(Module**, const char*) { return CUDA_ERROR_NOT_SUPPORTED; }
API CUresult cuMemcpyPeerAsync(CUdeviceptr, Context*, CUdeviceptr, Context*, std::size_t, void*) { return CUDA_ERROR_NOT_SUPPORTED; }
API CUresult cuStreamIsCapturing(void*, int* status) {
    *status = 0;
    return CUDA_SUCCESS;
}
