//! The parts of the training loop: sampling a rollout, the phases of a step, and the records that
//! they leave.
//!
//! | phase | modules |
//! | --- | --- |
//! | sample | [`rollout`], [`dynamic_sampling`], [`context`] |
//! | score | [`logps`], [`batch`], [`lend`] |
//! | judge | [`advantage`], [`objective`] |
//! | decide | [`decision`] |
//! | backward | [`backward`] |
//! | step | [`control`], [`measure`], [`effect`] |
//! | records | [`record`], [`recorder`], [`owners`] |

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
