//! Tests of the public API, one binary.

mod brute_force;
mod dense;
mod edge;
mod exact;
mod fixture;
mod replay;
mod scene;
mod semantics;
mod state;
mod subset;
mod whole;
