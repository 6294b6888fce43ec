//! The optimizers' rules against the same formulas in f64.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor, Var};
use host_model::device::Dtype;
use host_model::optim::adamw::{AdamWConfig, SecondMoment};
use host_model::optim::sgd::SgdConfig;
use host_model::optim::{Optimizer, OptimizerConfig};
use host_model::{EMBEDDING, Gradients, Policy};

use crate::optim::{CONFIG, MAX_GRAD_NORM};
use crate::shared::{self, qwen2};

const BOTH: AdamWConfig = AdamWConfig {
    second_moment: SecondMoment::KeptAndRejected,
    ..CONFIG
};
const RATE: f64 = 1e-2;

type Values = BTreeMap<String, Vec<f64>>;

fn values(policy: &Policy) -> Values {
    let values = |var: &Var| shared::values(var).into_iter().map(f64::from).collect();
    policy
        .params()
        .iter()
        .map(|(name, var)| (name.to_owned(), values(var)))
        .collect()
}

/// A made-up gradient in which no number repeats.
fn wave(policy: &Policy, phase: f64) -> Values {
    let wave = |(number, (name, var)): (usize, (&str, &Var))| {
        let value =
            |i: usize| f64::from((0.01 * (0.1 * i as f64 + phase + number as f64).sin()) as f32);
        (name.to_owned(), (0..var.elem_count()).map(value).collect())
    };
    policy.params().iter().enumerate().map(wave).collect()
}

fn gradients(policy: &Policy, values: &Values) -> Gradients {
    let tensor = |(name, var): (&str, &Var)| {
        let values: Vec<f32> = values[name].iter().map(|&value| value as f32).collect();
        (
            name.to_owned(),
            Tensor::from_vec(values, var.shape(), &Device::Cpu).unwrap(),
        )
    };
    policy.params().iter().map(tensor).collect()
}

fn sum(a: &Values, b: &Values) -> Values {
    a.iter()
        .map(|(name, a)| {
            (
                name.clone(),
                a.iter().zip(&b[name]).map(|(a, b)| a + b).collect(),
            )
        })
        .collect()
}

fn scaled(values: &Values, factor: f64) -> Values {
    values
        .iter()
        .map(|(name, values)| (name.clone(), values.iter().map(|x| factor * x).collect()))
        .collect()
}

fn norm(values: &Values) -> f64 {
    values.values().flatten().map(|x| x * x).sum::<f64>().sqrt()
}

fn clip(norm: f64) -> f64 {
    (MAX_GRAD_NORM / (norm + 1e-6)).min(1.0)
}

/// Share of a weight that remains after decay.
fn decay_factor(policy: &Policy, name: &str, decay: f64) -> f64 {
    if policy.params().get(name).unwrap().rank() >= 2 {
        1.0 - RATE * decay
    } else {
        1.0
    }
}

fn assert_close(got: &Values, expected: &Values) {
    for (name, got) in got {
        let largest = expected[name]
            .iter()
            .fold(0.0, |max: f64, x| max.max(x.abs()));
        let apart = got
            .iter()
            .zip(&expected[name])
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f64::max);
        assert!(
            apart <= 1e-6 * largest,
            "{name}: {apart:e} apart, the largest is {largest:e}"
        );
    }
}

