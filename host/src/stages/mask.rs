//! Stage 4: which tokens reach the backward pass. The same code replays recorded batches, so it is in `capo-loader`.

pub use capo_loader::mask::{Keep, apply, step_end};
