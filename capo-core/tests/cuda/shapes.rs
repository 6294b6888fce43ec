//! Sizes and addresses at which kernels take another way.

#![allow(unsafe_code, reason = "slices that start in the middle of an array")]

use capo_core::cuda::{Features, Plain, Slice};
use capo_core::{
    CurvatureModel, Granularity, HostMoments, MomentArrays, OptimizerModel, Semantics, StateDtype,
    Step,
};

use super::agreement::{CASE, Case, DTYPES, Dtype, RATE, compare, side_by_side, step_with};
use super::suite::device::{arrays, device_arrays, emulator, host_arrays, uploaded};
use super::suite::fixture::{ADAM, Dims, OPEN, Rng, SGD, open_model};
use super::suite::scene::Scene;

/// All tokens of a completion share a row, and three others by turns.
fn shared_row(rng: &mut Rng, tokens: usize, width: usize) -> Scene {
    let mut scene = Scene::loose(rng, Dims(1, tokens, 2, width, 7));
    let batch = &mut scene.batch;
    for t in 0..tokens {
        batch.topk_ids[2 * t..][..2].copy_from_slice(&[6, 1 + t as u32 % 3]);
        batch.action_ids[t] = batch.topk_ids[2 * t + t % 2];
        batch.action_logits[t] = batch.topk_logits[2 * t + t % 2];
    }
    batch.mask.fill(1);
    scene
}

/// Runs of pairs that just fill a window, a warp's share or a segment for one warp, and one more or
/// less.
#[test]
fn runs_of_all_lengths_agree() {
    let mut rng = Rng(400);
    for tokens in [1, 4, 5, 31, 32, 33, 63, 64, 65, 127, 128, 129, 193] {
        let scenes = [
            shared_row(&mut rng, tokens, 9),
            shared_row(&mut rng, tokens, 9),
        ];
        side_by_side(&scenes, &CASE);
        side_by_side(
            &scenes,
            &Case {
                granularity: Granularity::Token,
                ..CASE
            },
        );
        side_by_side(
            &scenes,
            &Case {
                semantics: Semantics::EXACT,
                granularity: Granularity::Batch,
                ..CASE
            },
        );
    }
}

/// Widths around a lane's columns, a tile, a block's tiles and the tiles that exist at a time.
#[test]
fn widths_of_all_kinds_agree() {
    let mut rng = Rng(401);
    let mut dtypes = DTYPES.into_iter().cycle();
    for width in [7, 8, 9, 255, 256, 257, 264, 1024, 1031, 1288] {
        let scenes = [
            shared_row(&mut rng, 70, width),
            shared_row(&mut rng, 3, width),
        ];
        for (optimizer, trainers) in [(ADAM, false), (ADAM, true), (SGD, false)] {
            let case = Case {
                optimizer,
                trainers,
                dtype: dtypes.next().unwrap(),
                ..CASE
            };
            side_by_side(&scenes, &case);
            side_by_side(
                &scenes,
                &Case {
                    granularity: Granularity::Token,
                    ..case
                },
            );
        }
    }
}

/// Ids up to V - 1 where V has one bit more, and all ids kept.
#[test]
fn vocabularies_at_powers_of_two_agree() {
    for (k, vocab) in [
        (1, 1),
        (2, 2),
        (15, 15),
        (16, 16),
        (17, 17),
        (3, 16),
        (3, 17),
        (2, 256),
        (2, 4096),
        (2, 4097),
    ] {
        let mut rng = Rng(402);
        let mut scenes = Scene::loose_pair(&mut rng, Dims(2, 20, k, 5, vocab));
        for (t, at) in (0..20).flat_map(|t| [(t, 0), (t, 1)]) {
            let batch = &mut scenes[at].batch;
            let ids: Vec<u32> = (0..k as u32)
                .map(|column| vocab as u32 - 1 - column)
                .collect();
            batch.topk_ids[t * k..][..k].copy_from_slice(&ids);
            (batch.action_ids[t], batch.action_logits[t]) =
                (ids[t % k], batch.topk_logits[t * k + t % k]);
        }
        side_by_side(&scenes, &CASE);
        side_by_side(
            &scenes,
            &Case {
                granularity: Granularity::Token,
                ..CASE
            },
        );
    }
}

