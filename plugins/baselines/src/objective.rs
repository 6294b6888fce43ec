//! Losses per token, and their derivatives by the log-probability.

use std::marker::PhantomData;

use capo_plugin::prelude::*;

/// Which reduction an id uses when its table does not say.
pub trait DefaultReduction: Send {
    /// The reduction.
    const REDUCTION: Reduction;
}

/// Mean over completions of their means (GRPO).
#[derive(Debug, Clone)]
pub struct ByCompletion;

impl DefaultReduction for ByCompletion {
    const REDUCTION: Reduction = Reduction::COMPLETION_MEAN;
}

/// Sum ÷ (B · `max_completion_length`) (Dr.GRPO).
#[derive(Debug, Clone)]
pub struct ByFixedLength;

impl DefaultReduction for ByFixedLength {
    const REDUCTION: Reduction = Reduction::FIXED_LENGTH;
}

/// The names of reductions in a table.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ReductionName {
    CompletionMean,
    FixedLength,
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
#[serde(try_from = "SurrogateTable", bound = "D: DefaultReduction")]
pub struct ClippedSurrogate<D> {
    epsilon: f32,
    epsilon_high: f32,
    beta: f32,
    reduction: Reduction,
    default: PhantomData<D>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SurrogateTable {
    /// How far below 1 the ratio counts.
    #[serde(default = "default_epsilon")]
    epsilon: f32,
    /// How far above 1 the ratio counts; `epsilon` when absent.
    epsilon_high: Option<f32>,
    /// Weight of the penalty on distance from the reference model; 0 needs no reference model.
    #[serde(default)]
    beta: f32,
    /// `completion_mean`, `fixed_length` or `token_mean`.
    reduction: Option<ReductionName>,
}

fn default_epsilon() -> f32 {
    0.2
}

impl<D: DefaultReduction> TryFrom<SurrogateTable> for ClippedSurrogate<D> {
    type Error = String;

    fn try_from(table: SurrogateTable) -> Result<Self, String> {
        let epsilon_high = table.epsilon_high.unwrap_or(table.epsilon);
        for (key, value) in [("epsilon", table.epsilon), ("epsilon_high", epsilon_high), ("beta", table.beta)] {
            check_not_negative(key, value)?;
        }
        let reduction = table.reduction.map_or(D::REDUCTION, Reduction::from);
        Ok(Self { epsilon: table.epsilon, epsilon_high, beta: table.beta, reduction, default: PhantomData })
    }
}

fn check_not_negative(key: &str, value: f32) -> Result<(), String> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(format!("`{key}` is {value} (use 0 or more)"))
}

impl<D: DefaultReduction> Objective for ClippedSurrogate<D> {
    fn evaluate(&mut self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, out: PerToken<'_>) -> Result<(), PluginError> {
        let old_logps = batch.old_logps()?;
        let mut clips = Clips::default();
        for b in 0..batch.dims.completions as usize {
            for i in batch.dims.row(b).filter(|&i| batch.completion_mask[i] == 1) {
                let (advantage, ratio) = (batch.advantages[i], (batch.logps[i] - old_logps[i]).exp());
                let bounded = ratio.clamp(1.0 - self.epsilon, 1.0 + self.epsilon_high);
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

    fn reduction(&self) -> Reduction {
        self.reduction
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
#[serde(try_from = "GradientTable")]
pub struct PolicyGradient {
    beta: f32,
    reduction: Reduction,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GradientTable {
    /// Weight of the penalty on distance from the reference model; 0 needs no reference model.
    #[serde(default)]
    beta: f32,
    /// `completion_mean`, `fixed_length` or `token_mean`.
    reduction: Option<ReductionName>,
}

impl TryFrom<GradientTable> for PolicyGradient {
    type Error = String;

    fn try_from(table: GradientTable) -> Result<Self, String> {
        check_not_negative("beta", table.beta)?;
        let reduction = table.reduction.map_or(Reduction::COMPLETION_MEAN, Reduction::from);
        Ok(Self { beta: table.beta, reduction })
    }
}

impl Objective for PolicyGradient {
    fn evaluate(&mut self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, out: PerToken<'_>) -> Result<(), PluginError> {
        for i in (0..batch.dims.len()).filter(|&i| batch.completion_mask[i] == 1) {
            out.loss[i] = -batch.advantages[i] * batch.logps[i];
            out.dloss_dlogp[i] = -batch.advantages[i];
        }
        add_kl(self.beta, ctx, batch, out)
    }

    fn reduction(&self) -> Reduction {
        self.reduction
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

    fn fixture(shift: f32) -> Fixture {
        let fixture = Fixture::new(3, 5);
        let moved: Vec<f32> = fixture
            .batch()
            .logps
            .iter()
            .enumerate()
            .map(|(i, logp)| logp + 0.6 * (i as f32 * 2.1).sin() + shift)
            .collect();
        fixture.logps(&moved).lengths(&[5, 3, 4])
    }

    /// The derivative against central differences of the loss, at every token of every objective.
    fn check_slope(component: &mut capo_plugin::ObjectiveFn) {
        let h = 1e-3_f32;
        let (_, slope) = fixture(0.0).evaluate(component).unwrap();
        let (above, _) = fixture(h).evaluate(component).unwrap();
        let (below, _) = fixture(-h).evaluate(component).unwrap();
        for i in 0..slope.len() {
            let numeric = (above[i] - below[i]) / (2.0 * h);
            assert!((numeric - slope[i]).abs() < 2e-3, "token {i}: {numeric} against {}", slope[i]);
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
    }
}
