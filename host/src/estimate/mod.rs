//! Estimates of a run before its first step: the memory that it takes, and the time.

pub mod memory;
pub mod time;
