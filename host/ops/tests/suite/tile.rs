use host_ops::parts::{
    Factors, Instructions, LINES, Operand, Strides, Sums, TILE, WORDS, configured, multiply,
};

/// Bits of the sums of the first `lines` lines after two calls.
fn sums(
    (instructions, lines): (Instructions, usize),
    strides: Strides,
    left: &[u32],
    right: &[u32],
) -> Vec<u32> {
    let mut sums = Sums::ZERO;
    let left = Operand {
        words: left,
        strides,
    };
    let right = Operand {
        words: right,
        strides: Strides::PACKED,
    };
    configured(instructions, || {
        for (steps, fresh) in CALLS {
            let factors = Factors {
                left,
                right,
                steps,
                lines,
            };
            multiply(instructions, factors, &mut sums, fresh);
        }
    });
    sums.0[..lines]
        .as_flattened()
        .iter()
        .map(|sum| sum.to_bits())
        .collect()
}

/// Steps of each call, and whether it begins at 0.
const CALLS: [(usize, bool); 2] = [(9, true), (2, false)];

/// AVX-512's instruction: first the product of the high halves is added, then that of the low
/// halves, each rounded once.
fn pair_by_pair(strides: Strides, left: &[u32], right: &[u32]) -> Vec<u32> {
    let halves = |word: u32| {
        [
            f32::from_bits(word << 16),
            f32::from_bits(word & 0xffff_0000),
        ]
    };
    let mut sums = [0.0_f32; LINES * LINES];
    for (row, sums) in sums.chunks_mut(LINES).enumerate() {
        for (column, sum) in sums.iter_mut().enumerate() {
            for (step, word) in CALLS
                .into_iter()
                .flat_map(|(steps, _)| 0..steps)
                .flat_map(|step| (0..TILE).map(move |word| (step, word)))
            {
                let start =
                    step * strides.step + row / TILE * strides.tile + row % TILE * strides.line;
                let of_right = (2 * step + column / TILE) * WORDS + word * TILE + column % TILE;
                let ([low, high], [other_low, other_high]) =
                    (halves(left[start + word]), halves(right[of_right]));
                *sum = low.mul_add(other_low, high.mul_add(other_high, *sum));
            }
        }
    }
    sums.map(f32::to_bits).to_vec()
}

#[test]
fn tiles_have_the_bits_of_plain_arithmetic() {
    let mut state = 1_u64;
    let mut words = |count: usize, usual: bool| -> Vec<u32> {
        let word = |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            // Any mantissa and sign; exponents of ordinary numbers, or any but those of numbers
            // that are not finite.
            let word = (state >> 32) as u32;
            if usual {
                word & 0x87ff_87ff | 0x3c00_3c00
            } else {
                word & 0xbfff_bfff
            }
        };
        (0..count).map(word).collect()
    };
    let rows = Strides {
        line: 200,
        tile: 3_200,
        step: TILE,
    };
    let emulated = [("avx512bf16, emulated", Instructions::EmulatedVectors)];
    for (name, instructions) in Instructions::available().into_iter().chain(emulated) {
        for (usual, strides) in [(true, Strides::PACKED), (false, rows), (true, rows)] {
            let left = words(LINES * 600, usual);
            let right = words(18 * WORDS, usual);
            for lines in [LINES, 20, 1] {
                let expected = match name {
                    "amx" => sums((Instructions::Emulated, lines), strides, &left, &right),
                    "f32" => continue,
                    _ if !usual => continue,
                    _ => pair_by_pair(strides, &left, &right)[..lines * LINES].to_vec(),
                };
                let found = sums((instructions, lines), strides, &left, &right);
                assert!(
                    found == expected,
                    "{name}, ordinary numbers: {usual}, {lines} lines"
                );
            }
        }
    }
}
