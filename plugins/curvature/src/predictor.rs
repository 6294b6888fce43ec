//! The curvature model over the batches of a trainer: code that the mask and the weight share.

use capo_core::{
    Acceptance, Assessment, CurvatureModel, Granularity, Loss, Policy, Prepared, SecondMoment, Step,
};
use capo_plugin::prelude::*;
use capo_plugin::{Denominator, LastLayer};

use crate::assign::Assign;
use crate::optimizer::{Moments, Optimizer};
use crate::ranks::TrainerRanks;
use crate::{device, records};

/// The curvature model with the settings of its predictions.
pub(crate) struct Predictor {
    pub model: CurvatureModel,
    pub optimizer: Optimizer,
    pub signal: Signal,
    pub rate: Rate,
    pub assign: Assign,
    /// True if the shifts of one step on the whole batch are also reported.
    pub batch_shifts: bool,
}

/// The advantage at which a token's step is predicted: its own, or 1.
#[derive(Choice, Clone, Copy, PartialEq, Debug)]
pub(crate) enum Signal {
    /// The token's own advantage, as in the paper. A decision then depends on the completion's
    /// reward.
    Advantage,
    /// Advantage 1. A decision then depends on how far the token can move the policy. The gradient
    /// keeps its direction in reward.
    Unit,
}

/// The learning rate at which a step is predicted.
#[derive(Choice, Clone, Copy, PartialEq, Debug)]
pub(crate) enum Rate {
    /// The largest rate at which the step's gradient acts. Adam's first moment carries the gradient
    /// into later steps, so in a warm-up this is above the step's own rate. The paper has one rate
    /// α and says nothing of schedules.
    Acting,
    /// The step's own rate, as in the authors' code.
    Step,
}

impl Rate {
    fn of(self, batch: &Batch<'_>) -> f64 {
        let acting = batch.optimizer.learning_rate;
        match self {
            Self::Acting => acting,
            Self::Step => batch.step_learning_rate.unwrap_or(acting),
        }
    }
}

impl Predictor {
    /// Computes the shifts of the tokens with `token_mask[b * T + t] != 0` and the decisions under
    /// `thresholds`, and records all of them.
    pub fn assess(
        &self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        token_mask: &[u8],
        thresholds: &Acceptance,
    ) -> Result<Assessment, PluginError> {
        let assessment = self.shifts(batch, token_mask, thresholds)?;
        if self.batch_shifts {
            let prepared = self
                .model
                .prepare(&self.step(batch)?, token_mask)
                .map_err(failed)?;
            let shift = |token_mask: &[u8]| {
                self.model
                    .batch_shift(&prepared, token_mask)
                    .map_err(failed)
            };
            let before = shift(token_mask)?;
            let after = if assessment.token_mask == *token_mask {
                before
            } else {
                shift(&assessment.token_mask)?
            };
            records::batch_shifts(ctx, &before, &after);
        }
        records::assessment(ctx, &assessment);
        ctx.record("rows", self.model.rows() as f64);
        Ok(assessment)
    }

    /// Like [`assess`](Self::assess), but records nothing.
    pub fn shifts(
        &self,
        batch: &Batch<'_>,
        token_mask: &[u8],
        thresholds: &Acceptance,
    ) -> Result<Assessment, PluginError> {
        let step = self.step(batch)?;
        let (ones, minus_ones);
        let seen = match self.signal {
            Signal::Advantage => step,
            Signal::Unit => {
                // The loss is minimised, so its derivative is minus the advantage.
                (ones, minus_ones) = (vec![1.0; batch.dims.len()], vec![-1.0; batch.dims.len()]);
                Step {
                    advantages: &ones,
                    loss: Loss {
                        derivatives: Some(&minus_ones),
                        ..step.loss
                    },
                    ..step
                }
            }
        };
        let prepared = self.model.prepare(&seen, token_mask).map_err(failed)?;
        self.model.assess_by(&prepared, thresholds).map_err(failed)
    }

    /// Adds the optimizer's step to the model's own moments, together with the other ranks' share.
    /// Each token had weight `weights[b * T + t]`.
    pub fn step_end(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        weights: &[f32],
        taken: bool,
    ) -> Result<(), PluginError> {
        let ranks = TrainerRanks::new(ctx.collective());
        let outcome = self.take_in(&ranks, batch, weights, taken);
        if let Some(bytes) = ranks.bytes() {
            ctx.record("bytes_reduced", bytes as f64);
        }
        outcome
    }

    fn take_in(
        &mut self,
        ranks: &TrainerRanks<'_>,
        batch: &Batch<'_>,
        weights: &[f32],
        taken: bool,
    ) -> Result<(), PluginError> {
        let kept = weights.iter().any(|&weight| weight != 0.0);
        // A skipped step can only matter if it kept no token.
        let prepared = if taken || !kept {
            self.prepare(batch, weights).map(Some)
        } else {
            Ok(None)
        };
        let Some(Some(prepared)) = ranks.agree(taken, kept, prepared)? else {
            return Ok(());
        };
        self.model
            .commit_over(&prepared, weights, ranks)
            .map_err(failed)
    }

