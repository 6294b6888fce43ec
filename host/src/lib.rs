//! A trainer for reinforcement learning of language models, whose rewards, advantage estimator, objective and gradient masks
//! are components behind a stable ABI.
//!
//! Start reading at [`train`]: the loop. [`run`] opens what it works with, [`stages`] are its steps, [`registry`] and
//! [`loader`] know the components, [`model`] is the policy.

pub mod batch;
pub mod batch_file;
pub mod builtin;
pub mod check;
pub mod checkpoint;
pub mod cli;
pub mod config;
pub mod data;
pub mod device;
pub mod embedded;
pub mod eval;
pub mod files;
pub mod lend;
pub mod loader;
pub mod metrics;
pub mod model;
pub mod new_plugin;
pub mod optim;
pub mod provenance;
pub mod registry;
pub mod replay;
pub mod report;
pub mod reward;
pub mod rng;
pub mod run;
pub mod sft;
pub mod sink;
pub mod stages;
pub mod sweep;
pub mod train;
pub mod trust;
pub mod upload;
pub mod watchdog;
