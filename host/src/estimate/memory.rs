//! Estimates the memory of a run before the run allocates it.

use anyhow::{Result, bail};
use capo_system::memory;
use host_model::frozen::bytes_in_memory;
use host_model::optim::adamw::SecondMoment;
use host_model::{Policy, Shape, device, embedded};

use crate::config::Config;
use crate::run::Resources;
use crate::stages::control;

const F32: u128 = 4;
/// Memory of the program, its tokenizer and its threads before a model is loaded, bytes.
pub const PROGRAM: u128 = 80 << 20;
/// Number of prompts whose length is examined.
const PROMPTS: u64 = 256;

/// Bytes at the peak of a step, by purpose. Completions count with their maximum length. Prompts
/// count with the longest of the first prompts.
#[derive(Debug, Clone)]
pub struct Estimate {
    /// Name and bytes of each part.
    pub parts: Vec<(&'static str, u128)>,
    /// Prompt length that the estimate assumes, tokens.
    pub prompt_tokens: usize,
}

impl Estimate {
    /// Estimate of the memory that a run takes.
    pub fn of(resources: &mut Resources) -> Result<Self> {
        let prompt = longest_prompt(resources)?;
        let Resources {
            config,
            policy,
            optimizer,
            reference,
            inputs,
            components,
            ..
        } = resources;
        let controls = &components.step_controls;
        let Config { train, sizes, .. } = &*config;
        let rows_of_prompt = if policy.drops_out() {
            1
        } else {
            config.rollout.num_generations
        };
        let shape = Shape {
            rows: 0,
            prompts: 0,
            prompt,
            tokens: config.rollout.max_completion_length,
        };
        let micro = train.per_device_train_batch_size.min(sizes.step);
        let several = micro < sizes.step;
        let rejected = train.second_moment == SecondMoment::KeptAndRejected;
        let mut training = policy
            .training_bytes(of_rows(shape, micro, rows_of_prompt), several, rejected)
            .to_vec();
        if several {
            // The log-probability pass stores activations of all micro-batches, up to the budget.
            // The current micro-batch's are extra.
            let [_, (_, activations), ..] = &mut training[..] else {
                unreachable!("four parts")
            };
            let all = *activations * (sizes.step / micro) as u128;
            *activations = all.min(*activations + (u128::from(train.activation_budget) << 20));
        }
        let outputs = inputs.outputs(controls, train.measure_step > 0);
        let tokens = (sizes.step * config.rollout.max_completion_length) as u128;
        let model = policy.config();
        let features = if outputs.hidden {
            model.hidden_size * policy.dtype().size_in_bytes()
        } else {
            0
        };
        // On the policy's device, and in the copy for components.
        let layer = outputs.last_layer_k.map_or(0, |k| {
            2 * 4 * (model.hidden_size + 2 * k.min(model.vocab_size) + 3)
        });
        let layer = features + layer;
        training.push(("the last layer, for components", tokens * layer as u128));
        let drawn = of_rows(shape, config.cached_completions(), rows_of_prompt);
        let sampling = policy.sampling_bytes(drawn);
        let all = policy.weights().element_count();
        let trained = policy.params().element_count();
        let on_gpu = config.train.device != device::CPU;
        let mut parts = vec![
            // Its memory is the machine's, not the GPU's.
            ("the program", if on_gpu { 0 } else { PROGRAM }),
            (
                "weights",
                (if policy.adapter().is_some() {
                    all + trained
                } else {
                    all
                }) as u128
                    * F32,
            ),
            ("the optimizer's moments", optimizer.bytes() as u128),
            (
                "models that are only read",
                read_only(config, policy, reference.is_some())?,
            ),
        ];
        // Sampling has ended when training begins, so the larger of the two counts.
        parts.extend(if sum(&training) > sum(&sampling) {
            training
        } else {
            sampling.to_vec()
        });
        // The backward pass has freed its memory by then, but as blocks of other sizes. Copies need
        // additional memory.
        if train.measure_step > 0 || !controls.is_empty() {
            parts.push(("the weights before a step", trained as u128 * F32));
        }
        if control::restores_moments(controls) {
            parts.push(("the moments before a step", optimizer.bytes() as u128));
        }
        parts.retain(|(_, bytes)| *bytes > 0);
        Ok(Self {
            parts,
            prompt_tokens: prompt,
        })
    }

