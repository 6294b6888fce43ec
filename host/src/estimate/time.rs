//! Measures how long a run takes, by a small rollout and a small training pass of its model on this
//! machine.

use std::time::Instant;

use anyhow::{Result, ensure};
use host_model::{Generation, Gradients, SamplingParams, Sequences, Shape};

use super::memory::{self, Estimate};
use crate::benchmark::Benchmark;
use crate::run::Resources;

/// Number of weights × tokens of a measured pass: one to two seconds of two cores. What a pass
/// costs whatever its length, such as the writing of all gradients, is then a small part.
const WORK: usize = 50_000_000_000;
/// Least numbers of tokens of a training pass, and of rows that are sampled at once.
const FEWEST: [usize; 2] = [16, 64];
/// Least duration of the measurement, seconds.
const LEAST: f64 = 0.3;

/// Seconds of each part of a step, and of an evaluation, if every completion has its full length.
/// The optimizer takes steps of rate 0, so the weights stay as they are.
pub fn measure(
    resources: &mut Resources,
    estimate: &Estimate,
) -> Result<([(&'static str, f64); 4], f64)> {
    ensure!(
        !resources.policy.is_counted(),
        "the model has no weights here"
    );
    ensure!(
        memory::free(resources).is_none_or(|free| estimate.bytes() <= free),
        "a step does not fit into memory"
    );
    let Resources {
        config,
        policy,
        optimizer,
        inputs,
        components,
        reference,
        held_out,
        benchmarks,
        ..
    } = resources;
    let (train, rollout, sizes) = (&config.train, &config.rollout, config.sizes);
    let (prompt, tokens) = (estimate.prompt_tokens, rollout.max_completion_length);
    let (length, micro) = (
        prompt + tokens,
        train.per_device_train_batch_size.min(sizes.step),
    );
    let most = FEWEST.map(|fewest| fewest.max(WORK / policy.weights().element_count()));

    // A training pass of some rows, as long as those of the run or shorter.
    let (rows, short) = ((most[0] / length).clamp(1, micro), length.min(most[0]));
    let completion_len = (short * tokens / length).clamp(1, short.max(2) - 1);
    let (starts, numbers) = (vec![0; rows], Sequences::numbered(rows));
    // Each group has a prompt of its own.
    let group = rollout.num_generations;
    let ids = (0..rows)
        .flat_map(|row| vec![(row / group % policy.config().vocab_size) as u32; short])
        .collect();
    let (prompt_len, lengths) = (short - completion_len, vec![completion_len; rows]);
    let sequences = Sequences {
        ids,
        starts,
        prompt_len,
        completion_len,
        lengths,
        numbers,
    };
    let d_logps = vec![1e-3; rows * completion_len];
    let wants = inputs.outputs(&components.step_controls, train.measure_step > 0);
    // As many rows as the run samples at once, for a few tokens in the middle of their completions.
    let drawn = config.cached_completions().min(most[1]);
    let few = (most[1] / drawn).clamp(1, tokens.max(3) - 2);
    let prompts = vec![vec![0; (prompt + tokens.saturating_sub(few) / 2).min(most[0])]; drawn];
    let sampler = policy.share().with_dtype(config.sampler_dtype().into());
    let (temperature, top_p) = (f64::from(rollout.temperature), f64::from(rollout.top_p));
    let mut generation = Generation {
        sampling: SamplingParams {
            temperature,
            top_k: rollout.top_k,
            top_p,
        },
        max_completion_length: 1,
        max_turn_length: 0,
        eos_ids: Vec::new(),
        logps: false,
        sampler_logps: false,
        top_k: 0,
        max_num_seqs: 0,
    };
    // Seconds of the first draw, of it and some more, of a forward pass, a backward pass, and a
    // step.
    let mut pass = || -> Result<[f64; 5]> {
        let (mut seconds, mut gradients) = ([0.0; 5], Gradients::default());
        let mut begun = Instant::now();
        let mut lap = |at: usize| -> Result<()> {
            policy.device().synchronize()?;
            seconds[at] = std::mem::replace(&mut begun, Instant::now())
                .elapsed()
                .as_secs_f64();
            Ok(())
        };
        for (at, tokens) in [1, 1 + few].into_iter().enumerate() {
            generation.max_completion_length = tokens;
            sampler.generate(
                &prompts,
                &generation,
                &mut vec![host_rng::stream(0, "pace", &[]); drawn],
            )?;
            lap(at)?;
        }
        let forward = policy.forward(&sequences, train.loss_temperature)?;
        forward.outputs(&wants)?;
        lap(2)?;
        forward.finish(&d_logps, None, &mut gradients)?;
        lap(3)?;
        optimizer.step(policy.params(), &gradients, None, 0.0, train.max_grad_norm)?;
        lap(4)?;
        Ok(seconds)
    };
    let begun = Instant::now();
    // The first one starts threads and touches new memory, which takes up to four times as long.
    pass()?;
    let mut seconds = pass()?;
    while begun.elapsed().as_secs_f64() < LEAST {
        seconds = pass()?;
    }
    let [one, several, forward, backward, optimizer] = seconds;
    let (computed, _) = policy.tokens_of_passes(&sequences, rows);
    let [forward, backward] = [forward, backward].map(|seconds| seconds / computed as f64);
    let draw = (several - one).max(0.0) / (drawn * few) as f64;
    // Before the first draws come the prompts, and copies of the weights.
    let answers = |prompts: usize, completions: usize| {
        let first = if completions > 0 { one } else { 0.0 };
        first + prompts as f64 * prompt as f64 * forward + completions as f64 * tokens as f64 * draw
    };
    // Activations that are not kept are computed again. A rollout for several steps, and a
    // reference, have passes of their own.
    let several = f64::from(u8::from(micro < sizes.step));
    let prompts = if policy.drops_out() {
        sizes.step
    } else {
        sizes.step.div_ceil(group)
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
    let step = [
        (
            "sampling",
            answers(sizes.prompts, sizes.rollout) / sizes.steps_per_rollout as f64,
        ),
        ("forward passes", passes * all * forward),
        ("backward passes", all * backward),
        ("the optimizer", optimizer),
    ];
    Ok((step, answers(measured, measured)))
}
