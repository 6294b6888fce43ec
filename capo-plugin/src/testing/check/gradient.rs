//! The check of an objective's derivative against finite differences of its losses.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::outcome::{Verdict, failed, skipped, success};
use super::subject::Subject;
use crate::testing::Fixture;
use crate::{Inputs, PluginError};

/// Change of a log-probability, nats.
const NUDGE: f32 = 1.0 / 256.0;
/// Allowed error of a difference, relative to the largest compared difference, because the nudge is
/// finite.
const CURVATURE: f64 = 0.02;
/// Allowed rounding error of a loss, relative to its size.
const ROUNDING: f64 = 16.0 * f32::EPSILON as f64;
/// Time after which no more tokens are tried.
const PATIENCE: Duration = Duration::from_secs(5);

/// Effect of a change of a log-probability on its ratio to the sampling policy.
#[derive(Clone, Copy, PartialEq)]
enum Ratio {
    /// The ratio changes, as in a clipped surrogate.
    Moves,
    /// The ratio is constant: the method stops the gradient through weights made of it, as in
    /// truncated importance sampling.
    Stays,
}

/// Checks that `dloss_dlogp` is the derivative of the completion's summed losses by a token's
/// log-probability, however its tokens are coupled.
pub(super) fn gradients(subject: &Subject<'_>) -> Verdict {
    gradients_within(subject, PATIENCE)
}

/// Checks what `gradients` does, with this time for each of its two tries.
fn gradients_within(subject: &Subject<'_>, patience: Duration) -> Verdict {
    let agreed = |how: &str, tokens: usize| match tokens {
        0 => skipped("one evaluation outlasts the check, so that no token was compared"),
        _ => success(format!(
            "finite differences of the losses{how} agree with it at {tokens} tokens"
        )),
    };
    let refused = match disagreement(subject, Ratio::Moves, patience)? {
        Ok(tokens) => return agreed("", tokens),
        Err(sentence) => sentence,
    };
    if !subject.create()?.inputs().contains(Inputs::OLD_LOGPS) {
        return failed(refused);
    }
    match disagreement(subject, Ratio::Stays, patience)? {
        Ok(tokens) => agreed(", ratios held constant,", tokens),
        Err(_) => failed(refused),
    }
}

/// Number of tokens at which the differences agree, or a message about the first token at which
/// they disagree.
fn disagreement(
    subject: &Subject<'_>,
    ratio: Ratio,
    patience: Duration,
) -> Result<Result<usize, String>, PluginError> {
    let (start, mut tokens) = (Instant::now(), 0);
    for probe in [Probe::new(subject, false), Probe::new(subject, true)] {
        let [_, slopes] = probe.evaluate(&probe.logps, &probe.old_logps)?;
        for b in 0..probe.lengths.len() {
            for i in probe.row(b) {
                if start.elapsed() > patience {
                    break;
                }
                let differences = probe.differences(b, i, ratio)?;
                if !differences.agree(slopes[i]) {
                    return Ok(Err(format!(
                        "`dloss_dlogp` is {:.4} at completion {b}, token {}, where the sum of that completion's losses changes by {:.4} per nat (return the derivative of that sum, and losses that it is the derivative of)",
                        slopes[i],
                        i - probe.row(b).start,
                        differences.central()
                    )));
                }
                tokens += 1;
            }
        }
    }
    Ok(Ok(tokens))
}

/// One batch on which the derivative is checked.
struct Probe<'a> {
    subject: &'a Subject<'a>,
    lengths: [usize; 6],
    logps: Vec<f32>,
    old_logps: Vec<f32>,
    batch: Fixture,
    /// An earlier step, for objectives that keep state.
    before: Option<Fixture>,
}

impl<'a> Probe<'a> {
    /// Completions of different lengths whose tokens an older policy sampled. With `later` the
    /// batch is the second step, and its advantages differ from token to token.
    fn new(subject: &'a Subject<'a>, later: bool) -> Self {
        let (lengths, width) = ([5, 3, 1, 4, 2, 5], 5);
        let fixture = Fixture::new(lengths.len(), width)
            .groups_of(3)
            .step(u64::from(later));
        let place = |i: usize| (i as f32 * 2.1).sin();
        let logps: Vec<f32> = fixture
            .batch()
            .logps
            .iter()
            .map(|logp| logp - 0.4)
            .collect();
        let old_logps: Vec<f32> = logps
            .iter()
            .enumerate()
            .map(|(i, logp)| logp + 0.35 * place(i))
            .collect();
        let advantage =
            |i: usize| place(1 + i / width) + if later { 0.3 * place(i + 7) } else { 0.0 };
        let advantages: Vec<f32> = (0..logps.len()).map(advantage).collect();
        let batch = fixture
            .logps(&logps)
            .old_logps(&old_logps)
            .advantages(&advantages)
            .lengths(&lengths);
        let logps = batch.batch().logps.to_vec();
        Self {
            subject,
            lengths,
            logps,
            old_logps,
            before: later.then(|| batch.clone().step(0)),
            batch,
        }
    }

