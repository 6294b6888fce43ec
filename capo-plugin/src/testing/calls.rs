//! Components that run on a fixture as in a host.

use super::observed::{Observed, Outputs, narrow};
use super::{Fixture, Measured, Records};
use crate::{
    AdvantageHandle, MaskHandle, ObjectiveHandle, PluginError, StepControlHandle, WeightHandle,
};

/// Result of a mask on a fixture.
#[derive(Debug)]
pub struct Masked {
    /// `[B, T]`: 1 for a token that all masks kept so far.
    pub token_mask: Vec<u8>,
    /// The mask's reports.
    pub records: Records,
}

/// Result of a weight on a fixture.
#[derive(Debug)]
pub struct Weighed {
    /// `[B, T]`: weight of each token.
    pub weights: Vec<f32>,
    /// The weight's reports.
    pub records: Records,
}

/// Result of a step control on a [`Measured`] update.
#[derive(Debug)]
pub struct Controlled {
    /// One scale per group of [`Measured::GROUPS`].
    pub scales: [f64; 3],
    /// The step control's reports.
    pub records: Records,
}

/// Calls of components. Their errors are the messages that a host would show.
impl Fixture {
    /// Returns a component's outputs and its reports.
    fn run(&self, component: &mut dyn Observed) -> Result<(Outputs, Records), PluginError> {
        let mut records = Records::default();
        Ok((component.run(&mut records, self)?, records))
    }

    /// Runs an advantage estimator and returns the advantages, `[B, T]`.
    pub fn estimate(&self, component: &mut AdvantageHandle) -> Result<Vec<f32>, PluginError> {
        Ok(narrow(&self.run(component)?.0[0].1))
    }

    /// Runs an objective and returns the loss and its derivative, `[B, T]` each.
    pub fn evaluate(
        &self,
        component: &mut ObjectiveHandle,
    ) -> Result<(Vec<f32>, Vec<f32>), PluginError> {
        let (outputs, _) = self.run(component)?;
        Ok((narrow(&outputs[0].1), narrow(&outputs[1].1)))
    }

    /// Measured derivative, `[B, T]`, which an objective's `dloss_dlogp` must approximate: the
    /// derivative of the sum of a completion's losses by each log-probability. It is a central
    /// difference over ±`step` nats (1e-2 suits values near 1).
    ///
    /// The method runs the objective twice per token, so the objective's answer must not depend on
    /// earlier calls.
    ///
    /// ```
    /// use capo_plugin::prelude::*;
    /// use capo_plugin::testing::{self, Fixture};
    ///
    /// /// The mean surprise of a completion, squared, as the loss of each of its tokens.
    /// #[keys]
    /// struct Squared {}
    ///
    /// impl Objective for Squared {
    ///     fn evaluate(&mut self, _ctx: &mut Ctx, batch: &Batch, out: TokenLosses) -> Result<(), PluginError> {
    ///         for row in (0..batch.dims.completions as usize).map(|b| batch.dims.row(b)) {
    ///             let mean = -batch.logps[row.clone()].iter().sum::<f32>() / row.len() as f32;
    ///             out.losses[row.clone()].fill(mean * mean);
    ///             // Each of the n losses changes by -2 mean / n.
    ///             out.dloss_dlogp[row].fill(-2.0 * mean);
    ///         }
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let (fixture, mut objective) = (Fixture::new(2, 3), testing::objective::<Squared>("").unwrap());
    /// let (_, slope) = fixture.evaluate(&mut objective).unwrap();
    /// for (slope, measured) in slope.iter().zip(fixture.derivative(&mut objective, 1e-2).unwrap()) {
    ///     assert!((slope - measured).abs() < 1e-3);
    /// }
    /// ```
    pub fn derivative(
        &self,
        component: &mut ObjectiveHandle,
        step: f32,
    ) -> Result<Vec<f32>, PluginError> {
        let (mut moved, mut derivative) = (self.clone(), vec![0.0; self.dims.len()]);
        for row in (0..self.dims.completions as usize).map(|b| self.dims.row(b)) {
            for at in row.clone().filter(|&at| self.mask[at] == 1) {
                let mut sum_at = |logp: f32| {
                    moved.logps[at] = logp;
                    let (loss, _) = moved.evaluate(component)?;
                    Ok::<_, PluginError>(
                        loss[row.clone()]
                            .iter()
                            .map(|&loss| f64::from(loss))
                            .sum::<f64>(),
                    )
                };
                // Rounding changes both ends.
                let (below, above) = (self.logps[at] - step, self.logps[at] + step);
                let difference = sum_at(above)? - sum_at(below)?;
                derivative[at] = (difference / f64::from(above - below)) as f32;
                moved.logps[at] = self.logps[at];
            }
        }
        Ok(derivative)
    }

    /// Runs a mask on the tokens that [`token_mask`](Self::token_mask) leaves of the completion
    /// mask.
    pub fn mask(&self, component: &mut MaskHandle) -> Result<Masked, PluginError> {
        let (outputs, records) = self.run(component)?;
        Ok(Masked {
            token_mask: outputs[0].1.iter().map(|&keep| keep as u8).collect(),
            records,
        })
    }

    /// Runs a weight on the tokens that [`token_mask`](Self::token_mask) leaves of the completion
    /// mask.
    pub fn weigh(&self, component: &mut WeightHandle) -> Result<Weighed, PluginError> {
        let (outputs, records) = self.run(component)?;
        Ok(Weighed {
            weights: narrow(&outputs[0].1),
            records,
        })
    }

