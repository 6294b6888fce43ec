//! Steps of which several ranks hold a part each.

use std::sync::{Barrier, Mutex};

use capo_core::{
    CurvatureModel, Error, Granularity, OptimizerModel, Ranks, RejectedBatch, Semantics, Weights,
};

use super::device::ON_DEVICE;
use super::fixture::{self, ADAM, ADAM_OF_BOTH, Dims, Rng};
use super::scene::{REDUCTIONS, Scene};
use super::second_moment::rows;

const DIMS: Dims = Dims(6, 3, 3, 70, 40);

/// Messages between threads that play ranks.
struct Table {
    told: Mutex<Vec<Vec<u64>>>,
    barrier: Barrier,
}

/// One of them.
struct Seat<'a> {
    rank: usize,
    table: &'a Table,
}

impl Seat<'_> {
    fn exchange(&self, own: Vec<u64>) -> Vec<Vec<u64>> {
        self.table.told.lock().unwrap()[self.rank] = own;
        self.table.barrier.wait();
        let all = self.table.told.lock().unwrap().clone();
        self.table.barrier.wait();
        all
    }
}

impl Ranks for Seat<'_> {
    fn size(&self) -> usize {
        self.table.told.lock().unwrap().len()
    }

    fn sum(&self, values: &mut [f64]) -> Result<(), Error> {
        let all = self.exchange(values.iter().map(|value| value.to_bits()).collect());
        for (at, value) in values.iter_mut().enumerate() {
            *value = all.iter().map(|own| f64::from_bits(own[at])).sum();
        }
        Ok(())
    }

    fn gather(&self, values: &[i64]) -> Result<Vec<Vec<i64>>, Error> {
        let all = self.exchange(values.iter().map(|&value| value as u64).collect());
        Ok(all
            .into_iter()
            .map(|own| own.into_iter().map(|value| value as i64).collect())
            .collect())
    }
}

/// Completions `range` of a scene, as one group.
fn part(scene: &Scene, range: std::ops::Range<usize>) -> Scene {
    let mut part = scene.reordered(&range.collect::<Vec<_>>());
    part.batch.group_size = part.batch.dims.0;
    part
}

fn model(semantics: Semantics) -> CurvatureModel {
    fixture::model(semantics, Granularity::Token)
}

/// Each rank commits completions up to the next of `ends`, all at once; their errors.
fn commit(
    models: &mut [CurvatureModel],
    scene: &Scene,
    ends: &[usize],
    weights: &[f32],
    optimizer: &OptimizerModel,
) -> Vec<Result<(), Error>> {
    let (size, tokens) = (models.len(), scene.batch.dims.1);
    let table = Table {
        told: Mutex::new(vec![vec![]; size]),
        barrier: Barrier::new(size),
    };
    let starts = std::iter::once(0).chain(ends.iter().copied());
    std::thread::scope(|scope| {
        let ranks: Vec<_> = starts.zip(ends).zip(models).enumerate().collect();
        let handles: Vec<_> = ranks
            .into_iter()
            .map(|(rank, ((start, &end), model))| {
                let (table, own) = (&table, part(scene, start..end));
                let weights = &weights[start * tokens..end * tokens];
                scope.spawn(move || {
                    let prepared = model.prepare(&own.step(optimizer, 0.1), &own.batch.mask)?;
                    model.commit_over(&prepared, weights, &Seat { rank, table })
                })
            })
            .collect();
        handles
            .into_iter()
            .map(|handle| handle.join().unwrap())
            .collect()
    })
}

/// Asserts that the saved moments of both are equal but for rounding: within 4 ulps of the row's
/// largest entry. On a device the limit is 16 ulps, because the messages between ranks are rounded
/// there too.
fn assert_near(name: &str, got: &CurvatureModel, expected: &CurvatureModel) {
    let [got, expected] = [got, expected].map(|model| rows(&model.save().unwrap()));
    let ids =
        |rows: &[(u32, Vec<f64>, Vec<f64>)]| rows.iter().map(|(id, ..)| *id).collect::<Vec<_>>();
    assert_eq!(ids(&got), ids(&expected), "{name}: rows");
    for ((id, m, v), (_, expected_m, expected_v)) in got.iter().zip(&expected) {
        for (got, expected) in [(m, expected_m), (v, expected_v)] {
            let largest = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            for (got, expected) in got.iter().zip(expected) {
                let tolerance =
                    if ON_DEVICE { 16.0 } else { 4.0 } * f64::from(f32::EPSILON) * largest;
                assert!(
                    (got - expected).abs() <= tolerance,
                    "{name}: row {id} has {got}, expected {expected}"
                );
            }
        }
    }
}

