//! `--device` and `train.dtype`: what is refused, and what training in bf16 keeps.

use insta::assert_snapshot;
use tests::Folder;

use crate::{FOUR_STEPS, ONE_STEP};

fn refused(args: &str) -> String {
    let folder = Folder::new();
    let sentence = folder.host(args).refused();
    assert!(!folder.path().join("runs").exists(), "nothing is written before all is open");
    sentence
}

#[test]
fn names_that_are_no_device() {
    assert_snapshot!(refused("train --device gpu"), @"there is no device `gpu` (use `cpu`, or `cuda:0` for the first CUDA device)");
    assert_snapshot!(refused("train --set train.device=cuda"), @"there is no device `cuda` (use `cpu`, or `cuda:0` for the first CUDA device)");
    assert_snapshot!(refused("eval --device cuda:first"), @"there is no device `cuda:first` (use `cpu`, or `cuda:0` for the first CUDA device)");
    assert_snapshot!(refused("sft --output-dir model --device 0"), @"there is no device `0` (use `cpu`, or `cuda:0` for the first CUDA device)");
    assert_snapshot!(refused("train --set train.dtype=fp16"), @"`[train]` of the default config and `--set`: unknown variant `fp16`, expected `f32` or `bf16`, in `dtype`");
}

#[test]
fn cuda_in_a_host_that_was_built_without_it() {
    assert_snapshot!(refused("train --device cuda:0"), @"device `cuda:0`: this host was built without CUDA (build with `--features cuda`, see docs/gpu.md, or run with `--device cpu`)");
    assert_snapshot!(refused("eval --set train.device=cuda:1"), @"device `cuda:1`: this host was built without CUDA (build with `--features cuda`, see docs/gpu.md, or run with `--device cpu`)");
    assert_snapshot!(refused("sft --output-dir model --set train.device=cuda:0"), @"device `cuda:0`: this host was built without CUDA (build with `--features cuda`, see docs/gpu.md, or run with `--device cpu`)");
}

#[test]
fn the_flag_is_stronger_than_the_config() {
    let folder = Folder::new();
    let run = folder.train("run", &format!("--set train.device=cuda:0 --device cpu {ONE_STEP}"));
    let config = std::fs::read_to_string(run.path().join("config.toml")).unwrap();
    assert!(config.contains("device = \"cpu\"\ndtype = \"f32\"\n"), "{config}");
    let resumed = folder.host("train --resume run --device cpu");
    assert_eq!(resumed.code, Some(2), "a run goes on where it began");
}

#[test]
fn training_in_bf16_learns_and_resumes_bit_for_bit() {
    let folder = Folder::new();
    let args = format!("--plugin libcapo.so --set train.dtype=bf16 --set train.save_steps=2 {FOUR_STEPS}");
    let outcome = folder.host(&format!("train --output-dir whole {args}")).succeeded();
    assert!(outcome.stdout.contains("device     cpu, bf16\n"), "{}", outcome.stdout);
    let whole = folder.run_dir("whole");
    let config = std::fs::read_to_string(whole.path().join("config.toml")).unwrap();
    assert!(config.contains("dtype = \"bf16\"\n"), "{config}");
    let _ = folder.train("part", &format!("{args} --stop-after 2"));
    whole.assert_same_files(&folder.resume("part"));

    let exact = folder.train("exact", &args.replace("bf16", "f32"));
    for name in ["entropy", "grad_norm"] {
        let (rough, exact) = (whole.metric(name)[0], exact.metric(name)[0]);
        assert!(rough != exact && (rough - exact).abs() < 0.2 * exact, "{name}: {rough} in bf16, {exact} in f32");
    }
}

#[test]
fn fresh_weights() {
    let folder = Folder::new();
    let first = folder.train("first", &format!("--set model.fresh_weights=true {ONE_STEP}"));
    first.assert_same_files(&folder.train("second", &format!("--set model.fresh_weights=true {ONE_STEP}")));
    let entropy = first.metric("entropy")[0];
    assert!(entropy > 0.9 * 15.0f64.ln(), "random weights know nothing of 15 tokens: {entropy}");
}

#[test]
fn the_configs_for_a_gpu() {
    let root = tests::artifacts::workspace();
    let folder = Folder::new();
    for (command, config) in [("train", "default.toml"), ("sft --output-dir model", "sft.toml")] {
        let config = root.join("configs/gpu").join(config);
        let args = format!("{command} --config {}", config.display());
        let output = folder.command(&args).current_dir(&root).output().expect("`host` starts");
        let sentence = folder.outcome(output).refused();
        assert!(sentence.starts_with("device `cuda:0`: this host was built without CUDA"), "{sentence}");
    }
    let files = host::model::ModelFiles::Directory(root.join("configs/gpu/model"));
    let config = host::model::Config::load(&files).expect("a configuration");
    let sizes = host::model::shapes(&config).into_values();
    assert_eq!(sizes.map(|shape| shape.iter().product::<usize>()).sum::<usize>(), 154_175_232);
    assert_eq!(host::data::Tokenizer::open(&files).expect("a tokenizer").eos_ids(), [1]);
}
