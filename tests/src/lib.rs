//! Helpers of the whole-project tests: build what they run, run it in fresh folders, compare what it left behind.

pub mod artifacts;
pub mod browser;
pub mod device;
pub mod folder;
pub mod run_dir;
pub mod text_model;

pub use folder::{Folder, Outcome};
pub use run_dir::RunDir;
