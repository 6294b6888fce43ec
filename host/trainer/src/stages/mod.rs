//! The six stages of a step in the order of the loop, the log-probability pass before the
//! components, and the record of what a step did.

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
