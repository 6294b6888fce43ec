//! Adds a step to the model's own moments: first one rank's share, then the sum over all ranks.

use crate::backend::{cpu, update};
use crate::gradient::Gradients;
use crate::intake::{Intake, Share, Taken};
use crate::model::Prepared;
use crate::moments::Moments;
use crate::optimizer::{Adam, SecondMoment};
use crate::ranks::{OneRank, gave_up};
use crate::row_sums::RowSums;
use crate::semantics::{MomentUpdate, RejectedBatch, Semantics, UntouchedRows};
use crate::store::Store;
use crate::subset::Subsets;
use crate::support::{HostPairs, Pairs};
use crate::{Arrays, CurvatureModel, Error, Granularity, Ranks, cuda};

impl CurvatureModel {
    /// Adds the gradient of the finally accepted tokens, `token_mask[b, t] != 0`, to the model's
    /// own moments, as one step.
    ///
    /// Call it after an optimizer step. Nothing changes with SGD, or if the step brings the
    /// trainer's moments. Tokens with non-finite data are skipped. If no token is left,
    /// [`RejectedBatch`] decides whether a step is counted. Errors are those of `batch_shift` and
    /// leave the state unchanged.
    ///
    /// With [`SecondMoment::KeptAndRejected`], prepared tokens that are not kept count as rejected,
    /// so prepare all tokens of the trainer's loss. Their gradient is averaged like the kept
    /// gradient: with [`Weights::RowMean`](crate::Weights) over the prepared tokens of each row. A
    /// step that is counted without a kept token adds their gradient too.
    pub fn commit(&mut self, prepared: &Prepared, token_mask: &[u8]) -> Result<(), Error> {
        prepared
            .step
            .batch
            .check_per_token("token_mask", token_mask.len())?;
        let weights: Vec<f32> = token_mask
            .iter()
            .map(|&keep| f32::from(u8::from(keep != 0)))
            .collect();
        self.commit_weighted(prepared, &weights)
    }

    /// Like [`Self::commit`], with each token's gradient multiplied by `weights[b, t]`, finite and
    /// at least 0.
    ///
    /// Tokens with weight 0 are not kept and count as rejected. A token's share in its subset
    /// depends only on which `weights` are 0, not on their size.
    pub fn commit_weighted(&mut self, prepared: &Prepared, weights: &[f32]) -> Result<(), Error> {
        self.commit_over(prepared, weights, &OneRank)
    }

    /// Like [`Self::commit_weighted`] on several ranks: each of the `ranks` calls it with its own
    /// completions of the step's batch. Afterwards every rank has the moments of a commit of the
    /// whole batch, up to rounding of sums. If ranks start with equal moments, they end with equal
    /// bits.
    ///
    /// Each rank sums the gradient of its own tokens, row by row in `f64`. The sums are added over
    /// the ranks, and each rank updates its moments with the total. The traffic is 8 D bytes for
    /// each row that any rank touched, twice that with [`SecondMoment::KeptAndRejected`]. If one
    /// rank fails, no rank's moments change, and each rank returns an error. On a device a rank's
    /// sums are `f32`, and cross to the host and back.
    pub fn commit_over(
        &mut self,
        prepared: &Prepared,
        weights: &[f32],
        ranks: &dyn Ranks,
    ) -> Result<(), Error> {
        let part = self.part(prepared, weights);
        let Prepared { step, supports } = prepared;
        let Semantics {
            untouched_rows,
            moment_input,
            moment_update,
            rejected_batch,
            ..
        } = self.semantics;
        let adam = step.optimizer.adam(self.moments.steps(), untouched_rows);
        let idle = moment_update == MomentUpdate::WithThresholds && !self.acceptance.tests();
        let (Some(adam), false, None) = (adam, idle, step.moments) else {
            return part.map(|_| ());
        };
        let whole = self.agree(prepared, part.as_ref(), ranks);
        let part = part?;
        let whole = whole?;
        if whole.kept == 0 && rejected_batch == RejectedBatch::NoStep {
            return Ok(());
        }
        if let Some(moved) = part.moved {
            self.moments = moved;
        }
        let [of_kept, of_everything] = whole.divisors.map(|divisor| Share {
            kind: moment_input,
            divisor: divisor as f64,
        });
        let kept = Intake::new(part.kept, step, supports, of_kept, |n| {
            f64::from(weights[supports.position(n)])
        });
        let everything = part
            .everything
            .map(|everything| Intake::new(everything, step, supports, of_everything, |_| 1.0));
        let taken = Taken {
            kept: &kept,
            everything: everything.as_ref(),
            kind: moment_input,
        };
        let update = Update {
            prepared,
            taken,
            adam: &adam,
            semantics: &self.semantics,
            ranks,
        };
        match (&mut self.moments, &supports.pairs) {
            (Store::Host(moments), Pairs::Host(pairs)) => {
                update.on_host(moments, pairs, self.threads)
            }
            (Store::Cuda(moments), Pairs::Cuda(pairs)) if ranks.size() > 1 => {
                update.on_device(moments, pairs)
            }
            (Store::Cuda(moments), Pairs::Cuda(pairs)) => {
                moments.update(pairs, &update.taken, &adam, &self.semantics, supports.slope)
            }
            _ => unreachable!("moments were moved to where the batch lies"),
        }
    }

