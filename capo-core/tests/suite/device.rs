//! The memory in which the batches of these tests lie: the host's, or, in the binary called `cuda`,
//! on a CUDA device.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{LazyLock, Mutex};

use capo_core::cuda::{self, Features};
use capo_core::{Arrays, HostArrays, LastLayer, MomentArrays};
use cuda_emulator::Emulator;

use super::fixture::Batch;

/// True if this binary's batches lie on a device.
pub const ON_DEVICE: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"cuda");

/// The emulator; `None` where a real device is to be used. Its work is late unless the environment
/// says otherwise.
pub fn emulator() -> Option<&'static Emulator> {
    static EMULATOR: LazyLock<Option<Emulator>> = LazyLock::new(|| {
        let real = std::env::var_os("CAPO_TEST_DEVICE").is_some_and(|value| value == "cuda");
        let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        (!real).then(|| {
            let emulator = cuda_emulator::load(&kernels).unwrap();
            emulator
                .set_late(std::env::var_os("CUDA_EMULATOR_LATE").is_none_or(|value| value == "1"));
            emulator
        })
    });
    EMULATOR.as_ref()
}

/// The arrays of a batch.
pub fn arrays(batch: &Batch) -> Arrays<'_> {
    let hidden = &batch.hidden;
    if ON_DEVICE {
        device_arrays(batch, Features::F32(uploaded(hidden)))
    } else {
        host_arrays(batch, hidden)
    }
}

/// The arrays of a batch with these features, in host memory.
pub fn host_arrays<'a>(batch: &'a Batch, hidden: &'a [f32]) -> Arrays<'a> {
    let Batch {
        topk_ids,
        topk_logits,
        action_logits,
        logsumexp,
        ..
    } = batch;
    Arrays::Host(HostArrays {
        hidden,
        topk_ids,
        topk_logits,
        action_logits,
        logsumexp,
    })
}

/// The arrays of a batch with these features, on the device.
pub fn device_arrays<'a>(batch: &Batch, hidden: Features<'a>) -> Arrays<'a> {
    Arrays::Cuda(cuda::Arrays {
        device: 0,
        stream: cuda::Stream::default(),
        hidden,
        topk_ids: uploaded(&batch.topk_ids),
        topk_logits: uploaded(&batch.topk_logits),
        action_logits: uploaded(&batch.action_logits),
        logsumexp: uploaded(&batch.logsumexp),
    })
}

/// The trainer's moments.
pub fn moments<'a>(exp_avg: &'a [f32], exp_avg_sq: &'a [f32]) -> MomentArrays<'a> {
    if !ON_DEVICE {
        return MomentArrays::Host {
            exp_avg,
            exp_avg_sq,
        };
    }
    MomentArrays::Cuda {
        exp_avg: uploaded(exp_avg),
        exp_avg_sq: uploaded(exp_avg_sq),
    }
}

/// A copy on the device, kept for the life of the process and made once.
pub fn uploaded<T: cuda::Plain + Into<f64>>(values: &[T]) -> cuda::Slice<'static, T> {
    type Known = HashMap<(TypeId, Vec<u64>), &'static (dyn Any + Send + Sync)>;
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    emulator();
    let mut known = KNOWN.lock().unwrap();
    let bits = values.iter().map(|&value| value.into().to_bits()).collect();
    let buffer = known.entry((TypeId::of::<T>(), bits)).or_insert_with(|| {
        Box::leak(Box::new(
            cuda::Device::open(0).unwrap().upload(values).unwrap(),
        ))
    });
    buffer.downcast_ref::<cuda::Buffer<T>>().unwrap().slice()
}

/// Takes an entry from the features.
pub fn shorten_hidden(batch: &mut LastLayer<'_>) {
    match &mut batch.arrays {
        Arrays::Host(arrays) => arrays.hidden = &arrays.hidden[1..],
        Arrays::Cuda(arrays) => {
            arrays.hidden = Features::F32(uploaded(&vec![0.0; arrays.hidden.len() - 1]))
        }
    }
}

/// Leaves three logits.
pub fn shorten_logits(batch: &mut LastLayer<'_>) {
    match &mut batch.arrays {
        Arrays::Host(arrays) => arrays.topk_logits = &arrays.topk_logits[..3],
        Arrays::Cuda(arrays) => arrays.topk_logits = uploaded(&[0.0; 3]),
    }
}
