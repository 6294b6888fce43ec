//! Parts that any trainer needs to run plugins: finding and trusting their files, opening them, the
//! registry of components, the decision of masks and weights, the watchdog over calls, batch files
//! and their replay.
//!
//! This crate depends on no tensor library and no command line. `host` builds on it, as a trainer
//! in another language could.
//!
//! A plugin goes through four modules: [`find`] its file, [`trust`] it, [`open`] it, offer its
//! components in the [`registry`].

#![deny(missing_docs)]

mod access_list;
mod arrays;
pub mod batch_file;
mod cause;
mod context;
pub mod decision;
mod elf;
pub mod find;
mod last_words;
pub mod listing;
pub mod offer;
pub mod open;
pub mod owner;
pub mod place;
pub mod registry;
pub mod replay;
mod sealed;
pub mod sound;
pub mod tables;
mod tensor_file;
pub mod trust;
pub mod upload;
pub mod warning;
pub mod watchdog;

pub use cause::cause;
pub use tables::{Choice, ComponentConfig, component_names};
pub use trust::LoadedPlugin;
