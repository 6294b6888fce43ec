//! Evaluation of a run's model during training: rewards and accuracy of greedy answers to held-out
//! prompts, and benchmarks.

use std::time::Instant;

use anyhow::Result;
use capo_loader::warning::WarningSink;

use crate::benchmark::{self, Outcome};
use crate::exam::{Exam, Grader, RightAnswer, grade, mean_rewards, share_right};
use crate::metrics::Values;
use crate::run::{Resources, Run};

/// True if an evaluation is due after the last step: every `eval.eval_steps`, and after the final
/// step.
pub fn is_due(run: &Run) -> bool {
    let config = run.config();
    let step = run.progress.step;
    let between_rollouts = step.is_multiple_of(config.sizes.steps_per_rollout);
    let is_last = step >= config.train.max_steps || (between_rollouts && run.has_its_completions());
    is_last || (config.eval.eval_steps > 0 && step.is_multiple_of(config.eval.eval_steps))
}

/// Evaluates the run's model now.
pub fn evaluate(run: &mut Run) -> Result<()> {
    let started = Instant::now();
    let values = measure(run)?;
    run.progress.accuracy = value(&values, "eval_accuracy");
    run.progress.held_out_reward = value(&values, "eval_reward");
    if !values.is_empty() {
        run.observers.metrics.add_time("eval", started);
    }
    run.observers.metrics.extend(values)
}

fn value(values: &Values, name: &str) -> Option<f64> {
    values
        .iter()
        .find(|(found, _)| found == name)
        .map(|(_, value)| *value)
}

/// Metrics of the run's held-out prompts and of its benchmarks, and the mean over benchmarks.
///
/// Held-out prompts give `eval_reward`, `eval_rewards/NAME/mean`, and `eval_accuracy` if right
/// answers are known.
fn measure(run: &mut Run) -> Result<Values> {
    let Run {
        resources,
        warned,
        progress,
        ..
    } = run;
    let Resources {
        config,
        policy,
        tokenizer,
        held_out,
        benchmarks,
        rewards,
        environment,
        watchdog,
        ..
    } = resources;
    let mut values = Values::new();
    if held_out.is_empty() && benchmarks.is_empty() {
        return Ok(values);
    }
    let exam = Exam::of(config, progress.step);
    let mut sink = WarningSink { warned, watchdog };
    let right = RightAnswer::of(config);
    let mut grader = Grader {
        rewards,
        environment: environment.as_mut(),
        sink: &mut sink,
        right: &right,
    };
    if !held_out.is_empty() {
        let graded = grade(policy, tokenizer, &mut grader, held_out, &exam)?;
        if let Some(share) = share_right(&graded) {
            values.push(("eval_accuracy".to_owned(), share));
        }
        for (name, value) in mean_rewards(graded.iter().map(|graded| &graded.earned)) {
            values.push((format!("eval_{name}"), value));
        }
    }
    let mut all = Vec::new();
    for benchmark in &*benchmarks {
        let mut outcomes = Vec::with_capacity(benchmark.answers());
        for chunk in benchmark.chunks(0, exam.batch_size) {
            let answers = benchmark.answer(chunk, policy, tokenizer, &mut grader, &exam)?;
            outcomes.extend(answers.iter().map(Outcome::from));
        }
        all.push((benchmark.name.clone(), benchmark.metrics(&outcomes)));
    }
    let mean = benchmark::mean(&all);
    values.extend(all.into_iter().flat_map(|(_, values)| values).chain(mean));
    Ok(values)
}
