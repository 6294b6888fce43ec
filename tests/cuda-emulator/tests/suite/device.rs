//! Device memory and launches by name, on cudarc's thin layer over the driver.

use std::ffi::{CStr, CString, c_void};
use std::path::Path;
use std::sync::OnceLock;

use cudarc::driver::sys::{CUcontext, CUdeviceptr, CUfunction, CUmodule};
use cudarc::driver::{DriverError, result};

pub type Result<T> = std::result::Result<T, DriverError>;

/// Loads the emulator; whether there is one.
pub fn emulator() -> Option<&'static cuda_emulator::Emulator> {
    static EMULATOR: OnceLock<Option<cuda_emulator::Emulator>> = OnceLock::new();
    let kernels = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels");
    EMULATOR
        .get_or_init(|| cuda_emulator::for_tests(&kernels()))
        .as_ref()
}

/// The first device, current on this thread.
pub struct Device {
    pub context: CUcontext,
    module: CUmodule,
}

impl Device {
    pub fn open() -> Option<Self> {
        emulator()?;
        Some(Self::try_open(0).expect("the emulator has a device"))
    }

    pub fn try_open(ordinal: i32) -> Result<Self> {
        result::init()?;
        let device = result::device::get(ordinal)?;
        // SAFETY: The device is the driver's own; the image is a text that ends with a zero.
        unsafe {
            let context = result::primary_ctx::retain(device)?;
            result::ctx::set_current(context)?;
            Ok(Self {
                context,
                module: result::module::load_data(c"any".as_ptr().cast())?,
            })
        }
    }

    pub fn function(&self, name: &str) -> Result<CUfunction> {
        let name = CString::new(name).expect("a name has no zero");
        // SAFETY: The module is loaded.
        unsafe { result::module::get_function(self.module, name) }
    }

    /// Runs `name`; each of `arguments` points to a value of the parameter's type.
    pub fn launch(
        &self,
        name: &str,
        grid: [u32; 3],
        block: [u32; 3],
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let function = self.function(name)?;
        // SAFETY: The tests pass as many arguments as the kernel has, of its types.
        unsafe {
            result::launch_kernel(
                function,
                grid.into(),
                block.into(),
                0,
                result::stream::null(),
                arguments,
            )?;
            result::stream::synchronize(result::stream::null())
        }
    }

    /// [`Self::launch`] of `blocks` times `threads`.
    pub fn try_run(
        &self,
        name: &str,
        blocks: u32,
        threads: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        self.launch(name, [blocks, 1, 1], [threads, 1, 1], arguments)
    }

    /// [`Self::try_run`] of a kernel without mistakes.
    pub fn run(&self, name: &str, blocks: u32, threads: u32, arguments: &mut [*mut c_void]) {
        self.try_run(name, blocks, threads, arguments)
            .expect("the kernel runs");
    }
}

/// Device memory of `len` elements.
pub struct Buffer<T> {
    pub pointer: CUdeviceptr,
    len: usize,
    element: std::marker::PhantomData<T>,
}

impl<T: Copy + Default> Buffer<T> {
    pub fn fresh(len: usize) -> Self {
        // SAFETY: The memory is freed by `drop`.
        let pointer =
            unsafe { result::malloc_sync(len * size_of::<T>()) }.expect("there is memory");
        Self {
            pointer,
            len,
            element: std::marker::PhantomData,
        }
    }

    pub fn of(values: &[T]) -> Self {
        let buffer = Self::fresh(values.len());
        // SAFETY: The memory has the length of `values`.
        unsafe { result::memcpy_htod_sync(buffer.pointer, values) }.expect("the copy fits");
        buffer
    }

    pub fn values(&self) -> Vec<T> {
        let mut values = vec![T::default(); self.len];
        // SAFETY: The memory has the length of `values`; the tests read plain numbers.
        unsafe { result::memcpy_dtoh_sync(&mut values, self.pointer) }.expect("the copy fits");
        values
    }

    /// The pointer as an argument of a kernel.
    pub fn argument(&self) -> *mut c_void {
        argument(&self.pointer)
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        // SAFETY: The memory is this buffer's own. A test of freed memory has freed it before.
        unsafe { result::free_sync(self.pointer) }.ok();
    }
}

/// `value` as an argument of a kernel.
pub fn argument<T>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

/// The driver's name of an error.
pub fn name<T: std::fmt::Debug>(result: Result<T>) -> String {
    let error = result.expect_err("the driver refuses");
    error
        .error_name()
        .map(CStr::to_string_lossy)
        .expect("the error has a name")
        .into_owned()
}
