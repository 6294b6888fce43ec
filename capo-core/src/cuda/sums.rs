//! A step of several ranks on a device: one rank's gradients by row, and the update of its moments
//! with the sums of all ranks.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::driver::Device;
use super::pairs::Hidden;
use super::{Arrays, Features, Moments, Pairs};
use crate::gradient::total_tokens;
use crate::intake::{Intake, Taken};
use crate::moments::{self, Slot};
use crate::optimizer::Adam;
use crate::row_sums::RowSums;
use crate::semantics::{Semantics, StateDtype, UntouchedRows, Weights};
use crate::subset::Subsets;
use crate::{Error, Ranks};

/// Adam without memory: its first moment after a step is the gradient.
const GRADIENT: Adam = Adam {
    beta1: 0.0,
    beta2: 0.0,
    eps: 1.0,
    unbias1: 1.0,
    unbias2: 1.0,
    untouched_rows: UntouchedRows::Decay,
};

/// The gradients of a rank's rows, added up on its device and rounded to `f32`.
pub(crate) struct Local {
    kept: Gradient,
    everything: Option<Gradient>,
}

struct Gradient {
    /// `[D]` for each vocabulary row.
    rows: HashMap<u32, Box<[f32]>>,
    /// With [`Weights::RowMean`]: alternately a row and its number of tokens. The gradient is not
    /// yet divided by this number.
    tokens: Option<Vec<i64>>,
}

impl Local {
    /// The gradients of the tokens in `taken`; `dims` are V and D.
    pub fn of(
        pairs: &Pairs,
        taken: &Taken,
        arrays: &Arrays,
        dims: (usize, usize),
        semantics: &Semantics,
        slope: f64,
    ) -> Result<Self, Error> {
        let sum = Sum {
            pairs,
            arrays,
            dims,
            kind: taken.kind,
            semantics,
            slope,
        };
        Ok(Self {
            kept: sum.of(taken.kept)?,
            everything: taken
                .everything
                .map(|everything| sum.of(everything))
                .transpose()?,
        })
    }

    /// The rows with a gradient, in any order.
    pub fn rows(&self) -> impl Iterator<Item = u32> {
        self.everything
            .as_ref()
            .unwrap_or(&self.kept)
            .rows
            .keys()
            .copied()
    }

    /// Writes the gradients to `sums`, which has their rows. The numbers of tokens are added over
    /// the ranks.
    pub fn put(&self, sums: &mut RowSums, ranks: &dyn Ranks) -> Result<(), Error> {
        let gradients = [Some(&self.kept), self.everything.as_ref()];
        let [of_kept, of_everything] = gradients.map(|gradient| gradient?.tokens.as_deref());
        let of_kept = of_kept.map(|own| total_tokens(own, ranks)).transpose()?;
        let of_everything = of_everything
            .map(|own| total_tokens(own, ranks))
            .transpose()?;
        for (row, target) in sums.rows_mut() {
            let divisor = of_kept.as_ref().map_or(1.0, |tokens| tokens(row));
            self.kept.put(row, divisor, target.kept);
            if let (Some(values), Some(everything)) = (target.everything, &self.everything) {
                let divisor = of_everything.as_ref().map_or(1.0, |tokens| tokens(row));
                everything.put(row, divisor, values);
            }
        }
        Ok(())
    }
}

impl Gradient {
    /// Writes the gradient of vocabulary row `row`, divided by `divisor`, to `values`, if there is
    /// one.
    fn put(&self, row: u32, divisor: f64, values: &mut [f64]) {
        if let Some(own) = self.rows.get(&row) {
            for (value, &own) in values.iter_mut().zip(own) {
                *value = f64::from(own) / divisor;
            }
        }
    }
}

/// Adds up the gradients of a rank's tokens by row.
struct Sum<'a> {
    pairs: &'a Pairs,
    arrays: &'a Arrays<'a>,
    dims: (usize, usize),
    kind: Weights,
    semantics: &'a Semantics,
    slope: f64,
}

