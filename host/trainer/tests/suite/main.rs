//! Tests of the trainer's parts through its public interface: objectives, reductions, mismatch of
//! the sampler.

mod examples;
mod key_tables;
mod mismatch;
mod objectives;
mod reduce;
mod shared;
mod turns;
