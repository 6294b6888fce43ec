//! The governor with the curvature model of the last layer: CAPO's idea, applied to the step
//! instead of tokens.

use capo_core::{
    Acceptance, CurvatureAverage, CurvatureModel, Granularity, Loss, SecondMoment, Semantics, Step,
};
use capo_curvature::trainer_step;
use capo_plugin::prelude::*;

use crate::target::scale;

/// Shortens steps that would move the policy too far by the last layer alone.
///
/// On the default run the model predicts 0.021% (median) of a step's true divergence; the default
/// target is 0.021% of 3e-5 nats.
#[component(StepControl, id = "governor.last-layer")]
struct LastLayerGovernor {
    /// Largest predicted KL divergence of the last layer's step, nats per kept token. Usual values
    /// are 1e-9 to 1e-8.
    #[key(default = 6e-9, above = 0)]
    target: f64,
    model: TokenMeanModel,
}

/// A model that never accepts or rejects tokens. Its divergence is a mean over tokens, whatever the
/// loss divides by.
struct TokenMeanModel(CurvatureModel);

impl Default for TokenMeanModel {
    fn default() -> Self {
        let semantics = Semantics {
            curvature_average: CurvatureAverage::TokenMean,
            ..Semantics::EXACT
        };
        Self(
            CurvatureModel::new(Acceptance::default(), Granularity::Batch, semantics)
                .expect("no threshold is out of range"),
        )
    }
}

impl LastLayerGovernor {
    /// Predicted KL divergence of the step, nats, as a mean over the tokens with a nonzero weight.
    fn predict(&self, step: &Step, weights: &[f32]) -> Result<f64, PluginError> {
        // A token's weight multiplies its part of the gradient.
        let weighed = |values: &[f32]| {
            values
                .iter()
                .zip(weights)
                .map(|(value, weight)| value * weight)
                .collect()
        };
        let advantages: Vec<f32> = weighed(step.advantages);
        let slopes: Option<Vec<f32>> = step.loss.derivatives.map(weighed);
        let loss = Loss {
            derivatives: slopes.as_deref(),
            ..step.loss
        };
        let token_mask: Vec<u8> = weights
            .iter()
            .map(|&weight| u8::from(weight > 0.0))
            .collect();
        let prepared = self
            .model
            .0
            .prepare(
                &Step {
                    advantages: &advantages,
                    loss,
                    ..*step
                },
                &token_mask,
            )
            .map_err(failed)?;
        Ok(self
            .model
            .0
            .batch_shift(&prepared, &token_mask)
            .map_err(failed)?
            .m_f)
    }

    /// Adds the trainer's step to the model's own moments, as the trainer's optimizer does.
    fn commit(&mut self, step: &Step, batch: &Batch, weights: &[f32]) -> Result<(), PluginError> {
        let token_mask: Vec<u8> = weights
            .iter()
            .map(|&weight| u8::from(weight > 0.0))
            .collect();
        let seen = match step.optimizer.second_moment {
            SecondMoment::Kept => &token_mask,
            SecondMoment::KeptAndRejected => batch.completion_mask,
        };
        let prepared = self.model.0.prepare(step, seen).map_err(failed)?;
        self.model
            .0
            .commit_weighted(&prepared, weights)
            .map_err(failed)
    }
}

fn failed(error: capo_core::Error) -> PluginError {
    PluginError::failed(error.to_string())
}

impl StepControl for LastLayerGovernor {
    fn control(
        &mut self,
        ctx: &mut Ctx,
        batch: &Batch,
        update: &mut Update,
    ) -> Result<(), PluginError> {
        let step = trainer_step(batch)?;
        let weights = update.weights();
        let predicted = self.predict(&step, weights)?;
        self.commit(&step, batch, weights)?;
        let scale = scale(self.target, predicted);
        ctx.record("predicted_kl", predicted);
        ctx.record("scale", scale);
        update.scale(scale);
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        Inputs::LAST_LAYER
    }