impl Sum<'_> {
    /// The gradient of `intake`: the first moment that a step of [`GRADIENT`] leaves in moments of
    /// zero.
    fn of(&self, intake: &Intake) -> Result<Gradient, Error> {
        let mut scratch = Moments::of(&moments::Moments::default(), self.arrays, self.dims)?;
        let by_row = self.kind == Weights::RowMean;
        let taken = Taken {
            kept: intake,
            everything: None,
            // The rows' token numbers must cover all ranks and are known later.
            kind: if by_row {
                Weights::TokenMean
            } else {
                self.kind
            },
        };
        let semantics = Semantics {
            state_dtype: StateDtype::F32,
            ..*self.semantics
        };
        scratch.update(self.pairs, &taken, &GRADIENT, &semantics, self.slope)?;
        let tokens = by_row
            .then(|| self.pairs.row_tokens(&intake.subset))
            .transpose()?;
        let slots = scratch.to_host()?.slots;
        Ok(Gradient {
            rows: slots
                .into_iter()
                .map(|Slot { row, exp_avg, .. }| (row, exp_avg))
                .collect(),
            tokens,
        })
    }
}

impl Pairs {
    /// Alternately a row and the number of its tokens in `subset`.
    fn row_tokens(&self, subset: &Subsets) -> Result<Vec<i64>, Error> {
        let rows = self.queue.download(&self.rows, self.rows.len())?;
        let mut tokens = HashMap::new();
        let of_tokens = rows.chunks(self.stride as usize).enumerate();
        for (_, own) in of_tokens.filter(|(n, _)| subset.holds(*n)) {
            own.iter()
                .filter(|&&row| row != u32::MAX)
                .for_each(|&row| *tokens.entry(row).or_insert(0) += 1);
        }
        Ok(tokens
            .into_iter()
            .flat_map(|(row, count)| [i64::from(row), count])
            .collect())
    }

    /// Pairs with one token for each row of `sums`, whose feature is the sum. If there are sums of
    /// all tokens, one more token per row follows with the rejected part.
    fn of_sums(sums: &RowSums, arrays: &Arrays, vocab_size: usize) -> Result<Self, Error> {
        let queue = Device::open(arrays.device)?.queue(arrays.stream)?;

        let kept = sums
            .rows()
            .flat_map(|(kept, _)| kept.iter().map(|&kept| narrow(kept)));
        let rejected = sums.rows().flat_map(|(kept, everything)| {
            everything
                .unwrap_or(&[])
                .iter()
                .zip(kept)
                .map(|(everything, kept)| narrow(everything - kept))
        });
        let features: Vec<f32> = kept.chain(rejected).collect();
        let tokens = features.len() / sums.width;
        let ids: Vec<u32> = sums.ids.iter().copied().cycle().take(tokens).collect();
        let features = queue.upload(features)?;
        let hidden = Hidden::of(&Features::F32(features.slice()), sums.width);
        let ones = vec![1.0; tokens];
        Ok(Self {
            hidden,
            stride: 1,
            tokens: tokens as u32,
            vocab_size: vocab_size as u32,
            features: queue.upload((0..tokens as u32).collect::<Vec<_>>())?,
            squared_norms: queue.buffer(tokens)?,
            signals: queue.upload(&ones[..])?,
            tails: queue.buffer(tokens)?,
            rows: queue.upload(&ids[..])?,
            logits: queue.buffer(tokens)?,
            pi: queue.buffer(tokens)?,
            u: queue.upload(ones)?,
            sorted: OnceLock::new(),
            spreads: Vec::new(),
            _held: Some(features),
            queue,
        })
    }
}

impl Moments {
    /// Updates the moments with one step of all ranks' gradients.
    pub fn take_in(
        &mut self,
        sums: &RowSums,
        arrays: &Arrays,
        adam: &Adam,
        semantics: &Semantics,
    ) -> Result<(), Error> {
        let pairs = Pairs::of_sums(sums, arrays, self.dims().0)?;
        let rows = sums.ids.len();
        let tokens = pairs.tokens as usize;
        let kept = Intake::ones(tokens, rows);
        let everything = (tokens > rows).then(|| Intake::ones(tokens, tokens));
        let taken = Taken {
            kept: &kept,
            everything: everything.as_ref(),
            kind: Weights::TokenMean,
        };
        self.update(&pairs, &taken, adam, semantics, 1.0)
    }
}

/// The nearest finite `f32`.
fn narrow(value: f64) -> f32 {
    value.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
}
