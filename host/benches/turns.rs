//! Prints tokens per second of a rollout whose turns an environment answers after some time, beside
//! one without an environment: `cargo bench -p host --bench turns`.
//!
//! The embedded model draws four turns of eight tokens in each of `ROWS` (default 192) completions.
//! An answer takes between half and one and a half times the named time, so that rows are at
//! different turns. The best of five rollouts counts.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Result;
use candle_core::Device;
use capo_loader::registry::Registry;
use capo_loader::warning::WarningSink;
use capo_loader::watchdog::Watchdog;
use capo_plugin::prelude::*;
use host::config::{self, Draft};
use host::environment::{Environment as Opened, Stage};
use host::stages::rollout::{Drawing, Playing, Prompts, complete};
use host_data::Example;
use host_model::{Generation, Policy, SampledTokens, SamplingParams, embedded};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TURNS: usize = 4;
const TURN: usize = 8;

/// Answers each turn after about `delay` milliseconds.
#[component(Environment, id = "bench.late")]
struct Late {
    /// Mean time of an answer, milliseconds.
    #[key]
    delay: u64,
    waiting: Vec<(Instant, Observation)>,
}

impl Environment for Late {
    fn begin(
        &mut self,
        _: &mut Ctx<'_>,
        episodes: &Episodes<'_>,
    ) -> Result<Vec<String>, PluginError> {
        Ok(vec![String::new(); episodes.episodes.len()])
    }

    fn respond(
        &mut self,
        _: &mut Ctx<'_>,
        turns: &[Turn<'_>],
    ) -> Result<Vec<Observation>, PluginError> {
        let now = Instant::now();
        self.waiting.extend(turns.iter().map(|turn| {
            let share = host_rng::below(
                &mut host_rng::stream(0, "late", &[turn.episode, turn.number as u64]),
                1000,
            ) as f64;
            let due = now + Duration::from_millis(self.delay).mul_f64(0.5 + share / 1000.0);
            (due, Observation::of(turn).say("1="))
        }));
        Ok(self
            .waiting
            .extract_if(.., |(due, _)| *due <= now)
            .map(|(_, observation)| observation)
            .collect())
    }
}

fn main() -> Result<()> {
    let rows = std::env::var("ROWS").map_or(192, |rows| rows.parse().expect("`ROWS` is a number"));
    println!("| environment | tokens/s | seconds a rollout |\n|---|---|---|");
    for delay in [None, Some(0), Some(10), Some(100)] {
        let (tokens, seconds) = rollout(delay, rows)?;
        let name = delay.map_or("none".to_owned(), |delay| {
            format!("answers after {delay} ms")
        });
        println!("| {name} | {:.0} | {seconds:.3} |", tokens as f64 / seconds);
    }
    Ok(())
}

/// Number of tokens that the model draws in a rollout, and the seconds that it takes.
fn rollout(delay: Option<u64>, rows: usize) -> Result<(usize, f64)> {
    let registry = Registry::open(&[])?;
    let length = TURNS * (TURN + "1=".len());
    let environment = |delay| {
        format!(
            "environment={{use=\"bench.late\",delay={delay},max_turns={TURNS},max_turn_length={TURN}}}"
        )
    };
    let sets: Vec<String> = delay
        .map(environment)
        .into_iter()
        .chain([format!("rollout.max_completion_length={length}")])
        .collect();
    let mut config = config::resolve(&registry, Draft::read(None, config::DEFAULT, &sets)?)?.config;
    let files = embedded::model_files(&config.model.model_name_or_path)?;
    let (policy, tokenizer) = (
        Policy::load(&files, &Device::Cpu)?,
        config.data.tokenizer(&files)?,
    );
    let watchdog = Watchdog::start(0, config.component_ids());
    let mut environment = Opened::open(&mut config, &registry, &files, &tokenizer, &watchdog)?;
    let generation = Generation {
        sampling: SamplingParams {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
        },
        max_completion_length: if delay.is_some() {
            length
        } else {
            TURNS * TURN
        },
        max_turn_length: 0,
        // Without an end token each turn has its whole length.
        eos_ids: Vec::new(),
        logps: false,
        sampler_logps: false,
        top_k: 0,
        max_num_seqs: 0,
    };
    let (prompt, text) = ("123+456=".to_owned(), String::new);
    let example = Example {
        prompt,
        answer: text(),
        solution: None,
        reply: None,
        columns: "{}".into(),
        row: None,
    };
    let (examples, indices) = (
        vec![&example; rows],
        (0..rows as u64).map(|row| [row, 0]).collect::<Vec<_>>(),
    );
    let (mut drawn, mut best) = (0, f64::INFINITY);
    for _ in 0..5 {
        let mut rngs: Vec<_> = indices
            .iter()
            .map(|index| host_rng::stream(42, "bench", index))
            .collect();
        let stage = Stage {
            purpose: Purpose::EVALUATION,
            step: 0,
            max_steps: 1,
            seed: 42,
            indices: &indices,
        };
        let (mut warned, started) = (BTreeSet::new(), Instant::now());
        let prompts = Prompts {
            examples: &examples,
            max_length: 16,
            stage: &stage,
        };
        let drawing = Drawing {
            generation: &generation,
            rngs: &mut rngs,
            capture: None,
        };
        let mut sink = WarningSink {
            warned: &mut warned,
            watchdog: &watchdog,
        };
        let playing = environment.as_mut().map(|environment| Playing {
            environment,
            sink: &mut sink,
        });
        let completed = complete(&policy, &tokenizer, &prompts, drawing, playing)?;
        best = best.min(started.elapsed().as_secs_f64());
        drawn = completed.completions.iter().map(SampledTokens::drawn).sum();
    }
    Ok((drawn, best))
}
