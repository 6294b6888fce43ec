//! A trainer for reinforcement learning of language models, whose rewards, advantage estimator, objective and gradient masks
//! are components behind a stable ABI.
//!
//! Start reading at [`train`], the training loop. [`run`] opens its state, [`stages`] are its steps, and [`model`] is the policy.
//! [`data`] and [`reward`] provide prompts and rewards. [`commands`] is the command line, and [`check`] its largest command. Plugins are
//! loaded by a separate crate, `capo-loader`.

pub mod algorithms;
pub mod benchmark;
pub mod builtin;
pub mod check;
pub mod commands;
pub mod config;
pub mod eval;
pub mod exam;
mod folder;
pub mod metrics;
pub mod pass_at;
pub mod report;
pub mod reward;
pub mod run;
pub mod score;
pub mod sft;
pub mod stages;
pub mod terminal;
pub mod train;
pub mod warnings;

pub use host_data as data;
pub use host_data::features;
pub use host_model as model;
pub use host_model::optim::{adamw, sgd};
pub use host_model::{optim, schedule};
