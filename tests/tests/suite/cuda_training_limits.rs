//! Messages for a user whose GPU lacks something, and the GPU in a run's header. The emulated GPU
//! can be small or absent.

use insta::assert_snapshot;
use tests::artifacts::workspace;
use tests::{Folder, device};

use crate::read_models::{SCORED, write_models};

/// A run that takes more than 3 MB of a GPU's memory, and less than 4 MB.
const RUN: &str = "--set train.max_steps=2 --set train.per_device_train_batch_size=16 --set rollout.num_generations=8 \
    --set rollout.max_completion_length=8 --set eval.num_prompts=0 --set train.save_steps=1";
const MEMORY: &str = "CUDA_EMULATOR_MEMORY";

#[test]
#[ignore = "needs a host with CUDA"]
fn a_gpu_without_memory_ends_a_run_that_goes_on_later() {
    if device::is_real() {
        return;
    }
    let Some(folder) = device::trainer() else {
        return;
    };
    let args = format!("{RUN} --device cuda:0");
    let whole = folder.train("whole", &args).weights();
    let folder = folder.env(MEMORY, "3000000");
    // The GPU's memory is compared with an estimate before the run begins.
    let said = folder.attempt("refused", &args).refused();
    assert!(
        said.starts_with("the run takes about 3.6 MiB of memory at the fullest"),
        "{said}"
    );
    assert!(
        said.contains(" and 2.9 MiB are free for it (lower `train.per_device_train_batch_size`"),
        "{said}"
    );
    let said = folder
        .attempt("short", &format!("{args} --allow-more-memory"))
        .failed();
    let (stopped, rest) = said.split_once("): ").expect("two sentences");
    assert_snapshot!(stopped, @"the run stopped after step 0 (go on with `host train --resume short`");
    let begins = "out of memory in a run that was expected to take about 3.6 MiB: device `cuda:0` has 2.9 MiB, of which 2.9 MiB were free at the start and ";
    assert!(rest.starts_with(begins), "{rest}");
    assert!(
        rest.ends_with("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")"),
        "{rest}"
    );
    let folder = folder.env(MEMORY, "16000000");
    assert_eq!(folder.resume("short").weights(), whole);
    // The model itself does not fit.
    let said = folder.env(MEMORY, "100000").attempt("none", &args).failed();
    assert!(
        said.starts_with("out of memory: device `cuda:0` has 97.7 KiB"),
        "{said}"
    );
}

/// The estimate that a dry run prints, as text and in bytes, rounded up.
fn estimate(folder: &Folder, args: &str) -> (String, u64) {
    let said = folder.said(&format!("train --dry-run {args}"));
    let line = said
        .lines()
        .find(|line| line.starts_with("memory"))
        .expect("an estimate")
        .to_owned();
    let mebibytes = line
        .split("about ")
        .nth(1)
        .and_then(|rest| rest.split_once(" MiB")?.0.parse::<f64>().ok());
    (
        line,
        (mebibytes.expect("a size") * f64::from(1 << 20)) as u64,
    )
}

/// The copies of the weights are counted, and all micro-batches share them.
#[test]
#[ignore = "needs a host with CUDA"]
fn in_bf16_a_gpu_with_the_estimated_memory_is_enough() {
    if device::is_real() {
        return;
    }
    for args in [
        "--set model.use_peft=true --set model.lora_r=2 --set model.lora_target_modules=all-linear",
        "--set train.per_device_train_batch_size=2 --set train.gradient_accumulation_steps=8",
        "",
    ] {
        let Some(folder) = device::trainer() else {
            return;
        };
        let args = format!("{RUN} --set train.dtype=bf16 --device cuda:0 {args}");
        let (_, bytes) = estimate(&folder, &args);
        folder.env(MEMORY, bytes.to_string()).train("run", &args);
    }
}

#[test]
#[ignore = "needs a host with CUDA"]
fn weights_do_not_change_an_estimate() {
    let Some(folder) = device::trainer() else {
        return;
    };
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        let file = workspace().join("host/assets/tiny-arithmetic").join(name);
        folder.write(
            &format!("model/{name}"),
            std::fs::read_to_string(file).unwrap(),
        );
    }
    let args = format!("{RUN} --device cuda:0");
    let counted = estimate(
        &folder,
        &format!("{args} --set model.model_name_or_path=model"),
    );
    assert_eq!(counted, estimate(&folder, &args));
}

#[test]
#[ignore = "needs a host with CUDA"]
fn devices_and_their_header() {
    if device::is_real() {
        return;
    }
    let Some(folder) = device::trainer() else {
        return;
    };
    write_models(&folder, &["llama-score"]);
    assert_snapshot!(folder.refused(&format!("train {RUN} --device cuda:1")), @"device `cuda:1`: the number of CUDA devices here is 1, and they are numbered from 0 (name one of them, or run with `--device cpu`)");
    assert_snapshot!(folder.refused(&format!("train {RUN} --device cpu --set train.tf32=true")), @"`train.tf32` is true, which only a GPU supports, but `train.device` is `cpu` (remove one of them)");
    for (args, dtype, products) in [
        ("", "f32", "f32"),
        ("--set train.tf32=true", "f32", "TF32"),
        ("--set train.dtype=bf16", "bf16", "TF32"),
        (
            "--set train.dtype=bf16 --set train.tf32=false",
            "bf16",
            "f32",
        ),
        (
            "--set train.dtype=bf16 --set rollout.dtype=f32",
            "bf16",
            "f32",
        ),
        (&format!("--set train.dtype=bf16 {SCORED}"), "bf16", "TF32"),
    ] {
        let said = folder.said(&format!("train --dry-run {RUN} --device cuda:0 {args}"));
        let line = format!(
            "device     cuda:0, {dtype} (CUDA on the CPU, 16.0 GiB of 16.0 GiB free; products of f32 in {products})\n"
        );
        assert!(said.contains(&line), "{args}: {said}");
        assert!(
            said.contains("; 16.0 GiB are free for it\n  weights "),
            "{said}"
        );
    }
    let folder = folder.env("CUDA_EMULATOR_DEVICES", "0");
    assert_snapshot!(folder.refused(&format!("train {RUN} --device cuda:0")), @"device `cuda:0`: the NVIDIA driver shows no GPU (choose a machine with one, look at `CUDA_VISIBLE_DEVICES`, or run with `--device cpu`)");
}
