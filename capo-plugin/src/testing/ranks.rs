//! Ranks simulated by threads.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::{Fixture, Records};
use crate::{MaskHandle, PluginError, Ranks, Sink, WeightHandle};

/// Messages of all ranks in one call, each with the call's name.
type Told = Vec<(&'static str, Vec<u64>)>;

/// Shared state through which ranks exchange messages.
struct Table {
    meeting: Mutex<Meeting>,
    changed: Condvar,
    size: usize,
}

#[derive(Default)]
struct Meeting {
    /// Messages of the current call, by rank.
    telling: Vec<Option<(&'static str, Vec<u64>)>>,
    /// Number of completed calls, and the messages of the last one.
    calls: u64,
    told: Arc<Told>,
    /// True if a rank has finished and makes no more calls.
    left: bool,
}

/// One of the ranks, while its work runs.
pub struct ThreadRank<'a> {
    rank: usize,
    table: &'a Table,
}

/// Runs `work` on `size` ranks, one thread each, and returns the results ordered by rank.
///
/// ```
/// use capo_plugin::{Ranks, testing};
///
/// let sums = testing::on_ranks(3, |seat| {
///     let mut values = [seat.rank() as f64, 1.0];
///     seat.all_reduce_sum(&mut values).unwrap();
///     values
/// });
/// assert_eq!(sums, [[3.0, 3.0]; 3]);
/// ```
///
/// # Panics
///
/// When `work` panics.
pub fn on_ranks<T: Send>(size: usize, work: impl Fn(&ThreadRank<'_>) -> T + Sync) -> Vec<T> {
    let meeting = Mutex::new(Meeting {
        telling: vec![None; size],
        ..Meeting::default()
    });
    let table = Table {
        meeting,
        changed: Condvar::new(),
        size,
    };
    std::thread::scope(|scope| {
        let start = |rank| {
            let (table, work) = (&table, &work);
            scope.spawn(move || work(&ThreadRank { rank, table }))
        };
        let threads: Vec<_> = (0..size).map(start).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a rank's work"))
            .collect()
    })
}

impl Table {
    fn meeting(&self) -> MutexGuard<'_, Meeting> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ThreadRank<'_> {
    fn drop(&mut self) {
        self.table.meeting().left = true;
        self.table.changed.notify_all();
    }
}

impl ThreadRank<'_> {
    /// Sends `values` to all ranks in the call `name`; returns the messages of all.
    fn tell(&self, name: &'static str, values: Vec<u64>) -> Result<Arc<Told>, PluginError> {
        let mut meeting = self.table.meeting();
        let own = meeting.calls;
        meeting.telling[self.rank] = Some((name, values));
        if meeting.telling.iter().all(Option::is_some) {
            meeting.told = Arc::new(
                meeting
                    .telling
                    .iter_mut()
                    .filter_map(Option::take)
                    .collect(),
            );
            meeting.calls += 1;
            self.table.changed.notify_all();
        }
        while meeting.calls == own {
            if meeting.left {
                return Err(PluginError::failed(format!(
                    "`{name}` waits for a rank that does not call it"
                )));
            }
            meeting = self
                .table
                .changed
                .wait(meeting)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let told = Arc::clone(&meeting.told);
        match told.iter().position(|(other, _)| *other != name) {
            None => Ok(told),
            Some(rank) => Err(PluginError::failed(format!(
                "rank {rank} calls `{}` where others call `{name}`",
                told[rank].0
            ))),
        }
    }
}

impl Ranks for ThreadRank<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.table.size
    }

    fn all_reduce_sum(&self, values: &mut [f64]) -> Result<(), PluginError> {
        let told = self.tell(
            "all_reduce_sum",
            values.iter().map(|value| value.to_bits()).collect(),
        )?;
        if let Some(rank) = told
            .iter()
            .position(|(_, other)| other.len() != values.len())
        {
            let (theirs, ours) = (told[rank].1.len(), values.len());
            return Err(PluginError::failed(format!(
                "rank {rank} sums {theirs} numbers where others sum {ours}"
            )));
        }
        for (at, value) in values.iter_mut().enumerate() {
            *value = told
                .iter()
                .map(|(_, values)| f64::from_bits(values[at]))
                .sum();
        }
        Ok(())
    }

    fn all_gather(&self, values: &[i64]) -> Result<Vec<Vec<i64>>, PluginError> {
        let told = self.tell(
            "all_gather",
            values.iter().map(|&value| value as u64).collect(),
        )?;
        Ok(told
            .iter()
            .map(|(_, values)| values.iter().map(|&value| value as i64).collect())
            .collect())
    }
}

/// Calls on one of several ranks. Their errors are the messages that a host would show.
impl Fixture {
    /// Ends the step of a mask on one of several ranks, which holds this batch's completions.
    /// Returns the mask's reports.
    pub fn step_end_on(
        &self,
        seat: &ThreadRank<'_>,
        component: &mut MaskHandle,
        token_mask: &[u8],
        taken: bool,
    ) -> Result<Records, PluginError> {
        self.on(seat, |sink| {
            component.step_end(sink, &self.batch_with(&self.context()), token_mask, taken)
        })
    }

    /// Ends the step of a weight on one of several ranks, which holds this batch's completions.
    /// Returns the weight's reports.
    pub fn weighed_step_end_on(
        &self,
        seat: &ThreadRank<'_>,
        component: &mut WeightHandle,
        weights: &[f32],
        taken: bool,
    ) -> Result<Records, PluginError> {
        self.on(seat, |sink| {
            component.step_end(sink, &self.batch_with(&self.context()), weights, taken)
        })
    }

    /// Runs `call` with a sink on one of several ranks, and returns the reports.
    pub(super) fn on(
        &self,
        seat: &ThreadRank<'_>,
        call: impl FnOnce(&mut dyn Sink) -> Result<(), PluginError>,
    ) -> Result<Records, PluginError> {
        let mut sink = OnRank {
            records: Records::default(),
            seat,
        };
        call(&mut sink)?;
        Ok(sink.records)
    }
}

/// The sink of one of several ranks.
struct OnRank<'a> {
    records: Records,
    seat: &'a ThreadRank<'a>,
}

