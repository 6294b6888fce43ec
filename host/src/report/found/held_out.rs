//! Quality of a run's answers to held-out prompts: at first, at last, and at best.

use super::FoundRun;
use crate::terminal::short_percent;

/// A value, and the step after which it was measured; before training after step 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    pub value: f64,
    pub step: u64,
}

/// The held-out measurements of a run by one metric.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldOut {
    pub metric: String,
    pub first: Measured,
    pub last: Measured,
    /// The best value, the first of equal ones.
    pub best: Measured,
}

impl HeldOut {
    /// The measurements of the metric that [`metric`](Self::metric) chooses; `None` if the run
    /// measured nothing.
    pub fn of(run: &FoundRun) -> Option<Self> {
        let metric = Self::metric(run)?;
        let measured: Vec<Measured> = run
            .lines
            .column(&metric)
            .numbers()
            .map(|(row, value)| Measured {
                value,
                step: run.lines.steps[row],
            })
            .collect();
        Some(Self {
            metric,
            first: *measured.first()?,
            last: *measured.last()?,
            best: measured
                .iter()
                .copied()
                .reduce(|best, now| if now.value > best.value { now } else { best })?,
        })
    }

    /// The metric that says most about held-out prompts: the share of right answers, else their
    /// mean reward, else that of benchmarks.
    pub fn metric(run: &FoundRun) -> Option<String> {
        let names = run.lines.columns.keys().map(String::as_str);
        let benchmarks =
            names.filter(|name| name.starts_with("eval/") && name.ends_with("/pass@1"));
        ["eval_accuracy", "eval_reward", "eval/TEST/pass@1"]
            .into_iter()
            .chain(benchmarks)
            .find(|name| run.lines.column(name).last().is_some())
            .map(str::to_owned)
    }

    /// The metric in words.
    pub fn title(&self) -> String {
        match self.metric.as_str() {
            "eval_accuracy" => "held-out accuracy".to_owned(),
            "eval_reward" => "held-out reward".to_owned(),
            benchmark => benchmark.trim_start_matches("eval/").replace('/', " "),
        }
    }

    /// True if the values are shares of right answers.
    pub fn is_share(&self) -> bool {
        self.metric != "eval_reward"
    }

    /// A value of the metric in words: shares in percent.
    pub fn shown(&self, value: f64) -> String {
        if self.is_share() {
            short_percent(value)
        } else {
            format!("{value:.3}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::found::Lines;

    fn held_out(lines: &str) -> Option<HeldOut> {
        HeldOut::of(&FoundRun::of(
            "run",
            &[],
            Lines::parse(lines.as_bytes()).unwrap(),
        ))
    }

    #[test]
    fn the_best_is_the_first_of_equal_ones() {
        let found = held_out(
            "{\"step\":0,\"eval_accuracy\":0.5,\"eval_reward\":1}\n{\"step\":2,\"eval_accuracy\":0.75}\n{\"step\":3,\"reward\":1}\n\
             {\"step\":4,\"eval_accuracy\":0.75}\n{\"step\":6,\"eval_accuracy\":0.25}\n",
        );
        let found = found.unwrap();
        let at = |measured: Measured| (measured.step, found.shown(measured.value));
        let all = [found.first, found.best, found.last].map(at);
        assert_eq!(
            all,
            [
                (0, "50.0%".to_owned()),
                (2, "75.0%".to_owned()),
                (6, "25.0%".to_owned())
            ]
        );
    }

    #[test]
    fn a_run_without_an_accuracy_has_a_reward_or_a_benchmark() {
        let title = |lines: &str| {
            held_out(lines).map(|found| (found.title(), found.shown(found.last.value)))
        };
        let of = |title: &str, value: &str| Some((title.to_owned(), value.to_owned()));
        assert_eq!(
            title("{\"step\":0,\"eval_reward\":0.5}\n"),
            of("held-out reward", "0.500")
        );
        assert_eq!(
            title("{\"step\":0,\"eval/gsm8k/pass@1\":0.5,\"eval/gsm8k/reward\":1}\n"),
            of("gsm8k pass@1", "50.0%")
        );
        assert_eq!(
            title("{\"step\":0,\"reward\":0.5,\"eval_accuracy\":null}\n"),
            None
        );
    }
}
