//! The operations on CPU threads, with the machine's widest instructions, chosen at run time. The
//! results depend neither on the instructions nor on the number of threads.

use std::ops::Range;

use pulp::{Arch, NullaryFnOnce};

use super::lanes::{project, propose, sum};
use super::{Projection, parallel};
use crate::gradient::{Gradients, Pair};
use crate::moments::HostSource;
use crate::optimizer::{Adam, MomentRow, RowRule};

/// Columns that a sum over tokens processes at a time. These columns of a whole batch fit in the
/// shared cache, and the sum fits in registers.
pub(super) const TILE: usize = 64;

/// The columns `0..width` in tiles.
pub(super) fn tiles(width: usize) -> impl Iterator<Item = Range<usize>> {
    (0..width)
        .step_by(TILE)
        .map(move |start| start..(start + TILE).min(width))
}

/// A batch's features, and the threads that may process them.
#[derive(Clone, Copy)]
pub(crate) struct Features<'a> {
    /// `[B, T, D]`: the features.
    pub hidden: &'a [f32],
    /// D: width of a feature.
    pub width: usize,
    /// `[N]`: flat position of each token's feature.
    pub positions: &'a [u32],
    /// Largest number of threads.
    pub threads: usize,
}

impl<'a> Features<'a> {
    /// `[D]`: feature of a pair's token.
    #[inline(always)]
    fn of(&self, pair: &Pair) -> &'a [f32] {
        self.at(self.positions[pair.token as usize] as usize)
    }

    #[inline(always)]
    fn at(&self, position: usize) -> &'a [f32] {
        &self.hidden[position * self.width..][..self.width]
    }

    pub fn threads_for(&self, pairs: usize) -> usize {
        parallel::threads_for(pairs * self.width, self.threads)
    }
}

/// A copy of some columns of the features of consecutive tokens. Rows of pairs read these columns
/// in any order, from far fewer pages than the features themselves.
pub(super) struct Packed {
    tokens: Range<usize>,
    columns: Vec<[f32; TILE]>,
}

impl Packed {
    /// An empty copy with room for the tokens of `pairs`.
    pub fn new<'a>(pairs: impl Iterator<Item = &'a Pair>) -> Self {
        let tokens = pairs.fold(0..0, |tokens: Range<usize>, pair| {
            let token = pair.token as usize;
            if tokens.is_empty() {
                token..token + 1
            } else {
                tokens.start.min(token)..tokens.end.max(token + 1)
            }
        });
        Self {
            columns: Vec::with_capacity(tokens.len()),
            tokens,
        }
    }

    /// Copies the columns of a tile; pads with 0 beyond its end.
    #[inline(always)]
    pub fn fill(&mut self, features: Features, tile: &Range<usize>) {
        self.columns.clear();
        for &position in &features.positions[self.tokens.clone()] {
            let h = &features.at(position as usize)[tile.clone()];
            self.columns
                .push(h.first_chunk().copied().unwrap_or_else(|| {
                    let mut columns = [0.0; TILE];
                    columns[..h.len()].copy_from_slice(h);
                    columns
                }));
        }
    }

    #[inline(always)]
    fn of(&self, pair: &Pair) -> &[f32; TILE] {
        &self.columns[pair.token as usize - self.tokens.start]
    }

    /// The sum of `coefficient h` over pairs.
    #[inline(always)]
    pub fn weighed_sum(&self, pairs: &[Pair], coefficients: &[f64]) -> [f64; TILE] {
        let mut total = [0.0; TILE];
        for (pair, &coefficient) in pairs.iter().zip(coefficients) {
            for (g, &h) in total.iter_mut().zip(self.of(pair)) {
                *g += coefficient * f64::from(h);
            }
        }
        total
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

/// `[P]`: `D h` of each pair. D is the Adam direction of the token's own gradient, `coefficient h`,
/// as if the token were the whole batch, from the moments before the batch. Each projection carries
/// the squared norm of its row of D. Runs on this thread alone.
pub(crate) fn token_projections(
    features: Features,
    gradients: &Gradients,
    source: &HostSource,
    adam: &Adam,
) -> Vec<Projection> {
    Arch::new().dispatch(TokenProjections {
        features,
        gradients,
        source,
        adam,
    })
}

struct TokenProjections<'a> {
    features: Features<'a>,
    gradients: &'a Gradients,
    source: &'a HostSource<'a>,
    adam: &'a Adam,
}

