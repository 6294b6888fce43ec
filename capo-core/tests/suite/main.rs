//! Tests of the public API, one binary.

mod brute_force;
mod certificate;
mod dense;
mod device;
mod edge;
mod exact;
mod exact_edge;
mod fixture;
mod host_moments;
mod invariance;
mod outputs;
mod replay;
mod scene;
mod semantics;
mod state;
mod subset;
mod whole;