/// An id is compared with V before anything is looked up with it; the sentence is that of the host.
#[test]
fn ids_beyond_the_vocabulary_are_named() {
    let scene = Scene::loose(&mut Rng(411), Dims(2, 20, 5, 8, 30));
    for (at, id) in [(0, 30), (4, u32::MAX), (37 * 5 + 2, 1 << 31)] {
        let mut wrong = scene.clone();
        wrong.batch.mask.fill(1);
        wrong.batch.topk_ids[at] = id;
        let refusal = |arrays| {
            let step = step_with(&wrong, arrays, &ADAM, 0.1);
            open_model()
                .prepare(&step, &wrong.batch.mask)
                .unwrap_err()
                .to_string()
        };
        let said = refusal(arrays(&wrong.batch));
        assert_eq!(
            said,
            refusal(host_arrays(&wrong.batch, &wrong.batch.hidden))
        );
        assert!(
            said.contains(&format!(
                "has id {id}, expected below the vocabulary size 30"
            )),
            "{said}"
        );
    }
}

/// As many completions as a digit of the sort has values, one more and one less.
#[test]
fn subsets_at_powers_of_two_agree() {
    for completions in [15, 16, 17] {
        let mut scenes = Scene::loose_pair(&mut Rng(410), Dims(completions, 4, 3, 5, 12));
        for batch in scenes.iter_mut().map(|scene| &mut scene.batch) {
            batch.mask.fill(1);
        }
        side_by_side(&scenes, &CASE);
    }
}

/// The last row of a completion is the first one of the next.
#[test]
fn neighbouring_subsets_that_share_a_row_agree() {
    let mut scenes = Scene::loose_pair(&mut Rng(414), Dims(3, 4, 2, 5, 12));
    for batch in scenes.iter_mut().map(|scene| &mut scene.batch) {
        batch.mask.fill(1);
        for at in 0..12 {
            let low = at as u32 / 4;
            batch.topk_ids[2 * at..][..2].copy_from_slice(&[low, low + 1]);
            (batch.action_ids[at], batch.action_logits[at]) = (low, batch.topk_logits[2 * at]);
        }
    }
    side_by_side(&scenes, &CASE);
}

/// Memory of an earlier batch serves a later one, of another size; and there may be nothing to do.
#[test]
fn batches_of_changing_sizes_agree() {
    let mut rng = Rng(403);
    let mut scenes: Vec<Scene> = [
        (40, 5),
        (3, 2),
        (0, 5),
        (90, 7),
        (1, 1),
        (41, 5),
        (39, 4),
        (200, 2),
        (40, 5),
    ]
    .map(|(tokens, k)| Scene::loose(&mut rng, Dims(2, tokens, k, 20, 50)))
    .into();
    scenes[6].batch.mask.fill(0);
    for granularity in [
        Granularity::Token,
        Granularity::Completion,
        Granularity::Batch,
    ] {
        for semantics in [Semantics::PAPER, Semantics::EXACT] {
            side_by_side(
                &scenes,
                &Case {
                    granularity,
                    semantics,
                    ..CASE
                },
            );
        }
    }
}

/// Rows beyond the first slab, old ones and new ones in one step.
#[test]
fn rows_across_slabs_agree() {
    let mut rng = Rng(404);
    // 1024 rows in one slab, then one more; or both at once.
    for rows in [1023, 1024, 1025, 2049] {
        let mut scenes = [
            Scene::loose(&mut rng, Dims(1, rows, 1, 3, 2100)),
            Scene::loose(&mut rng, Dims(1, 30, 1, 3, 2100)),
        ];
        for scene in &mut scenes {
            let batch = &mut scene.batch;
            batch.mask.fill(1);
            batch.advantages.fill(1.0);
            // The sampled row is not among the top ones, or a token with one row would be certain
            // and move nothing.
            batch
                .topk_ids
                .iter_mut()
                .enumerate()
                .for_each(|(t, id)| *id = (t * 2099 % 2100) as u32);
            batch
                .action_ids
                .iter_mut()
                .enumerate()
                .for_each(|(t, id)| *id = ((t * 2099 + 1) % 2100) as u32);
        }
        let case = Case {
            semantics: Semantics::EXACT,
            granularity: Granularity::Batch,
            ..CASE
        };
        side_by_side(&scenes, &case);
        a_loaded_model_goes_on(&scenes, &case);
    }
}