#[test]
fn the_second_moment_has_both_squares() {
    let policy = qwen2("tied");
    let mut optimizer = Optimizer::new(policy.params(), OptimizerConfig::AdamW(BOTH)).unwrap();
    let zeros = scaled(&values(&policy), 0.0);
    let (mut w, mut m, mut v) = (values(&policy), zeros.clone(), zeros);
    for step in 1..=4 {
        let (kept, rejected) = (
            wave(&policy, f64::from(step)),
            wave(&policy, 2.0 + 3.0 * f64::from(step)),
        );
        let unmasked = norm(&sum(&kept, &rejected));
        let outcome = optimizer
            .step(
                policy.params(),
                &gradients(&policy, &kept),
                Some(&gradients(&policy, &rejected)),
                RATE,
                MAX_GRAD_NORM,
            )
            .unwrap();
        let norms = [
            outcome.grad_norm,
            outcome.rejected_grad_norm,
            outcome.grad_norm_unmasked,
        ];
        for (got, expected) in norms
            .into_iter()
            .zip([norm(&kept), norm(&rejected), unmasked])
        {
            assert!((got / expected - 1.0).abs() < 1e-6, "{got} {expected}");
        }
        let scale = clip(unmasked);
        assert!(scale < 1.0 && outcome.taken);
        let unbias = |beta: f64| 1.0 - beta.powi(step);
        for (name, w) in &mut w {
            let (m, v) = (m.get_mut(name).unwrap(), v.get_mut(name).unwrap());
            for i in 0..w.len() {
                let (g, r) = (scale * kept[name][i], scale * rejected[name][i]);
                m[i] = BOTH.beta1 * m[i] + (1.0 - BOTH.beta1) * g;
                v[i] = BOTH.beta2 * v[i] + (1.0 - BOTH.beta2) * (g * g + r * r);
                let root = (v[i] / unbias(BOTH.beta2)).sqrt() + BOTH.eps;
                w[i] = w[i] * decay_factor(&policy, name, BOTH.weight_decay)
                    - RATE * m[i] / unbias(BOTH.beta1) / root;
            }
        }
    }
    assert_close(&values(&policy), &w);
    assert_eq!(optimizer.steps_taken(), 4);
}

/// If the gradient of rejected tokens almost cancels that of kept tokens, the square of their sum
/// is almost 0, and a step divided by its root has no bound. The sum of their squares bounds the
/// step by the learning rate.
#[test]
fn cancelling_gradients_leave_the_step_bounded() {
    let policy = qwen2("tied");
    let config = AdamWConfig {
        weight_decay: 0.0,
        ..BOTH
    };
    let mut optimizer = Optimizer::new(policy.params(), OptimizerConfig::AdamW(config)).unwrap();
    let kept = wave(&policy, 1.0);
    let rejected = scaled(&kept, -0.999);
    let before = values(&policy);
    for _ in 0..5 {
        let (kept, rejected) = (gradients(&policy, &kept), gradients(&policy, &rejected));
        optimizer
            .step(policy.params(), &kept, Some(&rejected), RATE, 0.0)
            .unwrap();
    }
    let after = values(&policy);
    let moved = |name: &String, i: usize| (after[name][i] - before[name][i]).abs() / 5.0;
    let largest = |rejected: f64| RATE / (1.0 + rejected * rejected).sqrt();
    for (name, g) in kept.iter().filter(|(_, g)| g.len() > 1) {
        let most = (0..g.len()).map(|i| moved(name, i)).fold(0.0, f64::max);
        assert!(
            most <= 1.01 * largest(0.999),
            "{name}: a step of {most:e} at a rate of {RATE:e}"
        );
    }
    // The length that a step of g / |g + r| would have.
    assert!(RATE / (1.0f64 - 0.999) > 900.0 * largest(0.999));
}

#[test]
fn clips_both_gradients_by_the_norm_of_their_sum() {
    let moments = |rejected: f64, limit: f64| {
        let policy = qwen2("tied");
        let mut optimizer = Optimizer::new(policy.params(), OptimizerConfig::AdamW(BOTH)).unwrap();
        let kept = wave(&policy, 1.0);
        let (kept, rejected) = (
            gradients(&policy, &kept),
            gradients(&policy, &scaled(&kept, rejected)),
        );
        optimizer
            .step(policy.params(), &kept, Some(&rejected), RATE, limit)
            .unwrap();
        let exp_avg = optimizer.moments("model.norm.weight").unwrap().0;
        exp_avg
            .sqr()
            .unwrap()
            .sum_all()
            .unwrap()
            .to_scalar::<f32>()
            .unwrap()
            .sqrt()
    };
    // The sum is shorter than the limit, so nothing is clipped, although each gradient alone would
    // be.
    assert_eq!(moments(-1.0, 1e-3), moments(-1.0, 0.0));
    // The sum is three times as long as the gradient of kept tokens, which is clipped to a third of
    // the limit.
    let ratio = moments(2.0, 1e-3) / moments(0.0, 1e-3);
    assert!((ratio - 1.0 / 3.0).abs() < 1e-3, "{ratio}");
}

