//! The batch's large arrays in the core's types, in host memory or on a CUDA device.

#![allow(
    unsafe_code,
    reason = "an address on a device is what the tensor's lender says"
)]

use capo_core::cuda::{self, Features, Slice, Stream};
use capo_core::{Arrays, HostArrays, MomentArrays};
use capo_plugin::prelude::*;
use capo_plugin::{DType, DeviceKind, LastLayer, Tensor};

/// A tensor with its name in the batch.
type Named<'t, 'a> = (&'static str, &'t Tensor<'a>);

/// The last layer's arrays, without a copy.
pub(crate) fn arrays<'a>(last: &LastLayer<'a>) -> Result<Arrays<'a>, PluginError> {
    let LastLayer {
        hidden,
        topk_ids,
        topk_logits,
        action_logits,
        logsumexp,
        ..
    } = last;
    let [ids, logits] = [("topk_ids", topk_ids), ("topk_logits", topk_logits)];
    let [action, sums] = [("action_logits", action_logits), ("logsumexp", logsumexp)];
    let Some((device, stream)) = place(&[("hidden", hidden), ids, logits, action, sums])? else {
        return Ok(Arrays::Host(HostArrays {
            hidden: hidden.as_f32()?,
            topk_ids: topk_ids.as_u32()?,
            topk_logits: topk_logits.as_f32()?,
            action_logits: action_logits.as_f32()?,
            logsumexp: logsumexp.as_f32()?,
        }));
    };
    Ok(Arrays::Cuda(cuda::Arrays {
        device,
        stream,
        hidden: features(("hidden", hidden))?,
        topk_ids: slice(ids)?,
        topk_logits: slice(logits)?,
        action_logits: slice(action)?,
        logsumexp: slice(sums)?,
    }))
}

/// The trainer's moments of the last layer, which are on the same device as its features; without a
/// copy.
pub(crate) fn moments<'a>(batch: &Batch<'a>) -> Result<MomentArrays<'a>, PluginError> {
    let last = batch.last_layer()?;
    let state = batch.optimizer_state()?;
    let [first, second] = [
        ("exp_avg", &state.exp_avg),
        ("exp_avg_sq", &state.exp_avg_sq),
    ];
    if place(&[("hidden", &last.hidden), first, second])?.is_none() {
        return Ok(MomentArrays::Host {
            exp_avg: state.exp_avg.as_f32()?,
            exp_avg_sq: state.exp_avg_sq.as_f32()?,
        });
    }
    Ok(MomentArrays::Cuda {
        exp_avg: slice(first)?,
        exp_avg_sq: slice(second)?,
    })
}

/// The CUDA device and the stream that all of `tensors` share; `None` where all are in host memory.
fn place(tensors: &[Named<'_, '_>]) -> Result<Option<(i32, Stream)>, PluginError> {
    let Some(((name, one), others)) = tensors.split_first() else {
        return Ok(None);
    };
    for (other_name, other) in others {
        let at = spelled(one.device());
        let other_at = spelled(other.device());
        if one.device() != other.device() {
            return Err(PluginError::unsupported(format!(
                "`{name}` lies on `{at}` and `{other_name}` on `{other_at}`, expected all tensors \
                 of a batch on one device (lend them from one)"
            )));
        }
        if one.stream() != other.stream() {
            return Err(PluginError::unsupported(format!(
                "`{name}` and `{other_name}` are ready on different streams of `{at}`, expected \
                 one for all tensors of a batch (lend them on one)"
            )));
        }
    }
    match one.device() {
        (DeviceKind::CPU, _) => Ok(None),
        // SAFETY: by the contract of `Tensor::from_raw`, it is a stream of the device's primary
        // context, for as long as the tensor is lent.
        (DeviceKind::CUDA, number) => Ok(Some((number, unsafe { Stream::from_raw(one.stream()) }))),
        device => Err(PluginError::unsupported(format!(
            "`{name}` lies on {}, and this component reads host memory and CUDA devices (run with \
             `--device cpu`)",
            spelled(device)
        ))),
    }
}

