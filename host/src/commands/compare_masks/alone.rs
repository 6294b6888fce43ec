//! Replays a single mask over all batches in order.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use capo_loader::decision::Deciders;
use capo_loader::registry::Registry;
use capo_loader::replay::replay_step;
use capo_loader::warning::WarningSink;
use capo_loader::watchdog::Watchdog;
use capo_plugin::{BatchBuffer, Inputs, Sink};

use super::super::batches::Batches;
use super::super::sweep::Count;
use super::contender::Contender;
use crate::check::cpu_time;

/// Largest difference in nats that counts as rounding between two computations of one policy's
/// log-probabilities, as by a sampler and a trainer. It covers f32 rounding over many layers.
const ROUNDING: f32 = 1e-4;

/// The completion tokens that a mask rejected, over all batches.
pub struct RejectedAlone {
    /// For every completion token, in order, true if it was rejected.
    pub tokens: Vec<bool>,
    /// CPU time of this process during the mask's calls, over all threads.
    pub time: Duration,
}

impl RejectedAlone {
    pub fn count(&self) -> Count {
        let rejected = self.tokens.iter().filter(|rejected| **rejected).count() as u64;
        Count {
            rejected,
            tokens: self.tokens.len() as u64,
        }
    }
}

/// Replays of single masks over the same batches.
pub struct Replays<'a> {
    pub registry: &'a Registry,
    pub batches: &'a Batches<'a>,
    pub watchdog: &'a Watchdog,
    pub warned: BTreeSet<String>,
}

impl Replays<'_> {
    /// Runs a fresh mask; in every batch it sees all completion tokens.
    pub fn run(&mut self, contender: &Contender) -> Result<RejectedAlone> {
        self.run_on(contender, &mut |_| None)
    }

    /// Runs a fresh mask on changed batches: earlier log-probabilities that differ from the current
    /// ones only by rounding become equal to them. Also returns how far apart the log-probabilities
    /// were.
    pub fn run_without_rounding(
        &mut self,
        contender: &Contender,
    ) -> Result<(RejectedAlone, Apart)> {
        let mut apart = Apart::default();
        let rejected = self.run_on(contender, &mut |batch| {
            Some(without_rounding(batch, &mut apart))
        })?;
        Ok((rejected, apart))
    }

    /// True if the mask compares the current policy with an earlier one.
    pub fn compares_policies(&self, contender: &Contender) -> Result<bool> {
        let inputs = contender.build(self.registry, self.watchdog)?.inputs();
        Ok(inputs.contains(Inputs::OLD_LOGPS) || inputs.contains(Inputs::ROLLOUT_CONTEXT))
    }

    /// Runs a fresh mask on each batch, or on the batch that `change` returns for it.
    fn run_on(
        &mut self,
        contender: &Contender,
        change: &mut dyn FnMut(&BatchBuffer) -> Option<BatchBuffer>,
    ) -> Result<RejectedAlone> {
        self.apply(contender, change)
            .with_context(|| format!("mask `{}`", contender.name))
    }

    fn apply(
        &mut self,
        contender: &Contender,
        change: &mut dyn FnMut(&BatchBuffer) -> Option<BatchBuffer>,
    ) -> Result<RejectedAlone> {
        let mask = contender.build(self.registry, self.watchdog)?;
        let mut deciders = Deciders {
            masks: vec![mask],
            weights: Vec::new(),
        };
        let inner = WarningSink {
            warned: &mut self.warned,
            watchdog: self.watchdog,
        };
        let mut sink = TimedSink {
            inner,
            entered: Duration::ZERO,
            time: Duration::ZERO,
        };
        let mut tokens = Vec::new();
        self.batches.each(|path, batch| {
            let changed = change(batch);
            let batch = changed.as_ref().unwrap_or(batch);
            let decision = replay_step(&mut deciders, &mut sink, path, None, batch)?;
            let completion = decision
                .token_mask
                .iter()
                .zip(&batch.completion_mask)
                .filter(|(_, mask)| **mask == 1);
            tokens.extend(completion.map(|(token, _)| *token == 0));
            Ok(())
        })?;
        Ok(RejectedAlone {
            tokens,
            time: sink.time,
        })
    }
}

/// Distance of earlier log-probabilities from the current ones, in nats.
#[derive(Default)]
pub struct Apart {
    /// Largest distance that counts as rounding.
    pub rounding: f32,
    /// True if some distance is larger.
    pub moved: bool,
}

/// Copies the batch, with earlier log-probabilities that differ only by rounding set to the current
/// ones.
fn without_rounding(batch: &BatchBuffer, apart: &mut Apart) -> BatchBuffer {
    let mut changed = batch.clone();
    let old = changed.old_logps.iter_mut().map(|logps| &mut **logps);
    let sampler = changed
        .context
        .iter_mut()
        .map(|context| context.data.sampler_logps.as_mut_slice());
    for earlier in old.chain(sampler) {
        let tokens = earlier
            .iter_mut()
            .zip(&batch.logps)
            .zip(&batch.completion_mask);
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

/// A sink that adds up the CPU time of calls.
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
