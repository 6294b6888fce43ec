//! Random numbers for components, reproducible for the same run and step.

/// A stream of random draws (Steele's SplitMix64) that is equal on every machine.
#[derive(Debug, Clone)]
pub struct Draws(u64);

impl Draws {
    /// The stream of one step of a run: pass `batch.seed` and `batch.step`. Two components with the
    /// same seed and step draw the same numbers, unless each mixes a constant of its own into the
    /// seed.
    pub fn new(seed: u64, step: u64) -> Self {
        Self(seed ^ step.wrapping_mul(0xD1B5_4A32_D192_ED03))
    }

    /// Draws any `u64`.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Draws from `0..bound`; returns 0 when `bound` is 0. The bias is below `bound` ÷ 2⁶⁴.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.draw()) * bound as u128) >> 64) as usize
    }

    /// Draws from `[0, 1)`.
    pub fn unit(&mut self) -> f32 {
        (self.draw() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Puts `items` in a random order (Fisher–Yates shuffle).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_draws_anew_and_the_same_again() {
        let drawn = |seed, step| {
            let mut places: Vec<usize> = (0..100).collect();
            Draws::new(seed, step).shuffle(&mut places);
            places
        };
        assert_eq!(drawn(1, 2), drawn(1, 2));
        assert!(drawn(1, 2) != drawn(1, 3) && drawn(1, 2) != drawn(2, 2));
        // Each position is equally likely, so the mean of the first draw over many steps is near
        // the middle.
        let mean = (0..2000).map(|step| drawn(7, step)[0]).sum::<usize>() as f64 / 2000.0;
        assert!((mean - 49.5).abs() < 3.0, "{mean}");
    }

    #[test]
    fn draws_stay_within_their_bounds() {
        let mut draws = Draws::new(3, 4);
        let tenths: std::collections::BTreeSet<usize> =
            (0..1000).map(|_| draws.below(10)).collect();
        assert!(tenths.into_iter().eq(0..10));
        assert!(
            (0..1000)
                .map(|_| draws.unit())
                .all(|unit| (0.0..1.0).contains(&unit))
        );
        assert_eq!((draws.below(0), draws.below(1)), (0, 0));
    }
}
