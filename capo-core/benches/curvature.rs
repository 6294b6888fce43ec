//! Time and memory of the curvature model: `cargo bench -p capo-core`.
//!
//! Shapes are B x T tokens, K rows each, features of width D; the first is the paper's (its cost appendix). The columns
//! after the times are what one call allocates. `bound` is what the arithmetic that cannot be avoided costs on this machine: a
//! square root and a division per (token, row, column), done in cache.

use std::hint::black_box;

use capo_core::{
    Acceptance, Arrays, Assessment, CurvatureModel, Granularity, HostArrays, LastLayer, Loss, OptimizerKind,
    OptimizerModel, Policy, Prepared, Semantics, Step,
};
use divan::counter::ItemsCount;
use divan::{AllocProfiler, Bencher};

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

/// B, T, K, D and threads.
#[derive(Clone, Copy)]
struct Shape(usize, usize, usize, usize, usize);

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(b, t, k, d, threads) = self;
        write!(f, "B{b} T{t} K{k} D{d} threads {threads}")
    }
}

const PAPER: Shape = Shape(24, 1024, 50, 896, 2);
/// The paper's shape, the width of a 7B model, and one dimension changed at a time.
const SHAPES: [Shape; 6] = [
    PAPER,
    Shape(24, 1024, 50, 3584, 2),
    Shape(24, 1024, 50, 896, 1),
    Shape(12, 1024, 50, 896, 2),
    Shape(24, 1024, 25, 896, 2),
    Shape(24, 1024, 50, 448, 2),
];

const VOCABULARY: usize = 151_936;
/// Vocabulary rows that occur at all.
const ROWS: usize = 10_000;
const ADAM: OptimizerModel =
    OptimizerModel { kind: OptimizerKind::Adam, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };

/// A batch that owns its arrays: ids as frequent as words are (Zipf's law, exponent 1.1), completions of full length. The same
/// law and sizes as in `benches/peers`.
struct Data {
    shape: Shape,
    hidden: Vec<f32>,
    topk_ids: Vec<u32>,
    topk_logits: Vec<f32>,
    /// Ids of even rank alone, whose rows have moments.
    seen_ids: Vec<u32>,
    action_ids: Vec<u32>,
    action_logits: Vec<f32>,
    logsumexp: Vec<f32>,
    advantages: Vec<f32>,
    mask: Vec<u8>,
}

struct Rng(u64);

impl Rng {
    /// In `[0, 1)`.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
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
    fn new(shape: Shape) -> Self {
        let Shape(b, t, k, d, _) = shape;
        let mut rng = Rng(1);
        let mut data = Self {
            shape,
            hidden: (0..b * t * d).map(|_| (2.0 * rng.uniform() - 1.0) as f32).collect(),
            topk_ids: Vec::new(),
            seen_ids: Vec::new(),
            topk_logits: Vec::new(),
            action_ids: Vec::new(),
            action_logits: Vec::new(),
            logsumexp: vec![9.0; b * t],
            advantages: (0..b * t).map(|_| (2.0 * rng.uniform() - 1.0) as f32).collect(),
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

    fn step(&self, optimizer: OptimizerModel) -> Step<'_> {
        self.step_with(&self.topk_ids, optimizer)
    }

    fn step_with<'a>(&'a self, ids: &'a [u32], optimizer: OptimizerModel) -> Step<'a> {
        let Shape(completions, tokens, k, width, _) = self.shape;
        let batch = LastLayer {
            completions,
            tokens,
            group_size: 1,
            k,
            width,
            vocab_size: VOCABULARY,
            action_ids: &self.action_ids,
            arrays: Arrays::Host(HostArrays {
                hidden: &self.hidden,
                topk_ids: ids,
                topk_logits: &self.topk_logits,
                action_logits: &self.action_logits,
                logsumexp: &self.logsumexp,
            }),
        };
        let policy = Policy { temperature: 0.9, top_k: None };
        let loss = Loss::completion_mean(tokens);
        let advantages = &self.advantages;
        Step { batch, advantages, policy, loss, optimizer, learning_rate: 1e-6, moments: None }
    }

    /// (Token, row, column) triples.
    fn elements(&self) -> ItemsCount {
        let Shape(b, t, k, d, _) = self.shape;
        ItemsCount::new(b * t * k * d)
    }

    /// A model in which every other row has moments.
    fn model(&self, granularity: Granularity, optimizer: OptimizerModel) -> CurvatureModel {
        let acceptance =
            Acceptance { fisher_threshold: Some(1e-4), hessian_range: Some([-1e-2, 1e-2]), low_end_kept: false };
        let model = CurvatureModel::new(acceptance, granularity, Semantics::PAPER).unwrap();
        let mut model = model.with_threads(self.shape.4);
        let mut step = self.step_with(&self.seen_ids, optimizer);
        step.batch.action_ids = &self.seen_ids[..self.action_ids.len()];
        let prepared = model.prepare(&step, &self.mask).unwrap();
        model.commit(&prepared, &self.mask).unwrap();
        model
    }

    fn prepare(&self, model: &CurvatureModel, optimizer: OptimizerModel) -> Prepared<'_> {
        model.prepare(&self.step(optimizer), &self.mask).unwrap()
    }

