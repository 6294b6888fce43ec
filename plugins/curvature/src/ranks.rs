//! The trainer's ranks in the form that the core needs.

use std::cell::Cell;

use capo_core::Error;
use capo_plugin::Collective;
use capo_plugin::prelude::*;

/// The ranks of a run, this one included.
pub(crate) struct TrainerRanks<'a> {
    collective: Collective<'a>,
    /// Bytes that this rank has sent to the others.
    told: Cell<usize>,
}

impl<'a> TrainerRanks<'a> {
    pub fn new(collective: Collective<'a>) -> Self {
        Self {
            collective,
            told: Cell::new(0),
        }
    }

    /// Bytes that this rank has sent to the others; `None` in a run with one rank.
    pub fn bytes(&self) -> Option<usize> {
        (self.collective.size() > 1).then(|| self.told.get())
    }

    /// Returns this rank's `own` part if all ranks should add the step to their moments. A skipped
    /// step counts if no rank kept a token; the core then decides about it. A step skipped for a
    /// non-finite gradient does not count. `taken` is true if the optimizer applied the step,
    /// `kept` if a token of this rank was kept.
    pub fn agree<T>(
        &self,
        taken: bool,
        kept: bool,
        own: Result<T, PluginError>,
    ) -> Result<Option<T>, PluginError> {
        let told = capo_core::Ranks::gather(
            self,
            &[i64::from(own.is_err()), i64::from(taken), i64::from(kept)],
        );
        let own = own?;
        let told = told.map_err(|error| PluginError::failed(error.to_string()))?;
        let find =
            |at: usize, wanted: i64| told.iter().position(|told| told.get(at) == Some(&wanted));
        if let Some(rank) = find(0, 1) {
            return Err(PluginError::failed(format!(
                "rank {rank} could not end the step (its own error says why)"
            )));
        }
        if let Some(rank) = find(1, i64::from(!taken)) {
            return Err(PluginError::failed(format!(
                "`taken` is {taken} here and {} on rank {rank} (the optimizer takes a step on all \
                 ranks or on none)",
                !taken
            )));
        }
        Ok(Some(own).filter(|_| taken || find(2, 1).is_none()))
    }
}

impl capo_core::Ranks for TrainerRanks<'_> {
    fn size(&self) -> usize {
        self.collective.size()
    }

    fn sum(&self, values: &mut [f64]) -> Result<(), Error> {
        self.told.set(self.told.get() + size_of_val(values));
        self.collective
            .all_reduce_sum(values)
            .map_err(|error| Error::ranks(error.to_string()))
    }

    fn gather(&self, values: &[i64]) -> Result<Vec<Vec<i64>>, Error> {
        self.told.set(self.told.get() + size_of_val(values));
        self.collective
            .all_gather(values)
            .map_err(|error| Error::ranks(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use capo_plugin::Ranks;
    use capo_plugin::testing::{self, Fixture};

    use crate::{CurvatureMask, Wide};

    #[test]
    fn ranks_that_disagree_about_a_step_are_told() {
        let fixture = Fixture::new(2, 6);
        let told = testing::on_ranks(2, |seat| {
            let (part, mut mask) = (
                fixture.part(seat.rank()..seat.rank() + 1),
                testing::mask::<CurvatureMask<Wide>>("").unwrap(),
            );
            let before = mask.save().unwrap();
            let outcome = part.step_end_on(seat, &mut mask, &[1; 6], seat.rank() == 0);
            assert_eq!(mask.save().unwrap(), before);
            outcome.unwrap_err().to_string()
        });
        assert!(
            told[0].ends_with(
                "`taken` is true here and false on rank 1 (the optimizer takes a step on all ranks or on none)"
            ),
            "{told:?}"
        );
        // A skipped step: one rank kept no token, the other kept one.
        let moved = testing::on_ranks(2, |seat| {
            let part = fixture.part(seat.rank()..seat.rank() + 1);
            let mut mask = testing::mask::<CurvatureMask<Wide>>("semantics = \"authors\"").unwrap();
            let records = part.step_end_on(seat, &mut mask, &[1; 6], true).unwrap();
            assert!(records.number("bytes_reduced").unwrap() > 8.0 * 16.0 * 8.0);
            let before = mask.save().unwrap();
            part.step_end_on(seat, &mut mask, &[seat.rank() as u8; 6], false)
                .unwrap();
            let after_one = mask.save().unwrap() != before;
            part.step_end_on(seat, &mut mask, &[0; 6], false).unwrap();
            (after_one, mask.save().unwrap() != before)
        });
        assert_eq!(moved, [(false, true); 2]);
    }
}
