//! Compares measurements with the same numbers computed densely in f64.

use candle_core::{DType, Device, Tensor};
use host_model::optim::adamw::AdamWConfig;
use host_model::optim::{Optimizer, OptimizerConfig};
use host_model::{Config, Sequences, Wants, groups};

use super::super::batch::SampledBatch;
use super::*;

const TEMPERATURE: f64 = 0.8;
const ROWS: usize = 5;

fn policy(tied: bool) -> Policy {
    let json = format!(
        r#"{{"model_type": "qwen2", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "initializer_range": 0.2, "tie_word_embeddings": {tied}}}"#
    );
    let mut rng = host_rng::stream(7, "test", &[]);
    let mut fill = |out: &mut [f32]| host_rng::fill_standard_normal(&mut rng, out);
    Policy::init(
        Config::from_json(json.as_bytes()).unwrap(),
        &Device::Cpu,
        &mut fill,
    )
    .unwrap()
}

fn batch(policy: &Policy) -> BatchWithLogps {
    let prompt = 4;
    let tokens = 6;
    let ids = (0..ROWS * (prompt + tokens))
        .map(|i| (i * 37 + i / 4) as u32 % 300)
        .collect::<Vec<_>>();
    let lengths = [6, 3, 1, 5, 6];
    let own: Vec<&[u32]> = (0..ROWS)
        .map(|b| &ids[b * 10 + prompt..b * 10 + prompt + lengths[b]])
        .collect();
    let rows = Sequences {
        ids: ids.clone(),
        starts: vec![0, 3, 1, 2, 0],
        prompt_len: prompt,
        completion_len: tokens,
        lengths: lengths.to_vec(),
        numbers: Sequences::numbered(5),
    };
    let sampled = SampledBatch::new(rows, &own, vec![0; ROWS], vec![0.0; ROWS], 1, 0);
    let forward = policy
        .forward_detached(&sampled.sequences, TEMPERATURE)
        .unwrap();
    let wants = Wants {
        entropy: true,
        hidden: true,
        last_layer_k: None,
    };
    BatchWithLogps::new(sampled, forward.outputs(&wants).unwrap()).unwrap()
}

/// Changes every weight by `size` times a standard normal.
fn move_by(policy: &Policy, size: f64) {
    let mut rng = host_rng::stream(11, "test", &[]);
    for (_, var) in policy.params().iter() {
        let mut noise = vec![0.0; var.elem_count()];
        host_rng::fill_standard_normal(&mut rng, &mut noise);
        let noise = (Tensor::from_vec(noise, var.shape(), &Device::Cpu).unwrap() * size).unwrap();
        var.set(&(var.as_detached_tensor() + noise).unwrap())
            .unwrap();
    }
}

struct Case {
    policy: Policy,
    before: Params,
    batch: BatchWithLogps,
    groups: Vec<Group>,
    optimizer: Optimizer,
}

impl Case {
    fn new(tied: bool) -> Self {
        let policy = policy(tied);
        let batch = batch(&policy);
        let before = policy.params().deep_copy(DType::F32).unwrap();
        let optimizer = Optimizer::new(
            policy.params(),
            OptimizerConfig::AdamW(AdamWConfig::default()),
        )
        .unwrap();
        Self {
            groups: groups(policy.params()),
            before,
            batch,
            optimizer,
            policy,
        }
    }

    fn proposal(&self, micro_batch: usize) -> Proposal<'_> {
        let work = Work {
            micro_batch,
            activation_budget: 0,
            loss_temperature: TEMPERATURE,
        };
        let step = Step {
            policy: &self.policy,
            before: &self.before,
            optimizer: &self.optimizer,
            groups: &self.groups,
            batch: &self.batch,
        };
        let mut info = StepInfo::new(self.batch.sampled.dims(), self.optimizer.info(1e-3, 1.0));
        info.seed = 5;
        info.step = 9;
        Proposal::new(step, &info, work)
    }

    /// Log-probabilities over the vocabulary in f64, `[rows][V]`, from the features `hidden` and
    /// the head in `weights`.
    fn logps(&self, hidden: &Tensor, weights: &Params) -> Vec<Vec<f64>> {
        let head = weights
            .get(head_name(self.policy.config()))
            .unwrap()
            .as_detached_tensor();
        let wide = |tensor: &Tensor| tensor.to_dtype(DType::F64).unwrap();
        let logits: Vec<Vec<f64>> = wide(hidden)
            .matmul(&wide(&head).t().unwrap())
            .unwrap()
            .to_vec2()
            .unwrap();
        let normal = |row: Vec<f64>| {
            let scaled = row.iter().map(|z| z / TEMPERATURE);
            let largest = scaled.clone().fold(f64::MIN, f64::max);
            let sum = largest
                + scaled
                    .clone()
                    .map(|z| (z - largest).exp())
                    .sum::<f64>()
                    .ln();
            scaled.map(|z| z - sum).collect()
        };
        logits.into_iter().map(normal).collect()
    }

    /// The mean KL divergence over the tokens of `completions`, from its definition; `new` holds
    /// their features after the step.
    fn dense(&self, new: &Tensor, completions: &[usize]) -> f64 {
        let old = self.logps(self.batch.hidden.as_ref().unwrap(), &self.before);
        let new = self.logps(new, self.policy.params());
        let places = completions
            .iter()
            .flat_map(|&b| self.batch.sampled.dims().row(b));
        let real = places
            .zip(&new)
            .filter(|(i, _)| self.batch.sampled.completion_mask()[*i] == 1);
        let of_token = |(i, new): (usize, &Vec<f64>)| {
            old[i]
                .iter()
                .zip(new)
                .map(|(o, n)| o.exp() * (o - n))
                .sum::<f64>()
        };
        let all: Vec<f64> = real.map(of_token).collect();
        all.iter().sum::<f64>() / all.len() as f64
    }
}

