//! The CUDA driver, loaded when first needed: a device's primary context, its memory, and kernel
//! launches.
//!
//! A process may hold several copies of this crate, one per plugin, beside a trainer with its own
//! CUDA. All of them share the device's primary context, in which an address has the same meaning
//! for all.

#![allow(unsafe_code, reason = "the driver's API is C")]

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, c_int, c_void};
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{result as driver, sys};

use super::arrays::{Plain, Slice, Stream};
use super::{Grid, image};
use crate::Error;

/// A CUDA device. All handles of a process to it share one module and one pool of memory.
#[derive(Clone)]
pub struct Device(Arc<Opened>);

struct Opened {
    ordinal: i32,
    context: sys::CUcontext,
    module: sys::CUmodule,
    kernels: Mutex<HashMap<&'static str, usize>>,
    /// Freed memory, by size. It is reused on the same stream only, so that work which still uses
    /// it comes first. Returning it to the driver would cost a synchronisation of the device.
    spare: Mutex<HashMap<Stream, BTreeMap<usize, Vec<sys::CUdeviceptr>>>>,
}

// SAFETY: the driver's handles may be used from any thread that has made the context current, which
// every method does.
unsafe impl Send for Opened {}
// SAFETY: as for `Send`; the driver does its own locking.
unsafe impl Sync for Opened {}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cuda:{}", self.0.ordinal)
    }
}

impl Device {
    /// The device with this number, with the kernels compiled for it.
    ///
    /// An error if the machine has no driver or no device, or if the number is too large.
    pub fn open(ordinal: i32) -> Result<Self, Error> {
        static OPEN: Mutex<Vec<Device>> = Mutex::new(Vec::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = open.iter().find(|device| device.0.ordinal == ordinal) {
            return Ok(device.clone());
        }
        let device = Self::opened(ordinal)?;
        open.push(device.clone());
        Ok(device)
    }

    fn opened(ordinal: i32) -> Result<Self, Error> {
        let count = device_count()?;
        if !(0..count).contains(&ordinal) {
            return Err(Error::device(format!(
                "there is no CUDA device {ordinal}, this machine has {count}, from 0 (choose one \
                 of them)"
            )));
        }
        let device =
            driver::device::get(ordinal).map_err(|error| failed("opening the device", &error))?;
        // SAFETY: `device` is valid; the primary context is kept for the life of the process.
        let context = unsafe { driver::primary_ctx::retain(device) }
            .map_err(|e| failed("making its context", &e))?;
        // SAFETY: `context` was just retained.
        unsafe { driver::ctx::set_current(context) }
            .map_err(|error| failed("entering its context", &error))?;
        let module = Self::module(image::of(&architecture(device)?))?;
        let kernels = Mutex::default();
        let spare = Mutex::default();
        Ok(Self(Arc::new(Opened {
            ordinal,
            context,
            module,
            kernels,
            spare,
        })))
    }

    /// The first of `images` that the driver accepts.
    fn module(images: impl Iterator<Item = Vec<u8>>) -> Result<sys::CUmodule, Error> {
        let mut refusal = None;
        for image in images {
            // SAFETY: the image is a cubin, or PTX that ends in NUL.
            match unsafe { driver::module::load_data(image.as_ptr().cast()) } {
                Ok(module) => return Ok(module),
                Err(error) => {
                    refusal = Some(failed(
                        "loading the curvature kernels (update the driver, or install NVRTC)",
                        &error,
                    ))
                }
            }
        }
        Err(refusal.unwrap_or_else(|| {
            Error::device("there is no image of the curvature kernels for this device")
        }))
    }

    /// The device's number.
    pub fn ordinal(&self) -> i32 {
        self.0.ordinal
    }

    /// Makes the device's context current on this thread.
    fn enter(&self) -> Result<(), Error> {
        // SAFETY: the primary context is retained for the life of the process.
        unsafe { driver::ctx::set_current(self.0.context) }
            .map_err(|error| failed("entering its context", &error))
    }

    fn allocate(&self, size: usize) -> Result<sys::CUdeviceptr, Error> {
        self.enter()?;
        // SAFETY: the context is current.
        unsafe { driver::malloc_sync(size) }.or_else(|_| {
            self.return_spare();
            // SAFETY: as above.
            unsafe { driver::malloc_sync(size) }.map_err(|error| {
                let what = format!(
                    "taking {size} bytes of memory (keep fewer logits, or use a smaller batch)"
                );
                let sentence = failure(&what, &error);
                if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
                    Error::out_of_memory(sentence)
                } else {
                    Error::device(sentence)
                }
            })
        })
    }

    /// Returns unused memory to the driver.
    fn return_spare(&self) {
        let spare = std::mem::take(&mut *lock(&self.0.spare));
        for address in spare
            .into_values()
            .flat_map(BTreeMap::into_values)
            .flatten()
        {
            // SAFETY: the address came from `allocate`, and its buffer is gone. After a failure the
            // memory stays allocated.
            let _ = unsafe { driver::free_sync(address) };
        }
    }

