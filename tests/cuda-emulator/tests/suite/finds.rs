//! Mistakes of kernels are found, named, and end the launch with an error.

use insta::assert_snapshot;

use crate::child;
use crate::device::emulator;

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
    a_read_far_before_the_beginning: "read_at -2000", @r#"
        cuda-emulator: kernel `read_at`, block (0, 0, 0), thread (0, 0, 0): illegal address [address], byte -8000 of an allocation of 4100 bytes
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
}

#[test]
fn a_fault_on_one_of_many_threads_ends_the_launch() {
    if emulator().is_some() {
        let said = child::run("many_blocks", &[("CUDA_EMULATOR_THREADS", "4")]);
        assert!(said.contains("byte 8000 of an allocation"), "{said}");
        assert!(
            said.ends_with(
                r#"Err(DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"))"#
            ),
            "{said}"
        );
    }
}
