// Stand-ins for the parts of cuBLAS and cuRAND that candle's operations call. A product is work on its handle's stream.
#include "driver.h"

#include "executor.h"
#include "memory.h"
#include "queue.h"
#include "trace.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

// Products are most of a training step's time.
#pragma GCC optimize("O3")

namespace {

enum Status : int {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
};

struct Handle {
    void* stream;
};

// cudaDataType_t
enum Type : int { R_32F = 0, R_64F = 1, R_16F = 2, R_16BF = 14 };
constexpr int COMPUTE_32F_FAST_TF32 = 77;

template <class T>
struct Matrix {
    T* values;
    int line;            // from one column to the next
    long long stride;    // from one matrix of the batch to the next
    bool transposed;
};

float read(Type type, const void* values, long long at) {
    uint16_t bits;
    switch (type) {
        case R_16F: {
            _Float16 half;
            std::memcpy(&half, static_cast<const char*>(values) + 2 * at, 2);
            return static_cast<float>(half);
        }
        case R_16BF: {
            std::memcpy(&bits, static_cast<const char*>(values) + 2 * at, 2);
            uint32_t wide = static_cast<uint32_t>(bits) << 16;
            float value;
            std::memcpy(&value, &wide, 4);
            return value;
        }
        default: return static_cast<const float*>(values)[at];
    }
}

uint16_t to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return value != value ? 0x7fff : static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void write(Type type, void* values, long long at, float value) {
    if (type == R_16F) {
        _Float16 half = static_cast<_Float16>(value);
        std::memcpy(static_cast<char*>(values) + 2 * at, &half, 2);
    } else if (type == R_16BF) {
        uint16_t bits = to_bf16(value);
        std::memcpy(static_cast<char*>(values) + 2 * at, &bits, 2);
    } else {
        static_cast<float*>(values)[at] = value;
    }
}

// TF32 keeps 10 bits of the mantissa.
float to_tf32(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (std::isfinite(value)) bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
    std::memcpy(&value, &bits, 4);
    return value;
}

struct Product {
    int m, n, k, batch;
    Matrix<const void> a, b;
    Matrix<void> c;
    Type in, out;
    double alpha, beta;
    bool tf32;

    template <class Sum, class Load, class Before, class Store>
    void run(Load load, Before there, Store store) const {
        std::vector<Sum> left(static_cast<std::size_t>(m) * k), column(m);
        for (long long i = 0; i < batch; i++) {
            for (int p = 0; p < k; p++) {
                for (int row = 0; row < m; row++) {
                    long long at = a.transposed ? p + static_cast<long long>(row) * a.line : row + static_cast<long long>(p) * a.line;
                    left[static_cast<std::size_t>(p) * m + row] = load(a.values, i * a.stride + at);
                }
            }
            for (int j = 0; j < n; j++) {
                std::fill(column.begin(), column.end(), Sum(0));
                for (int p = 0; p < k; p++) {
                    long long at = b.transposed ? j + static_cast<long long>(p) * b.line : p + static_cast<long long>(j) * b.line;
                    const Sum factor = load(b.values, i * b.stride + at);
                    const Sum* line = &left[static_cast<std::size_t>(p) * m];
                    for (int row = 0; row < m; row++) column[row] += factor * line[row];
                }
                for (int row = 0; row < m; row++) {
                    long long at = i * c.stride + static_cast<long long>(j) * c.line + row;
                    // Where `beta` is 0, what was there is not read: it may be NaN.
                    Sum before = beta == 0 ? Sum(0) : Sum(beta) * there(at);
                    store(at, Sum(alpha) * column[row] + before);
                }
            }
        }
    }

