//! The advantages and objectives of GRPO and its relatives, as plain types.
//!
//! This crate registers nothing: a host and each plugin offer these types under their own ids.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod advantage;
mod objective;

pub use advantage::*;
pub use objective::*;
