//! Batches made from others: groups in another order, other values in the padding.

use super::{Fixture, assert_permutation, wobble};

impl Fixture {
    /// The same completions with their groups in another order: group `g` of the result is group `order[g]`.
    ///
    /// # Panics
    ///
    /// When `order` is not a permutation of the groups.
    #[must_use]
    pub fn regrouped(&self, order: &[usize]) -> Self {
        let groups: Vec<_> = self.dims.groups().collect();
        assert_permutation(order, groups.len());
        let rows: Vec<usize> = order.iter().flat_map(|&group| groups[group].clone()).collect();
        let mut other = self.clone();
        reorder(&rows, &mut other.mask);
        reorder(&rows, &mut other.keep);
        reorder(&rows, &mut other.truncated);
        reorder(&rows, &mut other.ids);
        reorder(&rows, &mut other.layer.topk_ids);
        other.float_arrays().into_iter().for_each(|array| reorder(&rows, array));
        reorder(&rows, &mut other.rewards);
        if let Some(array) = &mut other.sampler_logps {
            reorder(&rows, array);
        }
        other
    }

    /// Fills what padding leaves open (ids, log-probabilities, entropy, the last layer) with other values, numbered by
    /// `salt`. Advantages and losses stay zero there, as the trainer guarantees.
    #[must_use]
    pub fn padding(mut self, salt: u64) -> Self {
        let (mask, vocab_size) = (self.mask.clone(), self.layer.vocab_size);
        let results = (self.advantages.clone(), self.losses.clone(), self.slopes.clone());
        for (number, array) in self.float_arrays().into_iter().enumerate() {
            let width = array.len() / mask.len().max(1);
            for (i, value) in array.iter_mut().enumerate().filter(|(i, _)| mask[i / width] == 0) {
                *value = -1e3 * wobble(100 + 10 * salt + number as u64, i);
            }
        }
        (self.advantages, self.losses, self.slopes) = results;
        for (i, id) in self.ids.iter_mut().enumerate().filter(|(i, _)| mask[*i] == 0) {
            *id = (wobble(200 + salt, i) * vocab_size as f32) as u32;
        }
        self
    }

    /// Every `[B, T]` and `[B, T, _]` array of numbers.
    fn float_arrays(&mut self) -> [&mut Vec<f32>; 11] {
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
            &mut self.slopes,
        ]
    }
}

/// Puts row `rows[b]` of an array with one row per completion at `b`.
fn reorder<T: Copy>(rows: &[usize], array: &mut Vec<T>) {
    let width = array.len() / rows.len();
    *array = rows.iter().flat_map(|&row| array[row * width..(row + 1) * width].iter().copied()).collect();
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
}
