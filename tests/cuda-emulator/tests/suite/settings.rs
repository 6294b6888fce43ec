//! Effects of the environment's settings.

use insta::assert_snapshot;

use crate::child::run;
use crate::device::emulator;

#[test]
fn a_missing_barrier_gives_other_results_with_another_seed() {
    let Some(_) = emulator() else { return };
    let with = |seed| run("reverse", &[("CUDA_EMULATOR_SEED", seed)]);
    assert_eq!(with("1"), with("1"));
    assert_ne!(with("1"), with("2"));
}

#[test]
fn unwritten_memory_holds_the_fill() {
    let Some(_) = emulator() else { return };
    assert_snapshot!(run("fresh", &[]), @r#"
    [ffffffff, ffffffff]
    Ok(())
    "#);
    assert_snapshot!(run("fresh", &[("CUDA_EMULATOR_FILL", "0x11")]), @r#"
    [11111111, 11111111]
    Ok(())
    "#);
}

#[test]
fn memory_runs_out() {
    let Some(_) = emulator() else { return };
    assert_snapshot!(run("too much", &[("CUDA_EMULATOR_MEMORY", "1000")]), @r#"
    1000 of 1000 bytes are free
    100 bytes are free
    Err(DriverError(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"))
    "#);
}

#[test]
fn counts_devices() {
    let Some(_) = emulator() else { return };
    assert_snapshot!(run("devices", &[("CUDA_EMULATOR_DEVICES", "2")]), @r#"
    2 devices
    Err(DriverError(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"))
    "#);
    assert_snapshot!(run("devices", &[("CUDA_EMULATOR_DEVICES", "0")]), @r#"DriverError(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected")"#);
}

#[test]
fn the_host_cannot_read_device_memory_where_that_is_strict() {
    let Some(_) = emulator() else { return };
    assert_snapshot!(run("host", &[("CUDA_EMULATOR_STRICT", "1")]), @"cuda-emulator: the host touches device memory at [address], byte 0 of an allocation of 400 bytes");
    assert_snapshot!(run("fresh", &[("CUDA_EMULATOR_STRICT", "1")]), @r#"
    [ffffffff, ffffffff]
    Ok(())
    "#);
}
