//! Work of the children. Each ends with the driver's answer on stderr.

use cudarc::driver::result;

use crate::device::{Buffer, Device, Result, argument, emulator};

pub fn run(name: &str) {
    if name == "without loading" {
        result::init().expect("there is a driver");
        let device = result::device::get(0).expect("there is a device");
        return eprintln!(
            "{}",
            result::device::get_name(device).expect("it has a name")
        );
    }
    if name == "for_tests" {
        return eprintln!("{}", emulator().map_or("none", |_| "one"));
    }
    emulator().expect("the parent has found a compiler");
    let device = match Device::try_open(0) {
        Ok(device) => device,
        Err(error) => return eprintln!("{error:?}"),
    };
    let done = match name {
        "freed" => freed(&device),
        "host" => host(&device),
        "fresh" => fresh(&device),
        "reverse" => reverse(&device),
        "too much" => too_much(),
        "devices" => devices(),
        "programs" => crate::late::run_programs(),
        "late freed" => crate::late::run_freed(),
        "late errors" => crate::late::run_errors(),
        _ => launch(&device, name),
    };
    eprintln!("{done:?}");
}

fn launch(device: &Device, name: &str) -> Result<()> {
    let (values, other) = (Buffer::of(&[0_f32; 1025]), Buffer::<f32>::fresh(1));
    let (kernel, number) = name.split_once(' ').unwrap_or((name, "0"));
    let number: i32 = number
        .parse()
        .expect("the word after the kernel is a number");
    match kernel {
        "write_at" => device.try_run(kernel, 1, 1, &mut [values.argument(), argument(&number)]),
        "read_at" => device.try_run(
            kernel,
            1,
            1,
            &mut [values.argument(), argument(&number), other.argument()],
        ),
        "undefined" => {
            let (numbers, result) = (Buffer::of(&[f32::NAN]), Buffer::<i32>::fresh(1));
            device.try_run(
                kernel,
                1,
                1,
                &mut [numbers.argument(), argument(&number), result.argument()],
            )
        }
        "many_blocks" => {
            for index in [2000, 2000, 2000, 7] {
                eprintln!(
                    "{:?}",
                    device.try_run(
                        "write_at",
                        1000,
                        1,
                        &mut [values.argument(), argument(&index)]
                    )
                );
            }
            Ok(())
        }
        "shared_index" => device.try_run(kernel, 1, 2, &mut [values.argument(), argument(&number)]),
        "host_pointer" => device.try_run(
            "write_at",
            1,
            1,
            &mut [argument(&std::ptr::from_ref(&number)), argument(&0)],
        ),
        "lost_lane" => device.try_run(kernel, 1, 8, &mut [values.argument()]),
        "misaligned" => device.try_run(kernel, 1, 1, &mut [values.argument(), other.argument()]),
        _ => device.try_run(kernel, 1, 64, &mut [values.argument()]),
    }
}

fn freed(device: &Device) -> Result<()> {
    let (to, pointer) = (Buffer::<f32>::fresh(1), Buffer::<f32>::fresh(100).pointer);
    // One that lives, so that the argument is device memory, from which the index leads into the
    // freed one.
    let values = Buffer::<f32>::fresh(1);
    let index = (pointer as i64 - values.pointer as i64) / 4;
    let index = i32::try_from(index).expect("allocations lie side by side");
    device.try_run(
        "read_at",
        1,
        1,
        &mut [values.argument(), argument(&index), to.argument()],
    )
}

fn host(_: &Device) -> Result<()> {
    let buffer = Buffer::<u32>::fresh(100);
    // SAFETY: There is none: the process dies here.
    eprintln!("{}", unsafe { *(buffer.pointer as *const u32) });
    Ok(())
}

fn fresh(device: &Device) -> Result<()> {
    let (fresh, to) = (Buffer::<u32>::fresh(1), Buffer::<u32>::fresh(2));
    device.try_run("read_fresh", 1, 1, &mut [fresh.argument(), to.argument()])?;
    eprintln!("{:x?}", to.values());
    Ok(())
}

fn reverse(device: &Device) -> Result<()> {
    let values: Vec<f32> = (0..128).map(|i| i as f32).collect();
    let buffer = Buffer::of(&values);
    device.try_run("reverse_without_barrier", 1, 128, &mut [buffer.argument()])?;
    eprintln!("{:?}", buffer.values());
    Ok(())
}

fn too_much() -> Result<()> {
    let (free, total) = result::mem_get_info()?;
    eprintln!("{free} of {total} bytes are free");
    let some = Buffer::<u8>::fresh(900);
    eprintln!("{} bytes are free", result::mem_get_info()?.0);
    // SAFETY: The driver refuses it.
    unsafe { result::malloc_sync(101)? };
    drop(some);
    Ok(())
}

fn devices() -> Result<()> {
    eprintln!("{} devices", result::device::get_count()?);
    Device::try_open(2).map(|_| ())
}
