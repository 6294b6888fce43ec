//! GSPO: the clipped surrogate with one importance ratio per completion, the geometric mean of its
//! tokens' ratios.

#![forbid(unsafe_code)]

use capo_plugin::prelude::*;

/// Clipped surrogate with one ratio per completion.
///
/// The loss is `-min(s A, clip(s, 1 - epsilon, 1 + epsilon_high) A)` at every token of a
/// completion, where `s` is `exp` of the mean of `logp - old_logp` over its tokens.
#[component(Objective, id = "example.gspo")]
struct Gspo {
    /// How far below 1 the ratio counts.
    #[key(default = 0.2, at_least = 0)]
    epsilon: f64,
    /// How far above 1 the ratio counts; `epsilon` when absent.
    #[key(at_least = 0)]
    epsilon_high: Option<f64>,
}

impl Objective for Gspo {
    fn evaluate(
        &mut self,
        ctx: &mut Ctx,
        batch: &Batch,
        out: TokenLosses,
    ) -> Result<(), PluginError> {
        let old_logps = batch.old_logps()?;
        let low = 1.0 - self.epsilon;
        let high = 1.0 + self.epsilon_high.unwrap_or(self.epsilon);
        let mut below = 0;
        let mut above = 0;
        for b in 0..batch.dims.completions as usize {
            let row: Vec<usize> = batch
                .dims
                .row(b)
                .filter(|&i| batch.completion_mask[i] == 1)
                .collect();
            let drift: f64 = row
                .iter()
                .map(|&i| f64::from(batch.logps[i]) - f64::from(old_logps[i]))
                .sum();
            let tokens = row.len().max(1) as f64;
            let ratio = (drift / tokens).exp();
            let mut slope = 0.0;
            let mut clipped = false;
            for &i in &row {
                let advantage = f64::from(batch.advantages[i]);
                let free = ratio * advantage;
                let bounded = ratio.clamp(low, high) * advantage;
                out.losses[i] = -free.min(bounded) as f32;
                clipped |= bounded < free;
                slope -= if bounded < free { 0.0 } else { free };
            }
            // Each of these losses moves with each of these log-probabilities, by a share of the
            // ratio.
            row.iter()
                .for_each(|&i| out.dloss_dlogp[i] = (slope / tokens) as f32);
            below += u32::from(clipped && ratio < 1.0);
            above += u32::from(clipped && ratio > 1.0);
        }
        let share = |count: u32| f64::from(count) / batch.dims.completions as f64;
        ctx.record("clip_ratio/low_mean", share(below));
        ctx.record("clip_ratio/high_mean", share(above));
        ctx.record("clip_ratio/region_mean", share(below + above));
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        Inputs::OLD_LOGPS
    }
}

recipe!(
    "example-gspo",
    "GRPO's advantages, one importance ratio per completion, no mask",
    include_str!("../recipe.toml")
);

#[cfg(test)]
mod tests {
    use super::*;
    use capo_plugin::testing::{self, Fixture};

    /// Four completions of up to three tokens: ratios above and below 1, advantages of both signs.
    fn fixture() -> Fixture {
        let logps = [
            -1.0, -2.0, -0.5, -1.0, -1.0, 0.0, -0.7, -2.0, -1.5, -3.0, 0.0, 0.0,
        ];
        let old = [
            -1.1, -1.8, -0.8, -1.3, -1.2, 0.0, -0.5, -1.6, -1.4, -2.5, 0.0, 0.0,
        ];
        let advantages = [
            1.0, 1.0, 1.0, -2.0, -2.0, 0.0, 0.5, 0.5, 0.5, -1.0, 0.0, 0.0,
        ];
        Fixture::new(4, 3)
            .logps(&logps)
            .old_logps(&old)
            .advantages(&advantages)
            .lengths(&[3, 2, 3, 1])
    }

    fn near(a: f32, b: f64) -> bool {
        (f64::from(a) - b).abs() < 1e-6
    }

