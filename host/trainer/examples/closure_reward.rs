//! Trains the embedded model with a reward that is a closure.
//!
//! `cargo run --release -p host-trainer --example closure_reward`

use std::sync::OnceLock;

use anyhow::Result;
use capo_loader::registry::Registry;
use capo_plugin::Completion;
use capo_plugin::prelude::*;
use host_trainer::config::{self, Draft};
use host_trainer::metrics::Line;
use host_trainer::run::Run;
use host_trainer::train::{Observer, train};

/// The reward of a completion.
type Score = dyn Fn(&Completion<'_>) -> f32 + Send + Sync;

static SCORE: OnceLock<Box<Score>> = OnceLock::new();

/// What a closure says.
///
/// A component that an executable registers is built into it.
#[component(Reward, id = "closure")]
struct Closure {}

impl Reward for Closure {
    fn score(
        &mut self,
        _ctx: &mut Ctx<'_>,
        rollout: &Rollout<'_>,
        rewards: &mut [f32],
    ) -> Result<(), PluginError> {
        let score = SCORE
            .get()
            .ok_or_else(|| PluginError::state("no closure is set"))?;
        for (reward, completion) in rewards.iter_mut().zip(&rollout.completions) {
            *reward = score(completion);
        }
        Ok(())
    }
}

/// Prints the mean reward of each step.
struct Printed;

impl Observer for Printed {
    fn line(&mut self, _run: &Run, line: &Line) {
        if let Some(reward) = line.value("reward") {
            println!("step {:>2}  reward {reward:.3}", line.step);
        }
    }
}

fn main() -> Result<()> {
    // The model learns to write this digit as often as it can.
    let wanted = '7';
    let _ = SCORE.set(Box::new(move |completion| {
        completion.text.matches(wanted).count() as f32
    }));

    let folder = tempfile::tempdir()?;
    let registry = Registry::open(&[])?;
    let sets = [
        "reward=[{use=\"closure\"}]",
        "train.max_steps=20",
        "train.learning_rate=1e-3",
        "eval.num_prompts=0",
    ];
    let draft = Draft::read(None, config::DEFAULT, &sets.map(String::from))?;
    let mut config = config::resolve(&registry, draft)?.config;
    config.train.output_dir = Some(folder.path().join("run"));
    let mut run = Run::start(config, &registry)?;
    train(&mut run, &mut Printed, None, &false.into())
}
