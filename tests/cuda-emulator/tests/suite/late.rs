//! Programs on several streams and threads, whose work is late.

use std::collections::HashMap;

use cudarc::driver::result::stream::{StreamKind, create};
use cudarc::driver::{result, sys};
use insta::assert_snapshot;

use crate::child;
use crate::device::{Buffer, Device, Result, argument, emulator};

const LATE: (&str, &str) = ("CUDA_EMULATOR_LATE", "1");

/// The fate, name and text of each program.
fn programs() -> impl Iterator<Item = [&'static str; 3]> {
    let lines = include_str!("late.txt")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| {
        line.splitn(3, " | ")
            .map(str::trim)
            .collect::<Vec<_>>()
            .try_into()
            .expect("three parts")
    })
}

#[test]
fn unordered_programs_fail_for_some_seed() {
    if emulator().is_some() {
        let expected: String = programs()
            .map(|[fate, name, _]| format!("{fate}: {name}\n"))
            .collect();
        assert_eq!(child::run("programs", &[LATE]), format!("{expected}Ok(())"));
        assert_eq!(
            child::run("programs", &[]),
            expected.replace("wrong", "right") + "Ok(())"
        );
    }
}

#[test]
fn errors_of_queued_work_appear_at_a_wait_and_stay() {
    if emulator().is_some() {
        assert_snapshot!(child::run("late errors", &[LATE, ("CUDA_EMULATOR_SEED", "11")]), @r#"
        the launch: Ok(())
        cuda-emulator: kernel `write_at`, block (0, 0, 0), thread (0, 0, 0): illegal address [address], byte 32 of an allocation of 32 bytes
        waits for another stream, for its stream, and once more: [true, false, false]
        memory: Err(DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"))
        Ok(())
        "#);
        assert_snapshot!(child::run("late freed", &[LATE, ("CUDA_EMULATOR_SEED", "7")]), @r#"
        cuda-emulator: 64 bytes to copy or fill at [address], byte 0 of a freed allocation of 64 bytes
        Err(DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"))
        "#);
    }
}

/// Bytes of each memory; a program writes all of them.
const BYTES: usize = 64;

#[derive(Clone, Copy)]
enum Memory {
    Device(sys::CUdeviceptr),
    Host(*mut [u8; BYTES]),
}
use Memory::{Device as OnDevice, Host};

/// The device of a program: its own, so that no program meets another's work.
struct World {
    device: Device,
    streams: HashMap<&'static str, sys::CUstream>,
    event: sys::CUevent,
    memory: HashMap<&'static str, Memory>,
}

// SAFETY: The driver's handles are for all threads, and the host's memory is never freed.
unsafe impl Send for World {}

impl World {
    fn new() -> Result<Self> {
        let device = Device::try_open(0)?;
        let kinds = [
            ("a", StreamKind::NonBlocking),
            ("b", StreamKind::NonBlocking),
            ("c", StreamKind::Default),
        ];
        let mut streams = HashMap::from([
            ("default", std::ptr::null_mut()),
            ("thread", 2 as sys::CUstream),
        ]);
        for (name, kind) in kinds {
            streams.insert(name, create(kind)?);
        }
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)?;
        let mut memory = HashMap::from([("pageable", Host(Box::leak(Box::new([0; BYTES]))))]);
        // SAFETY: The memory has as many bytes.
        unsafe {
            for name in ["x", "y"] {
                let address = result::malloc_sync(BYTES)?;
                result::memset_d8_sync(address, 0, BYTES)?;
                memory.insert(name, OnDevice(address));
            }
            let pinned = result::malloc_host(BYTES, 0)?.cast::<[u8; BYTES]>();
            pinned.write([0; BYTES]);
            memory.insert("pinned", Host(pinned));
        }
        result::ctx::synchronize()?;
        Ok(Self {
            device,
            streams,
            event,
            memory,
        })
    }

    /// Gives what the program reads in the end.
    fn run(&mut self, program: &'static str) -> Result<u8> {
        let mut read = 0;
        for statement in program.split("; ") {
            let part = statement.trim_matches(['(', ')']);
            let steps = |world: &mut Self| {
                // SAFETY: The context lives.
                unsafe { result::ctx::set_current(world.device.context) }?;
                part.split(", ")
                    .try_fold(0, |_, statement| world.step(statement))
            };
            read = match part == statement {
                true => steps(self),
                false => std::thread::scope(|scope| {
                    scope
                        .spawn(|| steps(self))
                        .join()
                        .expect("the thread ends well")
                }),
            }?;
        }
        Ok(read)
    }

    /// Gives what the statement reads, or 0.
    fn step(&mut self, statement: &'static str) -> Result<u8> {
        let words: Vec<&str> = statement.split(' ').collect();
        let stream = words
            .last()
            .and_then(|last| self.streams.get(last).copied());
        let memory = |name: &str| {
            *self
                .memory
                .get(name)
                .unwrap_or_else(|| panic!("`{statement}` needs memory"))
        };
        let address = |name: &str| match memory(name) {
            OnDevice(address) => address,
            Host(_) => panic!("`{name}` is on the host"),
        };
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: All handles live, and all memory has `BYTES` bytes for as long as the driver says
        // so.
        unsafe {
            match (&words[..], stream) {
                (["record", _], Some(stream)) => result::event::record(self.event, stream)?,
                (["wait", _], Some(stream)) => {
                    result::stream::wait_event(stream, self.event, flags)?
                }
                (["sync", _], Some(stream)) => result::stream::synchronize(stream)?,
                (["sync", "event"], _) => result::event::synchronize(self.event)?,
                (["sync", "device"], _) => result::ctx::synchronize()?,
                (["poll", _], Some(stream)) => {
                    while sys::cuStreamQuery(stream).result().is_err() {}
                }
                (["poll", "event"], _) => while result::event::query(self.event).is_err() {},
                (["ask", "event"], _) => drop(result::event::query(self.event)),
                (["free", name, ..], Some(stream)) => result::free_async(address(name), stream)?,
                (["free", name], None) => result::free_sync(address(name))?,
                ([name, "=", "new", ..], stream) => {
                    let made = stream.map_or_else(
                        || result::malloc_sync(BYTES),
                        |stream| result::malloc_async(stream, BYTES),
                    );
                    self.memory.insert(name, OnDevice(made?));
                }
                ([to, "=", from, ..], stream) => match (from.parse(), memory(to), stream) {
                    (Ok(value), OnDevice(to), Some(stream)) => {
                        result::memset_d8_async(to, value, BYTES, stream)?
                    }
                    (Ok(value), Host(to), None) => to.write([value; BYTES]),
                    (_, to, _) => copy(to, memory(from), stream)?,
                },
                (["read", name, ..], stream) => {
                    let mut values = [0; BYTES];
                    match memory(name) {
                        OnDevice(_) => copy(Host(&raw mut values), memory(name), stream)?,
                        Host(memory) => values = memory.read(),
                    }
                    return Ok(values[BYTES - 1]);
                }
                _ => panic!("`{statement}` is no statement"),
            }
        }
        Ok(0)
    }
}

/// Copies without a stream, or on one.
fn copy(to: Memory, from: Memory, stream: Option<sys::CUstream>) -> Result<()> {
    // SAFETY: As in `step`.
    unsafe {
        match (to, from, stream) {
            (OnDevice(to), OnDevice(from), Some(stream)) => {
                result::memcpy_dtod_async(to, from, BYTES, stream)
            }
            (OnDevice(to), Host(from), Some(stream)) => {
                result::memcpy_htod_async(to, &*from, stream)
            }
            (OnDevice(to), Host(from), None) => result::memcpy_htod_sync(to, &*from),
            (Host(to), OnDevice(from), Some(stream)) => {
                result::memcpy_dtoh_async(&mut *to, from, stream)
            }
            (Host(to), OnDevice(from), None) => result::memcpy_dtoh_sync(&mut *to, from),
            _ => panic!("there is no such copy"),
        }
    }
}

/// Runs each program in the orders of many seeds; says whether each of them gives 2.
pub fn run_programs() -> Result<()> {
    for [_, name, program] in programs() {
        let with_seed = |seed| {
            emulator().expect("it is there").set_seed(seed);
            let read = World::new()?.run(program)?;
            result::ctx::synchronize()?;
            Ok(read == 2)
        };
        let right = (0..64).map(with_seed).collect::<Result<Vec<_>>>()?;
        assert_eq!(
            right,
            (0..64).map(with_seed).collect::<Result<Vec<_>>>()?,
            "a seed is an order"
        );
        eprintln!(
            "{}: {name}",
            if right.iter().all(|right| *right) {
                "right"
            } else {
                "wrong"
            }
        );
    }
    Ok(())
}

/// A copy that comes when its source was freed in the order of another stream and returned.
pub fn run_freed() -> Result<()> {
    World::new()?
        .run("m = new on a; record a; wait b; y = m on b; free m on a; sync a; sync b")
        .map(drop)
}

/// A kernel's mistake, which the launch does not tell of.
pub fn run_errors() -> Result<()> {
    let world = World::new()?;
    let (values, index) = (Buffer::of(&[0_f32; 8]), 8_i32);
    let function = world.device.function("write_at")?;
    let mut arguments = [values.argument(), argument(&index)];
    let [a, b] = ["a", "b"].map(|name| world.streams[name]);
    // SAFETY: The arguments are the kernel's.
    let launched =
        unsafe { result::launch_kernel(function, (1, 1, 1), (1, 1, 1), 0, a, &mut arguments) };
    eprintln!("the launch: {launched:?}");
    // SAFETY: The streams live.
    let waits = [b, a, a].map(|stream| unsafe { result::stream::synchronize(stream) }.is_ok());
    eprintln!("waits for another stream, for its stream, and once more: {waits:?}");
    // SAFETY: The context is current.
    eprintln!("memory: {:?}", unsafe { result::malloc_sync(4) });
    Ok(())
}
