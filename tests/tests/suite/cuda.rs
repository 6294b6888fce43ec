//! `host replay --device cuda:0` with the real plugins. Host and plugins are separate libraries,
//! which share the device's primary context.

use std::path::{Path, PathBuf};

use capo_loader::batch_file;
use insta::assert_snapshot;
use tests::run_dir::tensors;
use tests::{Folder, device, names};

use crate::replay::{TOLERANCE, batch_arguments, batches, case, cases, check_case, replay};

const ON_DEVICE: &str = "--device cuda:0";

/// Asserts that two results are the same: decisions exactly, others within `TOLERANCE` of the
/// largest. A weight follows its own token's shift, whose share of the device's inexact roots and
/// quotients (platform.cuh) no larger token hides.
fn assert_close(found: &Path, expected: &Path) {
    let (found_all, expected_all) = (tensors(found), tensors(expected));
    assert!(
        found_all.keys().eq(expected_all.keys()),
        "{:?}",
        found_all.keys()
    );
    for (name, expected) in &expected_all {
        let pairs = || found_all[name].iter().zip(expected);
        let exact = name == "token_mask" || name.ends_with("/reason");
        let limit = if exact {
            0.0
        } else {
            TOLERANCE * expected.iter().fold(0.0, |most: f32, x| most.max(x.abs()))
        };
        let far = pairs()
            .filter(|(a, b)| (*a - *b).abs() > limit || a.is_nan() != b.is_nan())
            .collect::<Vec<_>>();
        assert!(
            far.is_empty(),
            "{}, {name}: {far:?} beyond {limit}",
            found.display()
        );
    }
}

/// Replays on the CPU and on the device, into `cpu` and `cuda`, and asserts that the results agree.
fn assert_same_on_device(folder: &Folder, flags: &str, config: &Path, batches: &[PathBuf]) {
    replay(folder, flags, config, batches, "cpu");
    replay(
        folder,
        &format!("{flags} {ON_DEVICE}"),
        config,
        batches,
        "cuda",
    );
    assert_same_replay(folder, "cuda", "cpu");
}

/// Asserts that the results of replays into `found` and `expected` agree.
fn assert_same_replay(folder: &Folder, found: &str, expected: &str) {
    let names = names(&folder.path().join(expected));
    assert!(!names.is_empty());
    for name in names {
        assert_close(
            &folder.path().join(found).join(&name),
            &folder.path().join(expected).join(&name),
        );
    }
}

#[test]
fn reference_cases() {
    let Some(_) = device::folder() else { return };
    let cases = cases();
    std::thread::scope(|scope| {
        for case in &cases {
            scope.spawn(move || check_case(&device::folder().unwrap(), ON_DEVICE, case));
        }
    });
}

#[test]
fn two_plugins_on_one_device() {
    let Some(folder) = device::folder() else {
        return;
    };
    let case = case("paper-token-adam");
    let mask = std::fs::read_to_string(case.join("mask.toml")).unwrap();
    let looser = mask
        .replace("capo.curvature", "drcapo.curvature")
        .replace("\"token\"", "\"completion\"");
    folder.write("masks.toml", mask + &looser);
    assert_same_on_device(
        &folder,
        "--plugin libdrcapo.so",
        &folder.path().join("masks.toml"),
        &batches(&case),
    );
    let found = tensors(&folder.path().join("cuda/batch-0003.safetensors"));
    assert!(found.contains_key("capo.curvature/m_f") && found.contains_key("drcapo.curvature/m_f"));
}

#[test]
fn weights_on_a_device() {
    for signal in ["unit", "advantage"] {
        let Some(folder) = device::folder() else {
            return;
        };
        let weight = format!(
            "use = \"capo.curvature-weight\"\nfisher_threshold = 1e-7\nsignal = \"{signal}\"\n"
        );
        folder.write("weights.toml", format!("[[weight]]\n{weight}"));
        assert_same_on_device(
            &folder,
            "",
            &folder.path().join("weights.toml"),
            &batches(&case("paper-token-adam")),
        );
        let given = &tensors(&folder.path().join("cuda/batch-0003.safetensors"))["weights"];
        assert!(
            given.iter().any(|weight| *weight > 0.0 && *weight < 0.9),
            "{signal}: {given:?}"
        );
    }
}

#[test]
fn published_masks_on_a_device() {
    let Some(folder) = device::folder() else {
        return;
    };
    let steps = "--set train.max_steps=2 --set eval.num_prompts=0 --set train.save_steps=0";
    folder.train(
        "run",
        &format!("--plugin libcapo.so {steps} --dump-batches dump"),
    );
    let dumped: Vec<PathBuf> = (0..2)
        .map(|i| folder.path().join(format!("dump/{}", batch_file::name(i))))
        .collect();
    let masks = [
        "ipo",
        "mis",
        "trm",
        "m2po",
        "kl-cov",
        "entropy-quantile",
        "probability-quantile",
        "random",
    ];
    let table = masks
        .map(|name| format!("[[mask]]\nuse = \"masks.{name}\"\n"))
        .concat();
    folder.write("masks.toml", table);
    assert_same_on_device(
        &folder,
        "--plugin libmasks.so",
        &folder.path().join("masks.toml"),
        &dumped,
    );
    let top_k = format!(
        "replay --plugin libmasks.so --set recipe=grpo --mask masks.dppo-topk-tv {ON_DEVICE} --out top {}",
        dumped[0].display()
    );
    assert_snapshot!(folder.refused(&top_k), @"component `masks.dppo-topk-tv`: a tensor lies in device memory and this component reads host memory only (run with `--device cpu`)");
}

