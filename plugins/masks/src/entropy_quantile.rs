//! Keeps the tokens at which the policy had the highest entropy, the forks of its reasoning, and
//! drops the others.
//!
//! Wang et al., *Beyond the 80/20 Rule*, arXiv 2506.01939; TRL, `top_entropy_quantile`
//! (`get_high_entropy_mask`; off there by default).

use capo_plugin::prelude::*;

use crate::{checks, tokens};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntropyQuantile {
    #[serde(default = "one_fifth")]
    top_entropy_quantile: f64,
}

fn one_fifth() -> f64 {
    0.2
}

/// The `share`-quantile of `values` with linear interpolation, as in `torch.quantile`; 0 for no
/// values.
fn quantile(mut values: Vec<f32>, share: f64) -> f32 {
    values.sort_unstable_by(f32::total_cmp);
    let Some(last) = values.len().checked_sub(1) else {
        return 0.0;
    };
    let place = share * last as f64;
    let (below, above) = (
        values[place as usize],
        values[(place as usize + 1).min(last)],
    );
    below + (above - below) * place.fract() as f32
}

impl Mask for EntropyQuantile {
    fn mask(
        &mut self,
        ctx: &mut Ctx,
        batch: &Batch,
        token_mask: &mut [u8],
    ) -> Result<(), PluginError> {
        let entropy = batch.entropy()?;
        let left = tokens::left(token_mask)
            .into_iter()
            .map(|i| entropy[i])
            .collect();
        let limit = quantile(left, 1.0 - self.top_entropy_quantile);
        tokens::drop_where(token_mask, |i| entropy[i] < limit);
        ctx.record("limit_nats", f64::from(limit));
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        Inputs::ENTROPY
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::share("top_entropy_quantile", self.top_entropy_quantile)
    }

    fn traits(&self) -> Traits {
        Traits::NO_OPTIMIZER
    }
}

register!(Mask, EntropyQuantile, "masks.entropy-quantile", "keeps the tokens of highest entropy", {
    top_entropy_quantile = one_fifth() => "share of tokens kept; ties at the limit are kept"; 0.01..1.0,
});