/// With the bits that the one has which was saved.
fn a_loaded_model_goes_on([first, second]: &[Scene; 2], case: &Case) {
    let model = || CurvatureModel::new(OPEN, case.granularity, case.semantics).unwrap();
    let commit = |model: &mut CurvatureModel, scene: &Scene| {
        let step = step_with(scene, arrays(&scene.batch), &case.optimizer, 0.1);
        model
            .commit(
                &model.prepare(&step, &scene.batch.mask).unwrap(),
                &scene.batch.mask,
            )
            .unwrap();
    };
    let (mut saved, mut loaded) = (model(), model());
    commit(&mut saved, first);
    loaded.load(&saved.save().unwrap()).unwrap();
    commit(&mut saved, second);
    commit(&mut loaded, second);
    assert!(saved.save().unwrap() == loaded.save().unwrap());
}

/// Where fast roots are 0, an `eps` as small as they should be is not for them.
#[test]
fn directions_of_tiny_gradients_agree() {
    let mut scenes = [408, 409].map(|seed| Scene::loose(&mut Rng(seed), Dims(2, 10, 3, 24, 9)));
    for h in scenes.iter_mut().flat_map(|scene| &mut scene.batch.hidden) {
        *h *= 3e-19;
    }
    let optimizer = OptimizerModel { eps: 1e-19, ..ADAM };
    for trainers in [false, true] {
        side_by_side(
            &scenes,
            &Case {
                optimizer,
                granularity: Granularity::Token,
                trainers,
                ..CASE
            },
        );
    }
}

/// 16-bit floats below 2^-14 have fewer digits, and still are no zeros.
#[test]
fn subnormal_features_agree() {
    let mut scenes = [405, 406].map(|seed| Scene::loose(&mut Rng(seed), Dims(2, 10, 3, 24, 9)));
    for h in scenes.iter_mut().flat_map(|scene| &mut scene.batch.hidden) {
        *h *= 1e-4;
    }
    for granularity in [Granularity::Token, Granularity::Batch] {
        side_by_side(
            &scenes,
            &Case {
                dtype: Dtype::F16,
                granularity,
                ..CASE
            },
        );
        side_by_side(
            &scenes,
            &Case {
                dtype: Dtype::F16,
                optimizer: SGD,
                granularity,
                ..CASE
            },
        );
    }
}

/// Squares and divisors beyond the range of `f32`, with results within it.
#[test]
fn directions_of_huge_gradients_agree() {
    let scenes = [412, 413].map(|seed| Scene::loose(&mut Rng(seed), Dims(2, 10, 3, 24, 9)));
    for (scale, columns) in [(1e20, 24), (1e39, 1)] {
        let mut huge = scenes.clone();
        for (at, h) in huge
            .iter_mut()
            .flat_map(|scene| scene.batch.hidden.iter_mut().enumerate())
        {
            *h = if at % 24 < columns {
                (f64::from(*h) * scale) as f32
            } else {
                0.0
            };
        }
        for trainers in [false, true] {
            let learning_rate = RATE / scale;
            let semantics = Semantics {
                state_dtype: StateDtype::Bf16,
                ..Semantics::PAPER
            };
            side_by_side(
                &huge,
                &Case {
                    granularity: Granularity::Token,
                    semantics,
                    trainers,
                    learning_rate,
                    ..CASE
                },
            );
            side_by_side(
                &huge,
                &Case {
                    granularity: Granularity::Token,
                    trainers,
                    learning_rate,
                    ..CASE
                },
            );
        }
    }
}

