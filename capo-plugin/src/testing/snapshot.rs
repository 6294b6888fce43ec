//! Results of a component on every batch of [`batches`] or [`rollouts`], as text to store and
//! compare.

use std::fmt::Write;

use super::observed::{Answer, Input, Observed, step};
use super::{batches, rollouts};
use crate::Point;

/// Renders the results of `component` to four significant digits, for a snapshot test.
///
/// The component gets [`batches`] (a reward: [`rollouts`]) in order and keeps its state between
/// them. Each completion has a line, with `.` for padding and `value*3` for a value that occurs
/// three times in a row. Then follow the recorded numbers, sorted by name, and the warnings. An
/// error replaces the results. The text is equal on every machine if the component's numbers are.
///
/// ```
/// use capo_plugin::prelude::*;
/// use capo_plugin::testing::{self, snapshot};
///
/// #[keys]
/// struct Half {}
///
/// impl Advantage for Half {
///     fn estimate(&mut self, _ctx: &mut Ctx, batch: &Batch, advantages: &mut [f32]) -> Result<(), PluginError> {
///         for (i, advantage) in advantages.iter_mut().enumerate().filter(|(i, _)| batch.completion_mask[*i] == 1) {
///             *advantage = batch.rewards[i / batch.dims.tokens as usize] / 2.0;
///         }
///         Ok(())
///     }
/// }
///
/// let text = snapshot(&mut testing::advantage::<Half>("").unwrap());
/// assert!(text.starts_with("ragged: B 4, T 5, G 2\n  advantage\n    5.000e-1*5\n    0*3 .*2\n    2.500e-1 .*4\n"));
/// ```
pub fn snapshot(component: &mut impl Observed) -> String {
    Snapshot::default().of(component)
}

/// Settings for a rendering.
#[derive(Clone, Debug)]
pub struct Snapshot {
    digits: usize,
    only: Option<Vec<String>>,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self {
            digits: 4,
            only: None,
        }
    }
}

impl Snapshot {
    /// Sets the number of significant digits, at least one. Use few where the last digits depend on
    /// the order of sums.
    #[must_use]
    pub fn digits(self, digits: usize) -> Self {
        Self {
            digits: digits.max(1),
            ..self
        }
    }

    /// Renders only these results and records: `reward`, `advantage`, `loss`, `dloss_dlogp`,
    /// `token_mask`, `weight`, or a recorded name.
    #[must_use]
    pub fn only(self, names: &[&str]) -> Self {
        Self {
            only: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            ..self
        }
    }

    /// Renders `component`. Every step is taken.
    pub fn of(&self, component: &mut impl Observed) -> String {
        let mut sheet = Sheet {
            settings: self,
            text: String::new(),
        };
        for (name, input) in inputs(component.point()) {
            sheet.line(0, &format!("{name}: {}", input.shape().replace(" =", "")));
            let width = match &input {
                Input::Batch(batch) => batch.dims.tokens as usize,
                Input::Rollout(rollout) => rollout.rollout().completions.len(),
            };
            match step(component, &input, Some(true)) {
                Ok(answer) => sheet.answer(answer, width),
                Err(error) => sheet.line(2, &format!("error: {error}")),
            }
        }
        sheet.text
    }
}

fn inputs(point: Point) -> Vec<(&'static str, Input)> {
    match point {
        point if point.sees_text() => rollouts()
            .into_iter()
            .map(|(name, rollout)| (name, Input::Rollout(rollout)))
            .collect(),
        _ => batches()
            .into_iter()
            .map(|(name, batch)| (name, Input::Batch(Box::new(batch))))
            .collect(),
    }
}

struct Sheet<'a> {
    settings: &'a Snapshot,
    text: String,
}

impl Sheet<'_> {
    fn line(&mut self, indent: usize, text: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{:indent$}{text}", "");
    }

    fn wants(&self, name: &str) -> bool {
        self.settings
            .only
            .as_ref()
            .is_none_or(|only| only.iter().any(|wanted| wanted == name))
    }

    fn number(&self, value: f64) -> String {
        // The sign of a zero depends on the order of operations.
        if value == 0.0 {
            "0".into()
        } else {
            format!("{value:.*e}", self.settings.digits - 1)
        }
    }

    /// Writes the outputs, then the records sorted by name; several numbers under one name keep
    /// their order.
    fn answer(
        &mut self,
        Answer {
            outputs,
            mut records,
            mask,
            said,
            ..
        }: Answer,
        width: usize,
    ) {
        for (name, values) in outputs {
            if name.starts_with("scale of ") {
                let scale = self.number(values[0]);
                self.line(2, &format!("{name} = {scale}"));
            } else {
                self.rows(name, &values, &mask, width, name == "token_mask");
            }
        }
        records.numbers.sort_by(|a, b| a.0.cmp(&b.0));
        records.tokens.sort_by(|a, b| a.0.cmp(&b.0));
        for (name, value) in &records.numbers {
            if self.wants(name) {
                let value = self.number(*value);
                self.line(2, &format!("{name} = {value}"));
            }
        }
        for (name, values) in &records.tokens {
            self.rows(name, values, &mask, width, false);
        }
        for said in said {
            self.line(2, &said);
        }
        for warning in &records.warnings {
            self.line(2, &format!("warning: {warning}"));
        }
    }

    /// Writes one line per completion if the name is wanted; `close` omits the spaces between
    /// values.
    fn rows<T: Copy + Into<f64>>(
        &mut self,
        name: &str,
        values: &[T],
        mask: &[u8],
        width: usize,
        close: bool,
    ) {
        if !self.wants(name) {
            return;
        }
        self.line(2, name);
        for (values, mask) in values.chunks(width).zip(mask.chunks(width)) {
            let words = values.iter().zip(mask).map(|(&value, mask)| match mask {
                0 => ".".to_owned(),
                _ if close => value.into().to_string(),
                _ => self.number(value.into()),
            });
            let line = if close { words.collect() } else { runs(words) };
            self.line(4, &line);
        }
    }
}

/// Joins words, with equal neighbours as `word*count`.
fn runs(words: impl Iterator<Item = String>) -> String {
    let mut runs: Vec<(String, usize)> = Vec::new();
    for word in words {
        match runs.last_mut() {
            Some((last, count)) if *last == word => *count += 1,
            _ => runs.push((word, 1)),
        }
    }
    let runs = runs.into_iter().map(|(word, count)| {
        if count == 1 {
            word
        } else {
            format!("{word}*{count}")
        }
    });
    runs.collect::<Vec<_>>().join(" ")
}
