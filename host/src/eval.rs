//! Evaluation of a run's model during training: rewards and accuracy of greedy answers to held-out prompts, and benchmarks.

use anyhow::Result;
use capo_loader::warning::WarningSink;

use crate::benchmark::{self, Outcome};
use crate::exam::{Exam, Grader, Right, grade, mean_rewards, share_right};
use crate::metrics::Values;
use crate::run::Run;

/// True if an evaluation is due after the last step: every `eval.eval_steps`, and after the final step.
pub fn is_due(run: &Run) -> bool {
    let (step, every) = (run.progress.step, run.config.eval.eval_steps);
    let between_rollouts = step.is_multiple_of(run.config.sizes.steps_per_rollout);
    let is_last = step >= run.config.train.max_steps || (between_rollouts && run.has_its_completions());
    is_last || (every > 0 && step.is_multiple_of(every))
}

/// Metrics of the run's held-out prompts: `eval_reward`, `eval_rewards/NAME/mean`, and `eval_accuracy` if right answers are known. Empty
/// if `eval.num_prompts` is 0.
pub fn held_out(run: &mut Run) -> Result<Values> {
    if run.held_out.is_empty() {
        return Ok(Values::new());
    }
    let _timer = run.metrics.timer("eval");
    let exam = Exam::of(&run.config, run.progress.step);
    let mut sink = WarningSink { warned: &mut run.warned, watchdog: &run.watchdog };
    let right = Right::of(&run.config);
    let mut grader = Grader { rewards: &mut run.rewards, sink: &mut sink, right: &right };
    let graded = grade(&run.policy, &run.tokenizer, &mut grader, &run.held_out, &exam)?;
    let accuracy = share_right(&graded).map(|share| ("accuracy".to_owned(), share));
    let values = accuracy.into_iter().chain(mean_rewards(graded.iter().map(|graded| &graded.earned)));
    Ok(values.map(|(name, value)| (format!("eval_{name}"), value)).collect())
}

/// Metrics of the run's benchmarks, and their mean over benchmarks.
fn benchmarks(run: &mut Run) -> Result<Values> {
    let timer = run.metrics.timer("eval");
    let exam = Exam::of(&run.config, run.progress.step);
    let mut sink = WarningSink { warned: &mut run.warned, watchdog: &run.watchdog };
    let right = Right::of(&run.config);
    let mut grader = Grader { rewards: &mut run.rewards, sink: &mut sink, right: &right };
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

/// Records the evaluation before training.
pub fn record_before(run: &mut Run) -> Result<()> {
    record(run)?;
    run.progress.accuracy_before = run.progress.accuracy.take();
    run.progress.held_out_reward_before = run.progress.held_out_reward.take();
    Ok(())
}

/// Records an evaluation: the metrics of [`held_out`], and those of the benchmarks.
pub fn record(run: &mut Run) -> Result<()> {
    let mut values = held_out(run)?;
    let value = |name: &str| values.iter().find(|(found, _)| found == name).map(|(_, value)| *value);
    (run.progress.accuracy, run.progress.held_out_reward) = (value("eval_accuracy"), value("eval_reward"));
    if !run.benchmarks.is_empty() {
        values.extend(benchmarks(run)?);
    }
    run.metrics.extend(values);
    Ok(())
}
