//! Batches to time the model with.

use std::hint::black_box;

use capo_core::{
    Acceptance, Arrays, Assessment, CurvatureModel, Granularity, HostArrays, LastLayer, Loss,
    OptimizerModel, Policy, Prepared, Semantics, Step,
};
use divan::counter::ItemsCount;

use super::Shape;

pub const VOCABULARY: usize = 151_936;
/// Vocabulary rows that occur at all.
const ROWS: usize = 10_000;

/// A batch that owns its arrays. Ids are as frequent as words are (Zipf's law, exponent 1.1), and
/// completions have full length. `study/peers` has the same law and sizes.
pub struct Data {
    shape: Shape,
    pub hidden: Vec<f32>,
    pub topk_ids: Vec<u32>,
    pub topk_logits: Vec<f32>,
    /// Ids of even rank alone, whose rows have moments.
    pub seen_ids: Vec<u32>,
    pub action_ids: Vec<u32>,
    pub action_logits: Vec<f32>,
    pub logsumexp: Vec<f32>,
    advantages: Vec<f32>,
    pub mask: Vec<u8>,
}

struct Rng(u64);

impl Rng {
    /// In `[0, 1)`.
    fn uniform(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 ^ (self.0 >> 29)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// `k` ids of ranks that `every` divides, spread over the vocabulary.
    fn distinct_ids(&mut self, k: usize, every: usize) -> Vec<u32> {
        let mut ids = Vec::with_capacity(k);
        while ids.len() < k {
            let tail = 1.0 - (ROWS as f64).powf(-0.1);
            let rank = (1.0 - tail * self.uniform()).powi(-10) as usize - 1;
            let id = (rank / every * every * 15_013 % VOCABULARY) as u32;
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        ids
    }
}

impl Data {
    pub fn new(shape: Shape) -> Self {
        let Shape(b, t, k, d, _) = shape;
        let mut rng = Rng(1);
        let mut data = Self {
            shape,
            hidden: (0..b * t * d)
                .map(|_| (2.0 * rng.uniform() - 1.0) as f32)
                .collect(),
            topk_ids: Vec::new(),
            seen_ids: Vec::new(),
            topk_logits: Vec::new(),
            action_ids: Vec::new(),
            action_logits: Vec::new(),
            logsumexp: vec![9.0; b * t],
            advantages: (0..b * t)
                .map(|_| (2.0 * rng.uniform() - 1.0) as f32)
                .collect(),
            mask: vec![1; b * t],
        };
        for _ in 0..b * t {
            let ids = rng.distinct_ids(k, 1);
            let mut logits: Vec<f32> = (0..k).map(|_| (8.0 * rng.uniform()) as f32).collect();
            logits.sort_by(|a, b| b.total_cmp(a));
            let action = (rng.uniform().powi(3) * k as f64) as usize;
            data.action_ids.push(ids[action]);
            data.action_logits.push(logits[action]);
            data.topk_ids.extend(ids);
            data.seen_ids.extend(rng.distinct_ids(k, 2));
            data.topk_logits.extend(logits);
        }
        data
    }

    /// The step of the batch, or with `seen` of one that gives every other row moments.
    pub fn step(&self, optimizer: OptimizerModel, seen: bool) -> Step<'_> {
        let Shape(completions, tokens, k, width, _) = self.shape;
        let positions = completions * tokens;
        let (topk_ids, action_ids) = if seen {
            (&self.seen_ids, &self.seen_ids[..positions])
        } else {
            (&self.topk_ids, &self.action_ids[..])
        };
        let batch = LastLayer {
            completions,
            tokens,
            group_size: 1,
            k,
            width,
            vocab_size: VOCABULARY,
            action_ids,
            arrays: Arrays::Host(HostArrays {
                hidden: &self.hidden,
                topk_ids,
                topk_logits: &self.topk_logits,
                action_logits: &self.action_logits,
                logsumexp: &self.logsumexp,
            }),
        };
        let policy = Policy {
            temperature: 0.9,
            top_k: None,
        };
        let loss = Loss::completion_mean(tokens);
        let advantages = &self.advantages;
        Step {
            batch,
            advantages,
            policy,
            loss,
            optimizer,
            learning_rate: 1e-6,
            moments: None,
        }
    }

    /// (Token, row, column) triples.
    pub fn elements(&self) -> ItemsCount {
        let Shape(b, t, k, d, _) = self.shape;
        ItemsCount::new(b * t * k * d)
    }

    /// A model without moments.
    pub fn empty_model(&self, granularity: Granularity) -> CurvatureModel {
        let acceptance = Acceptance {
            fisher_threshold: Some(1e-4),
            hessian_range: Some([-1e-2, 1e-2]),
            low_end_kept: false,
        };
        CurvatureModel::new(acceptance, granularity, Semantics::PAPER)
            .unwrap()
            .with_threads(self.shape.4)
    }

    /// A model in which every other row has moments, those of the step `seen`.
    pub fn model(&self, granularity: Granularity, seen: Step) -> CurvatureModel {
        let mut model = self.empty_model(granularity);
        model
            .commit(&self.prepare(&model, seen), &self.mask)
            .unwrap();
        model
    }

    pub fn prepare<'a>(&self, model: &CurvatureModel, step: Step<'a>) -> Prepared<'a> {
        model.prepare(&step, &self.mask).unwrap()
    }

    pub fn assess(&self, model: &CurvatureModel, step: Step) -> Assessment {
        model.assess(&self.prepare(model, step)).unwrap()
    }

    /// The decision about every token, and the moments' step.
    pub fn assess_and_commit(&self, model: &mut CurvatureModel, step: Step) {
        let prepared = self.prepare(model, step);
        let token_mask = model.assess(&prepared).unwrap().token_mask;
        model.commit(&prepared, &token_mask).unwrap();
    }

    /// Everything that the mask does in a step, the batch's own shifts before and after it
    /// included.
    pub fn all(&self, model: &mut CurvatureModel, step: Step) {
        let prepared = self.prepare(model, step);
        let token_mask = model.assess(&prepared).unwrap().token_mask;
        black_box(model.batch_shift(&prepared, &self.mask).unwrap());
        black_box(model.batch_shift(&prepared, &token_mask).unwrap());
        let prepared = self.prepare(model, step);
        model.commit(&prepared, &token_mask).unwrap();
    }
}
