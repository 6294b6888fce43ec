//! Replays masks and weights over recorded batches for several values of one setting, and counts
//! what each value rejects.

mod range;
mod target;

use std::collections::BTreeSet;
use std::path::Path;

use super::batches::Batches;
use crate::terminal::{grouped, percent, say};
use anyhow::{Result, ensure};
use capo_loader::decision::Deciders;
use capo_loader::registry::Registry;
use capo_loader::replay::{check_any, replay_step};
use capo_loader::upload::Device;
use capo_loader::warning::WarningSink;
use capo_loader::watchdog::Watchdog;
use capo_loader::{ComponentConfig, component_names};
use capo_plugin::BatchBuffer;

pub use range::Range;
pub use target::{Count, Found, Search, Target};

/// The result of a replay of all batches.
struct Counts {
    all: Count,
    /// Counts of each mask, in order; each mask sees the tokens that the earlier ones kept.
    by_mask: Vec<Count>,
    /// Mean weight of all tokens, with rejected tokens as 0; `None` without weights.
    mean_weight: Option<f64>,
}

#[derive(serde::Serialize)]
pub struct Chosen {
    #[serde(rename = "mask", skip_serializing_if = "Vec::is_empty")]
    pub masks: Vec<ComponentConfig>,
    #[serde(rename = "weight", skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<ComponentConfig>,
}

impl Chosen {
    pub fn names(&self) -> Vec<String> {
        [&self.masks, &self.weights]
            .into_iter()
            .flat_map(|list| component_names(list))
            .collect()
    }

    pub fn build(&self, registry: &Registry, watchdog: &Watchdog) -> Result<Deciders> {
        registry.deciders(&self.masks, &self.weights, watchdog)
    }
}

/// The masks and weights that a configuration chooses, with one override `KEY=VALUE` applied to it.
type Choose<'a> = &'a dyn Fn(Option<String>) -> Result<Chosen>;

/// Replays of the same batches at different settings.
pub struct Sweep<'a> {
    registry: &'a Registry,
    choose: Choose<'a>,
    batches: Batches<'a>,
    /// Device for the batches' large arrays; `None` is host memory.
    device: Option<&'a Device>,
    warned: BTreeSet<String>,
    watchdog: Watchdog,
}

impl<'a> Sweep<'a> {
    /// Checks that all components can be built at both ends of every range, and reads the batches.
    pub fn open(
        registry: &'a Registry,
        choose: Choose<'a>,
        batches: Batches<'a>,
        device: Option<&'a Device>,
        ranges: &[Range],
    ) -> Result<Self> {
        let mut sweep = Self {
            registry,
            choose,
            batches,
            device,
            warned: BTreeSet::new(),
            watchdog: Watchdog::start(0, choose(None)?.names()),
        };
        for range in ranges {
            let values = range.values();
            for &value in [values.first(), values.last()].into_iter().flatten() {
                check_any(&sweep.build(range, value)?)?;
            }
        }
        if !ranges.is_empty() {
            sweep.batches.hold()?;
        }
        Ok(sweep)
    }

    /// Sweeps the ranges in order, and searches in each for the value that meets the target.
    pub fn run(&mut self, ranges: &[Range], target: Option<&Target>) -> Result<()> {
        for (i, range) in ranges.iter().enumerate() {
            if i > 0 {
                say("");
            }
            let counts = self.table(range)?;
            if let Some(target) = target {
                let search = Search {
                    target,
                    count: &mut |value| Ok(self.replay(range, value)?.all),
                };
                let found = search.run(range, &counts)?;
                self.suggest(range, target, &found)?;
            }
        }
        Ok(())
    }

