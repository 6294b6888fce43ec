//! Sampling of one token from a row of logits.

use anyhow::{Result, ensure};
use candle_core::Tensor;

use super::ops::{self, NOT_FINITE, argmax, fused, nucleus, pick, top_ids, top_k, weigh};

/// Settings of sampling. Temperature comes first, then top-k, then top-p, the order of Hugging
/// Face.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingParams {
    /// Divisor of the logits. 0 is greedy: it takes the largest logit (the lower id among equals),
    /// without a random number.
    pub temperature: f64,
    /// Number of largest logits kept; 0 keeps all.
    pub top_k: usize,
    /// Probability mass to keep: the fewest most likely tokens that together reach it; 1 keeps all.
    pub top_p: f64,
}

impl SamplingParams {
    /// Always takes the most likely token.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
    };

    /// Refuses a temperature below 0 and a `top_p` outside (0, 1].
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

    /// Draws a token from `logits` `[V]` with a `uniform` number in [0, 1), which greedy sampling
    /// ignores. Computes its log-probability if `with_logp` is true. `None` if the largest logit is
    /// NaN or infinite.
    pub(super) fn draw(
        &self,
        logits: &[f32],
        uniform: f64,
        with_logp: bool,
        scratch: &mut Scratch,
    ) -> Option<Drawn> {
        let best = argmax(logits);
        let largest = logits[best as usize];
        if !largest.is_finite() {
            return None;
        }
        if self.temperature == 0.0 {
            return Some(Drawn::certain(best));
        }
        let keeps_all = self.keeps_all(logits.len());
        let weights = &mut scratch.weights;
        if keeps_all && self.top_p == 1.0 {
            weigh(logits, f64::from(largest), self.temperature, weights);
            let place = pick(weights, uniform);
            return Some(Drawn::new(place as u32, place, weights, with_logp));
        }
        let k = if keeps_all { logits.len() } else { self.top_k };
        let ids = top_k(logits, k, &mut scratch.order);
        let tops: Vec<f32> = ids.iter().map(|id| logits[*id as usize]).collect();
        Some(self.draw_among(ids, &tops, uniform, with_logp, weights))
    }

    /// True if `draw_rows` can draw from `logits` on their device. Top-p without top-k would have
    /// to sort all logits.
    pub(super) fn can_draw_rows(&self, logits: &Tensor) -> Result<bool> {
        let sorts = self.temperature > 0.0 && self.top_p < 1.0 && self.keeps_all(logits.dim(1)?);
        Ok(!fused(logits) && !sorts)
    }

    /// Applies `draw` to every row of `logits` `[A, V]`. Only the numbers that a draw needs are
    /// copied to the host.
    pub(super) fn draw_rows(
        &self,
        logits: &Tensor,
        uniform: &[f64],
        with_logp: bool,
        scratch: &mut Scratch,
    ) -> Result<Vec<Option<Drawn>>> {
        let vocab = logits.dim(1)?;
        let greedy = self.temperature == 0.0;
        if self.keeps_all(vocab) && !greedy {
            return self.draw_rows_of_all(logits, uniform, with_logp);
        }
        let ids = top_ids(logits, if greedy { 1 } else { self.top_k })?;
        let tops = logits.gather(&ids, 1)?.to_vec2::<f32>()?;
        let ids = ids.to_vec2::<u32>()?;
        let mut drawn = Vec::with_capacity(ids.len());
        for ((ids, tops), uniform) in ids.iter().zip(&tops).zip(uniform) {
            drawn.push(match tops[0].is_finite() {
                false => None,
                true if greedy => Some(Drawn::certain(ids[0])),
                true => {
                    let weights = &mut scratch.weights;
                    Some(self.draw_among(ids, tops, *uniform, with_logp, weights))
                }
            });
        }
        Ok(drawn)
    }

    /// Draws from the whole vocabulary on the device of `logits` `[A, V]`.
    fn draw_rows_of_all(
        &self,
        logits: &Tensor,
        uniform: &[f64],
        with_logp: bool,
    ) -> Result<Vec<Option<Drawn>>> {
        let candidates = logits.dim(1)?;
        let uniform = Tensor::from_slice(uniform, uniform.len(), logits.device())?;
        let ids: Vec<u32> = ops::draw(logits, &uniform, self.temperature)?.to_vec1()?;
        let logps = if with_logp {
            self.logps_of(logits, &ids)?
        } else {
            vec![0.0; ids.len()]
        };
        let mut drawn = Vec::with_capacity(ids.len());
        for (id, logp) in ids.into_iter().zip(logps) {
            drawn.push((id != NOT_FINITE).then_some(Drawn {
                id,
                candidates,
                logp,
            }));
        }
        Ok(drawn)
    }

    /// The `k` most likely tokens of each row of `logits` `[A, V]`. `drawn` has the drawn token of
    /// each row, with its log-probability.
    pub(super) fn tops(
        &self,
        logits: &Tensor,
        k: usize,
        drawn: &[Drawn],
    ) -> Result<Vec<TopTokens>> {
        let temperature = if self.temperature == 0.0 {
            1.0
        } else {
            self.temperature
        };
        let own: Vec<u32> = drawn.iter().map(|drawn| drawn.id).collect();
        let own = Tensor::from_vec(own, (drawn.len(), 1), logits.device())?;
        let own = logits.gather(&own, 1)?.flatten_all()?.to_vec1::<f32>()?;
        let ids = top_ids(logits, k.min(logits.dim(1)?))?;
        let tops = logits.gather(&ids, 1)?.to_vec2::<f32>()?;
        let mut all = Vec::with_capacity(drawn.len());
        for (row, ids) in ids.to_vec2::<u32>()?.into_iter().enumerate() {
            let drawn = &drawn[row];
            let own = f64::from(own[row]);
            let mut logps = vec![f32::NEG_INFINITY; ids.len()];
            for (logp, logit) in logps.iter_mut().zip(&tops[row]).take(drawn.candidates) {
                let above = (f64::from(*logit) - own) / temperature;
                *logp = (f64::from(drawn.logp) + above) as f32;
            }
            all.push(TopTokens { ids, logps });
        }
        Ok(all)
    }

    /// `log_softmax(logits / temperature)` at `ids`, one id per row of `logits` `[A, V]`, computed
    /// on the logits' device.
    fn logps_of(&self, logits: &Tensor, ids: &[u32]) -> Result<Vec<f32>> {
        // A row without a drawn token has an id outside the vocabulary.
        let last = logits.dim(1)? as u32 - 1;
        let ids: Vec<u32> = ids.iter().map(|id| (*id).min(last)).collect();
        let ids = Tensor::from_vec(ids, (logits.dim(0)?, 1), logits.device())?;
        let scaled = (logits / self.temperature)?;
        Ok((scaled.gather(&ids, 1)?.squeeze(1)? - scaled.log_sum_exp(1)?)?.to_vec1()?)
    }

    /// True if top-k keeps the whole vocabulary of `vocab` tokens.
    fn keeps_all(&self, vocab: usize) -> bool {
        self.top_k == 0 || self.top_k >= vocab
    }

    /// Draws one of `ids`, whose logits `tops` descend.
    fn draw_among(
        &self,
        ids: &[u32],
        tops: &[f32],
        uniform: f64,
        with_logp: bool,
        weights: &mut Vec<f64>,
    ) -> Drawn {
        weigh(tops, f64::from(tops[0]), self.temperature, weights);
        weights.truncate(nucleus(weights, self.top_p));
        let place = pick(weights, uniform);
        Drawn::new(ids[place], place, weights, with_logp)
    }
}

