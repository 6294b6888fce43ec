//! The six stages of a step in the order of the loop, and the log-probability pass before the components.

pub mod advantage;
pub mod backward;
pub mod batch;
pub mod context;
pub mod control;
pub mod dynamic_sampling;
pub mod effect;
pub mod lend;
pub mod logps;
pub mod measure;
pub mod objective;
pub mod rollout;