fn assert_near(found: f64, expected: f64, tolerance: f64, what: &str) {
    println!(
        "{what}: {found:e}, dense {expected:e}, off by {:.1e}",
        (found / expected - 1.0).abs()
    );
    assert!(
        (found - expected).abs() <= tolerance * expected.abs(),
        "{what}: {found:e}, expected {expected:e}"
    );
}

#[test]
fn kl_divergence_agrees_with_a_dense_computation_for_steps_of_every_size() {
    for tied in [false, true] {
        for size in [1e-5, 1e-4, 3e-3, 0.1, 1.0] {
            let case = Case::new(tied);
            move_by(&case.policy, size);
            for (fraction, count) in [(1e-6, 1), (0.2, 1), (0.21, 2), (1.0, ROWS)] {
                let mut whole = case.proposal(ROWS);
                let mut drawn = whole.order[..count].to_vec();
                drawn.sort_unstable();
                let rows = case.batch.sampled.sequences.select(&drawn);
                let new = case
                    .policy
                    .forward_detached(&rows, TEMPERATURE)
                    .unwrap()
                    .hidden()
                    .unwrap();
                let found = whole.kl(fraction).unwrap();
                assert_near(
                    found,
                    case.dense(&new, &drawn),
                    1e-6,
                    &format!("size {size}, {count} completions"),
                );
                // Smaller micro-batches sum the features in another order. The relative difference
                // of 1e-7 matters more for a smaller step.
                for micro_batch in [1, 2, 3] {
                    let parts = case.proposal(micro_batch).kl(fraction).unwrap();
                    assert_near(
                        parts,
                        found,
                        3e-8 / size + 1e-6,
                        &format!("{micro_batch} at a time"),
                    );
                }
            }
            // For the divergence by the head alone, the features are unchanged.
            let by_head = case.dense(
                case.batch.hidden.as_ref().unwrap(),
                &(0..ROWS).collect::<Vec<_>>(),
            );
            assert_near(
                case.proposal(2).kl_by_head().unwrap(),
                by_head,
                1e-6,
                &format!("head, size {size}"),
            );
        }
    }
}

#[test]
fn a_step_that_changes_nothing_has_no_divergence() {
    let case = Case::new(false);
    let mut still = case.proposal(ROWS);
    assert_eq!(
        (
            still.kl(1.0).unwrap(),
            still.kl_by_head().unwrap(),
            still.norm().unwrap()
        ),
        (0.0, 0.0, 0.0)
    );
    move_by(&case.policy, f64::NAN);
    assert!(case.proposal(2).kl(1.0).unwrap().is_nan());
}

#[test]
fn norms_and_adams_fisher_are_sums_over_weights() {
    let mut case = Case::new(false);
    let d_logps: Vec<f32> = (0..ROWS * 6).map(|i| (i as f32 * 0.9).sin()).collect();
    for _ in 0..2 {
        let gradients = case
            .policy
            .forward(&case.batch.sampled.sequences, TEMPERATURE)
            .unwrap()
            .backward(&d_logps)
            .unwrap();
        case.optimizer
            .step(case.policy.params(), &gradients, None, 1e-3, 1.0)
            .unwrap();
    }
    let values = |tensor: &Tensor| -> Vec<f32> { tensor.flatten_all().unwrap().to_vec1().unwrap() };
    let (mut fisher, mut squares) = (0.0, vec![0.0; case.groups.len()]);
    for (name, after) in case.policy.params().iter() {
        let group = case
            .groups
            .iter()
            .position(|group| group.tensors.iter().any(|tensor| tensor == name))
            .unwrap();
        let (_, second) = case.optimizer.moments(name).unwrap();
        let before = values(case.before.get(name).unwrap());
        for ((w, w0), v) in values(after).into_iter().zip(before).zip(values(second)) {
            let square = (f64::from(w) - f64::from(w0)).powi(2);
            squares[group] += square;
            fisher += 0.5 * square * f64::from(v) / (1.0 - 0.999_f64.powi(2));
        }
    }
    let mut proposal = case.proposal(ROWS);
    assert_near(proposal.adams_fisher().unwrap(), fisher, 1e-12, "fisher");
    for (norm, square) in proposal.group_norms().unwrap().iter().zip(&squares) {
        assert_near(norm * norm, *square, 1e-12, "norm");
    }
    // At half the step, both numbers are a quarter; they are measured again.
    assert_eq!(proposal.scale(&[0.5; 4]).unwrap(), 0.5);
    assert_near(
        proposal.adams_fisher().unwrap(),
        0.25 * fisher,
        1e-4,
        "fisher of half",
    );
    let share = (squares[0] / squares.iter().sum::<f64>()).sqrt();
    assert_near(
        proposal.scale(&[1.0, 0.0, 0.0, 0.0]).unwrap(),
        share,
        1e-6,
        "share",
    );
    assert_eq!(proposal.group_norms().unwrap()[1..], [0.0; 3]);
}

#[test]
fn groups_are_in_the_order_of_the_forward_pass() {
    for tied in [false, true] {
        let policy = policy(tied);
        let groups = groups(policy.params());
        let named: Vec<(&str, usize)> = groups
            .iter()
            .map(|group| (group.name.as_str(), group.tensors.len()))
            .collect();
        let last = if tied { 1 } else { 2 };
        assert_eq!(
            named,
            [
                ("embedding", 1),
                ("block.0", 12),
                ("block.1", 12),
                ("last_layer", last)
            ]
        );
        assert_eq!(
            groups.iter().map(|group| group.parameters).sum::<u64>(),
            policy.params().element_count() as u64
        );
    }
}
