//! One body that asks the model on the host and the model on the device the same questions.

use capo_core::cuda::{self, Features};
use capo_core::{
    Acceptance, Arrays, Assessment, CurvatureAverage, CurvatureModel, EmptyState, Feature,
    Granularity, HostMoments, LastLayer, MomentArrays, MomentUpdate, ObjectiveShift,
    OptimizerModel, OutsideAction, PolicyShift, Probabilities, RejectedBatch, Semantics,
    StateDtype, Step, Switch, Temperature, TokenGradient, UntouchedRows, Weights, ZeroAdvantage,
};
use half::{bf16, f16};

use super::streams::run;
use super::suite::device::{device_arrays, emulator, host_arrays, uploaded};
use super::suite::fixture::{
    ADAM, ADAM_OF_BOTH, ADAMW, Dims, GRANULARITIES, OPEN, Rng, SGD, assert_close, shifts, wide,
};
use super::suite::scene::Scene;
use super::suite::second_moment::{HEADER, rows};

/// Largest difference of shifts, of the largest shift in a batch: sums of a token's direction are
/// `f32` on both sides.
const SHIFTS: f64 = 3e-6;
/// Of moments, of the largest one: both sides sum in `f64` and round once.
const MOMENTS: f64 = 2e-7;

/// How features are stored.
#[derive(Debug, Clone, Copy)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
}

pub const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

/// Features as they lie on the device, and what they are in `f32`.
struct Stored {
    features: Features<'static>,
    hidden: Vec<f32>,
}

impl Stored {
    fn of(hidden: &[f32], dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self {
                features: Features::F32(uploaded(hidden)),
                hidden: hidden.to_vec(),
            },
            Dtype::Bf16 => {
                let bits: Vec<u16> = hidden
                    .iter()
                    .map(|&x| bf16::from_f32(x).to_bits())
                    .collect();
                let hidden = bits
                    .iter()
                    .map(|&bits| bf16::from_bits(bits).to_f32())
                    .collect();
                Self {
                    features: Features::Bf16(uploaded(&bits)),
                    hidden,
                }
            }
            Dtype::F16 => {
                let bits: Vec<u16> = hidden.iter().map(|&x| f16::from_f32(x).to_bits()).collect();
                let hidden = bits
                    .iter()
                    .map(|&bits| f16::from_bits(bits).to_f32())
                    .collect();
                Self {
                    features: Features::F16(uploaded(&bits)),
                    hidden,
                }
            }
        }
    }
}

/// A question to both models.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub semantics: Semantics,
    pub granularity: Granularity,
    pub optimizer: OptimizerModel,
    pub dtype: Dtype,
    /// True if the trainer's moments are used instead of the model's own.
    pub trainers: bool,
    pub learning_rate: f64,
}

/// Learning rate of most steps.
pub const RATE: f64 = 0.1;

/// A case of which others differ in little.
pub const CASE: Case = Case {
    semantics: Semantics::PAPER,
    granularity: Granularity::Completion,
    optimizer: ADAM,
    dtype: Dtype::F32,
    trainers: false,
    learning_rate: RATE,
};

