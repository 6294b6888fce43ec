//! What capo asks of the operating system. This crate knows no plugin, model or setting.
//!
//! | for | modules |
//! |---|---|
//! | files and folders that an interruption leaves whole or absent | [`files`], [`folders`] |
//! | files in which a changed byte is noticed | [`seal`], [`manifest`] |
//! | files that are read by name from a folder, from memory or from another file | [`named_files`] |
//! | one process at a time in a folder | [`lock`] |
//! | refusing what cannot fit before it is allocated | [`memory`] |
//! | panics of other crates over a file's contents | [`contain`] |
//! | signals that ask a process to stop | [`signals`] |
//! | lines for a person | [`terminal`] |

#![deny(missing_docs)]

pub mod contain;
pub mod files;
pub mod folders;
pub mod lock;
pub mod manifest;
pub mod memory;
pub mod named_files;
pub mod seal;
pub mod signals;
pub mod terminal;

pub use named_files::NamedFiles;
