//! Batches and rollouts drawn at random, each a function of its seed.

use super::check::Row;
use super::layer::LayerData;
use super::{Fixture, RolloutFixture};
use crate::{Draws, OptimizerKind, Purpose};

impl Fixture {
    /// A batch drawn from `seed`: shape, lengths, groups and values. Some batches have tied logits,
    /// or values of 1e-30 or 1e30 in one array. Log-probabilities are at most 0, and padding
    /// satisfies the trainer's guarantees.
    pub fn random(seed: u64) -> Self {
        let mut draw = Draws::new(seed, 0);
        let group = 1 + draw.below(4);
        let (completions, tokens) = (group * (1 + draw.below(4)), 1 + draw.below(12));
        let vocab_size = 2 + draw.below(30);
        let (width, k) = (1 + draw.below(8), 1 + draw.below(vocab_size.min(8)));
        let mut batch = Self::new(completions, tokens)
            .groups_of(group)
            .step(draw.below(1000) as u64);
        let n = batch.dims.len();
        batch.layer = LayerData::new(batch.dims, width, k, vocab_size);
        batch.ids = (0..n).map(|_| draw.below(vocab_size) as u32).collect();
        batch.optimizer.kind = [
            OptimizerKind::SGD,
            OptimizerKind::ADAM,
            OptimizerKind::ADAMW,
        ][draw.below(3)];
        batch.optimizer.steps_taken = batch.step;
        batch.draw_values(&mut draw);
        let lengths: Vec<usize> = (0..completions).map(|_| draw.below(tokens + 1)).collect();
        batch.lengths(&lengths)
    }

    fn draw_values(&mut self, draw: &mut Draws) {
        let scale = if draw.below(2) == 0 { 1e-30 } else { 1e30 };
        // Only one array is extreme at a time: products of two extremes say nothing about a
        // component.
        let extreme = draw.below(8);
        let scale_of = |array: usize| if array == extreme { scale } else { 1.0 };
        let fill = |draw: &mut Draws, array: &mut [f32], low: f32, high: f32, scale: f32| {
            array
                .iter_mut()
                .for_each(|value| *value = (low + draw.unit() * (high - low)) * scale);
        };
        fill(draw, &mut self.rewards, -1.0, 1.0, scale_of(0));
        fill(draw, &mut self.advantages, -1.0, 1.0, scale_of(1));
        fill(draw, &mut self.logps, -3.0, 0.0, scale_of(2));
        fill(draw, &mut self.layer.hidden.0, -1.0, 1.0, scale_of(3));
        self.losses = self.advantages.iter().map(|advantage| -advantage).collect();
        self.slopes = self.losses.clone();
        let nearby = |draw: &mut Draws, logp: &f32| (logp + (draw.unit() - 0.5) * 0.2).min(0.0);
        self.old_logps = self.logps.iter().map(|logp| nearby(draw, logp)).collect();
        self.ref_logps = self.logps.iter().map(|logp| nearby(draw, logp)).collect();
        let layer = &mut self.layer;
        if draw.below(4) == 0 {
            layer.topk_logits.0.fill(1.0);
        }
        layer
            .topk_logits
            .0
            .iter_mut()
            .chain(&mut layer.logsumexp)
            .for_each(|logit| *logit *= scale_of(4));
        for ((action, logsumexp), logp) in layer
            .action_logits
            .0
            .iter_mut()
            .zip(&layer.logsumexp)
            .zip(&self.logps)
        {
            *action = logsumexp + logp;
        }
    }
}

impl RolloutFixture {
    /// A rollout drawn from `seed`: groups, prompts, purposes, columns of any shape. Its texts are
    /// empty, long, non-ASCII or correct.
    pub fn random(seed: u64) -> Self {
        let mut draw = Draws::new(seed, 0);
        let (group, groups) = (1 + draw.below(4), 1 + draw.below(4));
        let rows: Vec<Row> = (0..groups).map(|_| row(&mut draw)).collect();
        let rows: Vec<&Row> = rows
            .iter()
            .flat_map(|row| std::iter::repeat_n(row, group))
            .collect();
        let texts: Vec<String> = rows
            .iter()
            .map(|row| text(&mut draw, &row.answer))
            .collect();
        let purpose = if draw.below(4) == 0 {
            Purpose::EVALUATION
        } else {
            Purpose::TRAINING
        };
        let completions = rows
            .into_iter()
            .zip(texts)
            .map(|(row, text)| (row, text, draw.below(4) == 0));
        Self::of(group, completions)
            .purpose(purpose)
            .step(draw.below(1000) as u64)
    }
}

fn row(draw: &mut Draws) -> Row {
    let (a, b) = (draw.below(1000), draw.below(1000));
    let values = [
        "4",
        "-1.5e300",
        "\"\"",
        "\"vier — 四\"",
        "null",
        "true",
        "[]",
        "[1, [\"x\", null]]",
        "{\"a\": {}}",
    ];
    let column =
        |draw: &mut Draws, name: &str| format!("{name:?}: {}", values[draw.below(values.len())]);
    let columns = ["answer", "level", "tests", "", "名"].map(|name| column(draw, name));
    let columns = columns[..draw.below(columns.len() + 1)].join(", ");
    let (answer, solution) = ((a + b).to_string(), String::new());
    Row {
        prompt: format!("{a}+{b}="),
        answer,
        solution,
        columns: format!("{{{columns}}}"),
    }
}

fn text(draw: &mut Draws, answer: &str) -> String {
    match draw.below(8) {
        0 => String::new(),
        1 => " \n\t ".into(),
        2 => format!("{answer} = {answer} ="),
        3 => "=".repeat(1 + draw.below(5000)),
        4 => (0..draw.below(40))
            .filter_map(|_| char::from_u32(draw.below(0x11_0000) as u32))
            .collect(),
        5 => ["NaN", "inf", "-0", "1e999", "0x10", "٤"][draw.below(6)].into(),
        _ => format!("1+1={answer}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_batches_repeat_and_stay_within_their_limits() {
        let mut shapes = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let (one, again) = (Fixture::random(seed), Fixture::random(seed));
            assert_eq!(
                (&one.logps, &one.layer.topk_logits),
                (&again.logps, &again.layer.topk_logits)
            );
            let dims = one.dims;
            assert!(dims.completions.is_multiple_of(dims.group_size) && dims.tokens > 0);
            assert!(
                one.logps
                    .iter()
                    .chain(&one.old_logps)
                    .all(|logp| *logp <= 0.0 && logp.is_finite())
            );
            assert!(
                one.ids
                    .iter()
                    .all(|&id| (id as usize) < one.layer.vocab_size)
            );
            shapes.insert((dims.completions, dims.tokens));
        }
        assert!(shapes.len() > 50, "{shapes:?}");
    }

    #[test]
    fn random_rollouts_repeat_and_are_of_every_kind() {
        let (mut texts, mut right) = (std::collections::BTreeSet::new(), 0);
        for seed in 0..200 {
            let (one, again) = (RolloutFixture::random(seed), RolloutFixture::random(seed));
            let (one, again) = (one.rollout(), again.rollout());
            assert!(one.completions.len().is_multiple_of(one.group_size));
            for (a, b) in one.completions.iter().zip(&again.completions) {
                assert_eq!((a.text, a.columns), (b.text, b.columns));
                assert!(
                    serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(a.columns)
                        .is_ok()
                );
                right += usize::from(a.text.ends_with(a.answer));
                texts.insert(a.text.to_owned());
            }
        }
        assert!(
            right > 100 && texts.len() > 500 && texts.contains(""),
            "{right} of {}",
            texts.len()
        );
    }
}