#[test]
fn the_trainers_own_moments() {
    let Some(folder) = device::folder() else {
        return;
    };
    let limits = "--set mask.0.fisher_threshold=1e-6 --set mask.0.hessian_threshold=1e-3 --set mask.0.moments=host";
    let steps = "--set train.max_steps=3 --set eval.num_prompts=0 --set train.save_steps=0";
    let run = folder.train(
        "run",
        &format!("--plugin libcapo.so {steps} {limits} --dump-batches dump"),
    );
    let dumped: Vec<PathBuf> = (0..3)
        .map(|i| folder.path().join(format!("dump/{}", batch_file::name(i))))
        .collect();
    assert!(
        tensors(&dumped[2])["exp_avg_sq"].iter().any(|x| *x > 0.0),
        "the batches hold moments"
    );
    assert_same_on_device(&folder, "", &run.path().join("config.toml"), &dumped);
}

/// `x` rounded to bf16.
fn to_bf16(x: f32) -> f32 {
    let (bits, odd) = (x.to_bits(), x.to_bits() >> 16 & 1);
    f32::from_bits((bits + 0x7fff + odd) & 0xffff_0000)
}

#[test]
fn features_of_16_bits() {
    let Some(folder) = device::folder() else {
        return;
    };
    let case = case("paper-token-adam");
    std::fs::create_dir(folder.path().join("rounded")).unwrap();
    let rounded: Vec<PathBuf> = batches(&case)
        .iter()
        .map(|path| round(path, &folder.path().join("rounded")))
        .collect();
    let run = |out: &str, flags: &str, batches: &[PathBuf]| {
        replay(&folder, flags, &case.join("mask.toml"), batches, out);
    };
    run("cpu", "", &rounded);
    run("bf16", "--device cuda:0 --dtype bf16", &batches(&case));
    // At this size, f16 represents every number that bf16 does.
    run("f16", "--device cuda:0 --dtype f16", &rounded);
    run("exact", ON_DEVICE, &batches(&case));
    assert_same_replay(&folder, "bf16", "cpu");
    assert_same_replay(&folder, "f16", "cpu");
    let m_f = |out: &str| {
        tensors(&folder.path().join(out).join("batch-0000.safetensors"))["capo.curvature/m_f"]
            .clone()
    };
    assert_ne!(m_f("exact"), m_f("bf16"), "rounding is to be seen");
}

/// Writes a batch file with features of bf16 into `to`.
fn round(path: &Path, to: &Path) -> PathBuf {
    let mut batch = batch_file::read(path).unwrap();
    batch
        .last_layer
        .as_mut()
        .unwrap()
        .hidden
        .floats_mut()
        .unwrap()
        .iter_mut()
        .for_each(|x| *x = to_bf16(*x));
    let target = to.join(path.file_name().unwrap());
    batch_file::write(&target, &batch.view(), None).unwrap();
    target
}

/// A case's replay without a place for results.
fn sweep(name: &str, flags: &str) -> String {
    let config = case(name).join("mask.toml");
    let range = "--sweep mask.0.fisher_threshold=1e-5..1e-2";
    format!(
        "replay --plugin libcapo.so --config {} {range} {flags}{}",
        config.display(),
        batch_arguments(name)
    )
}

#[test]
fn sweeps() {
    let Some(folder) = device::folder() else {
        return;
    };
    let said = |device: &str| {
        folder.said(&sweep(
            "paper-token-adam",
            &format!("{device} --target-rate 50%"),
        ))
    };
    assert_eq!(said(ON_DEVICE), said(""));
}

#[test]
fn memory_is_given_back_after_every_batch() {
    if device::is_real() {
        eprintln!("SKIPPED: a real device has too much memory to run out of it here");
        return;
    }
    let Some(folder) = device::folder() else {
        return;
    };
    // This is enough for four batches of 13 kB, nine times, and for the mask's own memory.
    let folder = folder.env("CUDA_EMULATOR_MEMORY", "200000");
    folder.said(&sweep("paper-token-sgd", ON_DEVICE));
    let folder = folder.env("CUDA_EMULATOR_MEMORY", "1");
    assert_snapshot!(folder.refused(&sweep("paper-token-sgd", ON_DEVICE)), @"device `cuda:0`: it failed with `CUDA_ERROR_OUT_OF_MEMORY` in taking 6144 bytes of memory for a batch (record smaller batches, or run with `--device cpu`)");
}

#[test]
fn devices_that_are_not_there() {
    let Some(folder) = device::folder() else {
        return;
    };
    let refused = folder.refused(&sweep("paper-token-sgd", "--device cuda:99"));
    assert!(
        refused.starts_with("device `cuda:99`: the NVIDIA driver shows "),
        "{refused}"
    );
    if !device::is_real() {
        assert_snapshot!(refused, @"device `cuda:99`: the NVIDIA driver shows 1 devices, numbered from 0 (name one of them, or run with `--device cpu`)");
    }
}
