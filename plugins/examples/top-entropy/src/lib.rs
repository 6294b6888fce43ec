//! Keeps the tokens at which the policy was least sure, the forks of its reasoning, and drops the rest.

#![forbid(unsafe_code)]

use capo_plugin::prelude::*;

/// Keeps the `top_entropy_quantile` of the tokens with the highest entropy. Ties at the limit are kept.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TopEntropy {
    /// Share of tokens kept, above 0 and at most 1.
    #[serde(default = "one_fifth")]
    top_entropy_quantile: f32,
}

fn one_fifth() -> f32 {
    0.2
}

impl PreBackwardMask for TopEntropy {
    fn mask(&mut self, ctx: &mut Ctx, batch: &Batch, keep: &mut [u8]) -> Result<(), PluginError> {
        let entropy = batch.entropy()?;
        let left = entropy.iter().zip(&*keep).filter(|(_, keep)| **keep == 1);
        let limit = quantile(left.map(|(entropy, _)| *entropy).collect(), 1.0 - self.top_entropy_quantile);
        for (keep, entropy) in keep.iter_mut().zip(entropy) {
            *keep &= u8::from(*entropy >= limit);
        }
        ctx.record("limit_nats", f64::from(limit));
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        Inputs::ENTROPY
    }

    fn validate(&self) -> Result<(), PluginError> {
        let share = self.top_entropy_quantile;
        if share > 0.0 && share <= 1.0 {
            return Ok(());
        }
        Err(PluginError::config(format!("`top_entropy_quantile` is {share} (it must be above 0 and at most 1)")))
    }
}

/// The value below which a `share` of `values` lies, between two of them where it falls there; 0 where there are none.
fn quantile(mut values: Vec<f32>, share: f32) -> f32 {
    values.sort_unstable_by(f32::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return 0.0 };
    let place = f64::from(share) * last as f64;
    let (below, above) = (values[place as usize], values[(place as usize + 1).min(last)]);
    below + (above - below) * place.fract() as f32
}

register!(PreBackwardMask, TopEntropy, "example.top-entropy", "keeps the tokens of highest entropy", {
    top_entropy_quantile = one_fifth() => "share of tokens kept, above 0 and at most 1"; 0.01..1.0,
});

#[cfg(test)]
mod tests {
    use super::*;
    use capo_plugin::testing::{self, Fixture};

    #[test]
    fn keeps_the_share_of_highest_entropy_among_the_tokens_that_are_left() {
        let entropy = [0.1, 0.9, 0.3, 0.7, 0.2, 0.8, 0.6, 0.4, 0.5, 0.0, 9.0, 9.0];
        let fixture = Fixture::new(2, 6).entropy(&entropy).lengths(&[6, 4]);
        let mut mask = testing::mask::<TopEntropy>("top_entropy_quantile = 0.4").unwrap();
        assert_eq!(fixture.mask(&mut mask).unwrap().keep, [0, 1, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0]);
        // Another mask has taken the two tokens at the top.
        let fixture = fixture.keep(&[1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1]);
        let masked = fixture.mask(&mut mask).unwrap();
        assert_eq!(masked.keep, [0, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 0]);
        assert!((masked.records.number("limit_nats").unwrap() - 0.42).abs() < 1e-6);
    }

    #[test]
    fn a_share_of_one_keeps_all() {
        let mut mask = testing::mask::<TopEntropy>("top_entropy_quantile = 1").unwrap();
        for (name, fixture) in testing::batches() {
            assert_eq!(fixture.mask(&mut mask).expect(name).keep, fixture.batch().completion_mask, "{name}");
        }
    }

    #[test]
    fn quantiles_lie_between_values_as_in_torch() {
        assert_eq!(quantile(vec![3.0, 1.0, 2.0, 4.0, 5.0], 0.8), 4.2);
        assert_eq!(quantile(vec![7.0], 0.8), 7.0);
        assert_eq!(quantile(Vec::new(), 0.8), 0.0);
    }

    #[test]
    fn its_key_is_described_and_checked() {
        testing::check_key_docs().unwrap();
        let error = testing::mask::<TopEntropy>("top_entropy_quantile = 80").err().unwrap().to_string();
        assert_eq!(error, "`top_entropy_quantile` is 80 (it must be above 0 and at most 1)");
    }
}