    /// This rank's part of the step.
    fn part(&self, prepared: &Prepared, weights: &[f32]) -> Result<Part, Error> {
        let Prepared { step, supports } = prepared;
        step.batch.check_per_token("weights", weights.len())?;
        if let Some(at) = weights
            .iter()
            .position(|weight| !(weight.is_finite() && *weight >= 0.0))
        {
            let weight = weights[at];
            return Err(Error::input(format!(
                "`weights` has {weight} at {at}, expected finite numbers of at least 0"
            )));
        }
        let token_mask: Vec<u8> = weights
            .iter()
            .map(|&weight| u8::from(weight > 0.0))
            .collect();
        let kept = prepared.kept(&token_mask)?;
        let everything = (step.optimizer.second_moment == SecondMoment::KeptAndRejected)
            .then(|| Subsets::new(supports, &step.batch, Granularity::Batch));
        Ok(Part {
            kept,
            everything,
            moved: self.moments.moved_to(&step.batch)?,
        })
    }

    /// Sends this rank's part to the other ranks, and receives theirs.
    fn agree(
        &self,
        prepared: &Prepared,
        part: Result<&Part, &Error>,
        ranks: &dyn Ranks,
    ) -> Result<Whole, Error> {
        let told = match part {
            Err(_) => vec![],
            Ok(Part {
                kept, everything, ..
            }) => vec![
                self.moments.steps() as i64,
                prepared.step.batch.vocab_size as i64,
                prepared.step.batch.width as i64,
                kept.size() as i64,
                self.divisor(prepared, kept),
                everything
                    .as_ref()
                    .map_or(-1, |everything| self.divisor(prepared, everything)),
            ],
        };
        Whole::of(&ranks.gather(&told)?)
    }

    /// Divisor of the weights of a subset's tokens in the moments.
    fn divisor(&self, prepared: &Prepared, subset: &Subsets) -> i64 {
        let Prepared { step, supports } = prepared;
        let divisors = subset.divisors(step, supports, self.semantics.moment_input);
        divisors.first().map_or(0, |&divisor| divisor as i64)
    }
}

/// One rank's part of a step.
struct Part {
    /// The rank's kept tokens.
    kept: Subsets,
    /// All tokens of the rank, if the second moment includes rejected tokens.
    everything: Option<Subsets>,
    /// The moments on the batch's device, if they are still elsewhere.
    moved: Option<Store>,
}

/// Totals of a step over all ranks.
struct Whole {
    /// Number of kept tokens.
    kept: i64,
    /// Divisors of the weights: of the kept tokens, and of all tokens.
    divisors: [i64; 2],
}