impl Sink for OnRank<'_> {
    fn behind(&mut self) -> Option<&mut dyn Sink> {
        Some(&mut self.records)
    }

    fn ranks(&self) -> Option<&dyn Ranks> {
        Some(self.seat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prelude::*;
    use crate::testing;

    /// Asks for the ranks where there are none.
    #[keys]
    struct Asks {}

    impl Mask for Asks {
        fn mask(&mut self, ctx: &mut Ctx, _: &Batch, _: &mut [u8]) -> Result<(), PluginError> {
            let ranks = ctx.collective();
            let told = (ranks.rank(), ranks.size(), ranks.all_gather(&[7, -8])?);
            assert_eq!(told, (0, 1, vec![vec![7, -8]]));
            let mut sum = [0.5];
            ranks.all_reduce_sum(&mut sum)?;
            assert_eq!(ranks.agree(Ok(sum))?, [0.5]);
            assert_eq!(
                ranks.agree::<()>(Err("no".into())).unwrap_err().to_string(),
                "no"
            );
            Ok(())
        }
    }

    #[test]
    fn a_host_that_says_nothing_is_one_rank() {
        Fixture::new(2, 3)
            .mask(&mut testing::mask::<Asks>("").unwrap())
            .unwrap();
    }

    #[test]
    fn ranks_that_make_other_calls_are_told() {
        let told = on_ranks(2, |seat| match seat.rank() {
            0 => seat.all_gather(&[]).unwrap_err().to_string(),
            _ => seat.all_reduce_sum(&mut [1.0]).unwrap_err().to_string(),
        });
        assert_eq!(
            told[0],
            "rank 1 calls `all_reduce_sum` where others call `all_gather`"
        );
        let told = on_ranks(2, |seat| {
            if seat.rank() == 0 {
                seat.all_gather(&[]).err()
            } else {
                None
            }
        });
        assert_eq!(
            told[0].as_ref().unwrap().to_string(),
            "`all_gather` waits for a rank that does not call it"
        );
    }
}
