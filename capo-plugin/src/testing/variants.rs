//! Batches derived from others: groups reordered, completions selected, or padding refilled.

use std::ops::Range;

use super::{Fixture, assert_permutation, wobble};

impl Fixture {
    /// The batch with its groups in another order: group `g` of the result is group `order[g]`.
    ///
    /// # Panics
    ///
    /// When `order` is not a permutation of the groups.
    pub fn regrouped(&self, order: &[usize]) -> Self {
        let groups: Vec<_> = self.dims.groups().collect();
        assert_permutation(order, groups.len());
        self.with_rows(
            &order
                .iter()
                .flat_map(|&group| groups[group].clone())
                .collect::<Vec<_>>(),
        )
    }

    /// The batch of completions `rows` alone, as one group: the share of one of several ranks, or a
    /// micro-batch.
    ///
    /// # Panics
    ///
    /// When `rows` is empty or exceeds the batch.
    pub fn part(&self, rows: Range<usize>) -> Self {
        assert!(!rows.is_empty(), "a batch has at least one completion");
        let mut part = self.with_rows(&rows.clone().collect::<Vec<_>>());
        (part.dims.completions, part.dims.group_size) = (rows.len() as u64, rows.len() as u64);
        part.layer.resize(rows.len());
        part
    }

    /// The batch with completion `rows[b]` at index `b`, with all of its entries.
    fn with_rows(&self, rows: &[usize]) -> Self {
        let mut other = self.clone();
        let count = self.dims.completions as usize;
        reorder(count, rows, &mut other.mask);
        reorder(count, rows, &mut other.token_mask);
        reorder(count, rows, &mut other.truncated);
        reorder(count, rows, &mut other.ids);
        reorder(count, rows, &mut other.layer.topk_ids);
        other
            .float_arrays()
            .into_iter()
            .for_each(|array| reorder(count, rows, array));
        reorder(count, rows, &mut other.rewards);
        if let Some(array) = &mut other.sampler_logps {
            reorder(count, rows, array);
        }
        if let Some(prompts) = &mut other.prompts {
            reorder(count, rows, prompts);
        }
        if let Some(texts) = &mut other.texts {
            reorder(count, rows, texts);
        }
        other
    }

    /// Fills the values that padding leaves open (ids, log-probabilities, entropy, the last layer)
    /// with others, numbered by `salt`. Advantages and losses stay zero there, as the trainer
    /// guarantees.
    #[must_use]
    pub fn padding(mut self, salt: u64) -> Self {
        let (mask, vocab_size) = (self.mask.clone(), self.layer.vocab_size);
        let results = (
            self.advantages.clone(),
            self.losses.clone(),
            self.slopes.clone(),
        );
        for (number, array) in self.float_arrays().into_iter().enumerate() {
            let width = array.len() / mask.len().max(1);
            for (i, value) in array
                .iter_mut()
                .enumerate()
                .filter(|(i, _)| mask[i / width] == 0)
            {
                *value = -1e3 * wobble(100 + 10 * salt + number as u64, i);
            }
        }
        (self.advantages, self.losses, self.slopes) = results;
        for (i, id) in self
            .ids
            .iter_mut()
            .enumerate()
            .filter(|(i, _)| mask[*i] == 0)
        {
            *id = (wobble(200 + salt, i) * vocab_size as f32) as u32;
        }
        self
    }

    /// All floating-point arrays `[B, T]` and `[B, T, _]`.
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

/// Reorders an array with `count` rows, one per completion: row `rows[b]` moves to index `b`.
fn reorder<T: Clone>(count: usize, rows: &[usize], array: &mut Vec<T>) {
    let width = array.len() / count;
    *array = rows
        .iter()
        .flat_map(|&row| array[row * width..(row + 1) * width].iter().cloned())
        .collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_move_with_all_that_is_theirs() {
        let batch = Fixture::new(4, 2)
            .groups_of(2)
            .lengths(&[2, 1, 2, 2])
            .rewards(&[1.0, 2.0, 3.0, 4.0]);
        let other = batch.regrouped(&[1, 0]);
        assert_eq!(other.rewards, [3.0, 4.0, 1.0, 2.0]);
        assert_eq!(other.mask, [1, 1, 1, 1, 1, 1, 1, 0]);
        assert_eq!(other.layer.hidden.0[..32], batch.layer.hidden.0[32..]);
        assert_eq!(
            other.regrouped(&[1, 0]).layer.topk_ids,
            batch.layer.topk_ids
        );
    }

    #[test]
    fn a_part_has_what_its_rows_had() {
        let batch = Fixture::new(4, 2)
            .groups_of(2)
            .lengths(&[2, 1, 2, 2])
            .rewards(&[1.0, 2.0, 3.0, 4.0]);
        let part = batch.part(1..3);
        assert_eq!((part.dims.completions, part.dims.group_size), (2, 2));
        assert_eq!(
            (part.rewards.as_slice(), part.mask.as_slice()),
            (&[2.0, 3.0][..], &[1, 0, 1, 1][..])
        );
        let layer = part.batch().last_layer.unwrap();
        assert_eq!(
            (layer.hidden.shape(), layer.logsumexp.shape()),
            (&[2, 2, 8][..], &[2, 2][..])
        );
        assert_eq!(
            layer.hidden.as_f32().unwrap(),
            &batch.layer.hidden.0[16..48]
        );
        assert_eq!(
            part.context().lend(0).sampler_logps(),
            &batch.context().lend(0).sampler_logps()[2..6]
        );
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
