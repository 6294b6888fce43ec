//! A mask's state after steps on a CUDA device is that after the same steps on the CPU, and goes on in either place.

use std::path::Path;

use capo_loader::replay::{Deciders, replay_step};
use capo_loader::upload::{Device, Dtype};
use capo_loader::{batch_file, open};
use capo_plugin::testing::{Measured, Records};
use capo_plugin::{Batch, StepControlFn};
use tests::{artifacts, device};

use crate::replay::{batches, case};

/// Largest difference of two states or shifts, as a share of the largest.
const TOLERANCE: f32 = 1e-6;

/// The device, unless there is neither a real one nor the emulator.
fn cuda() -> Option<Device> {
    let there = device::is_real() || device::emulator().is_some();
    there.then(|| Device::open("cuda:0", Dtype::F32).unwrap().unwrap())
}

/// A mask of the shared library, as the case `paper-token-adam` has it.
fn mask() -> Deciders {
    let image = open::load(&artifacts::file("libcapo.so")).unwrap();
    let keys = r#"{"optimizer": "adam", "fisher_threshold": 1e-3, "hessian_threshold": 0.1}"#;
    Deciders { masks: vec![image.mask("capo.curvature", keys).unwrap()], weights: Vec::new() }
}

/// Takes `mask` through a batch; its shifts, m_F before m_H.
fn step(mask: &mut Deciders, path: &Path, device: Option<&Device>) -> Vec<f32> {
    let batch = batch_file::read(path).unwrap();
    let mut records = Records::default();
    let (accepted, _) = replay_step(mask, &mut records, path, device, &batch).unwrap();
    assert!(accepted.tokens > 0);
    let named = |wanted: &str| records.tokens.iter().find(|(name, _)| name == wanted).unwrap().1.clone();
    [named("m_f"), named("m_h")].concat()
}

fn assert_close(found: &[f32], expected: &[f32]) {
    let largest = expected.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert_eq!(found.len(), expected.len());
    assert!(worst <= TOLERANCE * largest, "{worst} of {largest}");
}

/// The bytes before the moments in a state, and the first and second moments.
fn parts(state: &[u8]) -> (&[u8], [Vec<f32>; 2]) {
    let number = |at: usize| u64::from_le_bytes(state[at..at + 8].try_into().unwrap()) as usize;
    let (width, rows) = (number(20), number(36));
    let (start, size) = (54 + 12 * rows, 4 * rows * width);
    assert_eq!(state.len(), start + 2 * size + 4, "a state of {rows} rows of {width} numbers");
    let floats = |at: usize| -> Vec<f32> {
        state[at..at + size].chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    };
    (&state[..start], [floats(start), floats(start + size)])
}

#[test]
fn crosses_between_cpu_and_device() {
    let Some(cuda) = cuda() else { return };
    let batches = batches(&case("paper-token-adam"));
    let (mut on_cpu, mut on_cuda) = (mask(), mask());
    for path in &batches[..3] {
        assert_close(&step(&mut on_cuda, path, Some(&cuda)), &step(&mut on_cpu, path, None));
    }
    let (cpu, device) = (on_cpu.masks[0].save().unwrap(), on_cuda.masks[0].save().unwrap());
    let ((cpu_head, [cpu_first, cpu_second]), (head, [first, second])) = (parts(&cpu), parts(&device));
    assert_eq!(head, cpu_head, "steps, rows and when they were written");
    assert_close(&first, &cpu_first);
    assert_close(&second, &cpu_second);

    let expected = step(&mut on_cpu, &batches[3], None);
    let after = parts(&on_cpu.masks[0].save().unwrap()).1;
    for (state, device) in [(&cpu, Some(&cuda)), (&device, None), (&device, Some(&cuda))] {
        let mut resumed = mask();
        resumed.masks[0].load(state).unwrap();
        assert_close(&step(&mut resumed, &batches[3], device), &expected);
        for (found, expected) in parts(&resumed.masks[0].save().unwrap()).1.iter().zip(&after) {
            assert_close(found, expected);
        }
    }
}

/// The curvature weight of the shared library, at the advantages `signal`.
fn weight(signal: &str) -> Deciders {
    let image = open::load(&artifacts::file("libcapo.so")).unwrap();
    let keys = format!(r#"{{"optimizer": "adam", "fisher_threshold": 1e-5, "signal": "{signal}"}}"#);
    Deciders { masks: Vec::new(), weights: vec![image.weight("capo.curvature-weight", &keys).unwrap()] }
}

#[test]
fn weights_are_the_same_on_a_device() {
    let Some(cuda) = cuda() else { return };
    for signal in ["unit", "advantage"] {
        let (mut on_cpu, mut on_cuda) = (weight(signal), weight(signal));
        for path in &batches(&case("paper-token-adam"))[..2] {
            let batch = batch_file::read(path).unwrap();
            let [expected, found] = [(&mut on_cpu, None), (&mut on_cuda, Some(&cuda))].map(|(weight, device)| {
                replay_step(weight, &mut Records::default(), path, device, &batch).unwrap().1.token_weights
            });
            assert!(expected.iter().any(|weight| *weight > 0.0 && *weight < 0.9), "{signal}: {expected:?}");
            assert_close(&found, &expected);
        }
    }
}

/// Scale and predicted divergence of a step on a batch, whose loss is the policy gradient's on policy, and whose tokens all weigh 1.
fn scale(governor: &mut StepControlFn, batch: &Batch<'_>) -> (f64, f64) {
    let slopes: Vec<f32> = batch.advantages.iter().map(|advantage| -advantage).collect();
    let mut batch = *batch;
    batch.dloss_dlogp = Some(&slopes);
    let weights: Vec<f32> = batch.completion_mask.iter().map(|&mask| f32::from(mask)).collect();
    let (mut records, mut scales) = (Records::default(), [1.0; Measured::GROUPS.len()]);
    let mut update = Measured::default();
    governor.control(&mut records, &batch, &weights, &Measured::GROUPS, &mut update, &mut scales).unwrap();
    (scales[0], records.number("predicted_kl").unwrap())
}

#[test]
fn a_step_control_has_the_hosts_scale_on_a_device() {
    let Some(cuda) = cuda() else { return };
    let image = open::load(&artifacts::file("libgovernor.so")).unwrap();
    let governor =
        |target: f64| image.step_control("governor.last-layer", &format!(r#"{{"target": {target:e}}}"#)).unwrap();
    let recorded = batches(&case("paper-token-adam")).into_iter().map(|path| batch_file::read(&path).unwrap());
    let recorded: Vec<_> = recorded.collect();
    let (_, predicted) = scale(&mut governor(1.0), &recorded[0].view());
    let (mut on_cpu, mut on_cuda) = (governor(predicted / 4.0), governor(predicted / 4.0));
    for batch in &recorded {
        let view = batch.view();
        let upload = cuda.upload(&view).unwrap();
        let ((expected, _), (found, _)) = (scale(&mut on_cpu, &view), scale(&mut on_cuda, &upload.view(view)));
        assert!(expected > 0.0 && expected < 1.0, "{expected}");
        assert!((found - expected).abs() <= 1e-6, "{found}, expected {expected}");
    }
    let states = [on_cpu.save().unwrap(), on_cuda.save().unwrap()];
    let [(cpu_head, cpu), (head, cuda)] = states.each_ref().map(|state| parts(state));
    assert_eq!(head, cpu_head, "steps, rows and when they were written");
    cuda.iter().zip(&cpu).for_each(|(found, expected)| assert_close(found, expected));
}