    void run() const {
        cuda_emulator::Access access;
        if (in == R_64F) {
            run<double>([](const void* values, long long at) { return static_cast<const double*>(values)[at]; },
                        [this](long long at) { return static_cast<const double*>(c.values)[at]; },
                        [this](long long at, double value) { static_cast<double*>(c.values)[at] = value; });
        } else {
            run<float>([this](const void* values, long long at) {
                float value = read(in, values, at);
                return tf32 ? to_tf32(value) : value;
            },
                       [this](long long at) { return read(out, c.values, at); },
                       [this](long long at, float value) { write(out, c.values, at, value); });
        }
    }
};

std::size_t size_of(Type type) { return type == R_64F ? 8 : type == R_32F ? 4 : 2; }

// True if the whole batch of a matrix of `lines` columns with `length` numbers lies in device memory.
template <class T>
bool is_there(const Matrix<T>& matrix, int lines, int length, int batch, Type type) {
    if (lines == 0 || length == 0 || batch == 0) return true;
    auto numbers = (batch - 1) * matrix.stride + static_cast<long long>(lines - 1) * matrix.line + length;
    return cuda_emulator::is_device_memory(reinterpret_cast<CUdeviceptr>(matrix.values), static_cast<std::size_t>(numbers) * size_of(type));
}

CUresult check(const Product& p) {
    bool there = is_there(p.a, p.a.transposed ? p.m : p.k, p.a.transposed ? p.k : p.m, p.batch, p.in) &&
                 is_there(p.b, p.b.transposed ? p.k : p.n, p.b.transposed ? p.n : p.k, p.batch, p.in) &&
                 is_there(p.c, p.n, p.m, p.batch, p.out);
    if (there) return CUDA_SUCCESS;
    cuda_emulator::report("a product [%d, %d] x [%d, %d] of cuBLAS reaches beyond its memory", p.m, p.k, p.k, p.n);
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

Status multiply(Handle* handle, const Product& p) {
    if (p.m < 0 || p.n < 0 || p.k < 0 || p.batch < 0) return CUBLAS_STATUS_INVALID_VALUE;
    CUresult queued = cuda_emulator::enqueue(handle->stream, [p] {
        CUresult checked = check(p);
        if (checked == CUDA_SUCCESS) p.run();
        return checked;
    });
    return queued == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

double scalar(const void* value, Type type) {
    return type == R_64F ? *static_cast<const double*>(value) : *static_cast<const float*>(value);
}

}  // namespace

API Status cublasCreate_v2(Handle** handle) {
    *handle = new Handle{nullptr};
    return CUBLAS_STATUS_SUCCESS;
}
API Status cublasDestroy_v2(Handle* handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
API Status cublasSetStream_v2(Handle* handle, void* stream) {
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}
API Status cublasSetWorkspace_v2(Handle*, void*, std::size_t) { return CUBLAS_STATUS_SUCCESS; }

API Status cublasGemmStridedBatchedEx(Handle* handle, int transpose_a, int transpose_b, int m, int n, int k, const void* alpha,
                                      const void* a, Type a_type, int a_line, long long a_stride, const void* b, Type b_type, int b_line,
                                      long long b_stride, const void* beta, void* c, Type c_type, int c_line, long long c_stride, int batch,
                                      int compute, int) {
    if (a_type != b_type || a_type == R_64F) return CUBLAS_STATUS_NOT_SUPPORTED;
    cuda_emulator::trace("(product)");
    return multiply(handle, {m, n, k, batch, {a, a_line, a_stride, transpose_a != 0}, {b, b_line, b_stride, transpose_b != 0},
                             {c, c_line, c_stride, false}, a_type, c_type, scalar(alpha, R_32F), scalar(beta, R_32F),
                             compute == COMPUTE_32F_FAST_TF32});
}
API Status cublasDgemmStridedBatched(Handle* handle, int transpose_a, int transpose_b, int m, int n, int k, const double* alpha,
                                     const double* a, int a_line, long long a_stride, const double* b, int b_line, long long b_stride,
                                     const double* beta, double* c, int c_line, long long c_stride, int batch) {
    cuda_emulator::trace("(product)");
    return multiply(handle, {m, n, k, batch, {a, a_line, a_stride, transpose_a != 0}, {b, b_line, b_stride, transpose_b != 0},
                             {c, c_line, c_stride, false}, R_64F, R_64F, *alpha, *beta, false});
}

// cuRAND: candle makes a generator with every device; nobody draws from it.
API int curandCreateGenerator(void** generator, int) {
    *generator = nullptr;
    return 0;
}
API int curandDestroyGenerator(void*) { return 0; }
API int curandSetStream(void*, void*) { return 0; }
API int curandSetPseudoRandomGeneratorSeed(void*, unsigned long long) { return 0; }
API int curandSetGeneratorOffset(void*, unsigned long long) { return 0; }
