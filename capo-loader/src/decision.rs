//! The decision of masks and weights about each token of a batch. `host train`, `host replay` and
//! the Python package all decide here.

use std::borrow::BorrowMut;

use capo_plugin::{Batch, MaskHandle, PluginError, Sink, WeightHandle};

/// Masks and weights, in the order in which they decide. They are owned, or borrowed for one step.
#[derive(Default)]
pub struct Deciders<M = MaskHandle, W = WeightHandle> {
    /// The masks, which come first.
    pub masks: Vec<M>,
    /// The weights, which see the tokens that the masks left.
    pub weights: Vec<W>,
}

impl<M: BorrowMut<MaskHandle>, W: BorrowMut<WeightHandle>> Deciders<M, W> {
    /// Applies the masks in order and then the weights in order. Each of them sees the tokens that
    /// those before it left. Weights multiply, and a weight of 0 rejects a token as a mask does.
    ///
    /// # Errors
    ///
    /// A component's own error, a rule of the interface that it broke, or a product of weights that
    /// is not finite.
    pub fn decide(
        &mut self,
        sink: &mut dyn Sink,
        batch: &Batch<'_>,
    ) -> Result<Decision, PluginError> {
        let mut decision = Decision::of(batch.completion_mask.to_vec());
        for mask in &mut self.masks {
            decision.mask(mask.borrow_mut(), sink, batch)?;
        }
        for weight in &mut self.weights {
            decision.weigh(weight.borrow_mut(), sink, batch)?;
        }
        Ok(decision)
    }

    /// Tells all of them how the step ended: the masks the final `token_mask`, the weights the
    /// product of all weights. `taken` is false if no step was taken.
    ///
    /// # Errors
    ///
    /// A component's own error, or a rule of the interface that it broke.
    pub fn step_end(
        &mut self,
        sink: &mut dyn Sink,
        batch: &Batch<'_>,
        decision: &Decision,
        taken: bool,
    ) -> Result<(), PluginError> {
        for mask in &mut self.masks {
            let mask = mask.borrow_mut();
            mask.step_end(sink, batch, &decision.token_mask, taken)?;
        }
        for weight in &mut self.weights {
            let weight = weight.borrow_mut();
            weight.step_end(sink, batch, &decision.token_weights, taken)?;
        }
        Ok(())
    }
}

/// The decision of masks and weights about each token of a batch.
#[derive(Debug, Clone, Default)]
pub struct Decision {
    /// `[B, T]`: 1 for tokens that reach the backward pass, 0 for rejected tokens and padding.
    pub token_mask: Vec<u8>,
    /// `[B, T]`: the product of all weights; 0 where `token_mask` is.
    pub token_weights: Vec<f32>,
    /// The tokens that each mask rejected, in the masks' order.
    pub rejected: Vec<Rejected>,
    /// The factors of each weight component, in order.
    pub factors: Vec<Factors>,
}

/// Tokens that one mask rejected, among those that the earlier masks kept.
#[derive(Debug, Clone)]
pub struct Rejected {
    /// The mask's name in reports.
    pub by: String,
    /// Indices into the flat `[B, T]` array, ascending.
    pub tokens: Vec<usize>,
}

/// The factors of one weight component, for the tokens that reached it.
#[derive(Debug, Clone)]
pub struct Factors {
    /// The weight's name in reports.
    pub by: String,
    /// `[B, T]`: factor of each token.
    pub factors: Vec<f32>,
    /// `[B, T]`: 1 for the tokens that reached it.
    pub token_mask: Vec<u8>,
}

impl Decision {
    /// Every token of `token_mask`, `[B, T]`, with a weight of 1.
    pub fn of(token_mask: Vec<u8>) -> Self {
        let token_weights = token_mask.iter().map(|&token| f32::from(token)).collect();
        Self {
            token_mask,
            token_weights,
            ..Self::default()
        }
    }

    /// Number of tokens that reach the backward pass.
    pub fn tokens(&self) -> u64 {
        self.token_mask.iter().map(|&token| u64::from(token)).sum()
    }

    /// Applies the next mask.
    fn mask(
        &mut self,
        mask: &mut MaskHandle,
        sink: &mut dyn Sink,
        batch: &Batch<'_>,
    ) -> Result<(), PluginError> {
        let before = self.token_mask.clone();
        mask.mask(sink, batch, &mut self.token_mask)?;
        let tokens: Vec<usize> = (0..before.len())
            .filter(|&i| self.token_mask[i] < before[i])
            .collect();
        for &token in &tokens {
            self.token_weights[token] = 0.0;
        }
        self.rejected.push(Rejected {
            by: mask.id().to_owned(),
            tokens,
        });
        Ok(())
    }

    /// Applies the next weight.
    fn weigh(
        &mut self,
        weight: &mut WeightHandle,
        sink: &mut dyn Sink,
        batch: &Batch<'_>,
    ) -> Result<(), PluginError> {
        let reached = self.token_mask.clone();
        let mut factors = vec![0.0; reached.len()];
        weight.weigh(sink, batch, &reached, &mut factors)?;
        for (token, factor) in factors.iter().enumerate() {
            self.token_weights[token] *= factor;
            self.token_mask[token] &= u8::from(self.token_weights[token] != 0.0);
        }
        self.factors.push(Factors {
            by: weight.id().to_owned(),
            factors,
            token_mask: reached,
        });
        self.check_product(batch)
    }

    /// Refuses a product of weights that is not finite.
    fn check_product(&self, batch: &Batch<'_>) -> Result<(), PluginError> {
        let weights = &self.token_weights;
        let Some(at) = weights.iter().position(|weight| !weight.is_finite()) else {
            return Ok(());
        };
        let tokens = batch.dims.tokens.max(1) as usize;
        let completion = at / tokens;
        let token = at % tokens;
        let largest = f32::MAX;
        Err(PluginError::failed(format!(
            "the weights of completion {completion}, token {token} multiply to more than \
             {largest:e} (lower one of them)"
        )))
    }
}

impl Factors {
    /// The tokens that reached the weight: the index of each, and its factor.
    pub fn of_tokens(&self) -> impl Iterator<Item = (usize, f32)> {
        let each = self.factors.iter().zip(&self.token_mask).enumerate();
        each.filter(|(_, (_, token))| **token == 1)
            .map(|(i, (factor, _))| (i, *factor))
    }

    /// The mean factor of the tokens that reached the weight; 0 if none did.
    pub fn mean(&self) -> f64 {
        let count = self.of_tokens().count().max(1) as f64;
        let sum: f64 = self.of_tokens().map(|(_, factor)| f64::from(factor)).sum();
        sum / count
    }
}
