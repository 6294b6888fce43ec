//! Batches that know the weights and all logits behind them, and the trainer's loss on them.

use capo_core::{Assessment, CurvatureModel, Loss, OptimizerModel, Policy, Reduction, Step};

use super::fixture::{Batch, Dims, Rng, reorder};

/// All reductions of the trainer's loss.
pub const REDUCTIONS: [Reduction; 4] = [
    Reduction::CompletionMean,
    Reduction::FixedLength,
    Reduction::TokenMean,
    Reduction::CompletionSum,
];

/// A batch whose logits are `W h`, with a loss.
#[derive(Clone, Debug)]
pub struct Scene {
    pub batch: Batch,
    pub policy: Policy,
    /// `[V, D]`.
    pub weights: Vec<f64>,
    /// `[B, T, V]`.
    pub logits: Vec<f32>,
    pub temperature: f32,
    pub reduction: Reduction,
    pub max_completion_length: usize,
    pub counted: Option<Vec<u8>>,
    pub derivatives: Vec<f32>,
}

impl Scene {
    /// Completions of random length (0 included), actions anywhere, arbitrary derivatives of the
    /// loss, some of them 0.
    pub fn random(rng: &mut Rng, dims: Dims, temperature: f32) -> Self {
        let mut batch = Batch::random(rng, dims);
        batch.group_size = if dims.0.is_multiple_of(2) { 2 } else { dims.0 };
        let derivative = |rng: &mut Rng| {
            if rng.below(5) == 0 {
                0.0
            } else {
                rng.symmetric(1.5)
            }
        };
        let derivatives = batch.mask.iter().map(|_| derivative(rng)).collect();
        let mut scene = Self {
            batch,
            policy: Policy {
                temperature: 1.3,
                top_k: None,
            },
            weights: (0..dims.4 * dims.3)
                .map(|_| f64::from(rng.symmetric(1.5)))
                .collect(),
            logits: vec![],
            temperature,
            reduction: Reduction::CompletionMean,
            max_completion_length: dims.1 + 2,
            counted: None,
            derivatives,
        };
        scene.derive_logits();
        scene
    }

    /// A scene like that of `random`, with no padding and no token without a gradient.
    pub fn full(rng: &mut Rng, dims: Dims, temperature: f32) -> Self {
        let mut scene = Self::random(rng, dims, temperature);
        scene.batch.mask.fill(1);
        scene
            .batch
            .advantages
            .fill_with(|| 1.0 + rng.symmetric(0.5));
        scene.derivatives.fill_with(|| -1.0 + rng.symmetric(0.7));
        scene
    }

    /// A scene like that of `random`, but cheap to make large, and with few tokens or many to a
    /// row: the logits are not those of any weights.
    pub fn loose(rng: &mut Rng, dims: Dims) -> Self {
        let Dims(completions, tokens, k, width, vocab) = dims;
        let mut scene = Self::random(rng, Dims(0, tokens, k, width, vocab), 1.0);
        let batch = &mut scene.batch;
        (batch.dims, batch.group_size) = (dims, completions);
        let positions = completions * tokens;
        batch.hidden = (0..positions * width).map(|_| rng.symmetric(0.3)).collect();
        for _ in 0..positions {
            let start = rng.below(vocab);
            batch
                .topk_ids
                .extend((0..k).map(|column| ((start + column * 7) % vocab) as u32));
            let logits: Vec<f32> = (0..k)
                .map(|column| 3.0 - 0.3 * column as f32 + rng.symmetric(0.1))
                .collect();
            batch
                .logsumexp
                .push((logits.iter().map(|&x| f64::from(x).exp()).sum::<f64>() * 1.1).ln() as f32);
            batch
                .action_ids
                .push(((start + [0, 7, 5][rng.below(3)]) % vocab) as u32);
            batch.action_logits.push(logits[0]);
            batch.topk_logits.extend(logits);
            batch.advantages.push(rng.symmetric(1.0));
            batch.mask.push(u8::from(rng.below(8) > 0));
            scene.derivatives.push(rng.symmetric(1.0));
        }
        for at in 0..positions {
            let ids = &batch.topk_ids[at * k..][..k];
            if let Some(column) = ids.iter().position(|&id| id == batch.action_ids[at]) {
                batch.action_logits[at] = batch.topk_logits[at * k + column];
            }
        }
        scene
    }

    /// Two scenes as of `loose`.
    pub fn loose_pair(rng: &mut Rng, dims: Dims) -> [Self; 2] {
        [(); 2].map(|()| Self::loose(rng, dims))
    }

    /// The completions that `order` names, in that order.
    pub fn reordered(&self, order: &[usize]) -> Self {
        let tokens = self.batch.dims.1;
        Self {
            batch: self.batch.reordered(order),
            counted: self
                .counted
                .as_ref()
                .map(|counted| reorder(counted, tokens, order)),
            derivatives: reorder(&self.derivatives, tokens, order),
            ..self.clone()
        }
    }

    /// Everything that follows from weights, features and actions.
    pub fn derive_logits(&mut self) {
        let Dims(_, _, k, width, vocab) = self.batch.dims;
        (self.logits, self.batch.topk_ids, self.batch.topk_logits) = (vec![], vec![], vec![]);
        (self.batch.action_logits, self.batch.logsumexp) = (vec![], vec![]);
        for (h, &action) in self.batch.hidden.chunks(width).zip(&self.batch.action_ids) {
            let dot = |row: &[f64]| {
                row.iter()
                    .zip(h)
                    .map(|(w, &h)| w * f64::from(h))
                    .sum::<f64>() as f32
            };
            let logits: Vec<f32> = self.weights.chunks(width).map(dot).collect();
            let mut order: Vec<u32> = (0..vocab as u32).collect();
            order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
            self.batch
                .topk_logits
                .extend(order[..k].iter().map(|&id| logits[id as usize]));
            self.batch.topk_ids.extend(&order[..k]);
            self.batch.action_logits.push(logits[action as usize]);
            let mass = logits
                .iter()
                .map(|&x| (f64::from(x) / f64::from(self.temperature)).exp())
                .sum::<f64>();
            self.batch.logsumexp.push(mass.ln() as f32);
            self.logits.extend(logits);
        }
    }

    pub fn step(&self, optimizer: &OptimizerModel, learning_rate: f64) -> Step<'_> {
        let loss = Loss {
            temperature: self.temperature,
            reduction: self.reduction,
            max_completion_length: self.max_completion_length,
            counted: self.counted.as_deref(),
            derivatives: Some(&self.derivatives),
        };
        Step {
            batch: self.batch.view(),
            advantages: &self.batch.advantages,
            policy: self.policy,
            loss,
            optimizer: *optimizer,
            learning_rate,
            moments: None,
        }
    }

    pub fn assess(
        &self,
        model: &CurvatureModel,
        optimizer: &OptimizerModel,
        learning_rate: f64,
    ) -> Assessment {
        model
            .assess(
                &model
                    .prepare(&self.step(optimizer, learning_rate), &self.batch.mask)
                    .unwrap(),
            )
            .unwrap()
    }

    /// Commits all tokens of the mask.
    pub fn commit(&self, model: &mut CurvatureModel, optimizer: &OptimizerModel) {
        self.commit_kept(model, optimizer, &self.batch.mask);
    }

    pub fn commit_kept(
        &self,
        model: &mut CurvatureModel,
        optimizer: &OptimizerModel,
        token_mask: &[u8],
    ) {
        let prepared = model
            .prepare(&self.step(optimizer, 0.0), token_mask)
            .unwrap();
        model.commit(&prepared, token_mask).unwrap();
    }
}
