//! `host eval`.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use capo_loader::files;
use capo_loader::watchdog::Watchdog;

use super::Failure;
use super::args::EvalArgs;
use crate::config::Appended;
use crate::data::{Purpose, Tokenizer};
use crate::eval::{self, Exam, Grader};
use crate::metrics::sink::WarningSink;
use crate::model::{Policy, device, embedded};
use crate::report::terminal::say;
use crate::reward::Rewards;

/// Measures held-out accuracy.
pub(super) fn run(args: &EvalArgs) -> Result<(), Failure> {
    let open = || -> Result<_> {
        if let Some(path) = &args.output {
            files::check_replaceable(path)?;
        }
        let registry = args.plugins.open()?;
        let config = args.config.resolve(&registry, Appended::default())?.config;
        ensure!(
            args.model.is_some() || !config.model.fresh_weights,
            "`model.fresh_weights` is true: there is no model to measure (name one with `--model`)"
        );
        let count = args.num_prompts.unwrap_or(config.eval.num_prompts);
        ensure!(count > 0, "`eval.num_prompts` is 0: there is nothing to measure (give `--num-prompts`)");
        let name = args.model.as_deref().unwrap_or(&config.model.model_name_or_path);
        let files = config.data.amend(embedded::model_files(name)?)?;
        let dtype = config.train.dtype;
        let device_name = args.device.as_deref().unwrap_or(&config.train.device);
        let device = device::open(device_name, dtype)?;
        let policy = Policy::load(&files, &device)?.with_dtype(dtype.into());
        let tokenizer = Tokenizer::open(&files)?;
        policy.check_lengths(
            config.data.max_prompt_length,
            ("rollout", config.rollout.max_completion_length),
            count.min(eval::CHUNK),
        )?;
        let dataset = config.data.open(config.train.seed, Purpose::Measuring, &files, &tokenizer, &policy)?;
        let examples = dataset.held_out(count)?;
        let watchdog = Watchdog::start(config.train.component_timeout, config.component_ids());
        let rewards = Rewards::build(&registry, &config.reward, device_name, &watchdog)?;
        Ok((policy, tokenizer, rewards, examples, config, watchdog))
    };
    let (policy, tokenizer, mut rewards, examples, config, watchdog) = open().map_err(Failure::Input)?;
    let mut work = || -> Result<()> {
        let mut sink = WarningSink { warned: &mut BTreeSet::new(), watchdog: &watchdog };
        let mut grader = Grader { rewards: &mut rewards, sink: &mut sink };
        let graded = eval::grade(&policy, &tokenizer, &mut grader, &examples, &Exam::of(&config, 0))?;
        let (share, prompts) = (100.0 * eval::share_right(&graded), graded.len());
        say(&format!("held-out accuracy {share:.1}% of {prompts} prompts, greedy"));
        if let Some(path) = &args.output {
            let lines =
                graded.iter().map(|graded| Ok(serde_json::to_string(graded)? + "\n")).collect::<Result<String>>()?;
            files::write_atomic(path, lines.as_bytes())?;
        }
        Ok(())
    };
    work().map_err(Failure::Run)
}
