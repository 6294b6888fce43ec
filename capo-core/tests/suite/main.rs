//! Tests of the public API, one binary.

mod brute_force;
mod certificate;
pub mod device;
mod edge;
mod exact;
pub mod fixture;
mod host_moments;
mod invariance;
mod outputs;
mod ranks;
pub mod scene;
pub mod second_moment;
mod semantics;
mod state;
mod subset;
mod whole;
