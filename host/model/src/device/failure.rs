//! Sentences for errors of the driver, which candle gives as the driver's own words.

use std::fmt;

use capo_system::memory::{gpu_processes, text};

use super::memory;

/// The sentence that stands before the driver's error.
#[derive(Debug)]
struct Explained(String);

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Words of the driver, with what is the matter and what to do.
const SENTENCES: [(&str, &str); 7] = [
    (
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "the NVIDIA driver's module in the kernel and its library are of different versions, as after an update (restart the machine, or run with `--device cpu`)",
    ),
    (
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "this host was built with a newer CUDA than the NVIDIA driver knows (update the driver, build with an older CUDA, see docs/gpu.md, or run with `--device cpu`)",
    ),
    (
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "this host was built for another GPU (build it with `CUDA_COMPUTE_CAP` of this one, see docs/gpu.md)",
    ),
    (
        "CUDA_ERROR_STUB_LIBRARY",
        "the `libcuda.so.1` that was found is a toolchain's stub (remove its folder from `LD_LIBRARY_PATH`)",
    ),
    (
        "CUDA_ERROR_NO_DEVICE",
        "the NVIDIA driver shows no GPU (choose a machine with one, look at `CUDA_VISIBLE_DEVICES`, or run with `--device cpu`)",
    ),
    (
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "another process has the GPU for itself (end it, choose another device, or run with `--device cpu`)",
    ),
    (
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "the GPU's memory has an error that it cannot correct (restart it, or choose another device)",
    ),
];
/// The driver's word for memory that it does not have; cuBLAS has one of its own.
const OUT_OF_MEMORY: [&str; 2] = ["CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED"];

/// Advice for a GPU without memory: in any command, and in a run.
const WAYS_OUT: [&str; 2] = [
    "take fewer or shorter sequences at a time",
    "lower `train.per_device_train_batch_size` or `rollout.max_completion_length`, set `train.gradient_checkpointing`, look at the parts with `--dry-run`",
];

/// Puts what a run was expected to take before an error that says that a GPU has no memory left.
pub fn with_estimate(error: anyhow::Error, bytes: impl FnOnce() -> Option<u128>) -> anyhow::Error {
    match sentence(&format!("{error:#}"))
        .filter(|_| is_out_of_memory(&error))
        .zip(bytes())
    {
        Some((sentence, bytes)) => {
            let asked = format!("in a run that was expected to take about {}", text(bytes));
            let sentence = sentence.replacen("out of memory", &format!("out of memory {asked}"), 1);
            error.context(Explained(sentence.replacen(WAYS_OUT[0], WAYS_OUT[1], 1)))
        }
        None => explained(error),
    }
}

/// Puts a sentence before an error of the driver; leaves others as they are.
pub fn explained(error: anyhow::Error) -> anyhow::Error {
    if error.downcast_ref::<Explained>().is_some() {
        return error;
    }
    match sentence(&format!("{error:#}")) {
        Some(sentence) => error.context(Explained(sentence)),
        None => error,
    }
}

/// True for an error that says that a GPU has no memory left.
pub fn is_out_of_memory(error: &anyhow::Error) -> bool {
    let said = format!("{error:#}");
    !is_explained(&said) && OUT_OF_MEMORY.iter().any(|word| said.contains(word))
}

/// True for errors of components and of their loader, which say what to do themselves.
fn is_explained(said: &str) -> bool {
    said.contains("failed with `CUDA_ERROR")
}

/// The sentence for an error whose text has one of the driver's words.
pub(super) fn sentence(said: &str) -> Option<String> {
    if is_explained(said) {
        return None;
    }
    if OUT_OF_MEMORY.iter().any(|word| said.contains(word)) {
        let known = memory::now().join(", ");
        let known = if known.is_empty() {
            "the GPU has none left".to_owned()
        } else {
            format!("device {known}")
        };
        let known = known + &gpu_processes();
        return Some(format!(
            "out of memory: {known} ({}, or end other processes on it, which `nvidia-smi` lists)",
            WAYS_OUT[0]
        ));
    }
    SENTENCES
        .iter()
        .find(|(word, _)| said.contains(word))
        .map(|(_, sentence)| (*sentence).to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use anyhow::anyhow;

    use super::super::memory::Memory;
    use super::*;

    #[test]
    fn a_word_of_the_driver_gets_a_sentence_and_others_do_not() {
        for (word, expected) in SENTENCES {
            let error = explained(anyhow!("DriverError({word}, \"what it means\")"));
            assert_eq!(
                format!("{error:#}"),
                format!("{expected}: DriverError({word}, \"what it means\")")
            );
        }
        assert_eq!(
            explained(anyhow!("no such file")).to_string(),
            "no such file"
        );
    }

    #[test]
    fn out_of_memory_says_what_is_free() {
        let calls = AtomicU64::new(12);
        let now = move || {
            Some(Memory {
                free: calls.fetch_sub(11, Ordering::Relaxed) << 30,
                total: 16 << 30,
            })
        };
        memory::note("cuda:7", "a GPU".to_owned(), Box::new(now));
        assert_eq!(
            memory::described("cuda:7").as_deref(),
            Some("a GPU, 12.0 GiB of 16.0 GiB free")
        );
        assert_eq!(memory::free_at_opening("cuda:7"), Some(12 << 30));
        let error = explained(anyhow!(
            "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")"
        ));
        assert!(is_out_of_memory(&error));
        let of_run = format!(
            "{:#}",
            with_estimate(anyhow!("{error:#}"), || Some(1 << 30))
        );
        assert!(
            of_run.contains("take about 1.0 GiB: ") && of_run.contains(" (lower `train.per_device"),
            "{of_run}"
        );
        let said = format!(
            "{:#}",
            explained(error.context("the run stopped after step 2"))
        );
        let expected = "the run stopped after step 2: out of memory: device `cuda:7` has 16.0 GiB, of which 12.0 GiB were free at the start and 1.0 GiB are now (take fewer";
        assert!(said.starts_with(expected), "{said}");
        assert_eq!(said.matches("(take fewer").count(), 1, "{said}");
        assert_eq!(memory::described("cpu"), None);
    }
}
