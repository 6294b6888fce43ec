//! Drawing one token from a row of logits.

use anyhow::{Result, ensure};
use candle_core::Tensor;

use super::ops::{self, NOT_FINITE, argmax, fused, pick, top_ids, top_k};

/// How tokens are drawn: temperature first, then top-k, then top-p, as Hugging Face orders them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// What logits are divided by; 0 takes the largest logit (the lower id among equals) and draws nothing.
    pub temperature: f64,
    /// Number of largest logits kept; 0 keeps all.
    pub top_k: usize,
    /// The fewest most likely tokens that together have at least this probability are kept; 1 keeps all.
    pub top_p: f64,
}

impl Sampling {
    /// The most likely token, always.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0 };

    /// A temperature below 0 or a `top_p` outside (0, 1] is an error.
    pub fn check(&self) -> Result<()> {
        ensure!(
            self.temperature.is_finite() && self.temperature >= 0.0,
            "`temperature` is {}, expected 0 or more (0 is greedy)",
            self.temperature
        );
        ensure!(
            self.top_p > 0.0 && self.top_p <= 1.0,
            "`top_p` is {}, expected more than 0 and at most 1 (1 keeps every token)",
            self.top_p
        );
        Ok(())
    }

    /// A token id from `logits` `[V]` and a `uniform` number in [0, 1), which greedy sampling does not use; none where the
    /// largest logit is NaN or infinite.
    pub(super) fn draw(&self, logits: &[f32], uniform: f64, scratch: &mut Scratch) -> Option<Drawn> {
        let best = argmax(logits);
        let largest = Some(f64::from(logits[best as usize])).filter(|largest| largest.is_finite())?;
        if self.temperature == 0.0 {
            return Some(Drawn { id: best, place: 0, kept: 0 });
        }
        if self.is_unlimited(logits.len()) && self.top_p == 1.0 {
            scratch.weights.clear();
            scratch.weights.extend(logits.iter().map(|logit| self.weight(*logit, largest)));
            let place = pick(&scratch.weights, uniform);
            return Some(Drawn { id: place as u32, place, kept: logits.len() });
        }
        let k = if self.is_unlimited(logits.len()) { logits.len() } else { self.top_k };
        let ids = top_k(logits, k, &mut scratch.order);
        let tops = ids.iter().map(|id| logits[*id as usize]);
        let (place, kept) = self.among(tops, largest, uniform, &mut scratch.weights);
        Some(Drawn { id: ids[place], place, kept })
    }

    /// Whether `draw_rows` can draw from `logits` on their device: top-p without top-k sorts them all.
    pub(super) fn can_draw_rows(&self, logits: &Tensor) -> Result<bool> {
        let sorts = self.temperature > 0.0 && self.top_p < 1.0 && self.is_unlimited(logits.dim(1)?);
        Ok(!fused(logits) && !sorts)
    }

    /// `draw` for every row of `logits` `[A, V]`, of which only what it takes comes to the host; the log-probabilities too where `asked`.
    /// After a row without an id they are of no use.
    pub(super) fn draw_rows(
        &self,
        logits: &Tensor,
        uniform: &[f64],
        asked: bool,
        scratch: &mut Scratch,
    ) -> Result<(Vec<Option<u32>>, Vec<f32>)> {
        let greedy = self.temperature == 0.0;
        if self.is_unlimited(logits.dim(1)?) && !greedy {
            let uniform = Tensor::from_slice(uniform, uniform.len(), logits.device())?;
            let ids: Vec<u32> = ops::draw(logits, &uniform, self.temperature)?.to_vec1()?;
            let logps = if asked { self.logps_of(logits, &ids)? } else { Vec::new() };
            return Ok((ids.into_iter().map(|id| Some(id).filter(|id| *id != NOT_FINITE)).collect(), logps));
        }
        let ids = top_ids(logits, if greedy { 1 } else { self.top_k })?;
        let (ids, tops) = (ids.to_vec2::<u32>()?, logits.gather(&ids, 1)?.to_vec2::<f32>()?);
        let mut logps = Vec::new();
        let draw = |((ids, tops), uniform): ((&Vec<u32>, &Vec<f32>), &f64)| {
            let largest = Some(f64::from(tops[0])).filter(|largest| largest.is_finite())?;
            let tops = tops.iter().copied();
            let (place, kept) = if greedy { (0, 0) } else { self.among(tops, largest, *uniform, &mut scratch.weights) };
            let drawn = Drawn { id: ids[place], place, kept };
            if asked {
                logps.push(drawn.logp(scratch));
            }
            Some(drawn.id)
        };
        let drawn = ids.iter().zip(&tops).zip(uniform).map(draw).collect();
        Ok((drawn, logps))
    }