    fn assess(&self, model: &CurvatureModel, optimizer: OptimizerModel) -> Assessment {
        model.assess(&self.prepare(model, optimizer)).unwrap()
    }
}

/// Proposal, shifts and decision of every token under Adam: what stands between the loss and the backward pass.
#[divan::bench(args = SHAPES, sample_count = 7, sample_size = 1)]
fn token_adam(bencher: Bencher, shape: Shape) {
    let data = Data::new(shape);
    let model = data.model(Granularity::Token, ADAM);
    bencher.counter(data.elements()).bench_local(|| data.assess(&model, ADAM));
}

/// The moments' step after the backward pass.
#[divan::bench(args = SHAPES, sample_count = 7, sample_size = 1)]
fn moment_update(bencher: Bencher, shape: Shape) {
    let data = Data::new(shape);
    let mut model = data.model(Granularity::Token, ADAM);
    bencher.counter(data.elements()).bench_local(|| {
        let prepared = data.prepare(&model, ADAM);
        model.commit(&prepared, &data.mask).unwrap();
    });
}

/// Both, as in `benches/peers`: supports are collected once.
#[divan::bench(args = SHAPES, sample_count = 7, sample_size = 1)]
fn token_adam_and_update(bencher: Bencher, shape: Shape) {
    let data = Data::new(shape);
    let mut model = data.model(Granularity::Token, ADAM);
    bencher.counter(data.elements()).bench_local(|| {
        let prepared = data.prepare(&model, ADAM);
        let keep = model.assess(&prepared).unwrap().keep;
        model.commit(&prepared, &keep).unwrap();
    });
}

/// Everything that the mask does in a step, the batch's own shifts before and after it included.
#[divan::bench(args = SHAPES, sample_count = 7, sample_size = 1)]
fn all(bencher: Bencher, shape: Shape) {
    let data = Data::new(shape);
    let mut model = data.model(Granularity::Token, ADAM);
    bencher.counter(data.elements()).bench_local(|| {
        let prepared = data.prepare(&model, ADAM);
        let assessment = model.assess(&prepared).unwrap();
        black_box(model.batch_shift(&prepared, &data.mask).unwrap());
        black_box(model.batch_shift(&prepared, &assessment.keep).unwrap());
        let prepared = data.prepare(&model, ADAM);
        model.commit(&prepared, &assessment.keep).unwrap();
    });
}

/// Other proposals at the paper's shape.
#[divan::bench(
    args = [
        ("token, sgd", Granularity::Token, OptimizerKind::Sgd),
        ("completion, sgd", Granularity::Completion, OptimizerKind::Sgd),
        ("completion, adam", Granularity::Completion, OptimizerKind::Adam),
        ("group, adam", Granularity::Group, OptimizerKind::Adam),
        ("batch, adam", Granularity::Batch, OptimizerKind::Adam),
    ],
    sample_count = 5,
    sample_size = 1,
)]
fn others(bencher: Bencher, (_, granularity, kind): (&str, Granularity, OptimizerKind)) {
    let data = Data::new(PAPER);
    let optimizer = OptimizerModel { kind, ..ADAM };
    let model = data.model(granularity, ADAM);
    bencher.counter(data.elements()).bench_local(|| data.assess(&model, optimizer));
}

/// A square root and a division per element, on vectors that stay in cache: what `token_adam` cannot be faster than.
#[divan::bench(args = [PAPER, SHAPES[1]], sample_count = 5, sample_size = 1)]
fn bound(bencher: Bencher, shape: Shape) {
    let Shape(b, t, k, d, threads) = shape;
    let work = || pulp::Arch::new().dispatch(|| square_roots_and_divisions(b * t * k * d / threads));
    bencher.counter(ItemsCount::new(b * t * k * d)).bench_local(|| {
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    });
}

#[inline(always)]
fn square_roots_and_divisions(elements: usize) {
    let (numerators, squares) = (black_box([1.5f32; 1024]), black_box([2.5f32; 1024]));
    let mut total = [0.0f32; 32];
    for _ in 0..elements / 1024 {
        for (a, b) in numerators.as_chunks::<32>().0.iter().zip(squares.as_chunks::<32>().0) {
            for lane in 0..32 {
                total[lane] += a[lane] / (b[lane].sqrt() + 1e-8);
            }
        }
        black_box(&mut total);
    }
}
