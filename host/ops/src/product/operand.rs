//! Panels of 32 lines in memory, whose words of two numbers are multiplied with each other.

/// Lines of a panel: two tiles.
pub const LINES: usize = 32;
/// Lines of a tile.
pub const TILE: usize = 16;
/// Numbers of a line in a tile; an instruction adds their products at once.
pub const STEP: usize = 32;
/// Words of two numbers in a tile, 1 KiB.
pub const WORDS: usize = TILE * STEP / 2;

/// Sums of a panel with a panel, `[LINES][LINES]`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Sums(pub [[f32; LINES]; LINES]);

impl Sums {
    pub const ZERO: Self = Self([[0.0; LINES]; LINES]);
}

/// Words between two lines, between two tiles and between two steps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Strides {
    pub line: usize,
    pub tile: usize,
    pub step: usize,
}

impl Strides {
    /// The strides of a packed panel.
    pub const PACKED: Self = Self {
        line: TILE,
        tile: WORDS,
        step: 2 * WORDS,
    };
}

/// A panel's tiles in memory.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    pub words: &'a [u32],
    pub strides: Strides,
}

impl Operand<'_> {
    /// Place of the word of a line in a step, if the words of two lines are `apart`.
    pub(super) fn start(&self, step: usize, line: usize, apart: usize) -> usize {
        step * self.strides.step + line / TILE * self.strides.tile + line % TILE * apart
    }

    /// Fails if `steps` steps are not there.
    pub(super) fn check(&self, steps: usize) {
        let Strides { line, tile, step } = self.strides;
        let last = (steps - 1) * step + tile + (TILE - 1) * line + TILE;
        assert!(steps > 0 && last <= self.words.len());
    }
}

/// Steps of two panels that are multiplied with each other.
#[derive(Clone, Copy)]
pub struct Factors<'a> {
    /// Tiles `[line][pair]`.
    pub left: Operand<'a>,
    /// Tiles `[pair][line]`, packed.
    pub right: Operand<'a>,
    pub steps: usize,
    /// The first lines of the left panel: the sums of others may have any value.
    pub lines: usize,
}

/// The two numbers of a word.
pub(super) fn halves(word: u32) -> [f32; 2] {
    [word << 16, word & 0xffff_0000].map(|bits| normal(f32::from_bits(bits)))
}

/// `x`, or 0 if it is subnormal.
pub(super) fn normal(x: f32) -> f32 {
    if x.is_subnormal() { 0.0 } else { x }
}
