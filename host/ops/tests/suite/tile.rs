use host_ops::parts::{COLUMNS, ROWS, Tile};

#[test]
fn the_instruction_has_the_bits_of_plain_arithmetic() {
    let mut state = 1_u64;
    let mut pair = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Any mantissa and sign, with exponents of ordinary numbers.
        ((state >> 32) as u32 & 0x87ff_87ff) | 0x3c00_3c00
    };
    for depth in [0, 1, 2, 77, 256] {
        let a: Vec<[u32; ROWS]> = (0..depth).map(|_| std::array::from_fn(|_| pair())).collect();
        let b: Vec<[u32; COLUMNS]> = (0..depth).map(|_| std::array::from_fn(|_| pair())).collect();
        let (found, expected) = (Tile::of_this_machine().multiply(&a, &b), Tile::Portable.multiply(&a, &b));
        assert_eq!(found.map(|row| row.map(f32::to_bits)), expected.map(|row| row.map(f32::to_bits)), "{depth}");
    }
}
