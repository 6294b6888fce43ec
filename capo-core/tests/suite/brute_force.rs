//! The model against the dense one, and the dense one's matrices against finite differences of the policy itself.

use capo_core::{OptimizerModel, Policy};

use super::dense::{self, Optimizer};
use super::fixture::{
    ADAM, ADAM_OF_BOTH, Batch, Dims, GRANULARITIES, POLICY, Rng, SGD, assert_close, open_model, open_model_of,
};

const SHAPES: [Dims; 6] = [
    Dims(3, 4, 3, 5, 7),
    Dims(2, 3, 1, 17, 4),
    Dims(2, 2, 5, 1, 5),
    Dims(4, 1, 2, 16, 9),
    Dims(1, 3, 6, 33, 8),
    Dims(6, 3, 2, 7, 6),
];

/// Runs several steps of both models side by side at every granularity, keeping a random part of each batch.
fn side_by_side(optimizer: OptimizerModel, policy: Policy, dims: Dims, steps: usize, tolerance: f64) {
    let mut rng = Rng(17 + steps as u64);
    let mut models = GRANULARITIES.map(|granularity| (granularity, open_model_of(granularity)));
    let mut dense = Optimizer::new(optimizer, dims);
    for step in 0..steps {
        let mut batch = Batch::random(&mut rng, dims);
        batch.group_size = if dims.0.is_multiple_of(2) { 2 } else { dims.0 };
        let lr = 0.5 * rng.uniform();
        for (granularity, model) in &models {
            let (m_f, m_h) = dense.assess_subsets(&batch, &policy, lr, batch.span(*granularity));
            let assessment = batch.assess(model, &policy, &optimizer, lr);
            assert_close(&format!("step {step} {granularity:?} m_f"), &assessment.m_f, &m_f, tolerance);
            assert_close(&format!("step {step} {granularity:?} m_h"), &assessment.m_h, &m_h, tolerance);
            assert_eq!(assessment.keep, batch.mask);
            let (m_f, m_h) = dense.batch_shift(&batch, &policy, lr, &batch.mask);
            let shift = batch.shift(model, &policy, &optimizer, lr);
            assert_close("batch m_f", &[shift.m_f as f32], &[m_f], tolerance);
            assert_close("batch m_h", &[shift.m_h as f32], &[m_h], tolerance);
        }
        let keep: Vec<u8> = batch.mask.iter().map(|&x| x & u8::from(rng.below(3) > 0)).collect();
        for (_, model) in &mut models {
            batch.commit(model, &policy, &optimizer, &keep);
        }
        dense.commit(&batch, &policy, &keep);
    }
}

#[test]
fn sgd_is_the_explicit_model() {
    for dims in SHAPES {
        for policy in [POLICY, Policy { temperature: 0.7, top_k: Some(2) }] {
            side_by_side(SGD, policy, dims, 3, 1e-6);
        }
    }
}

#[test]
fn adam_is_the_explicit_model() {
    for dims in SHAPES {
        for policy in [POLICY, Policy { temperature: 1.6, top_k: Some(3) }] {
            side_by_side(ADAM, policy, dims, 6, 3e-6);
        }
    }
}

#[test]
fn adam_that_remembers_rejected_tokens_is_the_explicit_model() {
    for dims in SHAPES {
        side_by_side(ADAM_OF_BOTH, POLICY, dims, 6, 3e-6);
    }
}

#[test]
fn adam_without_momentum_and_with_a_tiny_eps() {
    let adam = OptimizerModel { beta1: 0.0, beta2: 0.0, eps: 1e-3, ..ADAM };
    side_by_side(adam, POLICY, SHAPES[0], 4, 3e-6);
    side_by_side(OptimizerModel { eps: 1e-25, ..ADAM }, POLICY, SHAPES[0], 4, 3e-6);
}

/// Large vocabulary, small supports: most rows are untouched for many steps and must still decay as in dense Adam.
#[test]
fn rows_touched_irregularly_decay_as_in_dense_adam() {
    side_by_side(ADAM, POLICY, Dims(1, 2, 2, 3, 40), 120, 3e-6);
    side_by_side(ADAM_OF_BOTH, POLICY, Dims(1, 2, 2, 3, 40), 120, 3e-6);
}

