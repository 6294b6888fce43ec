//! How good a run's model is while it trains: the share of held-out prompts that it answers greedily and right, and its benchmarks.

use anyhow::Result;

use crate::benchmark::{self, Outcome};
use crate::exam::{Exam, Grader, grade, share_right};
use crate::metrics::Values;
use crate::metrics::sink::WarningSink;
use crate::run::Run;

/// Whether the run is measured after the step just done: every `eval.eval_steps`, and after the last.
#[must_use]
pub fn is_due(run: &Run) -> bool {
    let (step, every) = (run.progress.step, run.config.eval.eval_steps);
    let between_rollouts = step.is_multiple_of(run.config.sizes.steps_per_rollout);
    let is_last = step >= run.config.train.max_steps || (between_rollouts && run.has_its_completions());
    is_last || (every > 0 && step.is_multiple_of(every))
}

/// The run's held-out accuracy, or none where `eval.num_prompts` is 0.
///
/// # Errors
///
/// As [`grade`].
pub fn accuracy(run: &mut Run) -> Result<Option<f64>> {
    if run.held_out.is_empty() {
        return Ok(None);
    }
    let _timer = run.metrics.timer("eval");
    let exam = Exam::of(&run.config, run.progress.step);
    let mut sink = WarningSink { warned: &mut run.warned, watchdog: &run.watchdog };
    let decides = run.config.eval.reward.as_deref();
    let mut grader = Grader { rewards: &mut run.rewards, sink: &mut sink, decides };
    let graded = grade(&run.policy, &run.tokenizer, &mut grader, &run.held_out, &exam)?;
    Ok(Some(share_right(&graded)))
}

/// The metrics of the run's benchmarks, and their mean.
///
/// # Errors
///
/// As [`grade`].
fn benchmarks(run: &mut Run) -> Result<Values> {
    let timer = run.metrics.timer("eval");
    let exam = Exam::of(&run.config, run.progress.step);
    let mut sink = WarningSink { warned: &mut run.warned, watchdog: &run.watchdog };
    let decides = run.config.eval.reward.as_deref();
    let mut grader = Grader { rewards: &mut run.rewards, sink: &mut sink, decides };
    let mut all = Vec::new();
    for benchmark in &run.benchmarks {
        let mut outcomes = Vec::with_capacity(benchmark.answers());
        for chunk in benchmark.chunks(0, exam.batch_size) {
            let answers = benchmark.answer(chunk, &run.policy, &run.tokenizer, &mut grader, &exam)?;
            outcomes.extend(answers.iter().map(Outcome::from));
        }
        all.push((benchmark.name.clone(), benchmark.metrics(&outcomes)));
    }
    drop(timer);
    let mean = benchmark::mean(&all);
    Ok(all.into_iter().flat_map(|(_, values)| values).chain(mean).collect())
}

/// Records how good the run's model is before training.
///
/// # Errors
///
/// As [`grade`].
pub fn record_before(run: &mut Run) -> Result<()> {
    run.progress.accuracy_before = accuracy(run)?;
    record_all(run, run.progress.accuracy_before)
}

/// Records how good the run's model is: its held-out accuracy as `eval_accuracy`, and the metrics of its benchmarks.
///
/// # Errors
///
/// As [`grade`].
pub fn record(run: &mut Run) -> Result<()> {
    let accuracy = accuracy(run)?;
    run.progress.accuracy = accuracy.or(run.progress.accuracy);
    record_all(run, accuracy)
}

fn record_all(run: &mut Run, accuracy: Option<f64>) -> Result<()> {
    if let Some(accuracy) = accuracy {
        run.metrics.record("eval_accuracy", accuracy);
    }
    if !run.benchmarks.is_empty() {
        let values = benchmarks(run)?;
        run.metrics.extend(values);
    }
    Ok(())
}
