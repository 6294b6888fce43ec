//! The trainer's parts, from outside: objectives, reductions, the sampler's mismatch.

mod examples;
mod mismatch;
mod objectives;
mod reduce;
mod shared;
mod turns;
