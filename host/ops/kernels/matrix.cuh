// Products of bf16 by tensor cores. A warp multiplies 16 x 16 by 16 x 8 numbers into f32 sums (PTX ISA, mma.m16n8k16).
//
// Lane 4 g + t has of the sums [16, 8] those at (g, 2 t), (g, 2 t + 1), (g + 8, 2 t) and (g + 8, 2 t + 1).
struct Piece {
    float at[4];
};

#ifdef CAPO_EMULATED
using cuda_emulator::load_matrices;
using cuda_emulator::load_matrices_transposed;
using cuda_emulator::multiply_16_8_16;
__device__ __forceinline__ unsigned both(float low, float high) {
    return narrowed<bf16>(low).bits | static_cast<unsigned>(narrowed<bf16>(high).bits) << 16;
}
#else
// Two numbers as bf16, the nearest, the first one in the low half.
__device__ __forceinline__ unsigned both(float low, float high) {
    unsigned bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

// Four matrices of 8 x 8, whose row r % 8 of matrix r / 8 lies at lane r's address, in shared memory: lane 4 g + t gets the two numbers of
// each that begin at (g, 2 t).
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const bf16* row) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
}

// As above, for the transposed matrices.
__device__ __forceinline__ void load_matrices_transposed(unsigned (&to)[4], const bf16* row) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
}

// sums += left right.
__device__ __forceinline__ void multiply_16_8_16(float (&sums)[4], const unsigned (&left)[4], unsigned right_0, unsigned right_1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right_0), "r"(right_1));
}
#endif

// Rows of WIDTH numbers in shared memory, in runs of 8. A row's runs lie in an order of its own, so that the same run of eight rows lies in
// all banks.
template <unsigned WIDTH>
struct Rows {
    bf16* numbers;

    __device__ bf16* at(unsigned row, unsigned run) const { return numbers + row * WIDTH + (run ^ row % 8) * 8; }

    // Left factor: 16 rows from `row` on, of each 16 numbers from `column` on.
    __device__ void left(unsigned (&to)[4], unsigned row, unsigned column) const {
        const unsigned lane = threadIdx.x % 32;
        load_matrices(to, at(row + lane % 16, column / 8 + lane / 16));
    }
    // Right factors, two of them: 16 rows from `row` on are the columns of both, and 16 numbers of each from `column` on their lines.
    __device__ void by_rows(unsigned (&to)[4], unsigned row, unsigned column) const {
        const unsigned lane = threadIdx.x % 32;
        load_matrices(to, at(row + lane % 8 + lane / 16 * 8, column / 8 + lane / 8 % 2));
    }
    // Right factors, two of them: 16 rows from `row` on are their lines, and 16 numbers of each from `column` on the columns of both.
    __device__ void by_columns(unsigned (&to)[4], unsigned row, unsigned column) const {
        const unsigned lane = threadIdx.x % 32;
        load_matrices_transposed(to, at(row + lane % 16, column / 8 + lane / 16));
    }
};
