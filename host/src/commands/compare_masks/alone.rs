//! One mask, alone, over all batches in order.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use capo_loader::RecordedBatch;
use capo_loader::registry::Registry;
use capo_loader::replay::{Deciders, replay_step};
use capo_loader::warning::WarningSink;
use capo_loader::watchdog::Watchdog;
use capo_plugin::{Inputs, Sink};

use super::super::batches::Batches;
use super::super::sweep::Count;
use super::contender::Contender;
use crate::check::cpu_time;

/// Log-probabilities of one policy that were computed in two ways, as by a sampler and a trainer, may differ by this much, nats: rounding of
/// f32 over many layers.
const ROUNDING: f32 = 1e-4;

/// The completion tokens that a mask rejected, over all batches.
pub struct RejectedAlone {
    /// Of every completion token, in order, whether it was rejected.
    pub tokens: Vec<bool>,
    /// The time that this process worked during the mask's calls, all its threads together.
    pub time: Duration,
}

impl RejectedAlone {
    /// How many were rejected.
    pub fn count(&self) -> Count {
        let rejected = self.tokens.iter().filter(|rejected| **rejected).count() as u64;
        Count { rejected, tokens: self.tokens.len() as u64 }
    }
}

/// Replays of single masks over the same batches.
pub struct Replays<'a> {
    registry: &'a Registry,
    batches: &'a Batches<'a>,
    watchdog: &'a Watchdog,
    warned: BTreeSet<String>,
}

impl<'a> Replays<'a> {
    /// Over these batches.
    pub fn new(registry: &'a Registry, batches: &'a Batches<'a>, watchdog: &'a Watchdog) -> Self {
        Self { registry, batches, watchdog, warned: BTreeSet::new() }
    }

    /// Runs a fresh mask; every batch begins with all of its completion tokens.
    pub fn run(&mut self, contender: &Contender) -> Result<RejectedAlone> {
        self.run_on(contender, &mut |_| None)
    }

    /// The outcome on batches whose earlier log-probabilities are the current ones where the two differ by rounding alone; and how far apart
    /// they were.
    pub fn run_without_rounding(&mut self, contender: &Contender) -> Result<(RejectedAlone, Apart)> {
        let mut apart = Apart::default();
        let rejected = self.run_on(contender, &mut |batch| Some(without_rounding(batch, &mut apart)))?;
        Ok((rejected, apart))
    }

    /// True where the mask compares the current policy with an earlier one.
    pub fn compares_policies(&self, contender: &Contender) -> Result<bool> {
        let inputs = contender.build(self.registry, self.watchdog)?.inputs();
        Ok(inputs.contains(Inputs::OLD_LOGPS) || inputs.contains(Inputs::ROLLOUT_CONTEXT))
    }

    /// Runs a fresh mask on what `change` makes of each batch.
    fn run_on(
        &mut self,
        contender: &Contender,
        change: &mut dyn FnMut(&RecordedBatch) -> Option<RecordedBatch>,
    ) -> Result<RejectedAlone> {
        let name = || format!("mask `{}`", contender.name);
        let mask = contender.build(self.registry, self.watchdog).with_context(name)?;
        let mut deciders = Deciders { masks: vec![mask], weights: Vec::new() };
        let inner = WarningSink { warned: &mut self.warned, watchdog: self.watchdog };
        let mut sink = TimedSink { inner, entered: Duration::ZERO, time: Duration::ZERO };
        let mut tokens = Vec::new();
        self.batches
            .each(|path, batch| {
                let changed = change(batch);
                let batch = changed.as_ref().unwrap_or(batch);
                let (accepted, _) = replay_step(&mut deciders, &mut sink, path, None, batch)?;
                let completion = accepted.mask.iter().zip(&batch.completion_mask).filter(|(_, mask)| **mask == 1);
                tokens.extend(completion.map(|(accepted, _)| *accepted == 0));
                Ok(())
            })
            .with_context(name)?;
        Ok(RejectedAlone { tokens, time: sink.time })
    }
}

/// How far earlier log-probabilities are from the current ones, nats.
#[derive(Default)]
pub struct Apart {
    /// Of those that count as equal, the farthest.
    pub rounding: f32,
    /// True where some do not.
    pub moved: bool,
}

/// The batch with earlier log-probabilities made the current ones where they differ by rounding.
fn without_rounding(batch: &RecordedBatch, apart: &mut Apart) -> RecordedBatch {
    let mut changed = batch.clone();
    let old = changed.old_logps.iter_mut().map(Vec::as_mut_slice);
    let sampler = changed.context.iter_mut().map(|context| context.data.sampler_logps.as_mut_slice());
    for earlier in old.chain(sampler) {
        let tokens = earlier.iter_mut().zip(&batch.logps).zip(&batch.completion_mask);
        for ((earlier, logp), _) in tokens.filter(|(_, mask)| **mask == 1) {
            let distance = (*earlier - logp).abs();
            if distance <= ROUNDING {
                apart.rounding = apart.rounding.max(distance);
                *earlier = *logp;
            } else {
                apart.moved = true;
            }
        }
    }
    changed
}

/// Adds up the time of calls.
struct TimedSink<'a> {
    inner: WarningSink<'a>,
    entered: Duration,
    time: Duration,
}

impl Sink for TimedSink<'_> {
    fn behind(&mut self) -> Option<&mut dyn Sink> {
        Some(&mut self.inner)
    }

    fn enter(&mut self, component: &str, method: &'static str) {
        self.inner.enter(component, method);
        self.entered = cpu_time();
    }

    fn leave(&mut self) {
        self.time += cpu_time().saturating_sub(self.entered);
        self.inner.leave();
    }
}
