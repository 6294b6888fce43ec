//! The parts of the training loop: sampling a rollout, the phases of a step, and the records that
//! they leave.
//!
//! The documentation of plugins numbers the stages at which components act from 1 to 6.
//!
//! | phase | stages | modules |
//! | --- | --- | --- |
//! | sample | 1 | [`rollout`], [`dynamic_sampling`], [`context`] |
//! | score | | [`logps`], [`batch`], [`lend`] |
//! | judge | 2 and 3 | [`advantage`], [`objective`] |
//! | decide | 4 | [`decision`] |
//! | backward | 5 | [`backward`] |
//! | step | 6 | [`control`], [`measure`], [`effect`] |
//!
//! [`record`], [`recorder`] and [`owners`] hold what all of them leave behind.

pub mod advantage;
pub mod backward;
pub mod batch;
pub mod context;
pub mod control;
pub mod decision;
pub mod dynamic_sampling;
pub mod effect;
pub mod lend;
pub mod logps;
pub mod measure;
pub mod objective;
pub mod owners;
pub mod record;
pub mod recorder;
pub mod rollout;