#[test]
fn gradients_of_any_scale_agree_with_the_explicit_model() {
    let dims = Dims(2, 3, 3, 34, 6);
    for (hidden, advantage) in [(1.0, 1e12), (1.0, 1e20), (1e10, 1e10), (1e10, 1e-10), (1e-10, 1e10), (1e-8, 1e-8)] {
        let mut rng = Rng(5);
        let (mut model, mut dense) = (open_model(), Optimizer::new(ADAM, dims));
        for _ in 0..3 {
            let mut batch = Batch::full(&mut rng, dims);
            batch.hidden.iter_mut().for_each(|x| *x *= hidden);
            batch.advantages.iter_mut().for_each(|a| *a *= advantage);
            let (m_f, m_h) = dense.assess(&batch, &POLICY, 0.1);
            let assessment = batch.assess(&model, &POLICY, &ADAM, 0.1);
            assert_close(&format!("m_f at {hidden:e}, {advantage:e}"), &assessment.m_f, &m_f, 3e-6);
            assert_close(&format!("m_h at {hidden:e}, {advantage:e}"), &assessment.m_h, &m_h, 3e-6);
            batch.commit(&mut model, &POLICY, &ADAM, &batch.mask);
            dense.commit(&batch, &POLICY, &batch.mask);
        }
    }
}

/// `m_H` and `m_F` against the policy itself: along `W + x D`, the ratio surrogate `A pi'(a) / pi(a)` has slope `A s` and
/// second derivative `A (s² - q)`, `log pi(a)` has slope `s`, and `KL(pi, pi')` has second derivative `q`.
#[test]
fn shifts_are_the_taylor_terms_of_surrogate_and_kl() {
    let dims = Dims(2, 3, 4, 5, 6);
    let mut rng = Rng(23);
    for optimizer in [SGD, ADAM] {
        let (mut model, mut dense) = (open_model(), Optimizer::new(optimizer, dims));
        let first = Batch::full(&mut rng, dims);
        first.commit(&mut model, &POLICY, &optimizer, &first.mask);
        dense.commit(&first, &POLICY, &first.mask);
        let batch = Batch::full(&mut rng, dims);
        let [one, two] = [1.0, 2.0].map(|lr| batch.assess(&model, &POLICY, &optimizer, lr));
        for at in 0..batch.mask.len() {
            let token = dense::token(&batch, &POLICY, at);
            let v = project(&dense.direction(&token.gradient()), &token.h);
            let [f1, h1, h2] = [one.m_f[at], one.m_h[at], two.m_h[at]].map(f64::from);
            // m_H = lr slope + ½ lr² bend, at rates 1 and 2.
            let (slope, bend) = (2.0 * h1 - 0.5 * h2, h2 - 2.0 * h1);
            let q = 2.0 * f1 - bend / token.advantage;

            let surrogate = |x: f64| token.advantage * moved(&token.pi, &v, x)[token.action] / token.pi[token.action];
            let logp = |x: f64| moved(&token.pi, &v, x)[token.action].ln();
            let kl = |x: f64| {
                let new = moved(&token.pi, &v, x);
                token.pi.iter().zip(new).map(|(p, n)| if *p == 0.0 { 0.0 } else { p * (p / n).ln() }).sum::<f64>()
            };
            let size = v.iter().map(|x| x * x).sum::<f64>().max(1e-3);
            let within = |what: &str, got: f64, expected: f64| {
                assert!((got - expected).abs() < 1e-5 * size.max(1.0), "token {at} {what}: {got} against {expected}");
            };
            within("slope of the surrogate", slope, difference(surrogate, size));
            within("bend of the surrogate", bend, second_difference(surrogate, size));
            within("m_F", f1, 0.5 * difference(logp, size).powi(2));
            within("bend of the KL", q, second_difference(kl, size));
        }
    }
}

fn project(direction: &[f64], h: &[f64]) -> Vec<f64> {
    direction.chunks(h.len()).map(|row| row.iter().zip(h).map(|(d, h)| d * h).sum()).collect()
}

/// The policy after the logits moved by `x v`.
fn moved(pi: &[f64], v: &[f64], x: f64) -> Vec<f64> {
    let weights: Vec<f64> = pi.iter().zip(v).map(|(p, v)| p * (x * v).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

fn difference(f: impl Fn(f64) -> f64, size: f64) -> f64 {
    let x = 1e-5 / size.sqrt();
    (f(x) - f(-x)) / (2.0 * x)
}

fn second_difference(f: impl Fn(f64) -> f64, size: f64) -> f64 {
    let x = 1e-3 / size.sqrt();
    (f(x) - 2.0 * f(0.0) + f(-x)) / (x * x)
}
