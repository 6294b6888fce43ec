//! The line on a terminal that shows a run's progress and its remaining time.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use host_model::sampled;
use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};

use super::{grouped, note, percent};
use crate::metrics::Line;
use crate::metrics::names::REJECTED;

/// A line at the end of standard error that changes with every step; nothing if standard error is
/// not a terminal.
pub(super) struct Live {
    bar: ProgressBar,
    /// Time at which the first step of this process ended, and the number of tokens up to then.
    first: Option<(Instant, f64)>,
    /// The newest held-out accuracy.
    accuracy: Option<f64>,
}

impl Live {
    /// The line of a run of `steps` steps, of which `done` are done.
    pub(super) fn new(steps: u64, done: u64) -> Self {
        Self {
            bar: bar(steps, done),
            first: None,
            accuracy: None,
        }
    }

    /// Calls `say` while the line is hidden.
    pub(super) fn aside(&self, say: impl FnOnce()) {
        self.bar.suspend(say);
    }

    /// Shows the metrics of a step, and the means of some since the last printed line.
    pub(super) fn step(&mut self, line: &Line, means: &BTreeMap<&str, f64>) {
        let tokens = line.value("num_tokens").unwrap_or(0.0);
        let (since, before) = *self.first.get_or_insert_with(|| (Instant::now(), tokens));
        let seconds = since.elapsed().as_secs_f64();
        let speed = (tokens > before && seconds > 0.0).then(|| (tokens - before) / seconds);
        self.accuracy = line.value("eval_accuracy").or(self.accuracy);
        self.bar.set_position(line.step);
        self.bar.set_message(message(means, self.accuracy, speed));
    }

    /// Removes the line.
    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// A line that changes; nothing if standard error is not a terminal.
fn bar(all: u64, done: u64) -> ProgressBar {
    let bar = if std::io::stderr().is_terminal() {
        // Without colours, so that the line looks equal on every terminal.
        let style = ProgressStyle::with_template("{bar:16} {pos}/{len}  {left}{wide_msg}");
        let style = style
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .with_key(
                "left",
                move |state: &ProgressState, line: &mut dyn Write| {
                    // Before the first step of this process nothing is known.
                    if state.pos() > done {
                        let _ = write!(line, "{:#} left  ", HumanDuration(state.eta()));
                    }
                },
            );
        ProgressBar::new(all).with_position(done).with_style(style)
    } else {
        ProgressBar::hidden()
    };
    // Steps of an earlier process say nothing about the speed of this one.
    bar.reset_eta();
    bar
}

/// Interval between updates of an evaluation's progress, and between separate lines if there is no
/// terminal.
const LOOK: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// Progress of an evaluation: one line at the end of standard error, or a line now and then if that
/// is not a terminal.
pub struct Answered {
    bar: ProgressBar,
    /// Dropping it ends the thread.
    _running: Sender<()>,
}

impl Answered {
    /// The progress of an evaluation of `all` answers, of which `done` exist.
    pub fn of(done: usize, all: usize) -> Self {
        let bar = bar(all as u64, done as u64);
        let before = sampled();
        let (running, ended) = channel::<()>();
        let shown = bar.clone();
        thread::spawn(move || {
            let mut told = Instant::now();
            while ended.recv_timeout(LOOK.0) == Err(RecvTimeoutError::Timeout) {
                let answered = all.min(done + sampled() - before);
                shown.set_position(answered as u64);
                if shown.is_hidden() && told.elapsed() >= LOOK.1 {
                    note(&format!("{answered} of {all} answers"));
                    told = Instant::now();
                }
            }
        });
        Self {
            bar,
            _running: running,
        }
    }

    /// Calls `say` while the line is hidden.
    pub fn aside(&self, say: impl FnOnce()) {
        self.bar.suspend(say);
    }
}

impl Drop for Answered {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Text of the line: `means` of metrics, the newest `accuracy`, and tokens per second.
fn message(means: &BTreeMap<&str, f64>, accuracy: Option<f64>, speed: Option<f64>) -> String {
    let [reward, rejected] =
        ["reward", REJECTED].map(|name| means.get(name).copied().filter(|value| value.is_finite()));
    let parts = [
        reward.map(|reward| format!("reward {reward:.3}")),
        accuracy.map(|accuracy| format!("accuracy {:.1}%", 100.0 * accuracy)),
        rejected.map(|rate| format!("rejected {}", percent(rate))),
        speed.map(|speed| format!("{} tokens/s", grouped(speed as u64))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_only_known_values() {
        let values = BTreeMap::from([("reward", 0.5), (REJECTED, 0.0125)]);
        let all = "reward 0.500  accuracy 75.0%  rejected 1.25%  12,345 tokens/s";
        assert_eq!(message(&values, Some(0.75), Some(12345.6)), all);
        assert_eq!(
            message(&BTreeMap::from([("reward", f64::NAN)]), None, None),
            ""
        );
    }
}
