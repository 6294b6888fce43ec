//! A trainer for reinforcement learning of language models, whose rewards, advantage estimator, objective and gradient masks
//! are components behind a stable ABI.
//!
//! Start reading at [`train`], the training loop. [`run`] opens its state, [`stages`] are its steps, and [`model`] is the policy.
//! [`data`] and [`reward`] provide prompts and rewards. [`commands`] is the command line, and [`check`] its largest command. Plugins are
//! loaded by a separate crate, `capo-loader`.

pub mod adamw;
pub mod algorithms;
pub mod benchmark;
pub mod builtin;
pub mod check;
pub mod commands;
pub mod config;
pub mod data;
pub mod eval;
pub mod exam;
mod features;
mod folder;
pub mod metrics;
pub mod model;
pub mod moments;
pub mod optim;
pub mod pass_at;
pub mod report;
pub mod reward;
pub mod run;
pub mod schedule;
pub mod score;
pub mod sft;
pub mod sgd;
pub mod stages;
pub mod terminal;
pub mod train;
pub mod warnings;
