//! Losses per token, and their derivatives by the log-probability.

use std::marker::PhantomData;

use capo_plugin::prelude::*;
use capo_plugin::{KeyDocs, keys};
use serde::Serialize;

/// Which reduction an id uses when its table does not say.
pub trait DefaultReduction: Send {
    /// The reduction's name in a table.
    const REDUCTION: ReductionName;
}

/// Mean over completions of their means (GRPO).
#[derive(Debug, Clone)]
pub struct ByCompletion;

impl DefaultReduction for ByCompletion {
    const REDUCTION: ReductionName = ReductionName::CompletionMean;
}

/// Sum ÷ (B · `max_completion_length`) (Dr.GRPO).
#[derive(Debug, Clone)]
pub struct ByFixedLength;

impl DefaultReduction for ByFixedLength {
    const REDUCTION: ReductionName = ReductionName::FixedLength;
}

/// The names of reductions in a table.
#[derive(Debug, Clone, Copy, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReductionName {
    /// [`Reduction::COMPLETION_MEAN`].
    CompletionMean,
    /// [`Reduction::FIXED_LENGTH`].
    FixedLength,
    /// [`Reduction::TOKEN_MEAN`].
    TokenMean,
}

impl From<ReductionName> for Reduction {
    fn from(name: ReductionName) -> Self {
        match name {
            ReductionName::CompletionMean => Self::COMPLETION_MEAN,
            ReductionName::FixedLength => Self::FIXED_LENGTH,
            ReductionName::TokenMean => Self::TOKEN_MEAN,
        }
    }
}

/// `−min(ρ A, clip(ρ, 1 − epsilon, 1 + epsilon_high) A) + beta · k3`, with `ρ = exp(logps − old_logps)` and
/// `k3 = exp(ref − logp) − (ref − logp) − 1` (TRL `loss_type="grpo"` and `"dr_grpo"`).
///
/// Its derivative is `−ρ A` where the unclipped term is the smaller one and 0 where the clip holds.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, bound = "")]
pub struct ClippedSurrogate<D> {
    /// How far below 1 the ratio counts.
    #[serde(default = "default_epsilon")]
    epsilon: f32,
    /// How far above 1 the ratio counts; `epsilon` when absent.
    epsilon_high: Option<f32>,
    /// Weight of the penalty on distance from the reference model; 0 needs no reference model.
    #[serde(default)]
    beta: f32,
    reduction: Option<ReductionName>,
    #[serde(skip)]
    default: PhantomData<D>,
}

fn default_epsilon() -> f32 {
    0.2
}

const ABOUT_BETA: &str = "weight of the penalty on distance from the reference model; 0 needs no reference model";
const ABOUT_REDUCTION: &str = "how losses become one number: `completion_mean`, `fixed_length` or `token_mean`";

impl<D: DefaultReduction> ClippedSurrogate<D> {
    /// What its keys mean, for `register!`.
    pub const KEYS: KeyDocs = keys! {
        epsilon = default_epsilon() => "how far below 1 the ratio counts",
        epsilon_high = None::<f32> => "how far above 1 the ratio counts; `epsilon` when absent",
        beta = 0.0 => ABOUT_BETA,
        reduction = D::REDUCTION => ABOUT_REDUCTION,
    };
}

fn check_not_negative(key: &str, value: f32) -> Result<(), PluginError> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(PluginError::config(format!("`{key}` is {value} (use 0 or more)")))
}

impl<D: DefaultReduction> Objective for ClippedSurrogate<D> {
    fn evaluate(&mut self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, out: PerToken<'_>) -> Result<(), PluginError> {
        let old_logps = batch.old_logps()?;
        let epsilon_high = self.epsilon_high.unwrap_or(self.epsilon);
        let mut clips = Clips::default();
        for b in 0..batch.dims.completions as usize {
            for i in batch.dims.row(b).filter(|&i| batch.completion_mask[i] == 1) {
                let (advantage, ratio) = (batch.advantages[i], (batch.logps[i] - old_logps[i]).exp());
                let bounded = ratio.clamp(1.0 - self.epsilon, 1.0 + epsilon_high);
                let clipped = bounded * advantage < ratio * advantage;
                out.loss[i] = -(if clipped { bounded } else { ratio }) * advantage;
                out.dloss_dlogp[i] = if clipped { 0.0 } else { -ratio * advantage };
                clips.count(clipped, advantage);
            }
            clips.end_completion();
        }
        clips.record(ctx);
        add_kl(self.beta, ctx, batch, out)
    }

    fn validate(&self) -> Result<(), PluginError> {
        check_not_negative("epsilon", self.epsilon)?;
        check_not_negative("epsilon_high", self.epsilon_high.unwrap_or_default())?;
        check_not_negative("beta", self.beta)
    }

    fn reduction(&self) -> Reduction {
        self.reduction.unwrap_or(D::REDUCTION).into()
    }

    fn inputs(&self) -> Inputs {
        Inputs::OLD_LOGPS | kl_inputs(self.beta)
    }
}

/// Shares of tokens where the clip holds, by side (TRL `clip_ratio/*`).
#[derive(Default)]
struct Clips {
    /// Tokens, and those clipped below and above, of the current completion.
    row: [u64; 3],
    all: [u64; 3],
    /// Smallest share below and largest share above within one completion.
    extremes: Option<(f64, f64)>,
}

impl Clips {
    fn count(&mut self, clipped: bool, advantage: f32) {
        self.row[0] += 1;
        self.row[1] += u64::from(clipped && advantage < 0.0);
        self.row[2] += u64::from(clipped && advantage > 0.0);
    }

