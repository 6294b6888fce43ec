//! Independence of the results from the number of threads and from the order of completions.

use capo_core::{
    Acceptance, Assessment, CurvatureModel, Granularity, HostMoments, OptimizerModel, Semantics,
    Step,
};

use super::device;
use super::fixture::{
    ADAM, ADAMW, Dims, GRANULARITIES, OPEN, PRESETS, Rng, SGD, assert_close, bits, model, reorder,
    shifts, wide,
};
use super::scene::Scene;

/// Threads are worth their start at a quarter of a million products; here are 7 million, in several
/// tiles of columns.
const LARGE: Dims = Dims(8, 64, 24, 600, 700);
const SMALL: Dims = Dims(6, 3, 3, 18, 7);

/// Settings that the threads must not matter to.
struct Case {
    semantics: Semantics,
    granularity: Granularity,
    optimizer: OptimizerModel,
    /// `[V, D]` each.
    moments: Option<[Vec<f32>; 2]>,
}

/// The bits of everything that a model says of the scenes, one after the other, and its state in
/// the end.
fn trace(scenes: &[Scene], case: &Case, threads: usize) -> (Vec<u64>, Vec<u8>) {
    let acceptance = Acceptance {
        fisher_threshold: Some(1e-4),
        ..OPEN
    };
    let model = CurvatureModel::new(acceptance, case.granularity, case.semantics).unwrap();
    let (mut model, mut said) = (model.with_threads(threads), Vec::new());
    for scene in scenes {
        let moments = case.moments.as_ref().map(|[m, v]| HostMoments {
            arrays: device::moments(m, v),
            steps: 5,
        });
        let step = Step {
            moments,
            ..scene.step(&case.optimizer, 0.01)
        };
        let prepared = model.prepare(&step, &scene.batch.mask).unwrap();
        let assessment = model.assess(&prepared).unwrap();
        assert!(assessment.m_f.iter().any(|&m_f| m_f > 0.0));
        said.extend(bits(
            &assessment,
            &model.batch_shift(&prepared, &scene.batch.mask).unwrap(),
        ));
        model.commit(&prepared, &scene.batch.mask).unwrap();
    }
    (said, model.save().unwrap())
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let mut rng = Rng(120);
    let mut scenes = Scene::loose_pair(&mut rng, LARGE);
    scenes
        .iter_mut()
        .for_each(|scene| scene.batch.group_size = 4);
    let Dims(.., width, vocab) = LARGE;
    let m: Vec<f32> = (0..vocab * width).map(|_| rng.symmetric(1e-3)).collect();
    let moments = Some([m.clone(), m.iter().map(|m| 2.0 * m * m + 1e-8).collect()]);
    let cases = [
        Case {
            semantics: Semantics::PAPER,
            granularity: Granularity::Token,
            optimizer: ADAM,
            moments: None,
        },
        Case {
            semantics: Semantics::AUTHORS,
            granularity: Granularity::Completion,
            optimizer: ADAM,
            moments: None,
        },
        Case {
            semantics: Semantics::EXACT,
            granularity: Granularity::Group,
            optimizer: ADAMW,
            moments: None,
        },
        Case {
            semantics: Semantics::EXACT,
            granularity: Granularity::Token,
            optimizer: ADAMW,
            moments,
        },
        Case {
            semantics: Semantics::PAPER,
            granularity: Granularity::Batch,
            optimizer: SGD,
            moments: None,
        },
        Case {
            semantics: Semantics::EXACT,
            granularity: Granularity::Token,
            optimizer: SGD,
            moments: None,
        },
    ];
    for case in cases {
        let one = trace(&scenes, &case, 1);
        for threads in [2, 3, 16] {
            let what = format!(
                "{threads} threads: {:?} {:?}",
                case.semantics, case.granularity
            );
            assert!(trace(&scenes, &case, threads) == one, "{what}");
        }
    }
}

fn run(
    scene: &Scene,
    semantics: Semantics,
    granularity: Granularity,
    optimizer: &OptimizerModel,
) -> Assessment {
    let mut model = model(semantics, granularity);
    Scene::full(&mut Rng(121), SMALL, 0.7).commit(&mut model, optimizer);
    scene.assess(&model, optimizer, 0.1)
}

#[test]
fn permuting_completions_permutes_their_assessment() {
    let mut scene = Scene::random(&mut Rng(122), SMALL, 0.7);
    scene.counted = Some(
        scene
            .batch
            .mask
            .iter()
            .map(|&x| x | u8::from(x == 0))
            .collect(),
    );
    let order = [4, 5, 0, 1, 2, 3];
    let permuted = scene.reordered(&order);
    let cases = PRESETS
        .into_iter()
        .flat_map(|x| GRANULARITIES.map(|y| (x, y)))
        .flat_map(|x| [(x, SGD), (x, ADAMW)]);
    for ((semantics, granularity), optimizer) in cases {
        let [plain, got] =
            [&scene, &permuted].map(|scene| run(scene, semantics, granularity, &optimizer));
        for ((name, got), (_, plain)) in shifts(&got).into_iter().zip(shifts(&plain)) {
            // A batch is summed in another order.
            let tolerance = if granularity == Granularity::Batch {
                1e-6
            } else {
                0.0
            };
            assert_close(
                &format!("{name} {granularity:?}"),
                got,
                &wide(&reorder(plain, 3, &order)),
                tolerance,
            );
        }
        assert_eq!(got.token_mask, reorder(&plain.token_mask, 3, &order));
        assert_eq!(got.reasons, reorder(&plain.reasons, 3, &order));
        assert_eq!((got.tokens, got.rejected), (plain.tokens, plain.rejected));
    }
}
