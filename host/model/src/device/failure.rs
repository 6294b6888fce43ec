//! Sentences for errors of the NVIDIA driver, which candle returns with the driver's codes.

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

/// Codes of the driver, each with its cause and the way out.
const SENTENCES: [(&str, &str); 7] = [
    (
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "the NVIDIA driver's module in the kernel and its library are of different versions, \
         as after an update (restart the machine, or run with `--device cpu`)",
    ),
    (
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "this host was built with a newer CUDA than the NVIDIA driver knows (update the driver, \
         build with an older CUDA, see docs/gpu.md, or run with `--device cpu`)",
    ),
    (
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "this host was built for another GPU \
         (build it with `CUDA_COMPUTE_CAP` of this one, see docs/gpu.md)",
    ),
    (
        "CUDA_ERROR_STUB_LIBRARY",
        "the `libcuda.so.1` that was found is a toolchain's stub \
         (remove its folder from `LD_LIBRARY_PATH`)",
    ),
    (
        "CUDA_ERROR_NO_DEVICE",
        "the NVIDIA driver shows no GPU (choose a machine with one, look at \
         `CUDA_VISIBLE_DEVICES`, or run with `--device cpu`)",
    ),
    (
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "another process has the GPU for itself \
         (end it, choose another device, or run with `--device cpu`)",
    ),
    (
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "the GPU's memory has an error that it cannot correct \
         (restart it, or choose another device)",
    ),
];
/// Codes of the driver and of cuBLAS for memory that the device does not have.
const OUT_OF_MEMORY: [&str; 2] = ["CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED"];

/// Puts a sentence before an error that says that a GPU has no memory left. The sentence has the
/// bytes that the run was expected to take.
pub fn with_estimate(error: anyhow::Error, bytes: impl FnOnce() -> Option<u128>) -> anyhow::Error {
    if is_out_of_memory(&error)
        && let Some(bytes) = bytes()
    {
        let sentence = format!(
            "out of memory in a run that was expected to take about {}: {} \
             (lower `train.per_device_train_batch_size` or `rollout.max_completion_length`, \
             set `train.gradient_checkpointing`, look at the parts with `--dry-run`, {ELSEWHERE})",
            text(bytes),
            free_now()
        );
        return error.context(Explained(sentence));
    }
    explained(error)
}

/// Puts a sentence before an error of the driver; leaves others as they are.
pub fn explained(error: anyhow::Error) -> anyhow::Error {
    if error.downcast_ref::<Explained>().is_some() {
        return error;
    }
    match driver_code(&error).and_then(|code| sentence(&code)) {
        Some(sentence) => error.context(Explained(sentence)),
        None => error,
    }
}

/// True for an error that says that a GPU has no memory left.
pub fn is_out_of_memory(error: &anyhow::Error) -> bool {
    driver_code(error).is_some_and(|code| names(&code, &OUT_OF_MEMORY))
}

/// The debug text of the driver's error among the causes of `error`, which has the driver's code.
/// Only candle's errors count: components and their loader explain the errors of their own calls.
fn driver_code(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| {
        let mut error = cause.downcast_ref::<candle_core::Error>()?;
        loop {
            error = match error {
                candle_core::Error::Cuda(cause) => return Some(format!("{cause:?}")),
                // Errors of cuBLAS come from our own calls.
                candle_core::Error::Wrapped(cause) => return Some(cause.to_string()),
                candle_core::Error::Context { inner, .. }
                | candle_core::Error::WithPath { inner, .. }
                | candle_core::Error::WithBacktrace { inner, .. } => inner,
                _ => return None,
            };
        }
    })
}

/// The sentence for an error with one of the driver's codes.
pub(super) fn sentence(code: &str) -> Option<String> {
    if names(code, &OUT_OF_MEMORY) {
        return Some(format!(
            "out of memory: {} (take fewer or shorter sequences at a time, {ELSEWHERE})",
            free_now()
        ));
    }
    let (_, sentence) = SENTENCES.iter().find(|(known, _)| code.contains(known))?;
    Some((*sentence).to_owned())
}

/// True if the text of an error names one of the driver's `codes`.
fn names(text: &str, codes: &[&str]) -> bool {
    codes.iter().any(|code| text.contains(code))
}

/// Advice for a GPU whose memory other processes may hold.
const ELSEWHERE: &str = "or end other processes on it, which `nvidia-smi` lists";

/// The free memory of the opened GPUs, and the processes that hold the rest.
fn free_now() -> String {
    let known = memory::now().join(", ");
    let known = if known.is_empty() {
        "the GPU has none left".to_owned()
    } else {
        format!("device {known}")
    };
    known + &gpu_processes()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use anyhow::anyhow;

    use super::super::memory::Memory;
    use super::*;

    /// An error of the driver, as candle returns it.
    fn of_driver(code: &str) -> anyhow::Error {
        let text = format!("DriverError({code}, \"what it means\")");
        candle_core::Error::Cuda(Box::new(Text(text))).into()
    }

    /// An error whose debug text is its text, as that of the driver is.
    struct Text(String);

    impl fmt::Debug for Text {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(&self.0)
        }
    }

    impl fmt::Display for Text {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(&self.0)
        }
    }

    impl std::error::Error for Text {}

    #[test]
    fn explains_codes_of_the_driver_and_no_other_errors() {
        for (code, expected) in SENTENCES {
            let error = explained(of_driver(code).context("in step 2"));
            assert_eq!(
                format!("{error:#}"),
                format!("{expected}: in step 2: DriverError({code}, \"what it means\")")
            );
        }
        // Sentences of components stay as they are, whatever they quote.
        let error = anyhow!("the device failed with `CUDA_ERROR_OUT_OF_MEMORY` (record less)");
        assert!(!is_out_of_memory(&error));
        assert_eq!(explained(error).chain().count(), 1);
        assert_eq!(
            explained(anyhow!("no such file")).to_string(),
            "no such file"
        );
    }

    #[test]
    fn says_what_is_free_when_memory_runs_out() {
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
        let out_of_memory = || of_driver("CUDA_ERROR_OUT_OF_MEMORY");
        let error = explained(out_of_memory());
        assert!(is_out_of_memory(&error));
        let of_run = format!("{:#}", with_estimate(out_of_memory(), || Some(1 << 30)));
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