/// A direction of 1e29 an entry, whose square `f32` does not hold, along features that make a small
/// projection of it.
#[test]
fn norms_beyond_f32_agree() {
    let Dims(.., width, vocab) = Dims(1, 9, 3, 24, 9);
    let mut scene = Scene::loose(&mut Rng(414), Dims(1, 9, 3, width, vocab));
    scene.batch.hidden.iter_mut().for_each(|h| *h *= 1e-28);
    let mut rng = Rng(415);
    let exp_avg: Vec<f32> = (0..vocab * width).map(|_| rng.symmetric(1e24)).collect();
    let exp_avg_sq = vec![1e-10; vocab * width];
    let ask = |batch, moments| {
        let (model, plain) = (open_model(), step_with(&scene, batch, &ADAM, 1e-3));
        let step = Step {
            moments: Some(HostMoments {
                arrays: moments,
                steps: 3,
            }),
            ..plain
        };
        model
            .assess(&model.prepare(&step, &scene.batch.mask).unwrap())
            .unwrap()
    };
    let moments = MomentArrays::Host {
        exp_avg: &exp_avg,
        exp_avg_sq: &exp_avg_sq,
    };
    let expected = ask(host_arrays(&scene.batch, &scene.batch.hidden), moments);
    let moments = MomentArrays::Cuda {
        exp_avg: uploaded(&exp_avg),
        exp_avg_sq: uploaded(&exp_avg_sq),
    };
    let got = ask(arrays(&scene.batch), moments);
    compare("norm", &got, &expected);
    assert!(got.certificate.step_norm > 1e20 && got.m_f.iter().any(|&m_f| m_f > 0.0));
}

/// A copy of the values on the device, one place further on.
fn shifted<T: Plain + Into<f64>>(values: &[T]) -> Slice<'static, T> {
    let longer: Vec<T> = std::iter::once(T::default())
        .chain(values.iter().copied())
        .collect();
    let slice = uploaded(&longer);
    // SAFETY: as many values follow the first one.
    unsafe { Slice::from_raw(slice.address() + size_of::<T>() as u64, values.len()) }
}

/// Arrays may start where their entries may: the wide loads are for those at multiples of 16 bytes.
#[test]
fn arrays_at_odd_addresses_agree() {
    emulator();
    let mut rng = Rng(407);
    let Dims(.., width, vocab) = Dims(2, 40, 4, 264, 30);
    let scene = Scene::loose(&mut rng, Dims(2, 40, 4, width, vocab));
    let bits: Vec<u16> = scene
        .batch
        .hidden
        .iter()
        .map(|x| (x.to_bits() >> 16) as u16)
        .collect();
    let exp_avg: Vec<f32> = (0..vocab * width).map(|_| rng.symmetric(0.1)).collect();
    let exp_avg_sq: Vec<f32> = exp_avg.iter().map(|m| m * m + 1e-6).collect();
    let results = |features, granularity| {
        let mut model = CurvatureModel::new(OPEN, granularity, Semantics::PAPER).unwrap();
        let plain = step_with(&scene, device_arrays(&scene.batch, features), &ADAM, 0.1);
        let mut seen = Vec::new();
        for moments in [
            None,
            Some((uploaded(&exp_avg), uploaded(&exp_avg_sq))),
            Some((shifted(&exp_avg), uploaded(&exp_avg_sq))),
            Some((uploaded(&exp_avg), shifted(&exp_avg_sq))),
        ] {
            let arrays = moments.map(|(exp_avg, exp_avg_sq)| MomentArrays::Cuda {
                exp_avg,
                exp_avg_sq,
            });
            let moments = arrays.map(|arrays| HostMoments { arrays, steps: 3 });
            let prepared = model
                .prepare(&Step { moments, ..plain }, &scene.batch.mask)
                .unwrap();
            let assessment = model.assess(&prepared).unwrap();
            seen.push([assessment.m_f, assessment.m_h].concat());
            model.commit(&prepared, &scene.batch.mask).unwrap();
        }
        assert!(seen[1] == seen[2] && seen[1] == seen[3]);
        (seen, model.save().unwrap())
    };
    for granularity in [Granularity::Token, Granularity::Batch] {
        let whole = |features| results(features, granularity);
        let hidden = &scene.batch.hidden;
        assert!(whole(Features::F32(uploaded(hidden))) == whole(Features::F32(shifted(hidden))));
        assert!(whole(Features::F16(uploaded(&bits))) == whole(Features::F16(shifted(&bits))));
        assert!(whole(Features::Bf16(uploaded(&bits))) == whole(Features::Bf16(shifted(&bits))));
    }
}
