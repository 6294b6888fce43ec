//! The trained model and the optimizer's state, in the folder of a checkpoint.

use std::path::Path;

use anyhow::Result;
use candle_core::Tensor;
use capo_system::manifest::SealedFolder;
use host_model::optim::Optimizer;
use host_model::{ModelFiles, Policy, TensorFile, save_tensors};

use crate::folder::{self, Companions};

const OPTIMIZER_FILE: &str = "optimizer.safetensors";

/// Writes the model with its `companions`, and the optimizer's state, into the folder `dir`.
pub fn write(
    dir: &Path,
    policy: &Policy,
    companions: &Companions,
    optimizer: &Optimizer,
) -> Result<()> {
    folder::fill(dir, policy, companions)?;
    save_tensors(&dir.join(OPTIMIZER_FILE), optimizer.state()?, None)
}

/// Overwrites the trained weights and the optimizer's state with those of `checkpoint`.
pub fn restore(
    checkpoint: &SealedFolder,
    policy: &Policy,
    optimizer: &mut Optimizer,
) -> Result<()> {
    let files = ModelFiles::Checkpoint(checkpoint.clone());
    policy.restore(&files)?;
    let mut state = TensorFile::open(&files, OPTIMIZER_FILE)?;
    let names = state.names();
    let mut get = |name: &str| -> Result<Option<Tensor>> {
        match names.binary_search_by(|known| known.as_str().cmp(name)) {
            Ok(_) => state.tensor(name, policy.device()).map(Some),
            Err(_) => Ok(None),
        }
    };
    optimizer.restore(names.len(), &mut get)
}

/// Size of what [`write()`] writes besides the companions, bytes.
pub fn bytes(policy: &Policy, optimizer: &Optimizer) -> u64 {
    4 * policy.params().element_count() as u64 + optimizer.bytes() as u64
}