impl Whole {
    /// The totals of the ranks' messages; an error if a rank cannot take part.
    fn of(told: &[Vec<i64>]) -> Result<Self, Error> {
        if let Some(rank) = told.iter().position(Vec::is_empty) {
            return Err(gave_up(rank));
        }
        for (at, what) in ["steps taken in", "vocabulary", "width"]
            .into_iter()
            .enumerate()
        {
            let first = told[0][at];
            let differs = told.iter().position(|told| told[at] != first);
            if let Some(rank) = differs {
                let value = told[rank][at];
                return Err(Error::input(format!(
                    "rank 0 has {first} for {what} and rank {rank} has {value} (give all ranks the \
                     same model and state)"
                )));
            }
        }
        let remember = told.iter().filter(|told| told[5] >= 0).count();
        if remember > 0 && remember < told.len() {
            return Err(Error::input(
                "the ranks' optimizers differ in whether they remember what was rejected (give all \
                 ranks the same)",
            ));
        }
        let [kept, divisor, of_everything] =
            [3, 4, 5].map(|at| told.iter().map(|told| told[at]).sum());
        Ok(Self {
            kept,
            divisors: [divisor, of_everything],
        })
    }
}

/// The update of the moments in one step.
struct Update<'a> {
    prepared: &'a Prepared<'a>,
    taken: Taken<'a>,
    adam: &'a Adam,
    semantics: &'a Semantics,
    ranks: &'a dyn Ranks,
}

impl Update<'_> {
    fn on_host(
        &self,
        moments: &mut Moments,
        pairs: &HostPairs,
        threads: usize,
    ) -> Result<(), Error> {
        let Prepared { step, supports } = self.prepared;
        let Arrays::Host(arrays) = &step.batch.arrays else {
            unreachable!("host pairs come from host arrays")
        };
        let Semantics {
            untouched_rows,
            state_dtype,
            ..
        } = *self.semantics;
        let mut gradients = Gradients::taken_in(supports, pairs, &self.taken, self.ranks)?;
        if untouched_rows == UntouchedRows::Decay {
            // A zero gradient only decays a row, and the decay is applied when the row is next
            // read.
            gradients.retain_nonzero();
        }
        let vocab_size = step.batch.vocab_size;
        let width = step.batch.width;
        let features = cpu::Features {
            hidden: arrays.hidden,
            width,
            positions: &supports.features,
            threads,
        };
        // The sums of other ranks must arrive before anything changes.
        let sums = if self.ranks.size() > 1 {
            Some(self.sums(features, &gradients)?)
        } else {
            None
        };
        moments.vocab_size = vocab_size;
        moments.width = width;
        let steps = moments.steps;
        let rows: Vec<u32> = sums
            .as_ref()
            .map_or_else(|| gradients.rows().collect(), |sums| sums.ids.clone());
        let targets = moments
            .rows_mut(rows.into_iter())
            .into_iter()
            .map(|slot| update::Moments::of(slot, steps, self.adam, state_dtype))
            .collect();
        match sums {
            // No sum leaves the registers here.
            None => update::sum_rows(features, &gradients, targets),
            Some(sums) => update::take_in(&sums, targets, threads),
        }
        moments.steps += 1;
        Ok(())
    }

    /// The update on a device, with the sums of the other ranks.
    fn on_device(&self, moments: &mut cuda::Moments, pairs: &cuda::Pairs) -> Result<(), Error> {
        let Prepared { step, supports } = self.prepared;
        let Arrays::Cuda(arrays) = &step.batch.arrays else {
            unreachable!("a device's pairs come from its arrays")
        };
        let dims = (step.batch.vocab_size, step.batch.width);
        let local = cuda::Local::of(
            pairs,
            &self.taken,
            arrays,
            dims,
            self.semantics,
            supports.slope,
        );
        let rows = local.as_ref().map(cuda::Local::rows).map_err(Clone::clone);
        let mut sums = RowSums::zero(
            rows,
            self.taken.everything.is_some(),
            step.batch.width,
            self.ranks,
        )?;
        local?.put(&mut sums, self.ranks)?;
        sums.reduce(self.ranks)?;
        moments.take_in(&sums, arrays, self.adam, self.semantics)
    }

    /// The gradients of all ranks.
    fn sums(&self, features: cpu::Features, gradients: &Gradients) -> Result<RowSums, Error> {
        let mut sums = RowSums::zero(
            Ok(gradients.rows()),
            gradients.everything.is_some(),
            features.width,
            self.ranks,
        )?;
        update::add_up(features, gradients, &mut sums);
        sums.reduce(self.ranks)?;
        Ok(sums)
    }
}