/// A step for each scene, asked about and committed; then the state, which crosses over.
pub fn side_by_side(scenes: &[Scene], case: &Case) {
    let &Case {
        semantics,
        granularity,
        optimizer,
        dtype,
        trainers,
        learning_rate,
    } = case;
    let what = format!(
        "{granularity:?} {optimizer:?} {dtype:?} trainer's moments {trainers} {semantics:?}"
    );
    let acceptance = Acceptance {
        fisher_threshold: Some(1e-3),
        ..OPEN
    };
    let model = || CurvatureModel::new(acceptance, granularity, semantics).unwrap();
    let (mut host, mut device) = (model(), model());
    let Dims(.., width, vocab) = scenes[0].batch.dims;
    let mut rng = Rng(7);
    let exp_avg: Vec<f32> = (0..vocab * width).map(|_| rng.symmetric(0.1)).collect();
    let exp_avg_sq: Vec<f32> = exp_avg.iter().map(|m| m * m + 1e-6).collect();
    for scene in scenes {
        let stored = Stored::of(&scene.batch.hidden, dtype);
        let moments = |arrays| trainers.then_some(HostMoments { arrays, steps: 3 });
        let step = |arrays| step_with(scene, arrays, &optimizer, learning_rate);
        let on_host = Step {
            moments: moments(MomentArrays::Host {
                exp_avg: &exp_avg,
                exp_avg_sq: &exp_avg_sq,
            }),
            ..step(host_arrays(&scene.batch, &stored.hidden))
        };
        let on_device = Step {
            moments: moments(MomentArrays::Cuda {
                exp_avg: uploaded(&exp_avg),
                exp_avg_sq: uploaded(&exp_avg_sq),
            }),
            ..step(device_arrays(&scene.batch, stored.features))
        };
        let mask = &scene.batch.mask;
        let (one, other) = (
            host.prepare(&on_host, mask).unwrap(),
            device.prepare(&on_device, mask).unwrap(),
        );
        let (expected, got) = (host.assess(&one).unwrap(), device.assess(&other).unwrap());
        compare(&what, &got, &expected);
        let (expected, got) = (
            host.batch_shift(&one, mask).unwrap(),
            device.batch_shift(&other, mask).unwrap(),
        );
        let fields =
            |shift: &capo_core::BatchShift| [shift.m_f, shift.m_h, shift.kl, shift.surrogate];
        for (got, expected) in fields(&got).into_iter().zip(fields(&expected)) {
            assert!(
                (got - expected).abs() <= SHIFTS * expected.abs().max(1e-12),
                "{what}: {got:e} {expected:e}"
            );
        }
        let weights: Vec<f32> = mask
            .iter()
            .map(|&mask| f32::from(mask) * [0.0, 0.3, 1.0][rng.below(3)])
            .collect();
        host.commit_weighted(&one, &weights).unwrap();
        device.commit_weighted(&other, &weights).unwrap();
    }
    let (expected, got) = (host.save().unwrap(), device.save().unwrap());
    compare_states(&what, &got, &expected);
    device.load(&expected).unwrap();
    assert_eq!(device.save().unwrap(), expected, "{what}");
}

/// The scene's step, with its batch in `arrays`.
pub fn step_with<'a>(
    scene: &'a Scene,
    arrays: Arrays<'a>,
    optimizer: &OptimizerModel,
    learning_rate: f64,
) -> Step<'a> {
    let plain = scene.step(optimizer, learning_rate);
    Step {
        batch: LastLayer {
            arrays,
            ..plain.batch
        },
        ..plain
    }
}

pub fn compare(what: &str, got: &Assessment, expected: &Assessment) {
    for ((name, got), (_, expected)) in shifts(got).into_iter().zip(shifts(expected)) {
        assert_close(&format!("{name} {what}"), got, &wide(expected), SHIFTS);
    }
    assert_eq!(
        (&got.token_mask, &got.reasons),
        (&expected.token_mask, &expected.reasons),
        "{what}"
    );
    assert_eq!(
        (got.tokens, got.rejected),
        (expected.tokens, expected.rejected),
        "{what}"
    );
    let terms = |x: &Assessment| {
        [
            x.certificate.step_norm,
            x.certificate.hessian_bound,
            x.certificate.omega,
            x.certificate.gap,
        ]
    };
    for (got, expected) in terms(got).into_iter().zip(terms(expected)) {
        assert!(
            (got - expected).abs() <= 1e-5 * expected.abs(),
            "{what}: {got:e} {expected:e}"
        );
    }
}

/// Header, rows and steps are the same; moments agree.
pub fn compare_states(what: &str, got: &[u8], expected: &[u8]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let start = HEADER + rows(expected).len() * 12;
    assert_eq!(got[..start], expected[..start], "{what}");
    let halves = |bytes: &[u8]| -> [Vec<f64>; 2] {
        let (m, v): (Vec<_>, Vec<_>) = rows(bytes).into_iter().map(|(_, m, v)| (m, v)).unzip();
        [m.concat(), v.concat()]
    };
    for (got, expected) in halves(got).into_iter().zip(halves(expected)) {
        let got: Vec<f32> = got.into_iter().map(|x| x as f32).collect();
        assert_close(&format!("moments {what}"), &got, &expected, MOMENTS);
    }
}

/// The presets, and the paper's with each switch at each of its values.
fn all_semantics() -> Vec<Semantics> {
    let mut all = vec![Semantics::PAPER, Semantics::AUTHORS, Semantics::EXACT];
    macro_rules! switch {
        ($($field:ident: $switch:ty),* $(,)?) => { $(
            all.extend(<$switch>::VALUES.iter().map(|&value| Semantics { $field: value, ..Semantics::PAPER }));
        )* };
    }
    switch!(
        feature: Feature, temperature: Temperature, outside_action: OutsideAction, token_gradient: TokenGradient,
        subset_weights: Weights, curvature_average: CurvatureAverage, moment_input: Weights, moment_update: MomentUpdate,
        untouched_rows: UntouchedRows, empty_state: EmptyState, rejected_batch: RejectedBatch, state_dtype: StateDtype,
        policy_shift: PolicyShift, objective_shift: ObjectiveShift, zero_advantage: ZeroAdvantage,
    );
    let full = |probabilities| Semantics {
        probabilities,
        temperature: Temperature::Loss,
        ..Semantics::PAPER
    };
    all.extend(
        Probabilities::VALUES
            .iter()
            .map(|&probabilities| full(probabilities)),
    );
    all
}