    /// A copy of `values` in the device's memory.
    pub fn upload<T: Plain>(&self, values: &[T]) -> Result<Buffer<T>, Error> {
        let queue = self.queue(Stream::default())?;
        let buffer = queue.upload(values)?;
        // Other streams do not wait for this one.
        queue.synchronize()?;
        Ok(buffer)
    }

    /// A queue of work on this device.
    pub(super) fn queue(&self, stream: Stream) -> Result<Queue, Error> {
        self.enter()?;
        Ok(Queue {
            device: self.clone(),
            stream,
            held: Mutex::default(),
        })
    }

    fn kernel(&self, name: &'static str) -> Result<sys::CUfunction, Error> {
        let mut kernels = lock(&self.0.kernels);
        if let Some(&kernel) = kernels.get(name) {
            return Ok(kernel as sys::CUfunction);
        }
        let symbol = CString::new(name).map_err(|error| Error::device(error.to_string()))?;
        // SAFETY: the module is loaded for the life of the process.
        let kernel = unsafe { driver::module::get_function(self.0.module, symbol) }
            .map_err(|error| failed(&format!("finding kernel `{name}`"), &error))?;
        kernels.insert(name, kernel as usize);
        Ok(kernel)
    }
}

/// Work queued on one stream, with the device's context current on this thread.
#[derive(Debug)]
pub(super) struct Queue {
    device: Device,
    stream: Stream,
    /// Host memory that queued copies may still read: a copy may return before it has read its
    /// source.
    held: Mutex<Vec<Box<dyn Any + Send + Sync>>>,
}

impl Queue {
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn raw(&self) -> sys::CUstream {
        self.stream.raw().cast()
    }

    /// Makes the device's context current on this thread, as every later call here needs.
    pub fn enter(&self) -> Result<(), Error> {
        self.device.enter()
    }

    /// Memory for `len` values with arbitrary contents.
    pub fn buffer<T: Plain>(&self, len: usize) -> Result<Buffer<T>, Error> {
        let device = self.device.clone();
        let stream = self.stream;
        let size = class_of((len * size_of::<T>()).max(1));
        // Up to twice the size is accepted, so that batches of changing size leave little memory
        // idle.
        let known = lock(&device.0.spare).get_mut(&stream).and_then(|spare| {
            spare
                .range_mut(size..=2 * size)
                .find_map(|(&size, addresses)| Some((size, addresses.pop()?)))
        });
        let (size, address) = match known {
            Some(known) => known,
            None => (size, device.allocate(size)?),
        };
        Ok(Buffer {
            device,
            address,
            len,
            place: (stream, size),
            values: PhantomData,
        })
    }

    /// A copy of `values`.
    pub fn upload<T: Plain>(&self, values: impl Into<Vec<T>>) -> Result<Buffer<T>, Error> {
        let values = values.into();
        let buffer = self.buffer(values.len())?;
        if !values.is_empty() {
            // SAFETY: the buffer holds as many values, and `held` keeps them until the queue is
            // done.
            let queued = unsafe { driver::memcpy_htod_async(buffer.address, &values, self.raw()) };
            lock(&self.held).push(Box::new(values));
            queued.map_err(|error| failed("copying to it", &error))?;
        }
        Ok(buffer)
    }

    /// Memory of `len` values whose bytes are all `byte`.
    pub fn filled<T: Plain>(&self, len: usize, byte: u8) -> Result<Buffer<T>, Error> {
        let buffer = self.buffer(len)?;
        if len > 0 {
            // SAFETY: the buffer holds as many bytes.
            unsafe {
                driver::memset_d8_async(buffer.address, byte, len * size_of::<T>(), self.raw())
            }
            .map_err(|error| failed("clearing its memory", &error))?;
        }
        Ok(buffer)
    }

    /// The first `len` values of `source`, once all queued work is done.
    pub fn download<T: Plain>(&self, source: &Buffer<T>, len: usize) -> Result<Vec<T>, Error> {
        self.read(source.slice(), 0, len)
    }

    /// `len` values of `source` from `start` on, once all queued work is done.
    pub fn read<T: Plain>(
        &self,
        source: Slice<T>,
        start: usize,
        len: usize,
    ) -> Result<Vec<T>, Error> {
        let mut values = vec![T::default(); len.min(source.len().saturating_sub(start))];
        if !values.is_empty() {
            let address = source.address() + (start * size_of::<T>()) as u64;
            // SAFETY: both sides hold as many values; `synchronize` waits for the copy before they
            // are read.
            unsafe { driver::memcpy_dtoh_async(&mut values, address, self.raw()) }
                .map_err(|error| failed("copying from it", &error))?;
        }
        self.synchronize()?;
        Ok(values)
    }

    /// Waits for all queued work.
    pub fn synchronize(&self) -> Result<(), Error> {
        // SAFETY: the stream is valid as long as the batch that brought it.
        unsafe { driver::stream::synchronize(self.raw()) }
            .map_err(|error| failed("computing", &error))?;
        lock(&self.held).clear();
        Ok(())
    }