    #[test]
    fn every_token_of_a_completion_has_its_loss() {
        let mut gspo = testing::objective::<Gspo>("epsilon = 0.3").unwrap();
        let (loss, slope) = fixture().evaluate(&mut gspo).unwrap();
        let ratios = [0.2_f64 / 3.0, 0.25, -0.7 / 3.0, -0.5].map(f64::exp);
        for (b, advantage) in [1.0, -2.0, 0.5].into_iter().enumerate() {
            let row = fixture().batch().dims.row(b);
            let expected = -ratios[b] * advantage;
            let tokens = row
                .clone()
                .filter(|&i| fixture().batch().completion_mask[i] == 1);
            assert!(
                tokens
                    .clone()
                    .all(|i| near(loss[i], expected) && near(slope[i], expected)),
                "{b}: {loss:?} {slope:?}"
            );
        }
        // exp(-0.5) is below 0.7, which is as far as a bad completion is pushed.
        assert!(near(loss[9], 0.7) && slope[9] == 0.0, "{loss:?} {slope:?}");
        assert_eq!((loss[5], loss[11], slope[5]), (0.0, 0.0, 0.0));
    }

    #[test]
    fn the_derivative_is_that_of_the_summed_losses() {
        for table in [
            "epsilon = 1",
            "epsilon = 0.3",
            "epsilon = 0.03",
            "epsilon = 0.01\nepsilon_high = 0.5",
        ] {
            let mut gspo = testing::objective::<Gspo>(table).unwrap();
            // Advantages that differ within a completion, as no estimator here makes them, count
            // all the same.
            let advantages = [
                1.0, 0.5, 2.0, -2.0, -1.0, 0.0, 0.5, -0.5, 1.5, -1.0, 0.0, 0.0,
            ];
            for fixture in [fixture(), fixture().advantages(&advantages)] {
                let (_, slope) = fixture.evaluate(&mut gspo).unwrap();
                let measured = fixture.derivative(&mut gspo, 1e-3).unwrap();
                for (i, (slope, measured)) in slope.iter().zip(&measured).enumerate() {
                    assert!(
                        (slope - measured).abs() < 1e-3,
                        "{table}, token {i}: {slope}, measured {measured}"
                    );
                }
                assert!(
                    slope.iter().any(|slope| slope.abs() > 0.1),
                    "the check sees something"
                );
            }
        }
    }

    #[test]
    fn shares_of_clipped_completions_are_recorded() {
        let (fixture, mut records) = (fixture(), testing::Records::default());
        let [mut loss, mut slope] = [[0.0; 12]; 2];
        let mut gspo = testing::objective::<Gspo>("epsilon = 0.3\nepsilon_high = 0.05").unwrap();
        gspo.evaluate(&mut records, &fixture.batch(), &mut loss, &mut slope)
            .unwrap();
        let clipped = ["low", "high", "region"]
            .map(|side| records.number(&format!("clip_ratio/{side}_mean")).unwrap());
        assert_eq!(
            clipped,
            [0.25, 0.25, 0.5],
            "the last one below, the first one above"
        );
    }

    #[test]
    fn on_policy_it_is_the_policy_gradient() {
        let fixture = Fixture::new(2, 3).advantages(&[1.0, 1.0, 1.0, -1.0, -1.0, -1.0]);
        let (loss, slope) = fixture
            .evaluate(&mut testing::objective::<Gspo>("").unwrap())
            .unwrap();
        assert_eq!(
            (&loss[..], &slope[..]),
            (&[-1.0, -1.0, -1.0, 1.0, 1.0, 1.0][..], &loss[..])
        );
    }

    #[test]
    fn keys_are_described_and_checked() {
        let error = testing::objective::<Gspo>("epsilon_high = -0.1")
            .err()
            .unwrap();
        assert_eq!(
            error.to_string(),
            "`epsilon_high` is -0.1 (it must be finite, 0 or more)"
        );
    }
}
