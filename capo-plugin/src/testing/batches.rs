//! Batches beyond the plain one: the shapes that every component must take, and batches drawn at random.

use super::layer::LayerData;
use super::{Fixture, wobble};
use crate::batch::OptimizerKind;

impl Fixture {
    /// The batches that every component must take, by name.
    pub fn canonical() -> impl Iterator<Item = (&'static str, Self)> {
        [
            ("plain", Self::new(8, 6).groups_of(4)),
            ("ragged", Self::new(8, 6).groups_of(4).lengths(&[6, 3, 1, 5, 2, 6, 4, 1])),
            ("group-of-one", Self::new(4, 5).groups_of(1).lengths(&[5, 3, 4, 1])),
            ("one-token", Self::new(6, 1).groups_of(3)),
            ("one-completion", Self::new(1, 7).lengths(&[5])),
            ("rows-of-padding", Self::new(4, 5).groups_of(2).lengths(&[0, 5, 0, 2])),
        ]
        .into_iter()
    }

    /// A batch drawn from `seed`: its shape, lengths, groups and values, tied logits and values of 1e-30 or 1e30 in one
    /// array among them. Log-probabilities are at most 0, and what the trainer guarantees about padding holds.
    #[must_use]
    pub fn random(seed: u64) -> Self {
        let mut draw = Draw(seed);
        let group = 1 + draw.below(4);
        let (completions, tokens) = (group * (1 + draw.below(4)), 1 + draw.below(12));
        let vocab_size = 2 + draw.below(30);
        let (width, k) = (1 + draw.below(8), 1 + draw.below(vocab_size.min(8)));
        let mut batch = Self::new(completions, tokens).groups_of(group).step(draw.below(1000) as u64);
        let n = batch.dims.len();
        batch.layer = LayerData::new(batch.dims, width, k, vocab_size);
        batch.ids = (0..n).map(|_| draw.below(vocab_size) as u32).collect();
        batch.optimizer.kind = [OptimizerKind::SGD, OptimizerKind::ADAM, OptimizerKind::ADAMW][draw.below(3)];
        batch.optimizer.steps_taken = batch.step;
        batch.draw_values(&mut draw);
        let lengths: Vec<usize> = (0..completions).map(|_| draw.below(tokens + 1)).collect();
        batch.lengths(&lengths)
    }

    fn draw_values(&mut self, draw: &mut Draw) {
        let scale = if draw.below(2) == 0 { 1e-30 } else { 1e30 };
        // One array at a time: products of two extremes say nothing about a component.
        let extreme = draw.below(8);
        let scale_of = |array: usize| if array == extreme { scale } else { 1.0 };
        let fill = |draw: &mut Draw, array: &mut [f32], low: f32, high: f32, scale: f32| {
            array.iter_mut().for_each(|value| *value = (low + draw.unit() * (high - low)) * scale);
        };
        fill(draw, &mut self.rewards, -1.0, 1.0, scale_of(0));
        fill(draw, &mut self.advantages, -1.0, 1.0, scale_of(1));
        fill(draw, &mut self.logps, -3.0, 0.0, scale_of(2));
        fill(draw, &mut self.layer.hidden.0, -1.0, 1.0, scale_of(3));
        self.losses = self.advantages.iter().map(|advantage| -advantage).collect();
        let nearby = |draw: &mut Draw, logp: &f32| (logp + (draw.unit() - 0.5) * 0.2).min(0.0);
        self.old_logps = self.logps.iter().map(|logp| nearby(draw, logp)).collect();
        self.ref_logps = self.logps.iter().map(|logp| nearby(draw, logp)).collect();
        let layer = &mut self.layer;
        if draw.below(4) == 0 {
            layer.topk_logits.0.fill(1.0);
        }
        layer.topk_logits.0.iter_mut().chain(&mut layer.logsumexp).for_each(|logit| *logit *= scale_of(4));
        for ((action, logsumexp), logp) in layer.action_logits.0.iter_mut().zip(&layer.logsumexp).zip(&self.logps) {
            *action = logsumexp + logp;
        }
    }