    fn save(&self) -> Result<Vec<u8>, PluginError> {
        self.model
            .0
            .save()
            .map_err(|error| PluginError::state(error.to_string()))
    }

    fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
        self.model
            .0
            .load(state)
            .map_err(|error| PluginError::state(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use capo_plugin::testing::{self, Fixture, Measured, Snapshot};
    use capo_plugin::{Reduction, StepControlHandle};
    use insta::assert_snapshot;

    use super::*;

    fn governor(table: &str) -> StepControlHandle {
        testing::step_control::<LastLayerGovernor>(table).unwrap()
    }

    fn predicted(governor: &mut StepControlHandle, fixture: &Fixture) -> f64 {
        fixture
            .control(governor, Measured::default())
            .unwrap()
            .records
            .number("predicted_kl")
            .unwrap()
    }

    #[test]
    fn a_step_comes_to_the_target() {
        let fixture = Fixture::new(4, 6).lengths(&[6, 3, 0, 5]);
        let kl = predicted(&mut governor("target = 1e9"), &fixture);
        assert!(kl > 0.0);
        let scales = |target: f64| {
            fixture
                .control(
                    &mut governor(&format!("target = {target}")),
                    Measured::default(),
                )
                .unwrap()
                .scales
        };
        assert_eq!(scales(2.0 * kl), [1.0; 3]);
        let half = scales(kl / 4.0)[0];
        assert!((half - 0.5).abs() < 1e-12, "{half}");
    }

    /// The mean over tokens is the same whatever the loss divides by, and however long completions
    /// may get.
    #[test]
    fn the_target_is_nats_per_token_under_every_reduction() {
        let fixture = Fixture::new(4, 6).lengths(&[6, 3, 0, 5]);
        let weights: Vec<f32> = fixture
            .batch()
            .completion_mask
            .iter()
            .map(|&mask| f32::from(mask))
            .collect();
        let kl = |reduction: Reduction| {
            let mut batch = fixture.batch();
            batch.reduction = reduction;
            LastLayerGovernor {
                target: 6e-9,
                model: TokenMeanModel::default(),
            }
            .predict(&trainer_step(&batch).unwrap(), &weights)
            .unwrap()
        };
        // These three differ by a factor of the whole gradient, which Adam's first step does not
        // see.
        let mean = kl(Reduction::TOKEN_MEAN);
        for other in [Reduction::FIXED_LENGTH, Reduction::COMPLETION_SUM] {
            assert!(
                (kl(other) / mean - 1.0).abs() < 1e-3,
                "{other:?}: {} {mean}",
                kl(other)
            );
        }
    }

    #[test]
    fn dropped_tokens_move_nothing() {
        let all = Fixture::new(4, 6);
        let none = Fixture::new(4, 6).token_mask(&[0; 24]);
        assert_eq!(predicted(&mut governor(""), &none), 0.0);
        assert!(predicted(&mut governor(""), &all) > 0.0);
    }

    #[test]
    fn state_goes_on_where_it_was_saved() {
        let fixture = Fixture::new(4, 6);
        let mut first = governor("");
        let fresh = predicted(&mut first, &fixture);
        let mut second = governor("");
        second.load(&first.save().unwrap()).unwrap();
        let later = predicted(&mut first, &fixture);
        assert_ne!(fresh, later, "it keeps moments");
        assert_eq!(later, predicted(&mut second, &fixture));
        assert!(second.load(b"nonsense").is_err());
    }

    #[test]
    fn values_out_of_bounds_are_refused() {
        let say = testing::step_control::<LastLayerGovernor>("target = -1")
            .err()
            .unwrap()
            .to_string();
        assert_snapshot!(say, @"`target` is -1 (it must be finite and above 0)");
    }

    #[test]
    fn does_what_it_did() {
        assert_snapshot!(
            Snapshot::default()
                .digits(3)
                .of(&mut governor("target = 4e-7"))
        );
    }
}