    /// Ends the step of a weight with the product of all `weights`, as a host does after the
    /// optimizer step.
    pub fn weighed_step_end(
        &self,
        component: &mut WeightHandle,
        weights: &[f32],
        taken: bool,
    ) -> Result<(), PluginError> {
        component.step_end(
            &mut Records::default(),
            &self.batch_with(&self.context()),
            weights,
            taken,
        )
    }

    /// Runs a step control on `update`, with weight 1 for every kept token, and once more on what
    /// it left where it asks for that.
    pub fn control(
        &self,
        component: &mut StepControlHandle,
        update: Measured,
    ) -> Result<Controlled, PluginError> {
        let (outputs, records) = Self {
            update,
            ..self.clone()
        }
        .run(component)?;
        Ok(Controlled {
            scales: [0, 1, 2].map(|group| outputs[group].1[0]),
            records,
        })
    }

    /// Ends a mask's step with `token_mask`, as a host does after the optimizer step.
    pub fn step_end(
        &self,
        component: &mut MaskHandle,
        token_mask: &[u8],
        taken: bool,
    ) -> Result<(), PluginError> {
        component.step_end(
            &mut Records::default(),
            &self.batch_with(&self.context()),
            token_mask,
            taken,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batch, Ctx, Inputs, LastLayer, Mask, Tensor, testing};

    /// Drops every first token, and reports the sum of every optional array that a fixture can set.
    #[crate::keys]
    struct Sums {}

    impl Mask for Sums {
        fn mask(
            &mut self,
            ctx: &mut Ctx<'_>,
            batch: &Batch<'_>,
            token_mask: &mut [u8],
        ) -> Result<(), PluginError> {
            let layer = batch.last_layer()?;
            let arrays = [
                ("entropy", batch.entropy()?),
                ("losses", batch.losses.unwrap_or_default()),
                ("slopes", batch.dloss_dlogp.unwrap_or_default()),
                ("hidden", layer.hidden.as_f32()?),
                ("weight", batch.optimizer_state()?.weight.as_f32()?),
            ];
            for (name, array) in arrays {
                ctx.record(name, f64::from(array.iter().sum::<f32>()));
                ctx.record(&format!("{name}/len"), array.len() as f64);
            }
            ctx.record("ids", f64::from(batch.completion_ids.iter().sum::<u32>()));
            ctx.record("arrived", f64::from(token_mask.iter().sum::<u8>()));
            (0..batch.dims.completions as usize)
                .for_each(|b| token_mask[batch.dims.row(b).start] = 0);
            Ok(())
        }

        fn inputs(&self) -> Inputs {
            Inputs::KNOWN
        }
    }

    #[test]
    fn setters_reach_the_component() {
        let (hidden, logits, ids, flat) = ([0.5; 8], [2.0; 12], [20; 12], [1.0; 4]);
        let layer = LastLayer::new(
            Tensor::from_f32(&hidden, &[2, 2, 2]),
            Tensor::from_u32(&ids, &[2, 2, 3]),
            Tensor::from_f32(&logits, &[2, 2, 3]),
            Tensor::from_f32(&flat, &[2, 2]),
            Tensor::from_f32(&flat, &[2, 2]),
            21,
        );
        let fixture = Fixture::new(2, 2)
            .entropy(&[1.0, 2.0, 3.0, 4.0])
            .completion_ids(&[3, 4, 5, 20]);
        let fixture = fixture
            .losses(&[1.0, 1.0, 1.0, 2.0], &[0.5; 4])
            .last_layer(layer)
            .token_mask(&[1, 0, 1, 1]);
        let masked = fixture
            .mask(&mut testing::mask::<Sums>("").unwrap())
            .unwrap();
        let number = |name: &str| masked.records.number(name).unwrap();
        let sums = [
            "entropy",
            "losses",
            "slopes",
            "hidden",
            "hidden/len",
            "weight/len",
            "ids",
            "arrived",
        ];
        assert_eq!(
            sums.map(number),
            [10.0, 5.0, 2.0, 4.0, 8.0, 42.0, 32.0, 3.0]
        );
        assert_eq!(masked.token_mask, [0, 0, 0, 1]);
        // Padding is never kept, whatever other masks keep. A group that moves takes its entries
        // with it.
        let moved = fixture.groups_of(1).lengths(&[2, 1]).regrouped(&[1, 0]);
        assert_eq!(
            moved
                .mask(&mut testing::mask::<Sums>("").unwrap())
                .unwrap()
                .records
                .number("arrived"),
            Some(2.0)
        );
        assert_eq!(
            (moved.slopes, moved.token_mask),
            (vec![0.5, 0.0, 0.5, 0.5], vec![1, 1, 1, 0])
        );
    }

    #[test]
    #[should_panic(expected = "the shape of `topk_ids`")]
    fn a_layer_of_another_shape_is_refused() {
        let flat = [1.0; 4];
        let tensor = Tensor::from_f32(&flat, &[2, 2]);
        let ids = Tensor::from_u32(&[7], &[1, 1, 1]);
        let hidden = Tensor::from_f32(&flat, &[2, 2, 1]);
        let _ =
            Fixture::new(2, 2).last_layer(LastLayer::new(hidden, ids, hidden, tensor, tensor, 8));
    }
}
