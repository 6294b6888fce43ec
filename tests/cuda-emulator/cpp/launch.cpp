// Spreads a grid's blocks over OS threads.
#include "driver.h"
#include "memory.h"
#include "queue.h"
#include "settings.h"
#include "worker.h"

#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

namespace cuda_emulator {

namespace {

Word from_environment(const char* name, Word otherwise) {
    const char* text = std::getenv(name);
    return text && *text ? std::strtoull(text, nullptr, 0) : otherwise;
}

unsigned default_threads() {
    unsigned cores = std::thread::hardware_concurrency();
    return cores < 1 ? 1 : cores > 4 ? 4 : cores;
}

// The OS threads that help the one that launches. They never end, and the pool is never destroyed.
class Pool {
    std::mutex lock_;
    std::condition_variable work_, done_;
    Launch* current_ = nullptr;
    Word generation_ = 0;
    unsigned active_ = 0;
    unsigned helpers_ = 0;

    void help() {
        auto worker = new_worker();
        Word seen = 0;
        std::unique_lock<std::mutex> guard(lock_);
        for (;;) {
            work_.wait(guard, [&] { return current_ && generation_ != seen; });
            seen = generation_;
            Launch* launch = current_;
            active_++;
            guard.unlock();
            if (worker) run_blocks(*worker, *launch);
            guard.lock();
            active_--;
            done_.notify_all();
        }
    }

  public:
    static std::unique_ptr<Worker> new_worker() {
        auto worker = std::make_unique<Worker>();
        worker->stacks = map_stacks(MAX_THREADS);
        return worker->stacks ? std::move(worker) : nullptr;
    }

    void run(Worker& own, Launch& launch, bool alone) {
        if (alone) {
            run_blocks(own, launch);
            return;
        }
        {
            std::lock_guard<std::mutex> guard(lock_);
            for (; helpers_ + 1 < settings().threads; helpers_++) std::thread([this] { help(); }).detach();
            current_ = &launch;
            generation_++;
        }
        work_.notify_all();
        run_blocks(own, launch);
        std::unique_lock<std::mutex> guard(lock_);
        current_ = nullptr;  // who has not come yet need not come
        done_.wait(guard, [&] { return active_ == 0; });
    }
};

// True if every pointer among the arguments is null or device memory.
bool check_arguments(const Kernel& kernel, void** arguments) {
    for (unsigned i = 0; i < kernel.arguments; i++) {
        if (!kernel.is_pointer[i]) continue;
        void* pointer = *static_cast<void**>(arguments[i]);
        if (!pointer || is_device_memory(reinterpret_cast<CUdeviceptr>(pointer), 0)) continue;
        char where[160];
        describe(pointer, where, sizeof where);
        report("kernel `%s`: argument %u is %p, %s", kernel.name, i, pointer, where);
        return false;
    }
    return true;
}

}  // namespace

Settings& settings() {
    static Settings settings{
        {from_environment("CUDA_EMULATOR_SEED", 42)},
        {static_cast<unsigned>(from_environment("CUDA_EMULATOR_FILL", 0xff)) & 0xff},
        {from_environment("CUDA_EMULATOR_LATE", 0) != 0},
        static_cast<unsigned>(from_environment("CUDA_EMULATOR_THREADS", default_threads())),
        static_cast<unsigned>(from_environment("CUDA_EMULATOR_DEVICES", 1)),
        from_environment("CUDA_EMULATOR_MEMORY", Word(16) << 30),
        from_environment("CUDA_EMULATOR_STRICT", 0) != 0,
    };
    return settings;
}

int launch(const Kernel& kernel, uint3 grid, uint3 block, void** arguments) {
    static std::mutex& one_at_a_time = *new std::mutex;
    static Pool& pool = *new Pool;
    static Worker* own = Pool::new_worker().release();
    if (!own) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!check_arguments(kernel, arguments)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    std::lock_guard<std::mutex> guard(one_at_a_time);
    Access access;
    Launch work{kernel, grid, block, arguments, settings().seed};
    pool.run(*own, work, Word(grid.x) * grid.y * grid.z == 1 || settings().threads < 2);
    bool overrun = find_overruns(kernel.name);
    return work.error || !overrun ? work.error.load() : CUDA_ERROR_ILLEGAL_ADDRESS;
}

}  // namespace cuda_emulator

// For the process that holds the emulator; the environment is read once.
API void cuda_emulator_set_seed(unsigned long long seed) {
    cuda_emulator::settings().seed = seed;
    cuda_emulator::restart_order();
}
API void cuda_emulator_set_late(bool late) { cuda_emulator::set_late(late); }
API void cuda_emulator_set_fill(unsigned char fill) { cuda_emulator::settings().fill = fill; }
