//! The curvature mask, which wraps [`capo_core`] as a pre-backward mask, and the curvature weight,
//! its smooth form.
//!
//! A subset of tokens is a token, a completion, a group or the batch. Before the backward pass the
//! mask predicts how far the optimizer's step on one subset alone would move the objective (`m_H`)
//! and the policy (`m_F`). It clears the subsets that would move either too far. After the step it
//! updates its own model of the optimizer with the tokens that all masks kept.
//!
//! A batch may be in host memory or on a CUDA device; the mask computes on the batch's device.
//!
//! The README of each plugin that offers the mask describes its keys and records.

#![deny(unsafe_code)]
#![deny(missing_docs)]

mod assign;
mod device;
mod mask;
mod optimizer;
mod predictor;
mod ranks;
mod records;
mod table;
mod target;
mod weight;

pub use mask::CurvatureMask;
pub use predictor::trainer_step;
pub use table::Thresholds;
pub use weight::CurvatureWeight;

/// Thresholds of the tests, which no shift of a fixture exceeds.
#[cfg(test)]
struct Wide;

#[cfg(test)]
impl Thresholds for Wide {
    const FISHER: f64 = 1e9;
    const HESSIAN: f64 = 1e9;
}
