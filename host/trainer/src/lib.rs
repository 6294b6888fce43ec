//! A trainer for reinforcement learning of language models. Rewards, environments, the advantage
//! estimator, the objective, masks, weights and step controls are components behind a stable ABI.
//!
//! Start reading at [`train`], the training loop. [`run`] is the state of a run, and [`stages`] are
//! the parts of the loop. [`reward`] and the crate `host-data` provide rewards and prompts,
//! `host-model` is the policy, and `capo-loader` loads plugins.
//!
//! # Training from Rust
//!
//! The settings are the same as in the program's files and flags. An observer gets the metrics of
//! each step; `()` is an observer that only prints warnings.
//!
//! ```
//! use capo_loader::registry::Registry;
//! use host_trainer::config::{self, Draft};
//! use host_trainer::metrics::Line;
//! use host_trainer::run::Run;
//! use host_trainer::train::{Observer, train};
//!
//! struct Rewards(Vec<f64>);
//!
//! impl Observer for Rewards {
//!     fn line(&mut self, _run: &Run, line: &Line) {
//!         self.0.extend(line.value("reward"));
//!     }
//! }
//!
//! let folder = tempfile::tempdir()?;
//! // Paths of plugins go here.
//! let registry = Registry::open(&[])?;
//! let sets = [
//!     "train.max_steps=2",
//!     "eval.num_prompts=0",
//!     "objective.use=dapo.objective",
//! ];
//! let sets = sets.map(String::from);
//! let mut config = config::resolve(&registry, Draft::read(None, config::DEFAULT, &sets)?)?.config;
//! config.train.output_dir = Some(folder.path().join("run"));
//! let mut run = Run::start(config, &registry)?;
//! let mut rewards = Rewards(Vec::new());
//! train(&mut run, &mut rewards, None, &false.into())?;
//! assert_eq!(rewards.0.len(), 2);
//! assert!(folder.path().join("run/checkpoints/step-000002/model.safetensors").exists());
//! # anyhow::Ok(())
//! ```
//!
//! Two more programs are in `host/trainer/examples`: `closure_reward` trains with a reward that is
//! a closure, and `mask_a_batch` runs a published mask on a batch of its own.
//!
//! # Errors
//!
//! Functions return `anyhow::Error`. For settings that cannot be used, [`config::ConfigError::of`]
//! finds the kind of the error and the settings that it is about.

pub mod algorithms;
pub mod benchmark;
pub mod builtin;
pub mod config;
pub mod environment;
mod error;
pub mod eval;
pub mod exam;
pub mod folder;
pub mod metrics;
pub mod pass_at;
pub mod reward;
pub mod run;
pub mod stages;
pub mod train;
pub mod warnings;

pub use error::Error;
