//! `--device` and `train.dtype`: refused values, commands that work without CUDA, and training in
//! bf16.

use std::process::Command;

use capo_loader::batch_file;
use insta::assert_snapshot;
use tests::{Folder, artifacts, device};

use crate::replay::case;
use crate::{FOUR_STEPS, ONE_STEP};

/// A replay of a reference case's first batch.
fn replay(flags: &str) -> String {
    let case = case("paper-token-sgd");
    let (config, batch) = (case.join("mask.toml"), case.join("batch-0000.safetensors"));
    format!(
        "replay --plugin libcapo.so --config {} --out out {flags} {}",
        config.display(),
        batch.display()
    )
}

/// An empty file hides the driver, so that the test works on every machine.
#[test]
fn a_machine_without_a_driver() {
    let folder = Folder::new();
    folder.write("libcuda.so.1", "");
    let place = folder.path().to_owned();
    let folder = folder.env("LD_LIBRARY_PATH", place);
    assert_snapshot!(folder.refused(&replay("--device cuda:0")), @"device `cuda:0`: this machine has no CUDA driver, `libcuda.so.1` could not be loaded (install the NVIDIA driver, or run with `--device cpu`)");
    assert!(!folder.path().join("out").exists());
    folder.said(&replay(""));
}

#[test]
fn no_library_of_a_plugin_is_of_a_driver_or_toolkit() {
    for name in [
        "libcapo.so",
        "libdrcapo.so",
        "libreincapo.so",
        "libgovernor.so",
        "libmasks.so",
    ] {
        let Ok(output) = Command::new("readelf")
            .arg("-d")
            .arg(artifacts::file(name))
            .output()
        else {
            eprintln!("SKIPPED: `readelf` is missing");
            return;
        };
        let text = String::from_utf8(output.stdout).unwrap();
        let needed: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("(NEEDED)"))
            .collect();
        assert!(
            needed.iter().any(|line| line.contains("[libc.so")),
            "{name}: {text}"
        );
        let of_cuda = |line: &&str| {
            ["[libcu", "[libnv"]
                .iter()
                .any(|prefix| line.contains(prefix))
        };
        assert!(!needed.iter().any(of_cuda), "{name}: {needed:?}");
    }
}

/// A plugin that cannot read tensors in device memory.
#[test]
fn a_plugin_that_reads_host_memory_only() {
    let Some(emulator) = device::emulator() else {
        return;
    };
    let folder = Folder::new()
        .env("LD_LIBRARY_PATH", emulator.folder())
        .env("CUDA_EMULATOR_STRICT", "1");
    let mut batch =
        batch_file::read(&case("paper-token-sgd").join("batch-0000.safetensors")).unwrap();
    batch.entropy = Some(vec![0.5; batch.logps.len()].into());
    batch_file::write(
        &folder.path().join("batch.safetensors"),
        &batch.view(),
        None,
    )
    .unwrap();
    folder.write("mask.toml", "[[mask]]\nuse = \"every.mask\"\nfactor = 4\n");
    let replay = "replay --plugin libevery_point.so --config mask.toml --out out batch.safetensors";
    folder.said(replay);
    assert_snapshot!(folder.refused(&format!("{replay} --device cuda:0")), @"component `every.mask`: a tensor lies in device memory and this component reads host memory only (run with `--device cpu`)");
}

#[test]
fn the_flag_is_stronger_than_the_config() {
    let folder = Folder::new();
    let run = folder.train(
        "run",
        &format!(
            "--set train.device=cuda:0 --set train.moments_dtype=bf16 --device cpu {ONE_STEP}"
        ),
    );
    let config = run.text("config.toml");
    assert!(
        config.contains("device = \"cpu\"\ndtype = \"f32\"\n"),
        "{config}"
    );
    let resumed = folder.host("train --resume run --device cpu");
    assert_eq!(resumed.code, Some(2), "a run goes on where it began");
}

#[test]
fn training_in_bf16_learns_and_resumes_bit_for_bit() {
    let folder = Folder::new();
    let args =
        format!("--plugin libcapo.so --set train.dtype=bf16 --set train.save_steps=2 {FOUR_STEPS}");
    let whole = folder.assert_resumes(&args, [2]);
    let said = folder.said(&format!("train --dry-run {args}"));
    assert!(said.contains("device     cpu, bf16\n"), "{said}");
    let config = whole.text("config.toml");
    assert!(config.contains("dtype = \"bf16\"\n"), "{config}");
    let exact = folder.train("exact", &args.replace("bf16", "f32"));
    for name in ["entropy", "grad_norm"] {
        let (rough, exact) = (whole.metric(name)[0], exact.metric(name)[0]);
        assert!(
            rough != exact && (rough - exact).abs() < 0.2 * exact,
            "{name}: {rough} in bf16, {exact} in f32"
        );
    }
}

#[test]
fn fresh_weights() {
    let folder = Folder::new();
    let first = folder.train(
        "first",
        &format!("--set model.fresh_weights=true {ONE_STEP}"),
    );
    first.assert_same_files(&folder.train(
        "second",
        &format!("--set model.fresh_weights=true {ONE_STEP}"),
    ));
    let entropy = first.metric("entropy")[0];
    assert!(
        entropy > 0.9 * 15.0f64.ln(),
        "random weights know nothing of 15 tokens: {entropy}"
    );
}

#[test]
fn the_configs_for_a_gpu() {
    let root = tests::artifacts::workspace();
    let folder = Folder::new();
    for (command, config) in [
        ("train", "default.toml"),
        ("sft --output-dir model", "sft.toml"),
    ] {
        let config = root.join("configs/gpu").join(config);
        let args = format!("{command} --config {}", config.display());
        let output = folder
            .command(&args)
            .current_dir(&root)
            .output()
            .expect("`host` starts");
        let sentence = folder.outcome(output).refused();
        assert!(
            sentence.starts_with("device `cuda:0`: this host was built without CUDA"),
            "{sentence}"
        );
    }
    let files = host_model::ModelFiles::Directory(root.join("configs/gpu/model"));
    let config = host_model::Config::load(&files).expect("a configuration");
    let sizes = host_model::shapes(&config).into_values();
    assert_eq!(
        sizes
            .map(|shape| shape.iter().product::<usize>())
            .sum::<usize>(),
        154_175_232
    );
    assert_eq!(
        host_data::Tokenizer::open(&files)
            .expect("a tokenizer")
            .eos_ids(),
        [1]
    );
}