    /// The same completions with their groups in another order: group `g` of the result is group `order[g]`.
    ///
    /// # Panics
    ///
    /// When `order` is not a permutation of the groups.
    #[must_use]
    pub fn regrouped(&self, order: &[usize]) -> Self {
        let groups: Vec<_> = self.dims.groups().collect();
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..groups.len()), "`order` is a permutation of the {} groups", groups.len());
        let rows: Vec<usize> = order.iter().flat_map(|&group| groups[group].clone()).collect();
        let mut other = self.clone();
        reorder(&rows, &mut other.mask);
        reorder(&rows, &mut other.truncated);
        reorder(&rows, &mut other.ids);
        reorder(&rows, &mut other.layer.topk_ids);
        other.float_arrays().into_iter().for_each(|array| reorder(&rows, array));
        reorder(&rows, &mut other.rewards);
        other
    }

    /// Fills what padding leaves open (ids, log-probabilities, entropy, the last layer) with other values, numbered by
    /// `salt`. Advantages and losses stay zero there, as the trainer guarantees.
    #[must_use]
    pub fn padding(mut self, salt: u64) -> Self {
        let (mask, vocab_size) = (self.mask.clone(), self.layer.vocab_size);
        let (advantages, losses) = (self.advantages.clone(), self.losses.clone());
        for (number, array) in self.float_arrays().into_iter().enumerate() {
            let width = array.len() / mask.len().max(1);
            for (i, value) in array.iter_mut().enumerate().filter(|(i, _)| mask[i / width] == 0) {
                *value = -1e3 * wobble(100 + 10 * salt + number as u64, i);
            }
        }
        (self.advantages, self.losses) = (advantages, losses);
        for (i, id) in self.ids.iter_mut().enumerate().filter(|(i, _)| mask[*i] == 0) {
            *id = (wobble(200 + salt, i) * vocab_size as f32) as u32;
        }
        self
    }

    /// Every `[B, T]` and `[B, T, _]` array of numbers.
    fn float_arrays(&mut self) -> [&mut Vec<f32>; 10] {
        let layer = &mut self.layer;
        [
            &mut self.advantages,
            &mut self.losses,
            &mut self.logps,
            &mut self.old_logps,
            &mut self.ref_logps,
            &mut self.entropy,
            &mut layer.hidden.0,
            &mut layer.topk_logits.0,
            &mut layer.logsumexp,
            &mut layer.action_logits.0,
        ]
    }
}

/// Puts row `rows[b]` of an array with one row per completion at `b`.
fn reorder<T: Copy>(rows: &[usize], array: &mut Vec<T>) {
    let width = array.len() / rows.len();
    *array = rows.iter().flat_map(|&row| array[row * width..(row + 1) * width].iter().copied()).collect();
}

/// A stream of draws (splitmix64).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// In `[0, bound)`.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// In `[0, 1)`.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_move_with_all_that_is_theirs() {
        let batch = Fixture::new(4, 2).groups_of(2).lengths(&[2, 1, 2, 2]).rewards(&[1.0, 2.0, 3.0, 4.0]);
        let other = batch.regrouped(&[1, 0]);
        assert_eq!(other.rewards, [3.0, 4.0, 1.0, 2.0]);
        assert_eq!(other.mask, [1, 1, 1, 1, 1, 1, 1, 0]);
        assert_eq!(other.layer.hidden.0[..32], batch.layer.hidden.0[32..]);
        assert_eq!(other.regrouped(&[1, 0]).layer.topk_ids, batch.layer.topk_ids);
    }

    #[test]
    fn padding_changes_nothing_else() {
        let plain = Fixture::new(2, 3).lengths(&[3, 1]);
        let filled = plain.clone().padding(1);
        assert_eq!(filled.logps[..4], plain.logps[..4]);
        assert!(filled.logps[4..].iter().all(|&logp| logp < 0.0));
        assert_eq!(filled.advantages, plain.advantages);
        assert_ne!(filled.layer.hidden.0[32..], plain.layer.hidden.0[32..]);
        assert_eq!(filled.layer.hidden.0[..32], plain.layer.hidden.0[..32]);
    }

    #[test]
    fn random_batches_repeat_and_stay_within_their_limits() {
        let mut shapes = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let (one, again) = (Fixture::random(seed), Fixture::random(seed));
            assert_eq!((&one.logps, &one.layer.topk_logits), (&again.logps, &again.layer.topk_logits));
            let dims = one.dims;
            assert!(dims.completions.is_multiple_of(dims.group_size) && dims.tokens > 0);
            assert!(one.logps.iter().chain(&one.old_logps).all(|logp| *logp <= 0.0 && logp.is_finite()));
            assert!(one.ids.iter().all(|&id| (id as usize) < one.layer.vocab_size));
            shapes.insert((dims.completions, dims.tokens));
        }
        assert!(shapes.len() > 50, "{shapes:?}");
    }
}