/// Name of a device as users write it.
fn spelled(device: (DeviceKind, i32)) -> String {
    let (kind, number) = device;
    match kind {
        DeviceKind::CPU => "cpu".to_owned(),
        DeviceKind::CUDA => format!("cuda:{number}"),
        DeviceKind(kind) => format!("device {number} of DLPack's kind {kind}"),
    }
}

fn features<'a>(named: Named<'_, 'a>) -> Result<Features<'a>, PluginError> {
    let (_, tensor) = named;
    let (address, len) = compact(named, &[DType::F32, DType::F16, DType::BF16])?;
    // SAFETY: `compact` found `len` elements of this type at `address`. By the contract of
    // `Tensor::from_raw` they are valid for `'a`, and ready once the work on the tensor's stream is
    // done.
    Ok(unsafe {
        match tensor.dtype() {
            DType::F16 => Features::F16(Slice::from_raw(address, len)),
            DType::BF16 => Features::Bf16(Slice::from_raw(address, len)),
            _ => Features::F32(Slice::from_raw(address, len)),
        }
    })
}

/// An element type that is allowed for tensors on a device.
trait Element {
    const DTYPE: DType;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}

impl Element for u32 {
    const DTYPE: DType = DType::U32;
}

fn slice<'a, T: Element>(named: Named<'_, 'a>) -> Result<Slice<'a, T>, PluginError> {
    let (address, len) = compact(named, &[T::DTYPE])?;
    // SAFETY: as in `features`.
    Ok(unsafe { Slice::from_raw(address, len) })
}

