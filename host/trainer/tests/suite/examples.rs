//! The example that runs a published mask.

#[path = "../../examples/mask_a_batch.rs"]
mod mask_a_batch;

#[test]
fn masks_a_batch() {
    mask_a_batch::main().unwrap();
}
