//! Helpers of the whole-project tests: they build the programs, run them in fresh folders, and
//! compare the results.

pub mod artifacts;
pub mod browser;
pub mod device;
pub mod folder;
pub mod run_dir;
pub mod text_model;

pub use folder::{Folder, Outcome, json, json_lines, names, text, to_json_lines};
pub use run_dir::RunDir;
