//! The operations on CPU threads, with the widest instructions that the machine has, chosen at run time. The results
//! depend neither on these nor on the number of threads.

use std::ops::Range;

use pulp::{Arch, NullaryFnOnce};

use super::lanes::{accumulate, project, propose, sum, update};
use super::{Projection, parallel};
use crate::LastLayer;
use crate::gradient::{Gradients, Pair};
use crate::moments::{MomentRow, Slot, Source};
use crate::optimizer::{Adam, RowRule};
use crate::semantics::StateDtype;

/// Columns that a token proposal works on at a time: of some hundred tokens' features they stay in a core's own cache while all
/// rows that touch these tokens come by.
const WIDE_TILE: usize = 1024;

/// Columns that a sum over tokens works on at a time: of a whole batch's features they stay in the cache that cores share,
/// and the sum in registers.
const TILE: usize = 64;

/// The columns, `size` at a time.
fn tiles(width: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..width).step_by(size).map(move |start| start..(start + size).min(width))
}

/// Where a batch's features are, and who may work on them.
#[derive(Clone, Copy)]
pub(crate) struct Features<'a> {
    pub batch: &'a LastLayer<'a>,
    /// Flat position of each token's feature, `[N]`.
    pub positions: &'a [usize],
    /// How many threads may work.
    pub threads: usize,
}

impl<'a> Features<'a> {
    /// Some columns of the feature of a pair's token.
    #[inline(always)]
    fn of(&self, pair: &Pair, tile: &Range<usize>) -> &'a [f32] {
        &self.batch.feature(self.positions[pair.token as usize])[tile.clone()]
    }

    /// `sum coefficient h` over pairs, some columns of it; 0 beyond them.
    #[inline(always)]
    fn weighed_sum(&self, pairs: &[Pair], coefficients: &[f64], tile: &Range<usize>) -> [f64; TILE] {
        let mut total = [0.0; TILE];
        for (pair, &coefficient) in pairs.iter().zip(coefficients) {
            let h = self.of(pair, tile);
            match h.first_chunk::<TILE>() {
                Some(h) => accumulate(&mut total, coefficient, h),
                None => accumulate(&mut total, coefficient, h),
            }
        }
        total
    }

    fn threads_for(&self, pairs: usize) -> usize {
        parallel::threads_for(pairs * self.batch.width, self.threads)
    }
}

/// `‖h‖²`; not finite if an entry is not.
pub(crate) fn squared_norm(feature: &[f32]) -> f64 {
    Arch::new().dispatch(SquaredNorm(feature))
}

struct SquaredNorm<'a>(&'a [f32]);

impl NullaryFnOnce for SquaredNorm<'_> {
    type Output = f64;

    #[inline(always)]
    fn call(self) -> f64 {
        sum(self.0, self.0, |x, y| f64::from(x) * f64::from(y))
    }
}

/// `D h` of each pair, `[P]`: D is the Adam direction as if the token's own gradient, `coefficient h`, were the batch's,
/// from the moments before the batch. Each projection's squared norm is that of its row of D.
///
/// Pairs are worked on by subset, each of which should hold a few hundred tokens.
pub(crate) fn token_projections(
    features: Features,
    gradients: &Gradients,
    source: &Source,
    adam: &Adam,
) -> Vec<Projection> {
    let mut projections = vec![Projection::default(); gradients.pairs.len()];
    let tasks = tasks(gradients, &mut projections, 1, |a, b| a.subset == b.subset);
    let (threads, arch) = (features.threads_for(gradients.pairs.len()), Arch::new());
    parallel::for_each(threads, tasks, |task| arch.dispatch(TokenProjections { features, source, adam, task }));
    projections
}

struct TokenProjections<'a> {
    features: Features<'a>,
    source: &'a Source<'a>,
    adam: &'a Adam,
    task: Task<'a>,
}

impl NullaryFnOnce for TokenProjections<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { features, source, adam, task: Task { pairs, coefficients, projections } } = self;
        let width = features.batch.width;
        let runs = runs(pairs, source, adam, width);
        for tile in tiles(width, WIDE_TILE) {
            let mut results = coefficients.iter().zip(&mut *projections);
            for (pairs, row, rule) in &runs {
                let row = row.map(|row| row.columns(&tile));
                for (pair, (&coefficient, projection)) in pairs.iter().zip(&mut results) {
                    let part = project(features.of(pair, &tile), row.as_ref(), rule, coefficient);
                    projection.v += part.v;
                    projection.squared_norm += part.squared_norm;
                }
            }
        }
    }
}

/// `D h` of each pair, `[P]`: D is the direction of each subset's gradient, the sum of `coefficient h` over its pairs;
/// `adam` absent means SGD. The first projection of each row carries the squared norm of that row of D, the others 0.
pub(crate) fn subset_projections(
    features: Features,
    gradients: &Gradients,
    source: &Source,
    adam: Option<&Adam>,
) -> Vec<Projection> {
    let mut projections = vec![Projection::default(); gradients.pairs.len()];
    let (threads, arch) = (features.threads_for(2 * gradients.pairs.len()), Arch::new());
    let tasks = tasks(gradients, &mut projections, gradients.pairs.len().div_ceil(4 * threads), Pair::shares_row);
    parallel::for_each(threads, tasks, |task| arch.dispatch(SubsetProjections { features, source, adam, task }));
    projections
}