    /// The data of the tokens that the moments may include.
    fn prepare<'a>(&self, batch: &Batch<'a>, weights: &[f32]) -> Result<Prepared<'a>, PluginError> {
        let step = self.step(batch)?;
        let token_mask: Vec<u8> = weights
            .iter()
            .map(|&weight| u8::from(weight > 0.0))
            .collect();
        let seen = match step.optimizer.second_moment {
            SecondMoment::Kept => &token_mask,
            SecondMoment::KeptAndRejected => batch.completion_mask,
        };
        self.model.prepare(&step, seen).map_err(failed)
    }

    /// The step that is predicted, in the core's types; without a copy.
    fn step<'a>(&self, batch: &Batch<'a>) -> Result<Step<'a>, PluginError> {
        step_of(&self.optimizer, batch, self.rate.of(batch))
    }

    /// True if the predicted step moves nothing, because its rate is 0.
    pub fn stands_still(&self, batch: &Batch<'_>) -> bool {
        self.rate.of(batch) == 0.0
    }

    pub fn inputs(&self) -> Inputs {
        match self.optimizer.moments {
            Moments::Own => Inputs::LAST_LAYER,
            Moments::Host => Inputs::LAST_LAYER | Inputs::OPTIMIZER_STATE,
        }
    }

    /// A token's step is predicted from its own data and the moments. Only an `assign` to other
    /// tokens reads the rest of the batch. Moments need row sums, which add up over ranks.
    /// Thresholds that follow the run need the shifts of whole subsets, so each subset must be on
    /// one rank.
    pub fn traits(&self, follows: bool) -> Traits {
        let granularity = self.model.granularity();
        let alone = granularity == Granularity::Token && self.assign == Assign::Own;
        let whole = matches!(granularity, Granularity::Token | Granularity::Completion);
        Traits::SUMS_RANKS.only_if(whole || !follows) | Traits::TOKEN_WISE.only_if(alone)
    }

    pub fn save(&self) -> Result<Vec<u8>, PluginError> {
        self.model
            .save()
            .map_err(|error| PluginError::state(error.to_string()))
    }

    pub fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
        self.model
            .load(state)
            .map_err(|error| PluginError::state(error.to_string()))
    }
}

/// The step that the trainer's optimizer takes on `batch`, in the core's types; without a copy. For
/// components other than masks.
pub fn trainer_step<'a>(batch: &Batch<'a>) -> Result<Step<'a>, PluginError> {
    step_of(&Optimizer::default(), batch, batch.optimizer.learning_rate)
}

/// The step that `optimizer` takes on `batch` at `learning_rate`, in the core's types; without a
/// copy.
fn step_of<'a>(
    optimizer: &Optimizer,
    batch: &Batch<'a>,
    learning_rate: f64,
) -> Result<Step<'a>, PluginError> {
    let top_k = Some(batch.sampling_top_k as usize).filter(|&top_k| top_k > 0);
    Ok(Step {
        batch: layer(batch, batch.last_layer()?)?,
        advantages: batch.advantages,
        policy: Policy {
            temperature: batch.sampling_temperature,
            top_k,
        },
        loss: loss(batch)?,
        optimizer: optimizer.model(batch)?,
        learning_rate,
        moments: optimizer.moments(batch)?,
    })
}

/// The trainer's loss in the core's types.
fn loss<'a>(batch: &Batch<'a>) -> Result<Loss<'a>, PluginError> {
    let reduction = match batch.reduction {
        Reduction::COMPLETION_MEAN => capo_core::Reduction::CompletionMean,
        Reduction::FIXED_LENGTH => capo_core::Reduction::FixedLength,
        Reduction::TOKEN_MEAN => capo_core::Reduction::TokenMean,
        Reduction::COMPLETION_SUM => capo_core::Reduction::CompletionSum,
        Reduction(other) => {
            return Err(PluginError::unsupported(format!(
                "the trainer's reduction is {other}, which this mask does not know (it knows 0 to \
                 3; use a newer plugin)"
            )));
        }
    };
    Ok(Loss {
        temperature: batch.loss_temperature,
        reduction,
        max_completion_length: batch.max_completion_length,
        counted: (batch.denominator == Denominator::ORIGINAL).then_some(batch.completion_mask),
        derivatives: batch.dloss_dlogp,
    })
}

/// The last layer in the core's types.
fn layer<'a>(
    batch: &Batch<'a>,
    last: LastLayer<'a>,
) -> Result<capo_core::LastLayer<'a>, PluginError> {
    let hidden = last.hidden.shape();
    let topk = last.topk_ids.shape();
    let ([_, _, width], [_, _, k]) = (hidden, topk) else {
        return Err(PluginError::failed(format!(
            "the last layer has shapes {hidden:?} and {topk:?}, expected [B, T, D] and [B, T, K]"
        )));
    };
    Ok(capo_core::LastLayer {
        completions: batch.dims.completions as usize,
        tokens: batch.dims.tokens as usize,
        group_size: batch.dims.group_size as usize,
        k: *k as usize,
        width: *width as usize,
        vocab_size: last.vocab_size,
        action_ids: batch.completion_ids,
        arrays: device::arrays(&last)?,
    })
}

fn failed(error: capo_core::Error) -> PluginError {
    PluginError::failed(error.to_string())
}

#[cfg(test)]
mod tests {
    use capo_plugin::testing::Fixture;

    use super::*;

    #[test]
    fn every_reduction_with_a_name_is_known() {
        let fixture = Fixture::new(4, 6);
        let mut batch = fixture.batch();
        for (name, reduction) in Reduction::NAMED {
            batch.reduction = reduction;
            assert!(loss(&batch).is_ok(), "{name}");
        }
        batch.reduction = Reduction(9);
        let told = loss(&batch).unwrap_err().to_string();
        assert!(told.contains("the trainer's reduction is 9"), "{told}");
    }
}
