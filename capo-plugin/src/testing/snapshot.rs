//! What a component does on every batch of [`batches`] or [`rollouts`], as text to keep and compare.

use std::fmt::Write;

use super::{Listener, Measured, Records, batches, rollouts};
use crate::batch::{Batch, Dims};
use crate::error::PluginError;
use crate::points::StepControlFn;
use crate::points::{Advantage, Mask, ObjectiveFn, RewardFn, Weight};

/// Renders what `component` does, to four significant digits, for a snapshot test.
///
/// The component sees [`batches`] (a reward: [`rollouts`]) in order, with its state. There is a line per completion, `.` for
/// padding and `value*3` for a value that stands three times; then what it recorded, sorted by name, its warnings, and an
/// error in place of results. The text is the same on every machine, as far as the component's numbers are.
///
/// ```
/// use capo_plugin::prelude::*;
/// use capo_plugin::testing::{self, snapshot};
///
/// #[derive(Deserialize)]
/// struct Half {}
///
/// impl AdvantageEstimator for Half {
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
#[must_use]
pub fn snapshot(component: &mut impl Observed) -> String {
    Snapshot::default().of(component)
}

/// A rendering with settings of its own.
#[derive(Clone, Debug)]
pub struct Snapshot {
    digits: usize,
    only: Option<Vec<String>>,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self { digits: 4, only: None }
    }
}

impl Snapshot {
    /// Renders numbers to this many significant digits, at least one: few where their last ones depend on the order of sums.
    #[must_use]
    pub fn digits(self, digits: usize) -> Self {
        Self { digits: digits.max(1), ..self }
    }

    /// Renders these results and records alone: `reward`, `advantage`, `loss`, `dloss_dlogp`, `keep`, `weight`, or a recorded name.
    #[must_use]
    pub fn only(self, names: &[&str]) -> Self {
        Self { only: Some(names.iter().map(|name| (*name).to_owned()).collect()), ..self }
    }

    /// The rendering of `component`.
    #[must_use]
    pub fn of(&self, component: &mut impl Observed) -> String {
        let mut sheet = Sheet { settings: self, text: String::new() };
        component.observe(&mut sheet);
        sheet.text
    }
}

/// A component that can be rendered: [`RewardFn`], [`Advantage`], [`ObjectiveFn`], [`Mask`], [`Weight`], [`StepControlFn`].
pub trait Observed {
    #[doc(hidden)]
    fn observe(&mut self, sheet: &mut Sheet<'_>);
}

/// The text so far.
#[doc(hidden)]
pub struct Sheet<'a> {
    settings: &'a Snapshot,
    text: String,
}

impl Observed for RewardFn {
    fn observe(&mut self, sheet: &mut Sheet<'_>) {
        for (name, fixture) in rollouts() {
            let count = fixture.rollout().completions.len();
            sheet.line(0, &format!("{name}: B {count}, G {}", fixture.rollout().group_size));
            let (all, one_row) = (vec![1; count], std::iter::once(0..count));
            if let Some(scored) = sheet.outcome(fixture.score(self)) {
                sheet.rows("reward", &scored.rewards, &all, one_row.clone());
                sheet.records(scored.records, &all, one_row);
            }
        }
    }
}

impl Observed for Advantage {
    fn observe(&mut self, sheet: &mut Sheet<'_>) {
        for (name, fixture) in batches() {
            let batch = fixture.batch();
            sheet.heading(name, &batch);
            let (mut advantages, context) = (vec![0.0; batch.dims.len()], fixture.context());
            let mut listener = Listener::new(&context);
            let outcome = self.estimate(&mut listener, &batch, &mut advantages);
            if sheet.outcome(outcome).is_some() {
                sheet.tokens("advantage", &advantages, &batch);
                sheet.records(listener.records, batch.completion_mask, rows(batch.dims));
            }
        }
    }
}

impl Observed for ObjectiveFn {
    fn observe(&mut self, sheet: &mut Sheet<'_>) {
        for (name, fixture) in batches() {
            let batch = fixture.batch();
            sheet.heading(name, &batch);
            let (mut loss, mut slope) = (vec![0.0; batch.dims.len()], vec![0.0; batch.dims.len()]);
            let context = fixture.context();
            let mut listener = Listener::new(&context);
            let outcome = self.evaluate(&mut listener, &batch, &mut loss, &mut slope);
            if sheet.outcome(outcome).is_some() {
                sheet.tokens("loss", &loss, &batch);
                sheet.tokens("dloss_dlogp", &slope, &batch);
                sheet.records(listener.records, batch.completion_mask, rows(batch.dims));
            }
        }
    }
}

impl Observed for Mask {
    /// Every step is taken.
    fn observe(&mut self, sheet: &mut Sheet<'_>) {
        for (name, fixture) in batches() {
            let batch = fixture.batch();
            sheet.heading(name, &batch);
            let (mut keep, context) = (batch.completion_mask.to_vec(), fixture.context());
            let mut listener = Listener::new(&context);
            let masked = self.mask(&mut listener, &batch, &mut keep);
            let outcome = masked.and_then(|()| self.step_end(&mut listener, &batch, &keep, true));
            if sheet.outcome(outcome).is_some() {
                sheet.keep(&keep, &batch);
                sheet.records(listener.records, batch.completion_mask, rows(batch.dims));
            }
        }
    }
}

