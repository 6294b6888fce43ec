//! Time and memory of the curvature model: `cargo bench -p capo-core`.
//!
//! Shapes are B x T tokens, K rows each, features of width D; the first is the paper's (its cost
//! appendix). The columns after the times are what one call allocates. `bound` is what the
//! arithmetic that cannot be avoided costs on this machine: a square root and a division per
//! (token, row, column), done in cache.
//!
//! `cargo bench -p capo-core -- cuda` times the same on the first CUDA device, at the width of a 7B
//! model and features in bf16.

mod cuda;
mod data;

use std::hint::black_box;

use capo_core::{Granularity, OptimizerKind, OptimizerModel, SecondMoment};
use divan::counter::ItemsCount;
use divan::{AllocProfiler, Bencher};

use data::Data;

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

fn main() {
    if std::env::args().any(|argument| argument.contains("cuda")) {
        cuda::describe();
    }
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

const ADAM: OptimizerModel = OptimizerModel {
    kind: OptimizerKind::Adam,
    beta1: 0.9,
    beta2: 0.999,
    eps: 1e-8,
    second_moment: SecondMoment::Kept,
    weight_decay: 0.0,
};

/// Proposal, shifts and decision of every token under Adam: what stands between the loss and the
/// backward pass.
#[divan::bench(args = SHAPES, sample_count = 7, sample_size = 1)]
fn token_adam(bencher: Bencher, shape: Shape) {
    let data = Data::new(shape);
    let model = data.model(Granularity::Token, data.step(ADAM, true));
    bencher
        .counter(data.elements())
        .bench_local(|| data.assess(&model, data.step(ADAM, false)));
}

/// The moments' step after the backward pass.
#[divan::bench(args = SHAPES, sample_count = 7, sample_size = 1)]
fn moment_update(bencher: Bencher, shape: Shape) {
    let data = Data::new(shape);
    let mut model = data.model(Granularity::Token, data.step(ADAM, true));
    bencher.counter(data.elements()).bench_local(|| {
        let prepared = data.prepare(&model, data.step(ADAM, false));
        model.commit(&prepared, &data.mask).unwrap();
    });
}

/// Both, as in `study/peers`: supports are collected once.
#[divan::bench(args = SHAPES, sample_count = 7, sample_size = 1)]
fn token_adam_and_update(bencher: Bencher, shape: Shape) {
    let data = Data::new(shape);
    let mut model = data.model(Granularity::Token, data.step(ADAM, true));
    bencher
        .counter(data.elements())
        .bench_local(|| data.assess_and_commit(&mut model, data.step(ADAM, false)));
}

/// Everything that the mask does in a step, the batch's own shifts before and after it included.
#[divan::bench(args = SHAPES, sample_count = 7, sample_size = 1)]
fn all(bencher: Bencher, shape: Shape) {
    let data = Data::new(shape);
    let mut model = data.model(Granularity::Token, data.step(ADAM, true));
    bencher
        .counter(data.elements())
        .bench_local(|| data.all(&mut model, data.step(ADAM, false)));
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
    let model = data.model(granularity, data.step(ADAM, true));
    bencher
        .counter(data.elements())
        .bench_local(|| data.assess(&model, data.step(optimizer, false)));
}

/// A square root and a division per element, on vectors that stay in cache: what `token_adam`
/// cannot be faster than.
#[divan::bench(args = [PAPER, SHAPES[1]], sample_count = 5, sample_size = 1)]
fn bound(bencher: Bencher, shape: Shape) {
    let Shape(b, t, k, d, threads) = shape;
    let work =
        || pulp::Arch::new().dispatch(|| square_roots_and_divisions(b * t * k * d / threads));
    bencher
        .counter(ItemsCount::new(b * t * k * d))
        .bench_local(|| {
            std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
        });
}

#[inline(always)]
fn square_roots_and_divisions(elements: usize) {
    let numerators = black_box([1.5f32; 1024]);
    let squares = black_box([2.5f32; 1024]);
    let mut total = [0.0f32; 32];
    for _ in 0..elements / 1024 {
        for (a, b) in numerators
            .as_chunks::<32>()
            .0
            .iter()
            .zip(squares.as_chunks::<32>().0)
        {
            for lane in 0..32 {
                total[lane] += a[lane] / (b[lane].sqrt() + 1e-8);
            }
        }
        black_box(&mut total);
    }
}
