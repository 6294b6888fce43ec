//! Control experiments: the model's decisions, applied to other tokens.

use capo_plugin::Draws;
use capo_plugin::prelude::*;

/// The tokens that get the model's decisions: their own, random ones or the least probable.
///
/// All choices but the first are controls: they show what the model knows beyond chance, or beyond
/// the tokens' probability.
#[derive(Choice, Clone, Copy, PartialEq, Debug)]
pub(crate) enum Assign {
    /// Each token gets its own decision.
    Own,
    /// Random tokens, drawn anew in every step from the run's seed.
    Random,
    /// The least probable tokens get the worst decisions.
    LeastProbable,
}

impl Assign {
    /// Rejects as many tokens as `token_mask` does, chosen by this rule among the tokens with 1 in
    /// `before`.
    pub fn rejections(self, batch: &Batch<'_>, before: &[u8], token_mask: &mut [u8]) {
        if self == Self::Own {
            return;
        }
        let places = places(before);
        let rejected = places.iter().filter(|&&at| token_mask[at] == 0).count();
        token_mask.copy_from_slice(before);
        self.order(batch, places)
            .into_iter()
            .take(rejected)
            .for_each(|at| token_mask[at] = 0);
    }

    /// Permutes the weights of the tokens with 1 in `token_mask` by this rule.
    pub fn weights(self, batch: &Batch<'_>, token_mask: &[u8], weights: &mut [f32]) {
        if self == Self::Own {
            return;
        }
        let places = places(token_mask);
        let mut values: Vec<f32> = places.iter().map(|&at| weights[at]).collect();
        values.sort_by(f32::total_cmp);
        self.order(batch, places)
            .into_iter()
            .zip(values)
            .for_each(|(at, value)| weights[at] = value);
    }

    /// Indices of tokens, sorted from the worst decision to the best.
    fn order(self, batch: &Batch<'_>, mut places: Vec<usize>) -> Vec<usize> {
        match self {
            Self::Own => {}
            Self::LeastProbable => {
                places.sort_by(|&a, &b| batch.logps[a].total_cmp(&batch.logps[b]))
            }
            Self::Random => Draws::new(batch.seed, batch.step).shuffle(&mut places),
        }
        places
    }
}

/// Indices at which `mask` is 1.
fn places(mask: &[u8]) -> Vec<usize> {
    (0..mask.len()).filter(|&at| mask[at] == 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use capo_plugin::testing::Fixture;

    #[test]
    fn others_get_the_same_decisions() {
        let fixture = Fixture::new(2, 3)
            .lengths(&[3, 2])
            .logps(&[-3.0, -1.0, -4.0, -1.0, -5.0, 0.0]);
        let batch = fixture.batch();
        let before = batch.completion_mask.to_vec();
        let found = [0, 1, 1, 0, 1, 0];
        let rejections = |assign: Assign| {
            let mut token_mask = found;
            assign.rejections(&batch, &before, &mut token_mask);
            token_mask
        };
        assert_eq!(rejections(Assign::Own), found);
        assert_eq!(rejections(Assign::LeastProbable), [1, 1, 0, 1, 0, 0]);
        assert_eq!(rejections(Assign::Random).iter().sum::<u8>(), 3);
        assert_eq!(rejections(Assign::Random)[5], 0, "padding stays out");
        let weights = |assign: Assign| {
            let mut weights = [0.1, 1.0, 0.5, 0.2, 1.0, 0.0];
            assign.weights(&batch, &before, &mut weights);
            weights
        };
        assert_eq!(
            weights(Assign::LeastProbable),
            [0.5, 1.0, 0.2, 1.0, 0.1, 0.0]
        );
        let mut random = weights(Assign::Random);
        random.sort_by(f32::total_cmp);
        assert_eq!(random, [0.0, 0.1, 0.2, 0.5, 1.0, 1.0]);
    }
}
