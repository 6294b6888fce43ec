//! Mistakes of the host get the codes that the real driver gives.

use cudarc::driver::{result, sys};

use crate::device::{Buffer, Device, argument, name};

#[test]
fn refuses_an_unknown_kernel() {
    let Some(device) = Device::open() else { return };
    assert_eq!(
        name(device.function("no_such_kernel")),
        "CUDA_ERROR_NOT_FOUND"
    );
}

#[test]
fn refuses_a_thread_without_a_context() {
    let Some(device) = Device::open() else { return };
    let context = device.context as usize;
    std::thread::spawn(move || {
        // SAFETY: The memory is leaked; the context is a primary one that was retained.
        unsafe {
            assert_eq!(name(result::malloc_sync(4)), "CUDA_ERROR_INVALID_CONTEXT");
            result::ctx::set_current(context as sys::CUcontext).expect("the context lives");
            result::malloc_sync(4).expect("there is memory");
        }
    })
    .join()
    .expect("the thread ends well");
}

#[test]
fn refuses_launches_out_of_range() {
    let Some(device) = Device::open() else { return };
    let (values, n) = (Buffer::<f32>::fresh(1), 0_u32);
    let wrong = [
        ([1, 1, 1], [1025, 1, 1]),
        ([1, 1, 1], [32, 64, 1]),
        ([1, 1, 1], [1, 1, 65]),
        ([1, 65_536, 1], [1, 1, 1]),
        ([1, 1, 65_536], [1, 1, 1]),
        ([0, 1, 1], [1, 1, 1]),
        ([1, 1, 1], [0, 1, 1]),
    ];
    for (grid, block) in wrong {
        let arguments = &mut [
            values.argument(),
            values.argument(),
            values.argument(),
            argument(&n),
        ];
        let launched = device.launch("add", grid, block, arguments);
        assert_eq!(
            name(launched),
            "CUDA_ERROR_INVALID_VALUE",
            "{grid:?} {block:?}"
        );
    }
}

#[test]
fn refuses_addresses_outside_of_memory() {
    let Some(_device) = Device::open() else {
        return;
    };
    let buffer = Buffer::<u8>::fresh(10);
    // SAFETY: The driver refuses all of it.
    unsafe {
        assert_eq!(name(result::malloc_sync(0)), "CUDA_ERROR_INVALID_VALUE");
        assert_eq!(
            name(result::malloc_sync(1 << 50)),
            "CUDA_ERROR_OUT_OF_MEMORY"
        );
        assert_eq!(
            name(result::free_sync(buffer.pointer + 1)),
            "CUDA_ERROR_INVALID_VALUE"
        );
        assert_eq!(
            name(result::memcpy_htod_sync(buffer.pointer, &[0_u8; 11])),
            "CUDA_ERROR_INVALID_VALUE"
        );
        assert_eq!(
            name(result::memset_d8_sync(buffer.pointer + 8, 0, 3)),
            "CUDA_ERROR_INVALID_VALUE"
        );
        let twice = result::malloc_sync(4).expect("there is memory");
        result::free_sync(twice).expect("the memory is there");
        assert_eq!(name(result::free_sync(twice)), "CUDA_ERROR_INVALID_VALUE");
    }
}

#[test]
fn refuses_streams_and_events_after_their_end() {
    let Some(_device) = Device::open() else {
        return;
    };
    // SAFETY: The driver knows which handles live; it refuses the others.
    unsafe {
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)
            .expect("there are streams");
        let event = || {
            result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).expect("there are events")
        };
        let (start, end) = (event(), event());
        assert_eq!(
            name(result::event::elapsed(start, end)),
            "CUDA_ERROR_INVALID_HANDLE"
        );
        result::event::record(start, stream).expect("both live");
        result::event::record(end, stream).expect("both live");
        result::event::query(end).expect("all is done");
        assert!(result::event::elapsed(start, end).expect("both are recorded") >= 0.0);
        result::stream::destroy(stream).expect("it lives");
        assert_eq!(
            name(result::stream::synchronize(stream)),
            "CUDA_ERROR_INVALID_HANDLE"
        );
        result::event::destroy(end).expect("it lives");
        assert_eq!(name(result::event::query(end)), "CUDA_ERROR_INVALID_HANDLE");
    }
}

#[test]
fn refuses_an_unknown_device() {
    let Some(_device) = Device::open() else {
        return;
    };
    assert_eq!(
        name(Device::try_open(1).map(|_| ())),
        "CUDA_ERROR_INVALID_DEVICE"
    );
}

#[test]
fn reports_the_devices_attributes() {
    let Some(_device) = Device::open() else {
        return;
    };
    use sys::CUdevice_attribute::*;
    let attributes = [
        (CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9),
        (CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0),
        (CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
        (CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4),
        (CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024),
        (CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49_152),
        (
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            232_448,
        ),
        (CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1),
        (CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32),
    ];
    let device = result::device::get(0).expect("there is a device");
    for (attribute, value) in attributes {
        // SAFETY: The device is the driver's own.
        let found = unsafe { result::device::get_attribute(device, attribute) }
            .expect("the attribute exists");
        assert_eq!(found, value, "{attribute:?}");
    }
    assert_eq!(
        result::device::get_name(device).expect("it has a name"),
        "CUDA on the CPU"
    );
}