/// Address and number of elements of a compact tensor of one of `dtypes`.
fn compact(named: Named<'_, '_>, dtypes: &[DType]) -> Result<(u64, usize), PluginError> {
    let (name, tensor) = named;
    let have = tensor.dtype();
    let strides = tensor.strides();
    if !dtypes.contains(&have) {
        let want: Vec<String> = dtypes.iter().map(|dtype| format!("`{dtype}`")).collect();
        return Err(PluginError::unsupported(format!(
            "`{name}` has dtype `{have}`, and on a device this component reads {} (convert it)",
            want.join(" or ")
        )));
    }
    if !strides.is_empty() {
        return Err(PluginError::unsupported(format!(
            "`{name}` has strides {strides:?}, and this component reads compact tensors (make it \
             contiguous)"
        )));
    }
    Ok((tensor.address(), tensor.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUDA: (DeviceKind, i32) = (DeviceKind::CUDA, 0);

    /// Properties in which a tensor may differ from the batch's other tensors.
    #[derive(Clone, Copy)]
    struct Lent {
        device: (DeviceKind, i32),
        dtype: DType,
        strides: &'static [i64],
        stream: usize,
    }

    impl Lent {
        fn tensor(self, shape: &'static [i64]) -> Tensor<'static> {
            let Self {
                device: (kind, number),
                dtype,
                strides,
                stream,
            } = self;
            let (data, stream) = (0x1000 as *const _, stream as *mut _);
            // SAFETY: no code reads these elements.
            unsafe { Tensor::from_raw(data, kind, number, dtype, shape, strides, 64, stream) }
        }
    }

    /// Converts a last layer on CUDA device 0 after `change` has changed its tensors.
    fn taken(change: impl Fn(&mut [Lent; 5])) -> Result<Arrays<'static>, String> {
        let mut lent = [Lent {
            device: CUDA,
            dtype: DType::F32,
            strides: &[],
            stream: 9,
        }; 5];
        lent[1].dtype = DType::U32;
        change(&mut lent);
        let [hidden, ids, logits, sums, action] = lent;
        let (hidden, ids, logits) = (
            hidden.tensor(&[2, 3, 4]),
            ids.tensor(&[2, 3, 5]),
            logits.tensor(&[2, 3, 5]),
        );
        let last = LastLayer::new(
            hidden,
            ids,
            logits,
            sums.tensor(&[2, 3]),
            action.tensor(&[2, 3]),
            7,
        );
        arrays(&last).map_err(|error| error.to_string())
    }

    fn refused(change: impl Fn(&mut [Lent; 5])) -> String {
        taken(change).unwrap_err()
    }

    #[test]
    fn tensors_of_a_device_are_taken_as_they_are() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let Ok(Arrays::Cuda(arrays)) = taken(|lent| lent[0].dtype = dtype) else {
                panic!("not taken")
            };
            assert_eq!(
                (arrays.device, arrays.hidden.len(), arrays.topk_ids.len()),
                (0, 24, 30)
            );
            assert_eq!(
                (arrays.logsumexp.len(), arrays.logsumexp.address()),
                (6, 0x1040)
            );
            assert_ne!(arrays.stream, Stream::default());
            let kept = match arrays.hidden {
                Features::F32(_) => DType::F32,
                Features::F16(_) => DType::F16,
                Features::Bf16(_) => DType::BF16,
            };
            assert_eq!(kept, dtype);
        }
        let Ok(Arrays::Cuda(arrays)) =
            taken(|lent| lent.iter_mut().for_each(|lent| lent.device.1 = 3))
        else {
            panic!("not taken")
        };
        assert_eq!(arrays.device, 3);
    }

    #[test]
    fn tensors_in_several_places_or_laid_out_otherwise() {
        let (f64, i64) = (
            DType {
                code: 2,
                bits: 64,
                lanes: 1,
            },
            DType {
                code: 0,
                bits: 64,
                lanes: 1,
            },
        );
        let said = [
            refused(|lent| lent[2].device = (DeviceKind::CPU, 0)),
            refused(|lent| lent[0].device = (DeviceKind::CPU, 0)),
            refused(|lent| lent[4].device.1 = 1),
            refused(|lent| lent[3].stream = 0),
            refused(|lent| {
                lent.iter_mut()
                    .for_each(|lent| lent.device = (DeviceKind(10), 2))
            }),
            refused(|lent| lent[0].dtype = f64),
            refused(|lent| lent[1].dtype = i64),
            refused(|lent| {
                lent[2].dtype = DType {
                    lanes: 4,
                    ..DType::F32
                }
            }),
            refused(|lent| lent[2].strides = &[1, 2, 6]),
        ];
        assert_eq!(
            include_str!("device_refused.txt")
                .lines()
                .collect::<Vec<_>>(),
            said
        );
    }

    #[test]
    fn moments_lie_beside_the_batch() {
        use capo_plugin::OptimizerState;
        use capo_plugin::testing::Fixture;

        let fixture = Fixture::new(2, 3);
        let lent = Lent {
            device: CUDA,
            dtype: DType::F32,
            strides: &[],
            stream: 9,
        };
        let matrix = lent.tensor(&[7, 4]);
        let mut batch = fixture.batch();
        batch.optimizer_state = Some(OptimizerState::new(matrix, matrix, matrix));
        assert_eq!(
            moments(&batch).unwrap_err().to_string(),
            "`hidden` lies on `cpu` and `exp_avg` on `cuda:0`, expected all tensors of a batch on one device (lend them from one)"
        );
        let (cube, ids) = (
            lent.tensor(&[2, 3, 4]),
            Lent {
                dtype: DType::U32,
                ..lent
            }
            .tensor(&[2, 3, 5]),
        );
        batch.last_layer = Some(LastLayer::new(cube, ids, cube, matrix, matrix, 7));
        let Ok(MomentArrays::Cuda {
            exp_avg,
            exp_avg_sq,
        }) = moments(&batch)
        else {
            panic!("not taken")
        };
        assert_eq!((exp_avg.len(), exp_avg_sq.address()), (28, 0x1040));
    }
}
