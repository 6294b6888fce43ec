//! Random batches and the settings that most tests share.

use capo_core::{
    Acceptance, Assessment, BatchShift, CurvatureModel, Granularity, LastLayer, OptimizerKind,
    OptimizerModel, Policy, SecondMoment, Semantics,
};

use super::device;

/// Accepts everything finite.
pub const OPEN: Acceptance = Acceptance {
    fisher_threshold: None,
    hessian_range: None,
    low_end_kept: false,
};
pub const PRESETS: [Semantics; 2] = [Semantics::PAPER, Semantics::EXACT];
pub const GRANULARITIES: [Granularity; 4] = [
    Granularity::Token,
    Granularity::Completion,
    Granularity::Group,
    Granularity::Batch,
];
pub const POLICY: Policy = Policy {
    temperature: 1.0,
    top_k: None,
};
pub const ADAM: OptimizerModel = OptimizerModel {
    kind: OptimizerKind::Adam,
    beta1: 0.9,
    beta2: 0.99,
    eps: 1e-8,
    second_moment: SecondMoment::Kept,
    weight_decay: 0.0,
};
/// Adam that remembers what was rejected.
pub const ADAM_OF_BOTH: OptimizerModel = OptimizerModel {
    second_moment: SecondMoment::KeptAndRejected,
    ..ADAM
};
/// Adam that decays weights.
pub const ADAMW: OptimizerModel = OptimizerModel {
    weight_decay: 0.1,
    ..ADAM
};
pub const SGD: OptimizerModel = OptimizerModel {
    kind: OptimizerKind::Sgd,
    beta1: 0.0,
    beta2: 0.0,
    eps: 0.0,
    ..ADAM
};

/// A linear congruential generator with its high bits mixed down; good enough to make test data.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, limit: usize) -> usize {
        (self.uniform() * limit as f64) as usize
    }

    /// In `[0, 1)`.
    pub fn uniform(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((self.0 ^ (self.0 >> 29)) >> 11 & ((1 << 52) - 1)) as f64 / (1u64 << 52) as f64
    }

    /// In `[-size, size)`.
    pub fn symmetric(&mut self, size: f64) -> f32 {
        ((2.0 * self.uniform() - 1.0) * size) as f32
    }
}

/// B, T, K, D, V.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dims(pub usize, pub usize, pub usize, pub usize, pub usize);

/// A batch that owns its arrays.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub dims: Dims,
    /// G, 1 unless a test sets it.
    pub group_size: usize,
    pub hidden: Vec<f32>,
    pub topk_ids: Vec<u32>,
    pub topk_logits: Vec<f32>,
    pub action_ids: Vec<u32>,
    pub action_logits: Vec<f32>,
    pub logsumexp: Vec<f32>,
    pub advantages: Vec<f32>,
    pub mask: Vec<u8>,
}

impl Batch {
    /// Completions of random length (0 included), actions anywhere in the vocabulary, some
    /// advantages 0.
    pub fn random(rng: &mut Rng, dims: Dims) -> Self {
        let Dims(completions, tokens, k, width, vocab) = dims;
        let mut batch = Self::empty(dims);
        for _ in 0..completions {
            let (length, advantage) = (rng.below(tokens + 1), rng.symmetric(2.0));
            let advantage = if rng.below(6) == 0 { 0.0 } else { advantage };
            for t in 0..tokens {
                let mut logits: Vec<(u32, f32)> = (0..vocab as u32)
                    .map(|id| (id, rng.symmetric(3.0)))
                    .collect();
                let action = logits[rng.below(vocab)];
                logits.sort_by(|a, b| b.1.total_cmp(&a.1));
                batch.topk_ids.extend(logits[..k].iter().map(|x| x.0));
                batch.topk_logits.extend(logits[..k].iter().map(|x| x.1));
                batch.action_ids.push(action.0);
                batch.action_logits.push(action.1);
                batch.logsumexp.push(
                    logits
                        .iter()
                        .map(|x| f64::from(x.1).exp())
                        .sum::<f64>()
                        .ln() as f32,
                );
                batch.hidden.extend((0..width).map(|_| rng.symmetric(1.0)));
                batch
                    .advantages
                    .push(if t < length { advantage } else { 0.0 });
                batch.mask.push(u8::from(t < length));
            }
        }
        batch
    }

