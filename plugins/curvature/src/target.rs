//! Thresholds that follow the run, so that a chosen fraction of tokens is rejected.

use capo_core::{Acceptance, Assessment};
use capo_plugin::Sketch;
use capo_plugin::prelude::*;

use crate::predictor::Predictor;

/// The fraction of tokens to reject, and the recent distribution of shifts. The table's thresholds
/// fix the ratio between the two tests.
pub(crate) struct Target {
    rate: f64,
    /// Recent tokens' shifts divided by their thresholds; of the two quotients, the larger.
    pub sketch: Sketch,
}

impl Target {
    pub fn new(rate: f64) -> Self {
        Self {
            rate,
            sketch: Sketch::default(),
        }
    }

    /// Thresholds for this step. The first step of a run has none if `batch` may be a part of the
    /// step.
    pub fn thresholds(
        &self,
        predictor: &Predictor,
        batch: &Batch<'_>,
    ) -> Result<Acceptance, PluginError> {
        let mut times = self.sketch.quantile(1.0 - self.rate);
        if times.is_none() && !predictor.traits(true).contains(Traits::TOKEN_WISE) {
            times = sketch(predictor, batch)?.quantile(1.0 - self.rate);
        }
        let given = predictor.model.acceptance();
        Ok(times.map_or_else(Acceptance::default, |times| {
            scaled(given, |threshold| times * threshold)
        }))
    }

    /// Records the threshold on `m_F`, or the one on `m_H` where it is the only test.
    pub fn record(ctx: &mut Ctx<'_>, thresholds: &Acceptance) {
        let hessian = thresholds.hessian_range.map(|[_, high]| high);
        if let Some(threshold) = thresholds.fisher_threshold.or(hessian) {
            ctx.record("threshold", threshold);
        }
    }

    /// Adds the step, before the model of the optimizer is updated.
    pub fn step_end(
        &mut self,
        ctx: &mut Ctx<'_>,
        predictor: &Predictor,
        batch: &Batch<'_>,
    ) -> Result<(), PluginError> {
        self.sketch.take_in(ctx, sketch(predictor, batch))
    }
}

/// `given` with `change` applied to the size of each threshold.
fn scaled(given: Acceptance, change: impl Fn(f64) -> f64) -> Acceptance {
    let Acceptance {
        fisher_threshold,
        hessian_range,
        ..
    } = given;
    let hessian_range = hessian_range.map(|range| range.map(|end| change(end.abs()).copysign(end)));
    Acceptance {
        fisher_threshold: fisher_threshold.map(change),
        hessian_range,
        ..given
    }
}

/// Sketch of the batch's completion tokens, with 0 for tokens that were not tested. A step that is
/// predicted at rate 0 moves nothing and says nothing, so its sketch is empty.
fn sketch(predictor: &Predictor, batch: &Batch<'_>) -> Result<Sketch, PluginError> {
    if predictor.stands_still(batch) {
        return Ok(Sketch::default());
    }
    let given = predictor.model.acceptance();
    // With this threshold every tested token with a nonzero shift fails.
    let all = scaled(given, |_| f64::MIN_POSITIVE);
    let Assessment {
        token_mask,
        m_f,
        m_h,
        ..
    } = predictor.shifts(batch, batch.completion_mask, &all)?;
    let times = |shift: f32, threshold: Option<f64>| {
        threshold.map_or(0.0, |threshold| f64::from(shift.abs()) / threshold)
    };
    let size = |at: usize| match token_mask[at] {
        0 if m_f[at].is_nan() => f64::INFINITY,
        0 => times(m_f[at], given.fisher_threshold)
            .max(times(m_h[at], given.hessian_range.map(|[_, high]| high))),
        _ => 0.0,
    };
    Ok(Sketch::of(
        (0..token_mask.len())
            .filter(|&at| batch.completion_mask[at] == 1)
            .map(size),
    ))
}

#[cfg(test)]
mod tests {
    use capo_plugin::testing::{self, Fixture};

    use crate::{CurvatureMask, Wide};

    const TARGET: &str = "target_rejection_rate = 0.2\nbatch_shifts = false";

    /// Steps with different completion lengths, so that their tokens differ.
    fn steps() -> Vec<Fixture> {
        let lengths = [
            [6, 3, 6, 5, 6],
            [2, 6, 6, 4, 6],
            [6, 6, 1, 6, 5],
            [3, 6, 6, 6, 2],
        ];
        lengths
            .map(|lengths| Fixture::new(5, 6).lengths(&lengths))
            .into()
    }