impl NullaryFnOnce for TokenProjections<'_> {
    type Output = Vec<Projection>;

    #[inline(always)]
    fn call(self) -> Vec<Projection> {
        let Self {
            features,
            gradients:
                Gradients {
                    pairs,
                    coefficients,
                    ..
                },
            source,
            adam,
        } = self;
        let mut projections = Vec::with_capacity(pairs.len());
        let mut coefficients = coefficients.iter();
        for Run { pairs, row, rule } in runs(pairs, source, adam, features.width) {
            for (pair, &coefficient) in pairs.iter().zip(&mut coefficients) {
                projections.push(project(features.of(pair), row.as_ref(), &rule, coefficient));
            }
        }
        projections
    }
}

/// `[P]`: `D h` of each pair. D is the direction of each subset's gradient, the sum of
/// `coefficient h` over its pairs; without `adam` it is SGD's. The first projection of each row
/// carries the squared norm of that row of D, the others 0.
pub(crate) fn subset_projections(
    features: Features,
    gradients: &Gradients,
    source: &HostSource,
    adam: Option<&Adam>,
) -> Vec<Projection> {
    let mut projections = vec![Projection::default(); gradients.pairs.len()];
    let threads = features.threads_for(2 * gradients.pairs.len());
    let arch = Arch::new();
    let tasks = tasks(
        gradients,
        &mut projections,
        gradients.pairs.len().div_ceil(2 * threads),
    );
    parallel::for_each(threads, tasks, |task| {
        arch.dispatch(SubsetProjections {
            features,
            source,
            adam,
            task,
        })
    });
    projections
}

struct SubsetProjections<'a> {
    features: Features<'a>,
    source: &'a HostSource<'a>,
    adam: Option<&'a Adam>,
    task: Task<'a>,
}

impl NullaryFnOnce for SubsetProjections<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self {
            features,
            source,
            adam,
            task:
                Task {
                    pairs,
                    coefficients,
                    projections,
                },
        } = self;
        let rules = adam.map(|adam| runs(pairs, source, adam, features.width));
        let mut packed = Packed::new(pairs.iter());
        for tile in tiles(features.width) {
            packed.fill(features, &tile);
            let mut start = 0;
            for (at, run) in pairs.chunk_by(Pair::shares_row).enumerate() {
                let end = start + run.len();
                let mut direction = packed.weighed_sum(run, &coefficients[start..end]);
                if let Some(Run { row, rule, .. }) = rules.as_ref().map(|rules| &rules[at]) {
                    propose(
                        &mut direction[..tile.len()],
                        row.map(|row| row.columns(&tile)).as_ref(),
                        rule,
                    );
                }
                projections[start].squared_norm += sum(&direction, &direction, |x, y| x * y);
                for (pair, projection) in run.iter().zip(&mut projections[start..end]) {
                    projection.v += sum(&direction, packed.of(pair), |d, h| d * f64::from(h));
                }
                start = end;
            }
        }
    }
}

/// Some of the pairs, and the slices for their results.
struct Task<'a> {
    pairs: &'a [Pair],
    coefficients: &'a [f64],
    projections: &'a mut [Projection],
}

/// Cuts the pairs into tasks of at least `size`, but never within a row.
fn tasks<'a>(
    gradients: &'a Gradients,
    mut projections: &'a mut [Projection],
    size: usize,
) -> Vec<Task<'a>> {
    let mut pairs = &gradients.pairs[..];
    let mut coefficients = &gradients.coefficients[..];
    let mut tasks = Vec::new();
    while !pairs.is_empty() {
        let mut end = size.min(pairs.len());
        while end < pairs.len() && pairs[end - 1].shares_row(&pairs[end]) {
            end += 1;
        }
        let (own_pairs, own_coefficients, own);
        (own_pairs, pairs) = pairs.split_at(end);
        (own_coefficients, coefficients) = coefficients.split_at(end);
        (own, projections) = projections.split_at_mut(end);
        tasks.push(Task {
            pairs: own_pairs,
            coefficients: own_coefficients,
            projections: own,
        });
    }
    tasks
}

/// The pairs of one row, the row's moments, and Adam's rule for the row.
struct Run<'a> {
    pairs: &'a [Pair],
    row: Option<MomentRow<'a>>,
    rule: RowRule,
}