    /// The real tokens of completion `b`.
    fn row(&self, b: usize) -> Range<usize> {
        let start = b * self.logps.len() / self.lengths.len();
        start..start + self.lengths[b]
    }

    /// Losses and derivatives from a new instance, so that state and random draws are the same in
    /// every call.
    fn evaluate(&self, logps: &[f32], old_logps: &[f32]) -> Result<[Vec<f64>; 2], PluginError> {
        let mut instance = self.subject.create()?;
        if let Some(before) = &self.before {
            instance.step(&before.clone().into())?;
        }
        let mut outputs = instance
            .step(&self.batch.clone().logps(logps).old_logps(old_logps).into())?
            .outputs;
        Ok([0, 1].map(|output| std::mem::take(&mut outputs[output].1)))
    }

    /// Losses of completion `b` at a slightly lower, the given and a slightly higher
    /// log-probability of token `i`.
    fn differences(&self, b: usize, i: usize, ratio: Ratio) -> Result<Differences, PluginError> {
        let at = |nudge: f32| -> Result<Point, PluginError> {
            let (mut logps, mut old_logps) = (self.logps.clone(), self.old_logps.clone());
            logps[i] += nudge;
            old_logps[i] += if ratio == Ratio::Stays { nudge } else { 0.0 };
            let [losses, _] = self.evaluate(&logps, &old_logps)?;
            let losses = || losses[self.row(b)].iter().copied();
            Ok(Point {
                logp: f64::from(logps[i]),
                sum: losses().sum(),
                size: losses().map(f64::abs).sum(),
            })
        };
        Ok(Differences([at(-NUDGE)?, at(0.0)?, at(NUDGE)?]))
    }
}

/// A completion's losses at one log-probability of a token.
struct Point {
    logp: f64,
    sum: f64,
    /// Sum of the absolute losses.
    size: f64,
}

/// Three points, ordered by log-probability.
struct Differences([Point; 3]);

impl Differences {
    fn between(&self, low: usize, high: usize) -> f64 {
        let (low, high) = (&self.0[low], &self.0[high]);
        (high.sum - low.sum) / (high.logp - low.logp)
    }

    fn central(&self) -> f64 {
        self.between(0, 2)
    }

    /// True if `slope` lies between the one-sided differences, and so can be the derivative. The
    /// differences are only far apart at a kink, for example where a ratio is clipped.
    fn agree(&self, slope: f64) -> bool {
        let (below, above) = (self.between(0, 1), self.between(1, 2));
        let noise =
            ROUNDING * self.0.iter().map(|point| point.size).fold(0.0, f64::max) / f64::from(NUDGE);
        let tolerance = noise + CURVATURE * below.abs().max(above.abs());
        slope >= below.min(above) - tolerance && slope <= below.max(above) + tolerance
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::Status;
    use super::*;
    use crate::prelude::*;
    use crate::{Image, Point as At};

    /// An objective whose derivative is wrong.
    #[keys]
    struct Wrong {}

    impl Objective for Wrong {
        fn evaluate(
            &mut self,
            _: &mut Ctx<'_>,
            batch: &Batch<'_>,
            out: TokenLosses<'_>,
        ) -> Result<(), PluginError> {
            for i in (0..batch.logps.len()).filter(|&i| batch.completion_mask[i] == 1) {
                (out.losses[i], out.dloss_dlogp[i]) = (batch.logps[i], 7.0);
            }
            Ok(())
        }

        fn inputs(&self) -> Inputs {
            Inputs::OLD_LOGPS
        }
    }

    crate::register!(
        Objective,
        Wrong,
        "gradient.wrong",
        "Has a wrong derivative."
    );

    #[test]
    fn no_token_compared_is_no_success() {
        let (image, table) = (Image::own(), serde_json::Map::new());
        let subject = Subject {
            image: &image,
            point: At::Objective,
            id: "gradient.wrong",
            keys: &[],
            table: &table,
            rows: None,
        };
        let status = |patience| gradients_within(&subject, patience).unwrap().status;
        assert_eq!(
            (status(Duration::ZERO), status(PATIENCE)),
            (Status::Skipped, Status::Failed)
        );
    }

    /// Differences of `loss` at log-probability -1.
    fn differences(loss: impl Fn(f64) -> f64) -> Differences {
        let nudge = f64::from(NUDGE);
        let at = |logp: f64| Point {
            logp,
            sum: loss(logp),
            size: loss(logp).abs(),
        };
        Differences([at(-1.0 - nudge), at(-1.0), at(-1.0 + nudge)])
    }

    #[test]
    fn a_derivative_agrees_and_others_do_not() {
        let square = differences(|x| x * x);
        assert!(
            square.agree(-2.0) && !square.agree(-1.8) && !square.agree(2.0) && !square.agree(0.0)
        );
        let kink = differences(|x| (x + 1.0).max(0.0));
        assert!(kink.agree(0.0) && kink.agree(1.0) && !kink.agree(-0.1) && !kink.agree(1.1));
        let still = differences(|_| 1e3);
        assert!(
            still.agree(0.0) && !still.agree(1.0),
            "rounding of a large loss is allowed for, no more"
        );
    }
}
