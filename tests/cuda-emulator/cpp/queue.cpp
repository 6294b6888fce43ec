#include "queue.h"

namespace cuda_emulator {

CUresult enqueue(const void* stream, Work work) {
    CUresult checked = check_context();
    if (checked == CUDA_SUCCESS) checked = check_stream(stream);
    return checked == CUDA_SUCCESS ? work() : checked;
}

CUresult synchronize(const void* stream) {
    CUresult checked = check_context();
    return checked == CUDA_SUCCESS ? check_stream(stream) : checked;
}

CUresult synchronize() { return check_context(); }

}  // namespace cuda_emulator