struct SubsetProjections<'a> {
    features: Features<'a>,
    source: &'a Source<'a>,
    adam: Option<&'a Adam>,
    task: Task<'a>,
}

impl NullaryFnOnce for SubsetProjections<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { features, source, adam, task: Task { pairs, coefficients, projections } } = self;
        let rules = adam.map(|adam| runs(pairs, source, adam, features.batch.width));
        for tile in tiles(features.batch.width, TILE) {
            let mut start = 0;
            for (at, run) in pairs.chunk_by(Pair::shares_row).enumerate() {
                let end = start + run.len();
                let mut direction = features.weighed_sum(run, &coefficients[start..end], &tile);
                let direction = &mut direction[..tile.len()];
                if let Some((_, row, rule)) = rules.as_ref().map(|rules| &rules[at]) {
                    propose(direction, row.map(|row| row.columns(&tile)).as_ref(), rule);
                }
                projections[start].squared_norm += sum(direction, direction, |x, y| x * y);
                for (pair, projection) in run.iter().zip(&mut projections[start..end]) {
                    projection.v += sum(direction, features.of(pair, &tile), |d, h| d * f64::from(h));
                }
                start = end;
            }
        }
    }
}

/// Part of the pairs, with where their results go.
struct Task<'a> {
    pairs: &'a [Pair],
    coefficients: &'a [f64],
    projections: &'a mut [Projection],
}

/// Cuts the pairs into tasks of at least `size`, nowhere between two that `belong` together.
fn tasks<'a>(
    gradients: &'a Gradients,
    mut projections: &'a mut [Projection],
    size: usize,
    belong: impl Fn(&Pair, &Pair) -> bool,
) -> Vec<Task<'a>> {
    let (mut pairs, mut coefficients) = (&gradients.pairs[..], &gradients.coefficients[..]);
    let mut tasks = Vec::new();
    while !pairs.is_empty() {
        let mut end = size.min(pairs.len());
        while end < pairs.len() && belong(&pairs[end - 1], &pairs[end]) {
            end += 1;
        }
        let (own_pairs, own_coefficients, own);
        (own_pairs, pairs) = pairs.split_at(end);
        (own_coefficients, coefficients) = coefficients.split_at(end);
        (own, projections) = projections.split_at_mut(end);
        tasks.push(Task { pairs: own_pairs, coefficients: own_coefficients, projections: own });
    }
    tasks
}

/// The pairs of one row, its moments, and Adam's rule for it.
type Run<'a> = (&'a [Pair], Option<MomentRow<'a>>, RowRule);

fn runs<'a>(pairs: &'a [Pair], source: &Source<'a>, adam: &Adam, width: usize) -> Vec<Run<'a>> {
    let run = |run: &'a [Pair]| {
        let row = source.row(run[0].row, width);
        (run, row, adam.proposal(row.as_ref()))
    };
    pairs.chunk_by(Pair::shares_row).map(run).collect()
}

/// Takes the gradient, the sum of `coefficient h` over each row's pairs, into the moments of its rows.
///
/// `slots` are the rows' own, in the order of the pairs; `steps` counts the steps before this one.
pub(crate) fn update_moments(
    features: Features,
    gradients: &Gradients,
    slots: Vec<&mut Slot>,
    steps: u64,
    adam: &Adam,
    dtype: StateDtype,
) {
    let mut coefficients = &gradients.coefficients[..];
    let mut updates = Vec::with_capacity(slots.len());
    for (pairs, slot) in gradients.pairs.chunk_by(Pair::shares_row).zip(slots) {
        let own;
        (own, coefficients) = coefficients.split_at(pairs.len());
        let rule = adam.update(steps - slot.written);
        slot.written = steps + 1;
        updates.push(Update { pairs, coefficients: own, slot, rule });
    }
    let (threads, arch) = (features.threads_for(gradients.pairs.len()), Arch::new());
    let groups = grouped(updates, gradients.pairs.len().div_ceil(4 * threads));
    parallel::for_each(threads, groups, |updates| arch.dispatch(UpdateMoments { features, updates, dtype }));
}

/// The pairs of one row, and its moments with Adam's rule for them.
struct Update<'a> {
    pairs: &'a [Pair],
    coefficients: &'a [f64],
    slot: &'a mut Slot,
    rule: RowRule,
}

/// Updates in groups of at least `size` pairs.
fn grouped(updates: Vec<Update>, size: usize) -> Vec<Vec<Update>> {
    let (mut groups, mut group, mut pairs) = (Vec::new(), Vec::new(), 0);
    for update in updates {
        pairs += update.pairs.len();
        group.push(update);
        if pairs >= size {
            groups.push(std::mem::take(&mut group));
            pairs = 0;
        }
    }
    groups.push(group);
    groups
}

struct UpdateMoments<'a> {
    features: Features<'a>,
    updates: Vec<Update<'a>>,
    dtype: StateDtype,
}

impl NullaryFnOnce for UpdateMoments<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { features, mut updates, dtype } = self;
        for tile in tiles(features.batch.width, TILE) {
            for Update { pairs, coefficients, slot, rule } in &mut updates {
                let gradient = features.weighed_sum(pairs, coefficients, &tile);
                let (exp_avg, exp_avg_sq) = (&mut slot.exp_avg[tile.clone()], &mut slot.exp_avg_sq[tile.clone()]);
                update(exp_avg, exp_avg_sq, &gradient, rule, dtype);
            }
        }
    }
}