    /// Sum of all parts, bytes.
    pub fn bytes(&self) -> u128 {
        sum(&self.parts)
    }

    /// Lines for the run's header: a total, and one line per part.
    pub fn lines(&self, resources: &Resources) -> Vec<String> {
        let tokens = resources.config.rollout.max_completion_length;
        let free = free(resources).map_or_else(String::new, |free| {
            format!("; {} are free for it", memory::text(free))
        });
        let prompt = self.prompt_tokens;
        let first = format!(
            "memory     about {} at the fullest, with prompts of {prompt} tokens and completions \
             of {tokens}{free}",
            memory::text(self.bytes())
        );
        let parts = self
            .parts
            .iter()
            .map(|(name, bytes)| format!("  {name:<32} {:>10}", memory::text(*bytes)));
        std::iter::once(first).chain(parts).collect()
    }
}

/// The shape of a batch of so many rows, of which `rows_of_prompt` share a prompt.
fn of_rows(shape: Shape, rows: usize, rows_of_prompt: usize) -> Shape {
    Shape {
        rows,
        prompts: rows.div_ceil(rows_of_prompt),
        ..shape
    }
}

fn sum(parts: &[(&str, u128)]) -> u128 {
    parts.iter().map(|(_, bytes)| bytes).sum()
}

/// Bytes of the machine, or of the run's GPU, that the run may use, including those that it uses
/// now; `None` if unknown.
pub fn free(resources: &Resources) -> Option<u128> {
    let name = &resources.config.train.device;
    if name != device::CPU {
        return device::memory::free_at_opening(name).map(u128::from);
    }
    let free = memory::available()?;
    Some(u128::from(free) + u128::from(memory::resident().unwrap_or(0)))
}

/// Refuses a run that takes more memory than is free. A run without weights is not checked: it is
/// meant for another machine.
pub fn check(resources: &mut Resources) -> Result<()> {
    if resources.policy.is_counted() && !resources.config.model.fresh_weights {
        return Ok(());
    }
    let estimate = Estimate::of(resources)?;
    let needed = estimate.bytes();
    let tokens = resources.config.rollout.max_completion_length;
    if let Some(free) = free(resources).filter(|free| needed > *free) {
        bail!(
            "the run takes about {} of memory at the fullest, with completions of {tokens} \
             tokens, and {} are free for it (lower `train.per_device_train_batch_size` or \
             `rollout.max_completion_length`, set `train.gradient_checkpointing`, look at the \
             parts with `--dry-run`, or start it with `--allow-more-memory`)",
            memory::text(needed),
            memory::text(free)
        );
    }
    Ok(())
}

/// Bytes of the reference model and the reward models.
fn read_only(config: &Config, policy: &Policy, compares: bool) -> Result<u128> {
    let rewards = config
        .reward
        .iter()
        .filter_map(|reward| reward.model_name())
        .map(str::to_owned);
    let named: Vec<String> = rewards
        .chain(config.model.ref_model_name_or_path.clone())
        .collect();
    let mut bytes = 0;
    for name in &named {
        bytes += u128::from(bytes_in_memory(&embedded::model_files(name)?)?);
    }
    // The reference is a copy of the initial model, unless it is an adapter's base.
    if compares && config.model.ref_model_name_or_path.is_none() {
        bytes += policy.params().element_count() as u128 * policy.dtype().size_in_bytes() as u128;
    }
    Ok(bytes)
}

/// Length of the longest of the first prompts, tokens.
fn longest_prompt(resources: &mut Resources) -> Result<usize> {
    let Resources {
        config,
        dataset,
        tokenizer,
        ..
    } = resources;
    let limit = config.data.max_prompt_length;
    let count =
        PROMPTS.min((config.sizes.prompts as u64).saturating_mul(config.train.max_steps.max(1)));
    let lengths =
        (0..count).map(|cursor| Ok(dataset.train(cursor)?.prompt_ids(tokenizer, limit)?.len()));
    Ok(lengths
        .collect::<Result<Vec<usize>>>()?
        .into_iter()
        .max()
        .unwrap_or(1))
}
