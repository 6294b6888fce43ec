//! The program `host`: its commands over the trainer of the crate `host-trainer`, the pages about
//! runs, and the check of plugins.
//!
//! Start reading at [`train`], the training loop. [`commands`] is the command line, and [`check`]
//! its largest command.

pub mod check;
pub mod commands;
#[cfg(feature = "download")]
mod download;
pub mod estimate;
pub mod report;
mod score;
pub mod sft;
pub mod terminal;

pub use host_trainer::{
    algorithms, benchmark, builtin, config, environment, eval, exam, folder, metrics, pass_at,
    reward, run, stages, train, warnings,
};