    fn end_completion(&mut self) {
        let row = std::mem::take(&mut self.row);
        if row[0] == 0 {
            return;
        }
        let (low, high) = (share(row[1], row[0]), share(row[2], row[0]));
        let (least, most) = self.extremes.unwrap_or((low, high));
        self.extremes = Some((least.min(low), most.max(high)));
        for (all, row) in self.all.iter_mut().zip(row) {
            *all += row;
        }
    }

    fn record(&self, ctx: &mut Ctx<'_>) {
        let [tokens, low, high] = self.all;
        let (least, most) = self.extremes.unwrap_or_default();
        ctx.record("clip_ratio/low_mean", share(low, tokens));
        ctx.record("clip_ratio/low_min", least);
        ctx.record("clip_ratio/high_mean", share(high, tokens));
        ctx.record("clip_ratio/high_max", most);
        ctx.record("clip_ratio/region_mean", share(low + high, tokens));
    }
}

fn share(count: u64, of: u64) -> f64 {
    count as f64 / of.max(1) as f64
}

/// `−A · logp + beta · k3`: the plain policy gradient of samples from the current policy (REINFORCE).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyGradient {
    /// Weight of the penalty on distance from the reference model; 0 needs no reference model.
    #[serde(default)]
    beta: f32,
    #[serde(default = "completion_mean")]
    reduction: ReductionName,
}

fn completion_mean() -> ReductionName {
    ReductionName::CompletionMean
}

impl PolicyGradient {
    /// What its keys mean, for `register!`.
    pub const KEYS: KeyDocs = keys! { beta = 0.0 => ABOUT_BETA, reduction = completion_mean() => ABOUT_REDUCTION };
}

impl Objective for PolicyGradient {
    fn evaluate(&mut self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, out: PerToken<'_>) -> Result<(), PluginError> {
        for i in (0..batch.dims.len()).filter(|&i| batch.completion_mask[i] == 1) {
            out.loss[i] = -batch.advantages[i] * batch.logps[i];
            out.dloss_dlogp[i] = -batch.advantages[i];
        }
        add_kl(self.beta, ctx, batch, out)
    }

    fn validate(&self) -> Result<(), PluginError> {
        check_not_negative("beta", self.beta)
    }

    fn reduction(&self) -> Reduction {
        self.reduction.into()
    }

    fn inputs(&self) -> Inputs {
        kl_inputs(self.beta)
    }
}

fn kl_inputs(beta: f32) -> Inputs {
    if beta > 0.0 { Inputs::REF_LOGPS } else { Inputs::NONE }
}

/// Adds `beta · k3` and records its mean as `kl`, nats.
fn add_kl(beta: f32, ctx: &mut Ctx<'_>, batch: &Batch<'_>, out: PerToken<'_>) -> Result<(), PluginError> {
    if beta == 0.0 {
        return Ok(());
    }
    let ref_logps = batch.ref_logps()?;
    let (mut sum, mut tokens) = (0.0_f64, 0_u64);
    for i in (0..batch.dims.len()).filter(|&i| batch.completion_mask[i] == 1) {
        let difference = ref_logps[i] - batch.logps[i];
        let k3 = difference.exp() - difference - 1.0;
        out.loss[i] += beta * k3;
        out.dloss_dlogp[i] += beta * (1.0 - difference.exp());
        sum += f64::from(k3);
        tokens += 1;
    }
    ctx.record("kl", sum / tokens.max(1) as f64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use capo_plugin::testing::{Fixture, objective};

    fn fixture() -> Fixture {
        let fixture = Fixture::new(3, 5);
        let logps = fixture.batch().logps.iter().enumerate();
        let moved: Vec<f32> = logps.map(|(i, logp)| logp + 0.6 * (i as f32 * 2.1).sin()).collect();
        fixture.logps(&moved).lengths(&[5, 3, 4])
    }

    /// The derivative against central differences of the loss, at every token.
    fn check_slope(component: &mut capo_plugin::ObjectiveFn) {
        let (_, slope) = fixture().evaluate(component).unwrap();
        let measured = fixture().derivative(component, 1e-3).unwrap();
        for (i, (slope, measured)) in slope.iter().zip(&measured).enumerate() {
            assert!((measured - slope).abs() < 2e-3, "token {i}: {measured} against {slope}");
        }
        assert!(slope.iter().any(|slope| slope.abs() > 0.1), "the check sees something");
    }

    #[test]
    fn derivatives_match_finite_differences() {
        check_slope(&mut objective::<ClippedSurrogate<ByCompletion>>("epsilon = 0.2").unwrap());
        check_slope(
            &mut objective::<ClippedSurrogate<ByCompletion>>("epsilon = 0.1\nepsilon_high = 0.3\nbeta = 0.4").unwrap(),
        );
        check_slope(&mut objective::<PolicyGradient>("").unwrap());
        check_slope(&mut objective::<PolicyGradient>("beta = 0.4").unwrap());
    }

    #[test]
    fn on_policy_the_ratio_is_one_and_nothing_is_clipped() {
        let fixture = Fixture::new(2, 2);
        let mut component = objective::<ClippedSurrogate<ByFixedLength>>("").unwrap();
        let (loss, slope) = fixture.evaluate(&mut component).unwrap();
        assert_eq!(loss, slope);
        assert_eq!(loss, fixture.batch().advantages.iter().map(|advantage| -advantage).collect::<Vec<_>>());
        assert_eq!(component.reduction(), Reduction::FIXED_LENGTH);
    }

    #[test]
    fn a_negative_limit_is_refused() {
        let error = objective::<ClippedSurrogate<ByCompletion>>("epsilon = -1").err().unwrap();
        assert_eq!(error.to_string(), "`epsilon` is -1 (use 0 or more)");
        let error = objective::<PolicyGradient>("beta = -0.5").err().unwrap();
        assert_eq!(error.to_string(), "`beta` is -0.5 (use 0 or more)");
    }
}