/// The runs of pairs that share a row.
fn runs<'a>(pairs: &'a [Pair], source: &HostSource<'a>, adam: &Adam, width: usize) -> Vec<Run<'a>> {
    pairs
        .chunk_by(Pair::shares_row)
        .map(|pairs| {
            let row = source.row(pairs[0].row, width);
            let rule = adam.proposal(row.as_ref());
            Run { pairs, row, rule }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::update;
    use super::*;
    use crate::moments::Moments;
    use crate::optimizer::{OptimizerKind, OptimizerModel, SecondMoment};
    use crate::semantics::{StateDtype, UntouchedRows};

    const WIDTH: usize = 203;
    const ROWS: u32 = 5;
    const TOKENS: u32 = 7;

    /// A wave without a period.
    fn wave(at: usize) -> f32 {
        (at as f32 * 0.731).sin() + 0.1
    }

    fn gradients() -> Gradients {
        let pair = |index: u32| Pair {
            subset: 0,
            row: index / TOKENS,
            token: index % TOKENS,
            index,
        };
        let pairs: Vec<Pair> = (0..ROWS * TOKENS).map(pair).collect();
        let coefficients = (0..pairs.len()).map(|at| f64::from(wave(3 * at))).collect();
        Gradients {
            pairs,
            coefficients,
            everything: None,
        }
    }

    /// Results of all three operations, each called through `run`.
    macro_rules! results {
        ($run:expr) => {{
            let hidden: Vec<f32> = (0..TOKENS as usize * WIDTH).map(wave).collect();
            let positions: Vec<u32> = (0..TOKENS).collect();
            let features = Features {
                hidden: &hidden,
                width: WIDTH,
                positions: &positions,
                threads: 1,
            };
            let gradients = gradients();
            let model = OptimizerModel {
                kind: OptimizerKind::Adam,
                beta1: 0.9,
                beta2: 0.99,
                eps: 1e-8,
                second_moment: SecondMoment::KeptAndRejected,
                weight_decay: 0.0,
            };
            let adam = model.adam(3, UntouchedRows::Decay).unwrap();
            // The last row has no moments yet.
            let mut moments = Moments::new(ROWS as usize, WIDTH, 3, Vec::new()).unwrap();
            let update = |moments: &mut Moments, rows: u32| {
                let runs = gradients
                    .pairs
                    .chunk_by(Pair::shares_row)
                    .take(rows as usize);
                let slots = moments.rows_mut(0..rows).into_iter();
                let (coefficients, everything) =
                    gradients.coefficients[..2 * TOKENS as usize].split_at(TOKENS as usize);
                let everything = Some(everything);
                let rule = adam.update(1);
                let target = |slot| update::Moments {
                    slot,
                    rule,
                    dtype: StateDtype::F32,
                };
                let row = |(pairs, slot)| update::Row {
                    pairs,
                    coefficients,
                    everything,
                    target: target(slot),
                };
                let rows = runs.zip(slots).map(row).collect();
                $run(update::SumRows { features, rows });
            };
            update(&mut moments, ROWS - 1);
            let source = HostSource::Own(&moments);
            let tokens = $run(TokenProjections {
                features,
                gradients: &gradients,
                source: &source,
                adam: &adam,
            });
            let mut subsets = vec![Projection::default(); gradients.pairs.len()];
            let Gradients {
                pairs,
                coefficients,
                ..
            } = &gradients;
            let task = Task {
                pairs,
                coefficients,
                projections: &mut subsets,
            };
            $run(SubsetProjections {
                features,
                source: &source,
                adam: Some(&adam),
                task,
            });
            update(&mut moments, ROWS);
            (tokens, subsets, moments)
        }};
    }

    /// An operation that is called without dispatch runs with the instructions that every machine
    /// of the target has.
    #[test]
    fn the_widest_instructions_give_the_bits_of_the_plainest() {
        let plain = results!(NullaryFnOnce::call);
        let widest = results!(|operation| Arch::new().dispatch(operation));
        assert_eq!(plain.0, widest.0);
        assert_eq!(plain.1, widest.1);
        assert_eq!(plain.2, widest.2);
        assert!(plain.0.iter().all(|projection| projection.v != 0.0));
    }
}
