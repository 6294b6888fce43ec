// Adds rows [N, width] to the rows of sums [V, width] that their ids name, in the order of the rows. `lists` holds the G ids that occur,
// then the G + 1 places at which the lists of rows begin, then the list of each id. Block (g, c) adds columns 256 c.. of id g. Mirrors
// `AddRows` of host/ops/src/rows.rs.
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
