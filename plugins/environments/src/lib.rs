//! Environments that the trainer has built in, one file each: `calculator` and `command`.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod calculator;
mod command;
