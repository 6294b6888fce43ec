//! Tests of the public API, one binary.

mod brute_force;
mod dense;
mod edge;
mod fixture;
mod replay;
mod semantics;
mod state;
mod subset;