/// Scenes whose features are worth storing in 16 bits.
fn scenes(dims: Dims, seed: u64) -> [Scene; 2] {
    let mut rng = Rng(seed);
    std::array::from_fn(|_| Scene::random(&mut rng, dims, 0.7))
}

#[test]
fn all_semantics_granularities_optimizers_and_dtypes_agree() {
    let scenes = scenes(Dims(4, 3, 4, 22, 9), 200);
    let mut dtypes = DTYPES.into_iter().cycle();
    for semantics in all_semantics() {
        for granularity in GRANULARITIES {
            for (optimizer, trainers) in [
                (SGD, false),
                (ADAM, false),
                (ADAM_OF_BOTH, false),
                (ADAMW, false),
                (ADAMW, true),
            ] {
                let group = granularity == Granularity::Group && semantics == Semantics::AUTHORS;
                let decay = optimizer.weight_decay > 0.0 && semantics.feature == Feature::Next;
                if group || decay {
                    continue;
                }
                let preset =
                    [Semantics::PAPER, Semantics::AUTHORS, Semantics::EXACT].contains(&semantics);
                for dtype in dtypes
                    .by_ref()
                    .take(if preset { 3 } else { 1 })
                    .collect::<Vec<_>>()
                {
                    let case = Case {
                        semantics,
                        granularity,
                        optimizer,
                        dtype,
                        trainers,
                        learning_rate: RATE,
                    };
                    side_by_side(&scenes, &case);
                }
            }
        }
    }
}

/// Rows with hundreds of tokens, widths of several tiles with and without a rest, more rows than a
/// slab has.
#[test]
fn shapes_of_all_kinds_agree() {
    for (dims, dtype) in [
        (Dims(2, 90, 5, 1104, 24), Dtype::Bf16),
        (Dims(2, 90, 5, 1101, 24), Dtype::F32),
        (Dims(4, 60, 20, 24, 3001), Dtype::F16),
        (Dims(1, 3, 2, 1, 5), Dtype::F32),
        (Dims(3, 40, 70, 8, 100), Dtype::Bf16),
    ] {
        let mut rng = Rng(300);
        let scenes = Scene::loose_pair(&mut rng, dims);
        for (granularity, optimizer) in [
            (Granularity::Token, ADAM),
            (Granularity::Token, SGD),
            (Granularity::Completion, ADAM),
            (Granularity::Completion, ADAM_OF_BOTH),
            (Granularity::Batch, SGD),
        ] {
            println!("{dims:?}");
            side_by_side(
                &scenes,
                &Case {
                    granularity,
                    optimizer,
                    dtype,
                    ..CASE
                },
            );
        }
    }
}

/// Neither the order in which threads run nor what memory held before changes a bit: there is no
/// race and nothing is read before it is written.
#[test]
fn order_and_old_memory_change_no_bit() {
    let Some(emulator) = emulator() else { return };
    let mut rng = Rng(301);
    let scenes = Scene::loose_pair(&mut rng, Dims(2, 50, 5, 300, 12));
    let run = |granularity, semantics| run(&scenes, std::ptr::null_mut(), granularity, semantics);
    for (granularity, semantics) in [
        (Granularity::Token, Semantics::PAPER),
        (Granularity::Completion, Semantics::AUTHORS),
        (Granularity::Batch, Semantics::EXACT),
    ] {
        let first = run(granularity, semantics);
        for (seed, fill) in [(1, 0x00), (3, 0x7f), (4, 0x80)] {
            emulator.set_seed(seed);
            emulator.set_fill(fill);
            assert!(
                run(granularity, semantics) == first,
                "{granularity:?}, seed {seed}, memory full of {fill:#x}"
            );
        }
    }
}

#[test]
fn refuses_an_absent_device() {
    let sentence = |ordinal| cuda::Device::open(ordinal).unwrap_err().to_string();
    uploaded(&[0.0f32]);
    assert!(
        sentence(99).starts_with("there is no CUDA device 99, this machine has "),
        "{}",
        sentence(99)
    );
    assert!(
        sentence(-1).starts_with("there is no CUDA device -1, "),
        "{}",
        sentence(-1)
    );
}