    /// Queues a kernel; nothing if there is no block.
    ///
    /// # Safety
    ///
    /// `arguments` are of the types that the kernel declares, in its order. Their addresses are in
    /// this device's memory and large enough for the kernel's accesses.
    pub unsafe fn launch(
        &self,
        kernel: &'static str,
        grid: Grid,
        arguments: &[&dyn Argument],
    ) -> Result<(), Error> {
        if grid.columns == 0 || grid.rows == 0 {
            return Ok(());
        }
        let function = self.device.kernel(kernel)?;
        let blocks = (grid.columns, grid.rows, 1);
        let threads = (grid.threads, 1, 1);
        let mut places = Vec::new();
        arguments
            .iter()
            .for_each(|argument| argument.place(&mut places));
        // SAFETY: the caller guarantees it; no kernel of this crate has dynamic shared memory.
        unsafe { driver::launch_kernel(function, blocks, threads, 0, self.raw(), &mut places) }
            .map_err(|error| failed(&format!("starting kernel `{kernel}`"), &error))
    }
}

impl Drop for Queue {
    /// Waits for work that an error may have left queued, because it reads memory of the caller.
    fn drop(&mut self) {
        let _ = self.enter().and_then(|()| self.synchronize());
    }
}

/// Memory of one device, returned to the pool when dropped.
#[derive(Debug)]
pub struct Buffer<T> {
    device: Device,
    address: sys::CUdeviceptr,
    len: usize,
    place: (Stream, usize),
    values: PhantomData<T>,
}

impl<T> Buffer<T> {
    /// Number of values.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The `CUdeviceptr`.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// The whole buffer, borrowed.
    pub fn slice(&self) -> Slice<'_, T> {
        // SAFETY: the buffer holds as many values for as long as it is borrowed.
        unsafe { Slice::from_raw(self.address, self.len) }
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        let (stream, size) = self.place;
        lock(&self.device.0.spare)
            .entry(stream)
            .or_default()
            .entry(size)
            .or_default()
            .push(self.address);
    }
}

/// An argument of a kernel: a value, the address of an array on the device, or several of them.
pub(super) trait Argument {
    /// Appends the address at which the argument lies while it is borrowed.
    fn place(&self, places: &mut Vec<*mut c_void>) {
        places.push((&raw const *self).cast_mut().cast());
    }
}

impl Argument for u32 {}
impl Argument for i32 {}
impl Argument for u64 {}
impl Argument for f32 {}
impl Argument for f64 {}

impl<T> Argument for Buffer<T> {
    fn place(&self, places: &mut Vec<*mut c_void>) {
        self.address.place(places);
    }
}

impl<T> Argument for Arc<Buffer<T>> {
    fn place(&self, places: &mut Vec<*mut c_void>) {
        (**self).place(places);
    }
}

impl<T> Argument for Slice<'_, T> {
    fn place(&self, places: &mut Vec<*mut c_void>) {
        self.address.place(places);
    }
}

impl<const N: usize> Argument for [&dyn Argument; N] {
    fn place(&self, places: &mut Vec<*mut c_void>) {
        self.iter().for_each(|argument| argument.place(places));
    }
}

/// The name of a device's architecture.
fn architecture(device: sys::CUdevice) -> Result<String, Error> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    let mut name = "sm_".to_owned();
    for attribute in [MAJOR, MINOR] {
        // SAFETY: `device` is valid.
        let number = unsafe { driver::device::get_attribute(device, attribute) }
            .map_err(|error| failed("asking for it", &error))?;
        name += &number.to_string();
    }
    Ok(name)
}

/// Number of devices, at least 1.
fn device_count() -> Result<i32, Error> {
    capo_cuda::driver::load().map_err(|missing| Error::device(missing.to_string()))?;
    let count = driver::init().and_then(|()| driver::device::get_count());
    match count {
        Ok(count) if count > 0 => Ok(count as c_int),
        Ok(_) => Err(Error::device(
            "this machine has a CUDA driver and no device (run with `--device cpu`)",
        )),
        Err(error) => Err(failed(
            "starting the driver (run with `--device cpu`)",
            &error,
        )),
    }
}

/// Rounds a size up to one of eight sizes per power of two, so that batches of changing size can
/// reuse memory.
fn class_of(size: usize) -> usize {
    let step = (size.next_power_of_two() / 16).max(256);
    size.div_ceil(step) * step
}

fn failed(what: &str, error: &driver::DriverError) -> Error {
    Error::device(failure(what, error))
}

/// The sentence about a call of the driver that failed.
fn failure(what: &str, error: &driver::DriverError) -> String {
    let name = capo_cuda::driver::error_name(error);
    format!("the CUDA device failed with `{name}` in {what}")
}

fn lock<X>(mutex: &Mutex<X>) -> std::sync::MutexGuard<'_, X> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
