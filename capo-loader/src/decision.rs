//! The decision of masks and weights about each token of a batch.

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
        self.of_tokens()
            .map(|(_, factor)| f64::from(factor))
            .sum::<f64>()
            / count
    }
}