    pub fn empty(dims: Dims) -> Self {
        Self {
            dims,
            group_size: 1,
            ..Self::default()
        }
    }

    pub fn view(&self) -> LastLayer<'_> {
        let Dims(completions, tokens, k, width, vocab_size) = self.dims;
        LastLayer {
            completions,
            tokens,
            group_size: self.group_size,
            k,
            width,
            vocab_size,
            action_ids: &self.action_ids,
            arrays: device::arrays(self),
        }
    }

    /// The completions that `order` names, in that order.
    pub fn reordered(&self, order: &[usize]) -> Self {
        let Dims(_, tokens, k, width, vocab) = self.dims;
        Self {
            dims: Dims(order.len(), tokens, k, width, vocab),
            group_size: self.group_size,
            hidden: reorder(&self.hidden, tokens * width, order),
            topk_ids: reorder(&self.topk_ids, tokens * k, order),
            topk_logits: reorder(&self.topk_logits, tokens * k, order),
            action_ids: reorder(&self.action_ids, tokens, order),
            action_logits: reorder(&self.action_logits, tokens, order),
            logsumexp: reorder(&self.logsumexp, tokens, order),
            advantages: reorder(&self.advantages, tokens, order),
            mask: reorder(&self.mask, tokens, order),
        }
    }

    /// Tokens per subset, padding included.
    pub fn span(&self, granularity: Granularity) -> usize {
        let Dims(completions, tokens, ..) = self.dims;
        match granularity {
            Granularity::Token => 1,
            Granularity::Completion => tokens,
            Granularity::Group => tokens * self.group_size,
            Granularity::Batch => tokens * completions,
        }
    }
}

/// The paper's model of tokens, which accepts everything finite.
pub fn open_model() -> CurvatureModel {
    model(Semantics::PAPER, Granularity::Token)
}

/// A model that accepts everything finite.
pub fn model(semantics: Semantics, granularity: Granularity) -> CurvatureModel {
    CurvatureModel::new(OPEN, granularity, semantics).unwrap()
}

/// The completions that `order` names, of data with `size` values a completion.
pub fn reorder<X: Copy>(data: &[X], size: usize, order: &[usize]) -> Vec<X> {
    order
        .iter()
        .flat_map(|&b| data[b * size..][..size].to_vec())
        .collect()
}

/// The four shifts of each token, by name.
pub fn shifts(assessment: &Assessment) -> [(&'static str, &[f32]); 4] {
    let Assessment {
        m_f,
        m_h,
        kl,
        surrogate,
        ..
    } = assessment;
    [
        ("m_f", m_f),
        ("m_h", m_h),
        ("kl", kl),
        ("surrogate", surrogate),
    ]
}

/// The bits of all that is said of tokens and of their batch.
pub fn bits(assessment: &Assessment, shift: &BatchShift) -> Vec<u64> {
    let Assessment {
        token_mask,
        reasons,
        certificate,
        ..
    } = assessment;
    let of_tokens = shifts(assessment)
        .into_iter()
        .flat_map(|(_, x)| x)
        .map(|x| u64::from(x.to_bits()));
    let decisions = token_mask
        .iter()
        .map(|&keep| u64::from(keep))
        .chain(reasons.iter().map(|&reason| reason as u64));
    let terms = [
        certificate.step_norm,
        certificate.hessian_bound,
        certificate.omega,
        certificate.gap,
    ];
    let of_batch = [shift.m_f, shift.m_h, shift.kl, shift.surrogate];
    of_tokens
        .chain(decisions)
        .chain(terms.into_iter().chain(of_batch).map(f64::to_bits))
        .collect()
}

pub fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

/// Asserts that two arrays agree within `tolerance` of the second one's largest entry; says how far
/// they are apart.
#[track_caller]
pub fn assert_close(what: &str, got: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(1e-300, |max: f64, x| max.max(x.abs()));
    let apart = got
        .iter()
        .zip(expected)
        .map(|(&got, &expected)| (f64::from(got) - expected).abs() / largest);
    let worst = apart.fold(
        0.0,
        |max: f64, x| if x.is_nan() { f64::NAN } else { max.max(x) },
    );
    println!("{what}: {worst:.1e} of the largest value");
    assert!(
        worst <= tolerance,
        "{what}: {worst:e} apart, at most {tolerance:e}\n got {got:?}\n expected {expected:?}"
    );
}
