//! Stage 4, its end: how much each kept token counts. The same code replays recorded batches, so it is in `capo-loader`.

pub use capo_loader::weight::{Given, Weighed, apply, step_end};