/// The most likely tokens of a row, most likely first.
#[derive(Debug)]
pub(super) struct TopTokens {
    pub(super) ids: Vec<u32>,
    /// Their log-probabilities: minus infinity for tokens outside top-k or top-p.
    pub(super) logps: Vec<f32>,
}

/// Buffers that are reused for every row.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    order: Vec<u32>,
    weights: Vec<f64>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Drawn {
    pub id: u32,
    /// Number of most likely tokens that could have been drawn.
    candidates: usize,
    /// Log-probability under the distribution that the token was drawn from, nats; 0 unless asked
    /// for.
    pub logp: f32,
}

impl Drawn {
    /// The token `id`, drawn at index `place` of `weights`.
    fn new(id: u32, place: usize, weights: &[f64], with_logp: bool) -> Self {
        let logp = if with_logp {
            (weights[place] / weights.iter().sum::<f64>()).ln() as f32
        } else {
            0.0
        };
        Self {
            id,
            candidates: weights.len(),
            logp,
        }
    }

    /// A token that is drawn with probability 1.
    fn certain(id: u32) -> Self {
        Self {
            id,
            candidates: 1,
            logp: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawn_token_has_its_log_probability() {
        let logits = [0.0_f32, 2.0, 1.0, -1.0];
        let share = |kept: &[usize], id: usize, temperature: f64| {
            let weight = |id: usize| (f64::from(logits[id]) / temperature).exp();
            (weight(id) / kept.iter().map(|&id| weight(id)).sum::<f64>()).ln()
        };
        let cases: [(SamplingParams, &[usize]); 4] = [
            (
                SamplingParams {
                    temperature: 0.7,
                    top_k: 0,
                    top_p: 1.0,
                },
                &[0, 1, 2, 3],
            ),
            (
                SamplingParams {
                    temperature: 0.7,
                    top_k: 3,
                    top_p: 1.0,
                },
                &[1, 2, 0],
            ),
            (
                SamplingParams {
                    temperature: 1.0,
                    top_k: 0,
                    top_p: 0.8,
                },
                &[1, 2],
            ),
            (
                SamplingParams {
                    temperature: 1.0,
                    top_k: 2,
                    top_p: 0.5,
                },
                &[1],
            ),
        ];
        for (sampling, kept) in cases {
            for uniform in [0.0, 0.3, 0.6, 0.75, 0.9, 0.999] {
                let mut scratch = Scratch::default();
                let drawn = sampling.draw(&logits, uniform, true, &mut scratch).unwrap();
                assert!(kept.contains(&(drawn.id as usize)));
                let close = |logp: f32, id: usize| {
                    (f64::from(logp) - share(kept, id, sampling.temperature)).abs() < 1e-6
                };
                assert!(
                    close(drawn.logp, drawn.id as usize),
                    "{sampling:?} {uniform}"
                );
                // The most likely tokens of this row; the drawn token is one of them.
                let row = Tensor::new(&[logits], &candle_core::Device::Cpu).unwrap();
                let TopTokens { ids, logps } = sampling.tops(&row, 9, &[drawn]).unwrap().remove(0);
                assert_eq!(ids, [1, 2, 0, 3]);
                for (id, logp) in ids.into_iter().map(|id| id as usize).zip(logps) {
                    let left_out = logp == f32::NEG_INFINITY;
                    assert!(
                        if kept.contains(&id) {
                            close(logp, id)
                        } else {
                            left_out
                        },
                        "{sampling:?} {id} {logp}"
                    );
                }
            }
        }
        let mut scratch = Scratch::default();
        let greedy = SamplingParams::GREEDY
            .draw(&logits, 0.5, true, &mut scratch)
            .unwrap();
        assert_eq!((greedy.id, greedy.logp), (1, 0.0));
    }
}