    /// With a target both thresholds follow the run in a fixed ratio. The first step, which may be
    /// a part, drops nothing.
    #[test]
    fn a_target_finds_its_thresholds() {
        let run = |table: &str| {
            let mut mask = testing::mask::<CurvatureMask<Wide>>(table).unwrap();
            let end = |fixture: &Fixture| {
                let masked = fixture.mask(&mut mask).unwrap();
                fixture
                    .step_end(&mut mask, &masked.token_mask, true)
                    .unwrap();
                let real = fixture
                    .batch()
                    .completion_mask
                    .iter()
                    .filter(|&&mask| mask == 1)
                    .count();
                let kept = masked.token_mask.iter().filter(|&&keep| keep == 1).count();
                (
                    (real - kept) as f64 / real as f64,
                    masked.records.number("threshold"),
                )
            };
            steps().iter().cycle().take(40).map(end).collect::<Vec<_>>()
        };
        for (test, threshold) in [
            ("", 1e9),
            ("hessian_threshold = false", 1e9),
            ("fisher_threshold = false", 1e9),
        ] {
            let run = run(&format!("{TARGET}\n{test}"));
            assert_eq!(run[0], (0.0, None));
            assert!(
                run[1..]
                    .iter()
                    .all(|(_, found)| found.is_some_and(|found| found > 0.0 && found < threshold))
            );
            let rate = run[20..].iter().map(|(rate, _)| rate).sum::<f64>() / 20.0;
            assert!((rate - 0.2).abs() < 0.05, "{test}: {rate}");
        }
        let whole = run(&format!("{TARGET}\ngranularity = \"completion\""));
        assert!(
            whole[0].0 > 0.0 && whole[0].1.is_some(),
            "a step that is seen whole serves itself: {:?}",
            whole[0]
        );
    }

    /// Both thresholds are the defaults times one factor, a quantile of the larger quotient of
    /// shift and threshold.
    #[test]
    fn a_target_keeps_the_proportion_of_thresholds() {
        let fixture = Fixture::new(5, 6);
        let mut mask = testing::mask::<CurvatureMask<Wide>>(TARGET).unwrap();
        let before = fixture.mask(&mut mask).unwrap().records;
        let shift = |name: &str| {
            before
                .tokens
                .iter()
                .find(|(known, _)| known == name)
                .unwrap()
                .1
                .clone()
        };
        let mut sizes: Vec<f32> = shift("m_f")
            .iter()
            .zip(shift("m_h"))
            .map(|(m_f, m_h)| m_f.max(m_h.abs()))
            .collect();
        sizes.sort_by(f32::total_cmp);
        fixture.step_end(&mut mask, &[1; 30], false).unwrap();
        let found = fixture
            .mask(&mut mask)
            .unwrap()
            .records
            .number("threshold")
            .unwrap();
        assert!(
            (found / f64::from(sizes[23]) - 1.0).abs() < 0.04,
            "{found} of {sizes:?}"
        );
    }

    #[test]
    fn a_state_of_another_table_is_refused() {
        let [mut with, mut without] =
            [TARGET, ""].map(|table| testing::mask::<CurvatureMask<Wide>>(table).unwrap());
        assert!(without.load(&with.save().unwrap()).is_err());
        let said = with.load(&without.save().unwrap()).unwrap_err().to_string();
        assert!(
            said.ends_with(
                "the saved state begins with no sketch (it was saved under another table)"
            ),
            "{said}"
        );
    }

    #[test]
    fn a_target_stands_alone() {
        let say = |table: &str| {
            let table = format!("target_rejection_rate = 0.02\n{table}");
            testing::mask::<CurvatureMask<Wide>>(&table)
                .err()
                .unwrap()
                .to_string()
        };
        for (key, value) in [
            ("fisher_threshold", "1e-4"),
            ("hessian_threshold", "1e-2"),
            ("hessian_range", "[-1, 1]"),
            ("hessian_interval", "\"one_sided\""),
        ] {
            let sentence = format!("`target_rejection_rate` and `{key}` are both given (keep one)");
            assert_eq!(say(&format!("{key} = {value}")), sentence);
        }
        assert_eq!(
            say("fisher_threshold = false\nhessian_threshold = false"),
            "`target_rejection_rate` is given, but both tests are switched off (leave one on)"
        );
    }
}
