//! Keeps the tokens at which the policy had the highest entropy, the forks of its reasoning, and
//! drops the others.
//!
//! Wang et al., *Beyond the 80/20 Rule*, arXiv 2506.01939; TRL, `top_entropy_quantile`
//! (`get_high_entropy_mask`; off there by default).

use capo_plugin::prelude::*;

use crate::tokens;

/// Keeps the tokens of highest entropy.
#[component(Mask, id = "masks.entropy-quantile")]
struct EntropyQuantile {
    /// Share of tokens that is kept; ties at the limit are kept.
    #[key(default = 0.2, at_least = 0, at_most = 1, search = 0.01..=1.0)]
    top_entropy_quantile: f64,
}

/// The `share`-quantile of `values` with linear interpolation, as in `torch.quantile`; 0 for no
/// values.
fn quantile(mut values: Vec<f32>, share: f64) -> f32 {
    values.sort_unstable_by(f32::total_cmp);
    let Some(last) = values.len().checked_sub(1) else {
        return 0.0;
    };
    let place = share * last as f64;
    let below = values[place as usize];
    let above = values[(place as usize + 1).min(last)];
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

    fn traits(&self) -> Traits {
        Traits::NO_OPTIMIZER
    }
}
