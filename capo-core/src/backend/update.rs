//! The update of moments: sums of gradients over each row's pairs, and Adam's rule for them.

use std::ops::Range;

use pulp::{Arch, NullaryFnOnce};

use super::cpu::{Features, Packed, TILE, tiles};
use super::lanes::update;
use super::parallel;
use crate::gradient::{Gradients, Pair};
use crate::moments::Slot;
use crate::optimizer::{Adam, RowRule};
use crate::row_sums::{RowSums, SumsMut};
use crate::semantics::StateDtype;

/// Adds the gradients to the rows of `sums`. These must be zero and include all rows of the
/// gradients.
pub(crate) fn add_up(features: Features, gradients: &Gradients, sums: &mut RowSums) {
    let mut own = gradients.rows().peekable();
    let targets = sums
        .rows_mut()
        .filter(|(row, _)| own.next_if_eq(row).is_some())
        .map(|(_, target)| target)
        .collect();
    sum_rows(features, gradients, targets);
}

/// Updates moments with the rows of `sums`; `moments` are in the order of the rows.
pub(crate) fn take_in(sums: &RowSums, moments: Vec<Moments>, threads: usize) {
    let width = sums.width;
    let arch = Arch::new();
    let threads = parallel::threads_for(moments.len() * width, threads);
    let rows: Vec<_> = sums.rows().zip(moments).collect();
    let size = rows.len().div_ceil(2 * threads).max(1);
    let groups = grouped(rows, size, |_| 1);
    parallel::for_each(threads, groups, |rows| {
        arch.dispatch(TakeIn { rows, width })
    });
}

/// A receiver of a row's gradient, some columns at a time.
pub(crate) trait Target {
    /// Receives some columns of the kept tokens' gradient, and of all tokens' gradient if there is
    /// one.
    fn take(&mut self, tile: &Range<usize>, kept: &[f64], everything: Option<&[f64]>);
}

/// Moments of a row, and Adam's rule for them. The rejected part of a gradient of all tokens enters
/// the second moment by its own square.
pub(crate) struct Moments<'a> {
    pub slot: &'a mut Slot,
    pub rule: RowRule,
    pub dtype: StateDtype,
}

impl<'a> Moments<'a> {
    /// The moments of `slot`, marked as written in the step after `steps`.
    pub fn of(slot: &'a mut Slot, steps: u64, adam: &Adam, dtype: StateDtype) -> Self {
        let rule = adam.update(steps - slot.written);
        slot.written = steps + 1;
        Self { slot, rule, dtype }
    }
}

impl Target for Moments<'_> {
    #[inline(always)]
    fn take(&mut self, tile: &Range<usize>, kept: &[f64], everything: Option<&[f64]>) {
        let mut rejected = [0.0; TILE];
        for (rejected, (everything, kept)) in rejected
            .iter_mut()
            .zip(everything.unwrap_or(&[]).iter().zip(kept))
        {
            *rejected = everything - kept;
        }
        update(
            &mut self.slot.exp_avg[tile.clone()],
            &mut self.slot.exp_avg_sq[tile.clone()],
            kept,
            &rejected,
            &self.rule,
            self.dtype,
        );
    }
}

impl Target for SumsMut<'_> {
    #[inline(always)]
    fn take(&mut self, tile: &Range<usize>, kept: &[f64], everything: Option<&[f64]>) {
        self.kept[tile.clone()].copy_from_slice(&kept[..tile.len()]);
        if let (Some(own), Some(everything)) = (&mut self.everything, everything) {
            own[tile.clone()].copy_from_slice(&everything[..tile.len()]);
        }
    }
}

/// The pairs of one row, and the receiver of their gradient.
pub(super) struct Row<'a, T> {
    pub pairs: &'a [Pair],
    pub coefficients: &'a [f64],
    pub everything: Option<&'a [f64]>,
    pub target: T,
}

/// Sums `coefficient h` over each row's pairs and passes this gradient to its target; `targets` are
/// in the order of the rows.
pub(crate) fn sum_rows<T: Target + Send>(
    features: Features,
    gradients: &Gradients,
    targets: Vec<T>,
) {
    let mut rows = Vec::with_capacity(targets.len());
    let mut start = 0;
    for (pairs, target) in gradients.pairs.chunk_by(Pair::shares_row).zip(targets) {
        let own = start..start + pairs.len();
        start = own.end;
        let everything = gradients
            .everything
            .as_ref()
            .map(|everything| &everything[own.clone()]);
        rows.push(Row {
            pairs,
            coefficients: &gradients.coefficients[own],
            everything,
            target,
        });
    }
    let threads = features.threads_for(gradients.pairs.len());
    let arch = Arch::new();
    let groups = grouped(rows, gradients.pairs.len().div_ceil(2 * threads), |row| {
        row.pairs.len()
    });
    parallel::for_each(threads, groups, |rows| {
        arch.dispatch(SumRows { features, rows })
    });
}

/// Groups the rows so that each group has at least `size`, as measured by `of`.
fn grouped<R>(rows: Vec<R>, size: usize, of: impl Fn(&R) -> usize) -> Vec<Vec<R>> {
    let mut groups = Vec::new();
    let mut group = Vec::new();
    let mut total = 0;
    for row in rows {
        total += of(&row);
        group.push(row);
        if total >= size {
            groups.push(std::mem::take(&mut group));
            total = 0;
        }
    }
    groups.push(group);
    groups
}

pub(super) struct SumRows<'a, T> {
    pub features: Features<'a>,
    pub rows: Vec<Row<'a, T>>,
}

impl<T: Target> NullaryFnOnce for SumRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { features, mut rows } = self;
        let mut packed = Packed::new(rows.iter().flat_map(|row| row.pairs));
        for tile in tiles(features.width) {
            packed.fill(features, &tile);
            for Row {
                pairs,
                coefficients,
                everything,
                target,
            } in &mut rows
            {
                let kept = packed.weighed_sum(pairs, coefficients);
                let everything = everything.map(|everything| packed.weighed_sum(pairs, everything));
                target.take(
                    &tile,
                    &kept,
                    everything.as_ref().map(|everything| &everything[..]),
                );
            }
        }
    }
}

/// A row's sums, of kept tokens and of all tokens, and the moments that receive them.
type Summed<'a> = ((&'a [f64], Option<&'a [f64]>), Moments<'a>);

struct TakeIn<'a> {
    rows: Vec<Summed<'a>>,
    width: usize,
}

impl NullaryFnOnce for TakeIn<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for ((kept, everything), mut moments) in self.rows {
            for tile in tiles(self.width) {
                moments.take(
                    &tile,
                    &kept[tile.clone()],
                    everything.map(|everything| &everything[tile.clone()]),
                );
            }
        }
    }
}
