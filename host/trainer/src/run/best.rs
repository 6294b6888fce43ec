//! Finds the best checkpoint by a metric, and decides when a run ends because that metric no longer
//! improves.

use anyhow::{Result, bail};
use capo_plugin::nearest;

use super::Run;
use super::progress::Best;
use crate::config::TrainConfig;

/// Compares the evaluation of the last step with the best one so far.
///
/// # Errors
///
/// When no step so far has had the metric.
pub fn consider(run: &mut Run) -> Result<()> {
    let Some(metric) = run.config().train.metric_for_best_model.as_deref() else {
        return Ok(());
    };
    let value = run.observers.metrics.value(metric);
    if value.is_none() && run.progress.best.is_none() {
        refuse(run, metric)?;
    }
    // A step whose metric is missing is never the best.
    let value = value.unwrap_or(f64::NAN);
    run.progress.best = compared(
        run.progress.best.take(),
        run.progress.step,
        value,
        &run.resources.config.train,
    );
    Ok(())
}

/// Refuses a metric that starts with `eval`, but that the evaluation before training does not have.
pub fn check(run: &Run) -> Result<()> {
    match run.config().train.metric_for_best_model.as_deref() {
        Some(metric)
            if metric.starts_with("eval") && run.observers.metrics.value(metric).is_none() =>
        {
            refuse(run, metric)
        }
        _ => Ok(()),
    }
}

fn refuse(run: &Run, metric: &str) -> Result<()> {
    let hint = match nearest(metric, run.observers.metrics.names()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "a line of `metrics.jsonl` has the names".to_owned(),
    };
    bail!(
        "`train.metric_for_best_model` is `{metric}`, which step {} does not have ({hint})",
        run.progress.step
    )
}

fn compared(before: Option<Best>, step: u64, value: f64, train: &TrainConfig) -> Option<Best> {
    let measure = train.measure_of_best();
    let Some(before) = before else {
        return value.is_finite().then_some(Best {
            step,
            value,
            without_improvement: 0,
            measure,
        });
    };
    let gain = if train.is_greater_better() {
        value - before.value
    } else {
        before.value - value
    };
    // `progress.json` could not hold an infinite value.
    let gain = if value.is_finite() { gain } else { f64::NAN };
    let without_improvement = if gain > train.early_stopping_threshold {
        0
    } else {
        before.without_improvement + 1
    };
    let (step, value) = if gain > 0.0 {
        (step, value)
    } else {
        (before.step, before.value)
    };
    Some(Best {
        step,
        value,
        without_improvement,
        measure,
    })
}

/// True if the run has done its last step, or ends before it.
pub fn is_done(run: &Run) -> bool {
    run.progress.step >= run.config().train.max_steps || ending(run).is_some()
}

/// The reason why the run ends before its last step; `None` if it continues.
pub fn ending(run: &Run) -> Option<String> {
    let train = &run.config().train;
    if run.has_its_completions() {
        return Some(format!(
            "{} completions are sampled (`train.max_completions` is {})",
            run.progress.completions, train.max_completions
        ));
    }
    let best = run.progress.best.as_ref().filter(|best| {
        train.early_stopping_patience > 0
            && best.without_improvement >= train.early_stopping_patience
    })?;
    Some(format!(
        "{} evaluations without improvement, the best was {} after step {} \
         (`train.early_stopping_patience` is {})",
        best.without_improvement, best.value, best.step, train.early_stopping_patience
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Progress;

    fn history(train: &TrainConfig, values: &[f64]) -> Vec<(u64, u64)> {
        let mut best = None;
        let mut history = Vec::new();
        for (step, value) in (1..).zip(values) {
            best = compared(best.take(), step, *value, train);
            let now = best.as_ref();
            history.push(now.map_or((0, 0), |best| (best.step, best.without_improvement)));
        }
        history
    }

    #[test]
    fn keeps_the_best_and_counts_the_others() {
        let train = TrainConfig {
            metric_for_best_model: Some("eval_accuracy".into()),
            ..TrainConfig::default()
        };
        assert_eq!(
            history(&train, &[0.1, 0.3, 0.2, 0.3, 0.4]),
            [(1, 0), (2, 0), (2, 1), (2, 2), (5, 0)]
        );
        let lower = TrainConfig {
            metric_for_best_model: Some("loss".into()),
            ..TrainConfig::default()
        };
        assert_eq!(history(&lower, &[0.3, 0.2, 0.4]), [(1, 0), (2, 0), (2, 1)]);
        let named = TrainConfig {
            greater_is_better: Some(true),
            ..lower
        };
        assert_eq!(history(&named, &[0.3, 0.2, 0.4]), [(1, 0), (1, 1), (3, 0)]);
    }

    #[test]
    fn a_gain_below_the_threshold_is_the_best_but_not_an_improvement() {
        let train = TrainConfig {
            early_stopping_threshold: 0.1,
            ..TrainConfig::default()
        };
        assert_eq!(history(&train, &[0.5, 0.55, 0.7]), [(1, 0), (2, 1), (3, 0)]);
    }

    #[test]
    fn values_that_are_not_finite_are_never_the_best() {
        let train = TrainConfig::default();
        for none in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(
                history(&train, &[none, 0.2, none, 0.3]),
                [(0, 0), (2, 0), (2, 1), (4, 0)]
            );
        }
        // As earlier versions saved it.
        let best = Some(Best {
            step: 2,
            value: f64::INFINITY,
            without_improvement: 0,
            measure: None,
        });
        let saved = serde_json::to_string(&Progress {
            best,
            ..Progress::default()
        })
        .unwrap();
        assert_eq!(serde_json::from_str::<Progress>(&saved).unwrap().best, None);
    }
}
