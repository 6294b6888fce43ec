//! The state of a mask after steps on a CUDA device equals the state after the same steps on the
//! CPU. The mask can go on with it on either.

use std::path::Path;

use capo_loader::decision::Deciders;
use capo_loader::replay::replay_step;
use capo_loader::upload::{Device, Dtype};
use capo_loader::{batch_file, open};
use capo_plugin::testing::{Measured, Records};
use capo_plugin::{Batch, ProposedStep, StepControlHandle};
use tests::{artifacts, device};

use crate::replay::{batches, case};

/// Largest difference of shifts, as a share of the largest.
const TOLERANCE: f32 = 1e-6;

/// The device, unless there is neither a real one nor the emulator.
fn cuda() -> Option<Device> {
    let there = device::is_real() || device::emulator().is_some();
    there.then(|| Device::open("cuda:0", Dtype::F32).unwrap().unwrap())
}

/// The mask of the shared library with the settings of the case `paper-token-adam`.
fn mask() -> Deciders {
    let image = open::load(&artifacts::file("libcapo.so")).unwrap();
    let keys = r#"{"optimizer": "adam", "fisher_threshold": 1e-3, "hessian_threshold": 0.1}"#;
    Deciders {
        masks: vec![image.mask("capo.curvature", keys).unwrap()],
        weights: Vec::new(),
    }
}

/// Applies `mask` to a batch. Returns its shifts, first m_F and then m_H.
fn step(mask: &mut Deciders, path: &Path, device: Option<&Device>) -> Vec<f32> {
    let batch = batch_file::read(path).unwrap();
    let mut records = Records::default();
    let decision = replay_step(mask, &mut records, path, device, &batch).unwrap();
    assert!(decision.tokens() > 0);
    let named = |wanted: &str| {
        records
            .tokens
            .iter()
            .find(|(name, _)| name == wanted)
            .unwrap()
            .1
            .clone()
    };
    [named("m_f"), named("m_h")].concat()
}

fn assert_close(found: &[f32], expected: &[f32]) {
    let largest = expected.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    let worst = found
        .iter()
        .zip(expected)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert_eq!(found.len(), expected.len());
    assert!(worst <= TOLERANCE * largest, "{worst} of {largest}");
}

#[test]
fn crosses_between_cpu_and_device() {
    let Some(cuda) = cuda() else { return };
    let batches = batches(&case("paper-token-adam"));
    let (mut on_cpu, mut on_cuda) = (mask(), mask());
    for path in &batches[..3] {
        assert_close(
            &step(&mut on_cuda, path, Some(&cuda)),
            &step(&mut on_cpu, path, None),
        );
    }
    let (cpu, device) = (
        on_cpu.masks[0].save().unwrap(),
        on_cuda.masks[0].save().unwrap(),
    );
    let expected = step(&mut on_cpu, &batches[3], None);
    for (state, device) in [(&cpu, Some(&cuda)), (&device, None), (&device, Some(&cuda))] {
        let mut resumed = mask();
        resumed.masks[0].load(state).unwrap();
        assert_close(&step(&mut resumed, &batches[3], device), &expected);
    }
}

/// Scale and predicted divergence of a step on a batch, whose loss is the policy gradient's on
/// policy, and whose tokens all weigh 1.
fn scale(governor: &mut StepControlHandle, batch: &Batch<'_>) -> (f64, f64) {
    let slopes: Vec<f32> = batch
        .advantages
        .iter()
        .map(|advantage| -advantage)
        .collect();
    let mut batch = *batch;
    batch.dloss_dlogp = Some(&slopes);
    let weights: Vec<f32> = batch
        .completion_mask
        .iter()
        .map(|&mask| f32::from(mask))
        .collect();
    let mut records = Records::default();
    let step = ProposedStep {
        weights: &weights,
        groups: &Measured::GROUPS,
        measurements: &mut Measured::default(),
    };
    let scales = governor.control(&mut records, &batch, step).unwrap();
    (scales[0], records.number("predicted_kl").unwrap())
}

#[test]
fn a_step_control_has_the_hosts_scale_on_a_device() {
    let Some(cuda) = cuda() else { return };
    let image = open::load(&artifacts::file("libgovernor.so")).unwrap();
    let governor = |target: f64| {
        image
            .step_control(
                "governor.last-layer",
                &format!(r#"{{"target": {target:e}}}"#),
            )
            .unwrap()
    };
    let recorded = batches(&case("paper-token-adam"))
        .into_iter()
        .map(|path| batch_file::read(&path).unwrap());
    let recorded: Vec<_> = recorded.collect();
    let (_, predicted) = scale(&mut governor(1.0), &recorded[0].view());
    let (mut on_cpu, mut on_cuda) = (governor(predicted / 4.0), governor(predicted / 4.0));
    for batch in &recorded {
        let view = batch.view();
        let upload = cuda.upload(&view).unwrap();
        let ((expected, _), (found, _)) = (
            scale(&mut on_cpu, &view),
            scale(&mut on_cuda, &upload.view(view)),
        );
        assert!(expected > 0.0 && expected < 1.0, "{expected}");
        assert!(
            (found - expected).abs() <= 1e-6,
            "{found}, expected {expected}"
        );
    }
}
