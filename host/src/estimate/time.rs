//! Measures how long a run takes, by a small rollout and a small training pass of its model on this
//! machine.

use std::time::Instant;

use anyhow::{Result, ensure};
use host_model::{Generation, Gradients, Policy, SamplingParams, Sequences, Shape};

use super::memory::{self, Estimate};
use crate::benchmark::Benchmark;
use crate::config::Config;
use crate::run::Resources;

/// Number of weights × tokens of a measured pass: one to two seconds of two cores. What a pass
/// costs whatever its length, such as the writing of all gradients, is then a small part.
const WORK: usize = 50_000_000_000;
/// Least numbers of tokens of a training pass, and of rows that are sampled at once.
const FEWEST: [usize; 2] = [16, 64];
/// Least duration of the measurement, seconds.
const LEAST: f64 = 0.3;

/// Seconds of each part of a step, and of an evaluation, if every completion has its full length.
/// The optimizer takes steps of rate 0, so that the weights stay as they are, and its moments do
/// not.
pub fn measure(
    resources: &mut Resources,
    estimate: &Estimate,
) -> Result<([(&'static str, f64); 4], f64)> {
    measured(resources, estimate, true)
}

/// Seconds of a step without its optimizer, whose moments stay as they are.
pub fn measure_passes(resources: &mut Resources, estimate: &Estimate) -> Result<f64> {
    let (parts, _) = measured(resources, estimate, false)?;
    Ok(parts.iter().map(|(_, seconds)| seconds).sum())
}

fn measured(
    resources: &mut Resources,
    estimate: &Estimate,
    optimizes: bool,
) -> Result<([(&'static str, f64); 4], f64)> {
    ensure!(
        !resources.policy.is_counted(),
        "the model has no weights here"
    );
    ensure!(
        memory::free(resources).is_none_or(|free| estimate.bytes() <= free),
        "a step does not fit into memory"
    );
    let mut trial = Trial {
        optimizes,
        ..Trial::new(resources, estimate)
    };
    let laps = trial.run(resources)?;
    Ok(extrapolated(resources, estimate, &trial, laps))
}

/// A small rollout and a small training pass.
struct Trial {
    /// Rows of the training pass, as long as those of the run or shorter.
    sequences: Sequences,
    /// Prompts of the rollout: as many rows as the run samples at once.
    prompts: Vec<Vec<u32>>,
    generation: Generation,
    /// Number of tokens that are drawn behind the first, in the middle of the run's completions.
    few: usize,
    /// The optimizer takes a step of rate 0 if this is true.
    optimizes: bool,
}

/// Durations of the parts of a trial, seconds.
#[derive(Clone, Copy)]
struct Laps {
    /// Sampling one token.
    one: f64,
    /// Sampling one token and some more.
    several: f64,
    forward: f64,
    backward: f64,
    optimizer: f64,
}

impl Trial {
    fn new(resources: &Resources, estimate: &Estimate) -> Self {
        let Resources { config, policy, .. } = resources;
        let rollout = &config.rollout;
        let prompt = estimate.prompt_tokens;
        let tokens = rollout.max_completion_length;
        let length = prompt + tokens;
        let work = WORK / policy.weights().element_count();
        let [in_pass, in_rollout] = FEWEST.map(|fewest| fewest.max(work));
        let micro = config
            .train
            .per_device_train_batch_size
            .min(config.sizes.step);

        let rows = (in_pass / length).clamp(1, micro);
        let short = length.min(in_pass);
        let completion_len = (short * tokens / length).clamp(1, short.max(2) - 1);
        let vocabulary = policy.config().vocab_size;
        // Each group has a prompt of its own.
        let ids = (0..rows)
            .flat_map(|row| vec![(row / rollout.num_generations % vocabulary) as u32; short])
            .collect();
        let sequences = Sequences {
            ids,
            starts: vec![0; rows],
            prompt_len: short - completion_len,
            completion_len,
            lengths: vec![completion_len; rows],
            numbers: Sequences::numbered(rows),
        };
        let drawn = config.cached_completions().min(in_rollout);
        let few = (in_rollout / drawn).clamp(1, tokens.max(3) - 2);
        let before = (prompt + tokens.saturating_sub(few) / 2).min(in_pass);
        Self {
            sequences,
            prompts: vec![vec![0; before]; drawn],
            generation: Generation {
                sampling: SamplingParams {
                    temperature: f64::from(rollout.temperature),
                    top_k: rollout.top_k,
                    top_p: f64::from(rollout.top_p),
                },
                max_completion_length: 1,
                max_turn_length: 0,
                eos_ids: Vec::new(),
                logps: false,
                sampler_logps: false,
                top_k: 0,
                max_num_seqs: 0,
            },
            few,
            optimizes: true,
        }
    }

    /// Runs the trial until it has taken long enough to be measured.
    fn run(&mut self, resources: &mut Resources) -> Result<Laps> {
        let begun = Instant::now();
        // The first one starts threads and touches new memory, which takes up to four times as
        // long.
        self.run_once(resources)?;
        let mut laps = self.run_once(resources)?;
        while begun.elapsed().as_secs_f64() < LEAST {
            laps = self.run_once(resources)?;
        }
        Ok(laps)
    }

    fn run_once(&mut self, resources: &mut Resources) -> Result<Laps> {
        let Resources {
            config,
            policy,
            optimizer,
            inputs,
            components,
            ..
        } = resources;
        let train = &config.train;
        let sampler = policy.share().with_dtype(config.sampler_dtype().into());
        let wants = inputs.outputs(&components.step_controls, train.measure_step > 0);
        let rows = self.sequences.lengths.len();
        let d_logps = vec![1e-3; rows * self.sequences.completion_len];
        let mut seconds = [0.0; 5];
        let mut begun = Instant::now();
        for (lap, tokens) in [1, 1 + self.few].into_iter().enumerate() {
            self.generation.max_completion_length = tokens;
            let mut rngs = vec![host_rng::stream(0, "pace", &[]); self.prompts.len()];
            sampler.generate(&self.prompts, &self.generation, &mut rngs)?;
            seconds[lap] = since(&mut begun, policy)?;
        }
        let forward = policy.forward(&self.sequences, train.loss_temperature)?;
        forward.outputs(&wants)?;
        seconds[2] = since(&mut begun, policy)?;
        let mut gradients = Gradients::default();
        forward.finish(&d_logps, None, &mut gradients)?;
        seconds[3] = since(&mut begun, policy)?;
        if self.optimizes {
            optimizer.step(policy.params(), &gradients, None, 0.0, train.max_grad_norm)?;
        }
        seconds[4] = since(&mut begun, policy)?;
        let [one, several, forward, backward, optimizer] = seconds;
        Ok(Laps {
            one,
            several,
            forward,
            backward,
            optimizer,
        })
    }
}

/// Seconds since `begun`, which becomes now, once the policy's device is done.
fn since(begun: &mut Instant, policy: &Policy) -> Result<f64> {
    policy.device().synchronize()?;
    let duration = begun.elapsed();
    *begun = Instant::now();
    Ok(duration.as_secs_f64())
}

/// The time of a step's parts and of an evaluation, from the laps of a trial.
fn extrapolated(
    resources: &Resources,
    estimate: &Estimate,
    trial: &Trial,
    laps: Laps,
) -> ([(&'static str, f64); 4], f64) {
    let Resources {
        config,
        policy,
        reference,
        held_out,
        benchmarks,
        ..
    } = resources;
    let Config { train, sizes, .. } = config;
    let prompt = estimate.prompt_tokens;
    let tokens = config.rollout.max_completion_length;
    let rows = trial.sequences.lengths.len();
    let (computed, _) = policy.tokens_of_passes(&trial.sequences, rows);
    let forward = laps.forward / computed as f64;
    let backward = laps.backward / computed as f64;
    let drawn = (trial.prompts.len() * trial.few) as f64;
    let sampling = Sampling {
        start: laps.one,
        prompt: prompt as f64 * forward,
        completion: tokens as f64 * (laps.several - laps.one).max(0.0) / drawn,
    };
    // Activations that are not kept are computed again. A rollout for several steps, and a
    // reference, have passes of their own.
    let several = f64::from(u8::from(train.per_device_train_batch_size < sizes.step));
    let prompts = if policy.drops_out() {
        sizes.step
    } else {
        sizes.step.div_ceil(config.rollout.num_generations)
    };
    let shape = Shape {
        rows: sizes.step,
        prompts,
        prompt,
        tokens,
    };
    let [_, (_, activations), ..] = policy.training_bytes(shape, false, false);
    let kept = train.activation_budget as f64 * f64::from(1 << 20) / activations as f64;
    let old = if sizes.steps_per_rollout > 1 {
        1.0 / train.num_iterations as f64
    } else {
        0.0
    };
    let passes =
        1.0 + several * (1.0 - kept).max(0.0) + old + f64::from(u8::from(reference.is_some()));
    let measured = held_out.len() + benchmarks.iter().map(Benchmark::answers).sum::<usize>();
    let all = (prompts * prompt + sizes.step * tokens) as f64;
    let rollout = sampling.seconds(sizes.prompts, sizes.rollout);
    let step = [
        ("sampling", rollout / sizes.steps_per_rollout as f64),
        ("forward passes", passes * all * forward),
        ("backward passes", all * backward),
        ("the optimizer", laps.optimizer),
    ];
    (step, sampling.seconds(measured, measured))
}

/// Costs of sampling, seconds.
struct Sampling {
    /// Copies of the weights, before the first prompt.
    start: f64,
    prompt: f64,
    completion: f64,
}

impl Sampling {
    fn seconds(&self, prompts: usize, completions: usize) -> f64 {
        let start = if completions > 0 { self.start } else { 0.0 };
        start + prompts as f64 * self.prompt + completions as f64 * self.completion
    }
}
