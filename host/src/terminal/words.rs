//! Settings in words, for the header of a run.

use host_model::optim::OptimizerName;
use host_model::optim::adamw::SecondMoment;
use host_model::{Adapter, Targets};

use crate::config::TrainConfig;
use crate::metrics::FoundRates;

/// An adapter's settings.
pub fn adapter(adapter: &Adapter) -> String {
    let config = adapter.config();
    let targets = match &config.targets {
        Targets::OfFamily => "q_proj, v_proj".to_owned(),
        Targets::AllLinear => "all-linear".to_owned(),
        Targets::Named(names) => names.join(", "),
        Targets::Pattern(pattern) => pattern.clone(),
    };
    let root = if config.rslora {
        ", divided by the root of the rank"
    } else {
        ""
    };
    format!(
        "rank {}, alpha {}{root}, dropout {}, of {targets}",
        config.r, config.alpha, config.dropout
    )
}

/// Description of when a run is saved.
pub fn saving(train: &TrainConfig) -> String {
    let times = [
        every(train.save_steps as f64, "step"),
        every(train.save_minutes, "minute"),
    ];
    let times: Vec<String> = times.into_iter().flatten().collect();
    if times.is_empty() {
        return "only at the end: a run that is killed begins again at step 1".to_owned();
    }
    format!("{}, and at the end", times.join(" and "))
}

/// An interval of so many units; `None` if it is 0.
fn every(count: f64, unit: &str) -> Option<String> {
    match count {
        0.0 => None,
        1.0 => Some(format!("every {unit}")),
        count => Some(format!("every {count} {unit}s")),
    }
}

/// Description of the optimizer, unless it is plain AdamW.
pub fn optimizer(train: &TrainConfig) -> Option<String> {
    match (train.optimizer, train.second_moment) {
        (OptimizerName::AdamW, SecondMoment::Kept) => None,
        (OptimizerName::AdamW, SecondMoment::KeptAndRejected) => {
            Some("adamw, its second moment of kept and rejected gradients".to_owned())
        }
        (OptimizerName::Sgd, _) => Some(format!("sgd, momentum {}", train.sgd_momentum)),
    }
}

/// The learning rate that a step control found, of the one that is `set`.
pub fn found_rate(found: f64, set: f64) -> String {
    let share = found / set;
    let share = if share < 0.01 {
        format!("{share:.0e}")
    } else {
        format!("{share:.2}")
    };
    format!("learning rate found: {found:.1e} (share {share} of {set:.1e})")
}

/// The learning rates that a step control found during a run.
pub fn found_rates(rates: FoundRates) -> String {
    let FoundRates {
        middle,
        lowest,
        highest,
    } = rates;
    format!("learning rate      {middle:.1e} in the median step, {lowest:.1e} to {highest:.1e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_when_a_run_is_saved() {
        for (save_steps, save_minutes, expected) in [
            (
                100,
                10.0,
                "every 100 steps and every 10 minutes, and at the end",
            ),
            (0, 2.5, "every 2.5 minutes, and at the end"),
            (1, 1.0, "every step and every minute, and at the end"),
            (
                0,
                0.0,
                "only at the end: a run that is killed begins again at step 1",
            ),
        ] {
            assert_eq!(
                saving(&TrainConfig {
                    save_steps,
                    save_minutes,
                    ..TrainConfig::default()
                }),
                expected
            );
        }
    }
}
