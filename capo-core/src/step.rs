//! What a proposed step depends on besides the moments.

use crate::{Error, LastLayer, OptimizerModel, Policy};

/// A step that the trainer is about to take.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// The batch, as the last layer sees it.
    pub batch: LastLayer<'a>,
    /// `[B, T]`: what each token's log-probability is weighted with; never read on padding.
    pub advantages: &'a [f32],
    /// What the tokens were sampled from.
    pub policy: Policy,
    /// What turns a gradient into a direction.
    pub optimizer: OptimizerModel,
    /// Learning rate of this step, at least 0.
    pub learning_rate: f64,
}

impl Step<'_> {
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.batch.check()?;
        self.batch.check_per_token("advantages", self.advantages.len())?;
        self.policy.check()?;
        self.optimizer.check()?;
        self.check_learning_rate()
    }

    fn check_learning_rate(&self) -> Result<(), Error> {
        let rate = self.learning_rate;
        if rate.is_finite() && rate >= 0.0 {
            return Ok(());
        }
        Err(Error::new(format!(
            "`learning_rate` is {rate}, expected a finite number of at least 0 (pass the rate of the coming step)"
        )))
    }
}