    /// `log_softmax(logits / temperature)` at `ids`, one for each row of `logits` `[A, V]`, computed where they lie.
    fn logps_of(&self, logits: &Tensor, ids: &[u32]) -> Result<Vec<f32>> {
        // A row without an id has one outside the vocabulary.
        let last = logits.dim(1)? as u32 - 1;
        let ids: Vec<u32> = ids.iter().map(|id| (*id).min(last)).collect();
        let ids = Tensor::from_vec(ids, (logits.dim(0)?, 1), logits.device())?;
        let scaled = (logits / self.temperature)?;
        Ok((scaled.gather(&ids, 1)?.squeeze(1)? - scaled.log_sum_exp(1)?)?.to_vec1()?)
    }

    fn is_unlimited(&self, vocab: usize) -> bool {
        self.top_k == 0 || self.top_k >= vocab
    }

    fn weight(&self, logit: f32, largest: f64) -> f64 {
        ((f64::from(logit) - largest) / self.temperature).exp()
    }

    /// The place of one among the descending logits `tops`, and how many of them could have been drawn.
    fn among(
        &self,
        tops: impl Iterator<Item = f32>,
        largest: f64,
        uniform: f64,
        weights: &mut Vec<f64>,
    ) -> (usize, usize) {
        weights.clear();
        weights.extend(tops.map(|logit| self.weight(logit, largest)));
        let kept = nucleus(weights, self.top_p);
        (pick(&weights[..kept], uniform), kept)
    }
}

/// Buffers reused from row to row.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    order: Vec<u32>,
    weights: Vec<f64>,
}

/// A token that was drawn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drawn {
    pub id: u32,
    /// Its place among the weights that it was drawn from.
    place: usize,
    /// How many of them could have been drawn; 0 where nothing was left to chance.
    kept: usize,
}

impl Drawn {
    /// The log-probability with which it was drawn, nats, from the weights that `draw` left in `scratch`.
    pub fn logp(&self, scratch: &Scratch) -> f32 {
        if self.kept == 0 {
            return 0.0;
        }
        let weights = &scratch.weights[..self.kept];
        (weights[self.place] / weights.iter().sum::<f64>()).ln() as f32
    }
}

/// How many of the descending `weights` reach the share `top_p` of their sum; at least one.
fn nucleus(weights: &[f64], top_p: f64) -> usize {
    if top_p == 1.0 {
        return weights.len();
    }
    let limit = top_p * weights.iter().sum::<f64>();
    let mut sum = 0.0;
    for (index, weight) in weights.iter().enumerate() {
        sum += weight;
        if sum >= limit {
            return index + 1;
        }
    }
    weights.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nucleus_is_the_smallest_set_that_reaches_its_share() {
        let weights = [0.5, 0.3, 0.15, 0.05];
        assert_eq!(nucleus(&weights, 0.4), 1);
        assert_eq!(nucleus(&weights, 0.5), 1);
        assert_eq!(nucleus(&weights, 0.51), 2);
        assert_eq!(nucleus(&weights, 0.8), 2);
        assert_eq!(nucleus(&weights, 1.0), 4);
    }

    #[test]
    fn a_drawn_token_knows_how_probable_it_was() {
        let logits = [0.0_f32, 2.0, 1.0, -1.0];
        let share = |kept: &[usize], id: usize, temperature: f64| {
            let weight = |id: usize| (f64::from(logits[id]) / temperature).exp();
            (weight(id) / kept.iter().map(|&id| weight(id)).sum::<f64>()).ln()
        };
        let cases: [(Sampling, &[usize]); 4] = [
            (Sampling { temperature: 0.7, top_k: 0, top_p: 1.0 }, &[0, 1, 2, 3]),
            (Sampling { temperature: 0.7, top_k: 3, top_p: 1.0 }, &[1, 2, 0]),
            (Sampling { temperature: 1.0, top_k: 0, top_p: 0.8 }, &[1, 2]),
            (Sampling { temperature: 1.0, top_k: 2, top_p: 0.5 }, &[1]),
        ];
        for (sampling, kept) in cases {
            for uniform in [0.0, 0.3, 0.6, 0.75, 0.9, 0.999] {
                let mut scratch = Scratch::default();
                let drawn = sampling.draw(&logits, uniform, &mut scratch).unwrap();
                assert!(kept.contains(&(drawn.id as usize)));
                let expected = share(kept, drawn.id as usize, sampling.temperature);
                assert!((f64::from(drawn.logp(&scratch)) - expected).abs() < 1e-6, "{sampling:?} {uniform}");
            }
        }
        let mut scratch = Scratch::default();
        assert_eq!(Sampling::GREEDY.draw(&logits, 0.5, &mut scratch).unwrap().logp(&scratch), 0.0);
    }

    #[test]
    fn the_lower_id_wins_among_equals() {
        let mut order = Vec::new();
        assert_eq!(top_k(&[1.0, 3.0, 3.0, 2.0, 3.0], 2, &mut order), [1, 2]);
        assert_eq!(top_k(&[1.0, 3.0, 3.0, 2.0, 3.0], 9, &mut order), [1, 2, 4, 3, 0]);
        assert_eq!(argmax(&[1.0, 3.0, 3.0]), 1);
    }
}