    /// Replays every value, and prints a line after each.
    fn table(&mut self, range: &Range) -> Result<Vec<(f64, Count)>> {
        let values = range.values();
        let mut counts = Vec::new();
        let texts = range.column(&values);
        let name = range.key.rsplit('.').next().unwrap_or_default();
        let width = texts
            .iter()
            .map(String::len)
            .max()
            .unwrap_or_default()
            .max(name.len());
        let ids: Vec<String> = self
            .build(range, values[0])?
            .masks
            .iter()
            .map(|mask| mask.id().to_owned())
            .collect();
        for (value, text) in values.into_iter().zip(&texts) {
            let found = self.replay(range, value)?;
            ensure!(
                found.all.tokens > 0,
                "the batches hold no completion token (record others)"
            );
            if counts.is_empty() {
                let batches = self.batches.paths.len();
                let tokens = grouped(found.all.tokens);
                let plural = if batches == 1 { "" } else { "es" };
                say(&format!(
                    "`{}` over {batches} batch{plural}, {tokens} tokens\n",
                    range.key
                ));
                say(&format!(
                    "  {name:>width$}  {:>10}  {:>7}{}{}",
                    "rejected",
                    "rate",
                    heads(&ids),
                    found.mean_weight.map_or("", |_| "  mean weight")
                ));
            }
            let rejected = grouped(found.all.rejected);
            let rate = percent(found.all.rate());
            say(&format!(
                "  {text:>width$}  {rejected:>10}  {rate:>7}{}{}",
                cells(&ids, &found.by_mask),
                found
                    .mean_weight
                    .map_or_else(String::new, |mean| format!("  {mean:>11.3}"))
            ));
            counts.push((value, found.all));
        }
        Ok(counts)
    }

    fn suggest(&self, range: &Range, target: &Target, found: &Found) -> Result<()> {
        say("");
        if let Some(remark) = &found.remark {
            say(&format!("target {target}: {remark}"));
        }
        let Some((value, count)) = found.best else {
            return Ok(());
        };
        let key = &range.key;
        let text = range.text(value);
        let replays = match found.replays {
            0 => String::new(),
            1 => ", found with 1 more replay".to_owned(),
            more => format!(", found with {more} more replays"),
        };
        say(&format!(
            "target {target}: {text} rejects {} ({} of {}){replays}\n",
            percent(count.rate()),
            grouped(count.rejected),
            grouped(count.tokens)
        ));
        say(&format!("  --set {key}={text}\n"));
        let chosen = (self.choose)(Some(format!("{key}={text}")))?;
        let name = key.rsplit('.').next().unwrap_or_default();
        // The serializer writes small numbers without an exponent.
        let long = format!("{name} = {}", toml::Value::Float(value));
        let short = format!("{name} = {text}");
        for line in toml::to_string(&chosen)?.lines() {
            say(format!("  {}", if line == long { &short } else { line }).trim_end());
        }
        Ok(())
    }

    fn build(&self, range: &Range, value: f64) -> Result<Deciders> {
        (self.choose)(Some(format!("{}={}", range.key, range.text(value))))?
            .build(self.registry, &self.watchdog)
    }

    /// Runs fresh masks and weights over all batches, in order, with one setting at `value`.
    fn replay(&mut self, range: &Range, value: f64) -> Result<Counts> {
        let mut deciders = self.build(range, value)?;
        let mut all = Count {
            rejected: 0,
            tokens: 0,
        };
        let mut by_mask = vec![all; deciders.masks.len()];
        let mut weight = 0.0;
        let mut sink = WarningSink {
            warned: &mut self.warned,
            watchdog: &self.watchdog,
        };
        self.batches.each(|path: &Path, batch: &BatchBuffer| {
            let decision = replay_step(&mut deciders, &mut sink, path, self.device, batch)?;
            let tokens = batch.completion_tokens();
            let rejected = decision
                .rejected
                .iter()
                .map(|rejected| rejected.tokens.len() as u64);
            weight += decision
                .token_weights
                .iter()
                .map(|&weight| f64::from(weight))
                .sum::<f64>();
            all.add(tokens - decision.tokens(), tokens);
            for (count, rejected) in by_mask.iter_mut().zip(rejected) {
                count.add(rejected, tokens);
            }
            Ok(())
        })?;
        let mean_weight = (!deciders.weights.is_empty()).then(|| weight / all.tokens.max(1) as f64);
        Ok(Counts {
            all,
            by_mask,
            mean_weight,
        })
    }
}

/// Column headings for the rates of single masks. The rate of a single mask is already the total
/// rate.
fn heads(ids: &[String]) -> String {
    if ids.len() < 2 {
        String::new()
    } else {
        ids.iter().map(|id| format!("  {id:>7}")).collect()
    }
}

fn cells(ids: &[String], by_mask: &[Count]) -> String {
    if ids.len() < 2 {
        return String::new();
    }
    ids.iter()
        .zip(by_mask)
        .map(|(id, count)| {
            let width = id.len().max(7);
            format!("  {:>width$}", percent(count.rate()))
        })
        .collect()
}