#[test]
fn sgd_with_and_without_momentum() {
    for momentum in [0.0, 0.9] {
        let policy = qwen2("tied");
        let config = SgdConfig {
            momentum,
            weight_decay: 0.1,
            ..SgdConfig::default()
        };
        let mut optimizer = Optimizer::new(policy.params(), OptimizerConfig::Sgd(config)).unwrap();
        let (mut w, mut sums): (Values, Option<Values>) = (values(&policy), None);
        for step in 1..=4 {
            let g = wave(&policy, f64::from(step));
            let outcome = optimizer
                .step(
                    policy.params(),
                    &gradients(&policy, &g),
                    None,
                    RATE,
                    MAX_GRAD_NORM,
                )
                .unwrap();
            assert_eq!(outcome.grad_norm, outcome.grad_norm_unmasked);
            // As in torch, the first sum is the first gradient.
            let g = scaled(&g, clip(norm(&g)));
            let new = sums
                .take()
                .map_or_else(|| g.clone(), |sums| sum(&scaled(&sums, momentum), &g));
            for (name, w) in &mut w {
                let factor = decay_factor(&policy, name, config.weight_decay);
                w.iter_mut()
                    .zip(&new[name])
                    .for_each(|(w, sum)| *w = *w * factor - RATE * sum);
            }
            sums = Some(new);
        }
        assert_close(&values(&policy), &w);
        assert!(
            optimizer.moments("model.norm.weight").is_err(),
            "they are Adam's"
        );
    }
}

#[test]
fn moments_in_bf16_differ_from_f32_by_rounding() {
    const STEPS: i32 = 300;
    let (policies, config) = ([qwen2("tied"), qwen2("tied")], AdamWConfig::default());
    let new = |policy: &Policy, moments| {
        Optimizer::new(
            policy.params(),
            OptimizerConfig::AdamW(AdamWConfig { moments, ..config }),
        )
        .unwrap()
    };
    let (mut exact, mut halved) = (
        new(&policies[0], Dtype::F32),
        new(&policies[1], Dtype::Bf16),
    );
    assert!(halved.bytes() < exact.bytes());
    let g = wave(&policies[0], 1.0);
    for step in 0..STEPS {
        for (policy, optimizer) in policies.iter().zip([&mut exact, &mut halved]) {
            optimizer
                .step(policy.params(), &gradients(policy, &g), None, RATE, 0.0)
                .unwrap();
        }
        if step == STEPS / 2 {
            let state = halved.state().unwrap();
            halved = new(&policies[1], Dtype::Bf16);
            halved.load_state(&state).unwrap();
        }
    }
    let name = "model.layers.0.mlp.up_proj.weight";
    let sum = |tensor: &Tensor| {
        tensor
            .to_dtype(DType::F64)
            .unwrap()
            .sum_all()
            .unwrap()
            .to_scalar::<f64>()
            .unwrap()
    };
    for (exact, halved) in [
        exact.moments(name).unwrap().1,
        exact.moments(EMBEDDING).unwrap().1,
    ]
    .into_iter()
    .zip([
        halved.moments(name).unwrap().1,
        halved.moments(EMBEDDING).unwrap().1,
    ]) {
        // With rounding to the nearest, the error would be 2.7%.
        assert!(
            (sum(halved) / sum(exact) - 1.0).abs() < 0.005,
            "{} of {}",
            sum(halved),
            sum(exact)
        );
    }
    let dtypes =
        [name, EMBEDDING, "model.norm.weight"].map(|name| halved.moments(name).unwrap().0.dtype());
    assert_eq!(dtypes, [DType::BF16, DType::F32, DType::F32]);
    let error = exact
        .load_state(&halved.state().unwrap())
        .unwrap_err()
        .to_string();
    assert!(error.contains("is BF16 of shape"), "{error}");
}
