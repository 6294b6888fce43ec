//! The curvature mask: [`capo_core`] as a pre-backward mask; and the curvature weight, its smooth form.
//!
//! Before the backward pass it predicts, for every subset of tokens (a token, a completion, a group or the batch), how
//! far the optimizer's step on that subset alone would move the objective (`m_H`) and the policy (`m_F`), and clears the
//! subsets that would move either too far. After the step it updates its own model of the optimizer with the tokens that
//! all masks kept.
//!
//! A batch may lie in host memory or on a CUDA device; the mask works where it lies.
//!
//! Keys and records are described in the README of each plugin that offers it.

#![deny(unsafe_code)]
#![deny(missing_docs)]

mod assign;
mod device;
mod keys;
mod mask;
mod optimizer;
mod predictor;
mod ranks;
mod records;
mod table;
mod target;
mod trainer;
mod weight;

pub use mask::{CurvatureMask, Thresholds};
pub use trainer::trainer_step;
pub use weight::CurvatureWeight;
