//! Drops what was sampled by a policy too far from the current one: tokens by their ratio, completions by their mean.

#![forbid(unsafe_code)]

use capo_plugin::prelude::*;

/// Keeps a token while its ratio, `exp(logp - old_logp)`, lies in `low..=high`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RatioRange {
    /// Smallest ratio kept.
    #[serde(default)]
    low: f32,
    /// Largest ratio kept.
    #[serde(default = "unlimited")]
    high: f32,
    /// Largest mean of `old_logp - logp` of a completion, nats; beyond it, its tokens of negative advantage go.
    off_policy_mask_threshold: Option<f32>,
}

fn unlimited() -> f32 {
    f32::INFINITY
}

impl PreBackwardMask for RatioRange {
    fn mask(&mut self, ctx: &mut Ctx, batch: &Batch, keep: &mut [u8]) -> Result<(), PluginError> {
        let old_logps = batch.old_logps()?;
        let drift: Vec<f32> = batch.logps.iter().zip(old_logps).map(|(logp, old)| logp - old).collect();
        for (keep, drift) in keep.iter_mut().zip(&drift) {
            *keep &= u8::from((self.low..=self.high).contains(&drift.exp()));
        }
        let mut far = 0;
        for row in (0..batch.dims.completions as usize).map(|b| batch.dims.row(b)) {
            let (mut sum, mut tokens) = (0.0, 0.0);
            for (drift, mask) in drift[row.clone()].iter().zip(&batch.completion_mask[row.clone()]) {
                sum -= drift * f32::from(*mask);
                tokens += f32::from(*mask);
            }
            if self.off_policy_mask_threshold.is_some_and(|limit| sum > limit * tokens) {
                far += 1;
                for (keep, advantage) in keep[row.clone()].iter_mut().zip(&batch.advantages[row]) {
                    *keep &= u8::from(*advantage >= 0.0);
                }
            }
        }
        ctx.record("far_completions", f64::from(far));
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        Inputs::OLD_LOGPS
    }

    fn traits(&self) -> MaskTraits {
        MaskTraits::TOKEN_WISE.only_if(self.off_policy_mask_threshold.is_none()) | MaskTraits::NO_OPTIMIZER
    }

    fn validate(&self) -> Result<(), PluginError> {
        if self.low <= self.high {
            return Ok(());
        }
        Err(PluginError::config(format!("`low` is {}, above `high`, {} (no token would be kept)", self.low, self.high)))
    }
}

register!(PreBackwardMask, RatioRange, "example.ratio-range", "drops tokens whose ratio lies outside a range", {
    low = 0.0 => "smallest ratio kept",
    high = unlimited() => "largest ratio kept; no limit when absent"; 1.0..100.0,
    off_policy_mask_threshold = None::<f32> => "largest mean of `old_logp - logp` of a completion, nats; no limit when absent",
});

#[cfg(test)]
mod tests {
    use super::*;
    use capo_plugin::testing::{self, Fixture};

    /// Two completions of three tokens; the second was sampled by a policy that liked it better, by 1 nat per token.
    fn fixture() -> Fixture {
        let fixture = Fixture::new(2, 3).logps(&[-1.0, -2.0, -0.5, -2.0, -3.0, -1.0]);
        fixture.old_logps(&[-1.0, -1.0, -1.0, -1.0, -1.5, -0.5]).advantages(&[-1.0, -1.0, -1.0, -1.0, 1.0, -1.0])
    }

    #[test]
    fn tokens_outside_the_range_go() {
        let mut mask = testing::mask::<RatioRange>("low = 0.5\nhigh = 1.5").unwrap();
        assert_eq!(fixture().mask(&mut mask).unwrap().keep, [1, 0, 0, 0, 0, 1]);
        let mut mask = testing::mask::<RatioRange>("high = 1.5").unwrap();
        assert_eq!(fixture().mask(&mut mask).unwrap().keep, [1, 1, 0, 1, 1, 1]);
    }

    #[test]
    fn completions_that_the_policy_has_left_lose_their_negative_tokens() {
        let mut mask = testing::mask::<RatioRange>("off_policy_mask_threshold = 0.9").unwrap();
        let masked = fixture().mask(&mut mask).unwrap();
        assert_eq!(masked.keep, [1, 1, 1, 0, 1, 0]);
        assert_eq!(masked.records.number("far_completions"), Some(1.0));
        let mut mask = testing::mask::<RatioRange>("off_policy_mask_threshold = 1.1").unwrap();
        assert_eq!(fixture().mask(&mut mask).unwrap().keep, [1; 6]);
    }

    #[test]
    fn the_mean_is_over_real_tokens() {
        let mut mask = testing::mask::<RatioRange>("off_policy_mask_threshold = 1.1").unwrap();
        let masked = fixture().lengths(&[3, 2]).mask(&mut mask).unwrap();
        assert_eq!(masked.keep, [1, 1, 1, 0, 1, 0], "1.25 nats over two tokens");
    }

    #[test]
    fn its_keys_are_described_and_checked() {
        testing::check_key_docs().unwrap();
        let error = testing::mask::<RatioRange>("low = 2\nhigh = 0.5").err().unwrap();
        assert_eq!(error.to_string(), "`low` is 2, above `high`, 0.5 (no token would be kept)");
    }
}
