//! Mistakes of kernels are found, named, and end the launch with an error.

use insta::assert_snapshot;

use crate::child;
use crate::device::{Buffer, Device, emulator};

macro_rules! finds {
    ($($name:ident: $part:literal, @$said:literal)*) => {$(
        #[test]
        fn $name() {
            if emulator().is_some() {
                assert_snapshot!(child::run($part, &[]), @$said);
            }
        }
    )*};
}

finds! {
    a_write_past_the_page: "write_at 2000", @r#"
        cuda-emulator: kernel `write_at`, block (0, 0, 0), thread (0, 0, 0): illegal address [address], byte 8000 of an allocation of 4100 bytes
        Err(DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"))
    "#
    a_write_just_past_the_end: "write_at 1025", @r#"
        cuda-emulator: kernel `write_at` wrote to byte 4100 of an allocation of 4100 bytes
        Err(DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"))
    "#
    a_write_before_the_beginning: "write_at -1", @r#"
        cuda-emulator: kernel `write_at` wrote to byte -4 of an allocation of 4100 bytes
        Err(DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"))
    "#
    a_read_far_before_the_beginning: "read_at -1100", @r#"
        cuda-emulator: kernel `read_at`, block (0, 0, 0), thread (0, 0, 0): illegal address [address], byte -4400 of an allocation of 4100 bytes
        Err(DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"))
    "#
    a_read_of_freed_memory: "freed", @r#"
        cuda-emulator: kernel `read_at`, block (0, 0, 0), thread (0, 0, 0): illegal address [address], byte 0 of a freed allocation of 400 bytes
        Err(DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"))
    "#
    a_host_pointer: "host_pointer", @r#"
        cuda-emulator: kernel `write_at`: argument 0 is [address], not device memory
        Err(DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"))
    "#
    an_index_out_of_shared_memory: "shared_index 31", @r#"
        cuda-emulator: kernel `shared_index`, block (0, 0, 0), thread (1, 0, 0): index 32 is out of the array's bounds (sins.cuh:23)
        Err(DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"))
    "#
    a_misaligned_vector: "misaligned", @r#"
        cuda-emulator: kernel `misaligned`, block (0, 0, 0), thread (0, 0, 0): misaligned address [address] (sins.cuh:28)
        Err(DriverError(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"))
    "#
    a_barrier_that_some_never_reach: "divergent_barrier", @r#"
        cuda-emulator: kernel `divergent_barrier`, block (0, 0, 0): deadlock: threads 0-15 at __syncthreads (sins.cuh:33); threads 16-31 at __syncwarp of lanes 0xffffffff (sins.cuh:35); threads 32-63 returned
        Err(DriverError(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"))
    "#
    two_barriers_at_once: "different_barriers", @r#"
        cuda-emulator: kernel `different_barriers`, block (0, 0, 0), thread (56, 0, 0): threads of the block meet at different barriers: thread 16 at sins.cuh:45, another at sins.cuh:42
        Err(DriverError(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"))
    "#
    a_lane_with_a_mask_of_its_own: "lost_lane", @r#"
        cuda-emulator: kernel `lost_lane`, block (0, 0, 0): deadlock: threads 0-2 at a vote of lanes 0x000000ff (sins.cuh:51); thread 3 at a vote of lanes 0x0000000f (sins.cuh:51); threads 4-7 at a vote of lanes 0x000000ff (sins.cuh:51)
        Err(DriverError(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"))
    "#
    a_shift_too_far: "undefined 32", @r#"
        cuda-emulator: kernel `undefined`, block (0, 0, 0), thread (0, 0, 0): a shift by more bits than there are (sins.cuh:57)
        Err(DriverError(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"))
    "#
    a_division_by_zero: "undefined 0", @r#"
        cuda-emulator: kernel `undefined`, block (0, 0, 0), thread (0, 0, 0): an integer division by zero, or one that overflows (sins.cuh:58)
        Err(DriverError(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"))
    "#
    a_sum_that_overflows: "undefined 2147483647", @r#"
        cuda-emulator: kernel `undefined`, block (0, 0, 0), thread (0, 0, 0): a signed sum overflows (sins.cuh:59)
        Err(DriverError(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"))
    "#
    a_conversion_out_of_range: "undefined 1", @r#"
        cuda-emulator: kernel `undefined`, block (0, 0, 0), thread (0, 0, 0): a floating-point number is out of the integer's range (sins.cuh:60)
        Err(DriverError(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"))
    "#
    a_trap: "give_up", @r#"
        cuda-emulator: kernel `give_up`, block (0, 0, 0), thread (3, 0, 0): __trap() (sins.cuh:65)
        Err(DriverError(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"))
    "#
    a_stack_that_overflows: "overflow_stack", @r#"
        cuda-emulator: kernel `overflow_stack`, block (0, 0, 0), thread (47, 0, 0): a thread's stack of 64 KiB overflows
        Err(DriverError(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"))
    "#
}

#[test]
fn faults_on_many_threads_end_their_launch_and_no_other() {
    if emulator().is_some() {
        let said = child::run("many_blocks", &[("CUDA_EMULATOR_THREADS", "4")]);
        let ends = said.matches("CUDA_ERROR_ILLEGAL_ADDRESS").count();
        assert!(said.contains("byte 8000 of an allocation") && ends == 3 && said.ends_with("Ok(())"), "{said}");
    }
}

#[test]
fn lanes_that_returned_block_nobody() {
    let Some(device) = Device::open() else { return };
    let lanes = Buffer::of(&[u32::MAX; 48]);
    device.run("partial_warp", 1, 48, &mut [lanes.argument()]);
    let expected: Vec<u32> = (0..48).map(|i| [if i < 32 { 0x5555_5555 } else { 0x5555 }, u32::MAX][i % 2]).collect();
    assert_eq!(lanes.values(), expected);
}
