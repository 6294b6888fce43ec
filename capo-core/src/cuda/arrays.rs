//! Arrays of a trainer on a device, used without a copy.

#![allow(unsafe_code, reason = "an address is what its owner says")]

use std::ffi::c_void;
use std::marker::PhantomData;

/// A compact, row-major array in device memory.
#[derive(Debug, Clone, Copy)]
pub struct Slice<'a, T> {
    pub(super) address: u64,
    len: usize,
    values: PhantomData<&'a T>,
}

impl<T> Slice<'_, T> {
    /// The array at a `CUdeviceptr` of the device's primary context.
    ///
    /// # Safety
    ///
    /// There are `len` values of `T` at `address`. For the life of the slice, only work on the
    /// stream that comes with it writes them.
    pub unsafe fn from_raw(address: u64, len: usize) -> Self {
        Self {
            address,
            len,
            values: PhantomData,
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the slice has no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The `CUdeviceptr`.
    pub fn address(&self) -> u64 {
        self.address
    }
}

/// A `CUstream`: work on it runs in the order in which it is queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Stream(usize);

/// The handle that means the calling thread's own default stream.
const PER_THREAD: usize = 2;

impl Stream {
    /// The stream at this address; null is the device's default stream, as is `Stream::default()`.
    ///
    /// The per-thread default stream has one handle for all threads, so it cannot say whose work
    /// the arrays need. It is taken as the device's default stream, whose work waits for what all
    /// threads have queued on theirs.
    ///
    /// # Safety
    ///
    /// It is a stream of the device's primary context, and lives as long as the batch that it comes
    /// with.
    pub unsafe fn from_raw(stream: *mut c_void) -> Self {
        Self(if stream as usize == PER_THREAD {
            0
        } else {
            stream as usize
        })
    }

    pub(super) fn raw(self) -> *mut c_void {
        self.0 as *mut c_void
    }
}

/// Features, `[B, T, D]`, in the trainer's type; 16-bit floats by their bits.
#[derive(Debug, Clone, Copy)]
pub enum Features<'a> {
    /// 32-bit floats.
    F32(Slice<'a, f32>),
    /// 16-bit IEEE floats.
    F16(Slice<'a, u16>),
    /// 16-bit brain floats.
    Bf16(Slice<'a, u16>),
}

impl Features<'_> {
    /// Number of entries.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) | Self::Bf16(values) => values.len(),
        }
    }

    /// True if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn address(&self) -> u64 {
        match self {
            Self::F32(values) => values.address(),
            Self::F16(values) | Self::Bf16(values) => values.address(),
        }
    }
}

/// The large arrays of a last layer in one device's memory; shapes and meaning as in
/// [`HostArrays`](crate::HostArrays).
#[derive(Debug, Clone, Copy)]
pub struct Arrays<'a> {
    /// The device's number.
    pub device: i32,
    /// The stream after whose queued work the arrays are ready, and on which the model queues its
    /// own work.
    pub stream: Stream,
    /// `[B, T, D]`.
    pub hidden: Features<'a>,
    /// `[B, T, K]`.
    pub topk_ids: Slice<'a, u32>,
    /// `[B, T, K]`.
    pub topk_logits: Slice<'a, f32>,
    /// `[B, T]`.
    pub action_logits: Slice<'a, f32>,
    /// `[B, T]`.
    pub logsumexp: Slice<'a, f32>,
}

impl Arrays<'_> {
    /// Lengths of hidden, topk_ids, topk_logits, action_logits and logsumexp.
    pub(crate) fn lengths(&self) -> [usize; 5] {
        [
            self.hidden.len(),
            self.topk_ids.len(),
            self.topk_logits.len(),
            self.action_logits.len(),
            self.logsumexp.len(),
        ]
    }
}

/// Values that consist of nothing but their bytes.
///
/// # Safety
///
/// Every pattern of bytes is a value, and there is no padding.
pub unsafe trait Plain: Copy + Default + Send + Sync + 'static {}

macro_rules! plain {
    ($($type:ty),*) => { $(
        // SAFETY: a primitive number.
        unsafe impl Plain for $type {}
    )* };
}
plain!(u8, u16, u32, u64, f32, f64);