impl Observed for Weight {
    /// Every token is kept, every step is taken.
    fn observe(&mut self, sheet: &mut Sheet<'_>) {
        for (name, fixture) in batches() {
            let batch = fixture.batch();
            sheet.heading(name, &batch);
            let (mut weights, context) = (vec![0.0; batch.dims.len()], fixture.context());
            let mut listener = Listener::new(&context);
            let weighed = self.weigh(&mut listener, &batch, batch.completion_mask, &mut weights);
            let outcome = weighed.and_then(|()| self.step_end(&mut listener, &batch, &weights, true));
            if sheet.outcome(outcome).is_some() {
                sheet.tokens("weight", &weights, &batch);
                sheet.records(listener.records, batch.completion_mask, rows(batch.dims));
            }
        }
    }
}

impl Observed for StepControlFn {
    /// Every update is [`Measured::default`].
    fn observe(&mut self, sheet: &mut Sheet<'_>) {
        for (name, fixture) in batches() {
            let batch = fixture.batch();
            sheet.heading(name, &batch);
            if let Some(controlled) = sheet.outcome(fixture.control(self, Measured::default())) {
                for (group, scale) in Measured::GROUPS.iter().zip(controlled.scales) {
                    let scale = sheet.number(scale);
                    sheet.line(2, &format!("scale of {} = {scale}", group.name));
                }
                sheet.records(controlled.records, batch.completion_mask, rows(batch.dims));
            }
        }
    }
}

fn rows(dims: Dims) -> impl Iterator<Item = std::ops::Range<usize>> + Clone {
    (0..dims.completions as usize).map(move |b| dims.row(b))
}

impl Sheet<'_> {
    fn line(&mut self, indent: usize, text: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{:indent$}{text}", "");
    }

    fn heading(&mut self, name: &str, batch: &Batch<'_>) {
        let Dims { completions, tokens, group_size } = batch.dims;
        self.line(0, &format!("{name}: B {completions}, T {tokens}, G {group_size}"));
    }

    fn outcome<T>(&mut self, outcome: Result<T, PluginError>) -> Option<T> {
        outcome.map_err(|error| self.line(2, &format!("error: {error}"))).ok()
    }

    fn wants(&self, name: &str) -> bool {
        self.settings.only.as_ref().is_none_or(|only| only.iter().any(|wanted| wanted == name))
    }

    fn number(&self, value: f64) -> String {
        // Whether a zero has a sign depends on the order of operations.
        if value == 0.0 { "0".into() } else { format!("{value:.*e}", self.settings.digits - 1) }
    }

    fn tokens(&mut self, name: &str, values: &[f32], batch: &Batch<'_>) {
        self.rows(name, values, batch.completion_mask, rows(batch.dims));
    }

    fn rows(
        &mut self,
        name: &str,
        values: &[f32],
        mask: &[u8],
        rows: impl IntoIterator<Item = std::ops::Range<usize>>,
    ) {
        if self.wants(name) {
            self.line(2, name);
            for row in rows {
                let entry = |i| if mask[i] == 1 { self.number(f64::from(values[i])) } else { ".".to_owned() };
                let line = runs(row.map(entry));
                self.line(4, &line);
            }
        }
    }

    fn keep(&mut self, keep: &[u8], batch: &Batch<'_>) {
        if self.wants("keep") {
            self.line(2, "keep");
            for row in rows(batch.dims) {
                let entry = |i: usize| match (batch.completion_mask[i], keep[i]) {
                    (0, _) => '.',
                    (_, 0) => '0',
                    _ => '1',
                };
                let line = row.map(entry).collect::<String>();
                self.line(4, &line);
            }
        }
    }

    /// What was recorded, sorted by name; several numbers under one name stay in order.
    fn records(
        &mut self,
        mut records: Records,
        mask: &[u8],
        rows: impl Iterator<Item = std::ops::Range<usize>> + Clone,
    ) {
        records.numbers.sort_by(|a, b| a.0.cmp(&b.0));
        records.tokens.sort_by(|a, b| a.0.cmp(&b.0));
        for (name, value) in &records.numbers {
            if self.wants(name) {
                let value = self.number(*value);
                self.line(2, &format!("{name} = {value}"));
            }
        }
        for (name, values) in &records.tokens {
            self.rows(name, values, mask, rows.clone());
        }
        for warning in &records.warnings {
            self.line(2, &format!("warning: {warning}"));
        }
    }
}

/// Words in order, equal neighbours as `word*count`.
fn runs(words: impl Iterator<Item = String>) -> String {
    let mut runs: Vec<(String, usize)> = Vec::new();
    for word in words {
        match runs.last_mut() {
            Some((last, count)) if *last == word => *count += 1,
            _ => runs.push((word, 1)),
        }
    }
    let runs = runs.into_iter().map(|(word, count)| if count == 1 { word } else { format!("{word}*{count}") });
    runs.collect::<Vec<_>>().join(" ")
}