/// Three steps of ranks that end at `ends`, beside the same steps of one.
fn side_by_side(
    name: &str,
    semantics: Semantics,
    optimizer: OptimizerModel,
    ends: &[usize],
    loss: impl Fn(&mut Scene),
) {
    let mut rng = Rng(77);
    let mut whole = model(semantics);
    let mut ranks: Vec<CurvatureModel> = ends.iter().map(|_| model(semantics)).collect();
    for step in 0..3 {
        let mut scene = Scene::random(&mut rng, DIMS, 0.7);
        loss(&mut scene);
        let mut weights: Vec<f32> = scene
            .batch
            .mask
            .iter()
            .map(|&mask| f32::from(mask) * [0.0, 0.3, 1.0][rng.below(3)])
            .collect();
        if step == 1 {
            // The first rank has nothing left.
            weights[..ends[0] * DIMS.1].fill(0.0);
        }
        let prepared = whole
            .prepare(&scene.step(&optimizer, 0.1), &scene.batch.mask)
            .unwrap();
        whole.commit_weighted(&prepared, &weights).unwrap();
        commit(&mut ranks, &scene, ends, &weights, &optimizer)
            .into_iter()
            .for_each(|outcome| outcome.unwrap());
        let states: Vec<Vec<u8>> = ranks.iter().map(|rank| rank.save().unwrap()).collect();
        assert!(
            states.iter().all(|state| *state == states[0]),
            "{name}: ranks differ at step {step}"
        );
        assert_near(&format!("{name}, step {step}"), &ranks[0], &whole);
    }
}

#[test]
fn ranks_together_commit_the_whole_batch() {
    for moment_input in [Weights::TokenMean, Weights::RowMean, Weights::Loss] {
        for (preset, semantics) in [
            ("paper", Semantics::PAPER),
            ("authors", Semantics::AUTHORS),
            ("exact", Semantics::EXACT),
        ] {
            let semantics = Semantics {
                moment_input,
                moment_update: Semantics::PAPER.moment_update,
                ..semantics
            };
            for reduction in REDUCTIONS {
                for optimizer in [ADAM, ADAM_OF_BOTH] {
                    for ends in [&[3, 6][..], &[1, 5, 6], &[6]] {
                        let name = format!(
                            "{preset}, {moment_input:?}, {reduction:?}, {:?}, {ends:?}",
                            optimizer.second_moment
                        );
                        side_by_side(&name, semantics, optimizer, ends, |scene| {
                            scene.reduction = reduction;
                            scene.counted = (ends.len() == 2).then(|| scene.batch.mask.clone());
                        });
                    }
                }
            }
        }
    }
}

#[test]
fn ranks_agree_whether_a_fully_rejected_batch_counts() {
    let mut rng = Rng(6);
    let scene = Scene::full(&mut rng, DIMS, 0.7);
    for (rejected_batch, steps) in [(RejectedBatch::NoStep, 0), (RejectedBatch::Counts, 1)] {
        let semantics = Semantics {
            rejected_batch,
            ..Semantics::PAPER
        };
        let mut ranks = [model(semantics), model(semantics)];
        commit(&mut ranks, &scene, &[3, 6], &[0.0; 18], &ADAM)
            .into_iter()
            .for_each(|outcome| outcome.unwrap());
        assert_eq!(ranks.each_ref().map(CurvatureModel::steps), [steps; 2]);
    }
}

#[test]
fn an_error_on_one_rank_stops_all_ranks_unchanged() {
    let mut rng = Rng(7);
    let scene = Scene::full(&mut rng, DIMS, 0.7);
    let mut ranks = [model(Semantics::PAPER), model(Semantics::PAPER)];
    let mut weights = vec![1.0; 18];
    weights[17] = -1.0;
    let told: Vec<String> = commit(&mut ranks, &scene, &[3, 6], &weights, &ADAM)
        .into_iter()
        .map(|outcome| outcome.unwrap_err().to_string())
        .collect();
    assert_eq!(
        told[0],
        "rank 1 could not take the step in (its own error says why)"
    );
    assert_eq!(
        told[1],
        "`weights` has -1 at 8, expected finite numbers of at least 0"
    );
    assert_eq!(ranks.each_ref().map(CurvatureModel::steps), [0; 2]);

    // Another state on one of them.
    scene.commit(&mut ranks[1], &ADAM);
    let told = commit(&mut ranks, &scene, &[3, 6], &[1.0; 18], &ADAM);
    for outcome in told {
        assert_eq!(
            outcome.unwrap_err().to_string(),
            "rank 0 has 0 for steps taken in and rank 1 has 1 (give all ranks the same model and state)"
        );
    }
}
