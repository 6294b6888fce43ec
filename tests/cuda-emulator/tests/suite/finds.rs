//! Mistakes of kernels are found, named, and end the launch with an error.

use insta::assert_snapshot;

use crate::child;
use crate::device::{Buffer, Device, emulator};

/// Mistakes, and the parts of this program that make them.
const MISTAKES: [(&str, &str); 17] = [
    ("a write past the page", "write_at 2000"),
    ("a write just past the end", "write_at 1025"),
    ("a write before the beginning", "write_at -1"),
    ("a read far before the beginning", "read_at -1100"),
    ("a read of freed memory", "freed"),
    ("a host pointer", "host_pointer"),
    ("an index out of shared memory", "shared_index 31"),
    ("a misaligned vector", "misaligned"),
    ("a barrier that some never reach", "divergent_barrier"),
    ("two barriers at once", "different_barriers"),
    ("a lane with a mask of its own", "lost_lane"),
    ("a shift too far", "undefined 32"),
    ("a division by zero", "undefined 0"),
    ("a sum that overflows", "undefined 2147483647"),
    ("a conversion out of range", "undefined 1"),
    ("a trap", "give_up"),
    ("a stack that overflows", "overflow_stack"),
];

#[test]
fn mistakes_of_kernels() {
    if emulator().is_some() {
        let said = MISTAKES
            .map(|(mistake, part)| format!("# {mistake}: {part}\n{}\n", child::run(part, &[])));
        assert_snapshot!(said.join("\n"));
    }
}

#[test]
fn faults_on_many_threads_end_their_launch_and_no_other() {
    if emulator().is_some() {
        let said = child::run("many_blocks", &[("CUDA_EMULATOR_THREADS", "4")]);
        let ends = said.matches("CUDA_ERROR_ILLEGAL_ADDRESS").count();
        assert!(
            said.contains("byte 8000 of an allocation") && ends == 3 && said.ends_with("Ok(())"),
            "{said}"
        );
    }
}

#[test]
fn lanes_that_returned_block_no_barrier() {
    let Some(device) = Device::open() else { return };
    let lanes = Buffer::of(&[u32::MAX; 48]);
    device.run("partial_warp", 1, 48, &mut [lanes.argument()]);
    let expected: Vec<u32> = (0..48)
        .map(|i| [if i < 32 { 0x5555_5555 } else { 0x5555 }, u32::MAX][i % 2])
        .collect();
    assert_eq!(lanes.values(), expected);
}
