// Tensor cores: what `ldmatrix` and `mma.m16n8k16` of the PTX ISA do, for kernels that have no such instructions here. Included by cuda_on_cpu.h.
#pragma once

namespace cuda_emulator {

constexpr unsigned ALL_OF_WARP = 0xffffffffu;

// Four matrices of 8 x 8 numbers of 2 bytes; row r % 8 of matrix r / 8 lies at lane r's address.
template <class T>
void load_matrices(unsigned (&to)[4], const T* row, CUDA_EMULATOR_AT) {
    static_assert(sizeof(T) == 2);
    for (unsigned matrix = 0; matrix < 4; ++matrix) {
        const T* from = shuffle(ALL_OF_WARP, row, matrix * 8 + lane() / 4, {file, line});
        memcpy(&to[matrix], from + lane() % 4 * 2, sizeof to[matrix]);
    }
}

template <class T>
void load_matrices_transposed(unsigned (&to)[4], const T* row, CUDA_EMULATOR_AT) {
    static_assert(sizeof(T) == 2);
    for (unsigned matrix = 0; matrix < 4; ++matrix) {
        unsigned short numbers[2];
        for (unsigned i = 0; i < 2; ++i) {
            const T* from = shuffle(ALL_OF_WARP, row, matrix * 8 + lane() % 4 * 2 + i, {file, line});
            memcpy(&numbers[i], from + lane() / 4, sizeof numbers[i]);
        }
        to[matrix] = numbers[0] | static_cast<unsigned>(numbers[1]) << 16;
    }
}

// A bf16 in the low or high half of a word.
inline double bf16_in(unsigned word, unsigned half) { return __uint_as_float(half == 0 ? word << 16 : word & 0xffff0000u); }

// sums [16, 8] += left [16, 16] right [16, 8]. A sum is rounded once; hardware promises no order.
inline void multiply_16_8_16(float (&sums)[4], const unsigned (&left)[4], unsigned right_0, unsigned right_1, CUDA_EMULATOR_AT) {
    const auto exchange = [&](unsigned low, unsigned high, unsigned source) {
        return shuffle(ALL_OF_WARP, low | static_cast<Word>(high) << 32, source, {file, line});
    };
    const unsigned line_of_lane = lane() / 4, column = lane() % 4 * 2;
    double exact[4] = {sums[0], sums[1], sums[2], sums[3]};
    for (unsigned four = 0; four < 4; ++four) {
        const Word begins = exchange(left[0], left[1], line_of_lane * 4 + four), ends = exchange(left[2], left[3], line_of_lane * 4 + four);
        for (unsigned j = 0; j < 2; ++j) {
            const Word factor = exchange(right_0, right_1, (column + j) * 4 + four);
            for (unsigned i = 0; i < 2; ++i) {
                for (unsigned half = 0; half < 2; ++half) {
                    exact[2 * i + j] += bf16_in(static_cast<unsigned>(begins >> 32 * i), half) * bf16_in(static_cast<unsigned>(factor), half);
                    exact[2 * i + j] += bf16_in(static_cast<unsigned>(ends >> 32 * i), half) * bf16_in(static_cast<unsigned>(factor >> 32), half);
                }
            }
        }
    }
    for (unsigned i = 0; i < 4; ++i) sums[i] = static_cast<float>(exact[i]);
}

}  // namespace cuda_emulator
