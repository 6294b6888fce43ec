//! Chooses the dataset of each prompt among several, by their weights.

use anyhow::{Result, ensure};

/// Number of choices that one random stream makes: a jump ahead costs one stream per block.
const BLOCK: u64 = 1 << 12;

/// Draws a dataset for each cursor, with probabilities proportional to the weights, as
/// `interleave_datasets` does.
///
/// The dataset at a cursor is a function of the seed and the cursor. Earlier draws of each dataset
/// are counted from the start, and the counts are stored for later cursors.
#[derive(Clone, Debug)]
pub(super) struct Mixture {
    /// Sums of the weights up to and including each dataset; the last is 1.
    upto: Vec<f64>,
    seed: u64,
    /// First cursor of `block`, a multiple of [`BLOCK`]; `before` counts the draws of earlier
    /// cursors.
    start: u64,
    before: Vec<u64>,
    /// Indices of the datasets that are drawn from cursor `start` on.
    block: Vec<usize>,
}

impl Mixture {
    pub(super) fn new(weights: &[f64], seed: u64) -> Result<Self> {
        if let Some(weight) = weights
            .iter()
            .find(|weight| !(**weight > 0.0 && weight.is_finite()))
        {
            anyhow::bail!(
                "a `weight` of `[[data.datasets]]` is {weight} (it must be finite and above 0)"
            );
        }
        let sum: f64 = weights.iter().sum();
        ensure!(
            sum.is_finite(),
            "the weights of `[[data.datasets]]` are too large to be added (lower them)"
        );
        let mut upto = 0.0;
        let upto = weights.iter().map(|weight| {
            upto += weight / sum;
            upto
        });
        let mut mixture = Self {
            upto: upto.collect(),
            seed,
            start: 0,
            before: vec![0; weights.len()],
            block: Vec::new(),
        };
        mixture.block = mixture.draw(0);
        Ok(mixture)
    }

    /// The dataset of the prompt at `cursor`, and the number of earlier prompts from the same
    /// dataset.
    pub(super) fn at(&mut self, cursor: u64) -> (usize, u64) {
        if cursor < self.start {
            self.start = 0;
            self.before.fill(0);
            self.block = self.draw(0);
        }
        while cursor - self.start >= BLOCK {
            for dataset in std::mem::take(&mut self.block) {
                self.before[dataset] += 1;
            }
            self.start += BLOCK;
            self.block = self.draw(self.start);
        }
        let place = (cursor - self.start) as usize;
        let dataset = self.block[place];
        let here = self.block[..place]
            .iter()
            .filter(|other| **other == dataset)
            .count() as u64;
        (dataset, self.before[dataset] + here)
    }

    fn draw(&self, start: u64) -> Vec<usize> {
        let mut rng = host_rng::stream(self.seed, "data.mixture", &[start / BLOCK]);
        let last = self.upto.len() - 1;
        let mut block = Vec::with_capacity(BLOCK as usize);
        for _ in 0..BLOCK {
            let at = host_rng::uniform(&mut rng);
            block.push(self.upto.iter().position(|upto| at < *upto).unwrap_or(last));
        }
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datasets_come_in_proportion_each_prompt_once() {
        let mut mixture = Mixture::new(&[1.0, 3.0], 7).unwrap();
        let mut counts = [0, 0];
        let drawn: Vec<(usize, u64)> = (0..10_000).map(|cursor| mixture.at(cursor)).collect();
        for (dataset, before) in &drawn {
            assert_eq!(counts[*dataset], *before);
            counts[*dataset] += 1;
        }
        assert!((2_300..2_700).contains(&counts[0]), "{counts:?}");
        // The result does not depend on earlier calls.
        for cursor in [9_999, 3, 4_095, 4_096, 0] {
            assert_eq!(mixture.at(cursor), drawn[cursor as usize]);
        }
        assert_eq!(
            Mixture::new(&[1.0, 3.0], 7).unwrap().at(9_999),
            drawn[9_999]
        );
        assert_ne!(
            Mixture::new(&[1.0, 3.0], 8).unwrap().at(9_999),
            drawn[9_999]
        );
    }

    #[test]
    fn weights_are_above_zero() {
        for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Mixture::new(&[1.0, weight], 0).is_err());
        }
    }
}
