//! Runs a published mask on a batch of one's own, without training anything.
//!
//! `cargo run --release -p host-trainer --example mask_a_batch`

use std::collections::BTreeSet;

use anyhow::Result;
use capo_loader::ComponentConfig;
use capo_loader::registry::Registry;
use capo_loader::warning::WarningSink;
use capo_loader::watchdog::Watchdog;
use capo_plugin::{Batch, Dims, MaskHandle, OptimizerInfo, OptimizerKind};
// Links the published masks into this executable. `Registry::open` takes paths of plugins too.
use masks as _;

pub fn main() -> Result<()> {
    let registry = Registry::open(&[])?;
    let config = ComponentConfig {
        id: "masks.off-policy-sequence".to_owned(),
        table: "off_policy_mask_threshold = 0.5\npolicies = \"trainer/old\"".parse()?,
    };
    let watchdog = Watchdog::off();
    let mut mask: MaskHandle = registry.create(&config, &watchdog)?;

    // Two completions of three tokens answer one prompt. The policy has moved away from the second
    // one, which was worse than the first.
    let dims = Dims {
        completions: 2,
        tokens: 3,
        group_size: 2,
    };
    let mut batch = Batch::new(dims, adam());
    batch.completion_ids = &[5, 6, 1, 5, 7, 1];
    batch.completion_mask = &[1; 6];
    batch.truncated = &[0; 2];
    batch.rewards = &[1.0, 0.0];
    batch.advantages = &[1.0, 1.0, 1.0, -1.0, -1.0, -1.0];
    batch.logps = &[-0.5, -0.2, -0.1, -3.0, -2.0, -0.4];
    batch.old_logps = Some(&[-0.6, -0.2, -0.1, -1.0, -0.5, -0.3]);

    // Masks clear entries of `token_mask`: each sees what the ones before it kept.
    let mut token_mask = batch.completion_mask.to_vec();
    let mut sink = WarningSink {
        warned: &mut BTreeSet::new(),
        watchdog: &watchdog,
    };
    mask.mask(&mut sink, &batch, &mut token_mask)?;
    println!("{token_mask:?}");
    assert_eq!(token_mask, [1, 1, 1, 0, 0, 0]);
    Ok(())
}

fn adam() -> OptimizerInfo {
    OptimizerInfo {
        kind: OptimizerKind::ADAMW,
        learning_rate: 1e-6,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0.0,
        max_grad_norm: 1.0,
        steps_taken: 0,
    }
}
