// sums [V, width] += rows [N, width] by id, each id's rows in their order. `lists` has the G ids that occur, where the list of each begins
// in the rest, G + 1, and then the rows of each id. Block (g, c) has columns 256 c.. of id g. Mirrors `AddRows` of ops/src/rows.rs.
template <class T>
__device__ void add_rows(float* sums, const T* rows, const unsigned* lists, unsigned ids, unsigned width) {
    const unsigned column = blockIdx.y * THREADS + threadIdx.x;
    if (column >= width) return;
    const unsigned *starts = lists + ids, *order = starts + ids + 1;
    float* to = sums + static_cast<unsigned long long>(lists[blockIdx.x]) * width + column;
    float sum = *to;
    #pragma unroll 8
    for (unsigned i = starts[blockIdx.x]; i < starts[blockIdx.x + 1]; ++i) {
        sum += widened(rows[static_cast<unsigned long long>(order[i]) * width + column]);
    }
    *to = sum;
}

#define ADD_ROWS_KERNEL(suffix, T)                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                 \
        add_rows_##suffix(float* sums, const T* rows, const unsigned* lists, unsigned ids, unsigned width) { \
        add_rows(sums, rows, lists, ids, width);                                                          \
    }
ADD_ROWS_KERNEL(f32, float)
ADD_ROWS_KERNEL(bf16, bf16)
