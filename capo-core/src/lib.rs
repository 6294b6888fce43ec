//! The last-layer curvature model of policy optimization: how far a proposed step moves the
//! objective and the policy.
//!
//! A language model's last layer maps a feature `h` (`[D]`) to logits `W h`. For a sampled token
//! `a` with advantage `A` and policy `pi` over the token's support (its top-k ids and `a` itself),
//! the model is, in five equations,
//!
//! ```text
//! g   = A (e_a - pi) ⊗ h                             gradient             (paper, eq. 7)
//! v   = D h,   D = direction of SGD or Adam from g   projected proposal
//! m_F = ½ lr² s²,   s = (e_a - pi) . v               policy shift         (paper, eq. 9 and 10)
//! m_H = lr A s + ½ lr² A (s² - q),   q = Var_pi(v)   objective shift      (paper, eq. 8 and 10)
//! token_mask = 1  <=>  m_F < fisher_threshold  and  low < m_H < high                (paper, eq. 11)
//! ```
//!
//! "Paper" is "Stabilizing Policy Gradients for Sample-Efficient RL in LLM Reasoning", ICLR 2026.
//! The equations hold for a token as its own subset. For a completion, a group or the batch
//! ([`Granularity`]), `D` is the direction from the mean `g` of the subset's tokens, and `m_F` and
//! `m_H` are means over them. These tokens are kept or rejected together. Only K + 1 numbers of `D`
//! per token are ever needed, so nothing of size N K D is formed.
//!
//! These formulas are [`Semantics::PAPER`]. [`Semantics::AUTHORS`] computes the formulas of the
//! paper authors' released code, and [`Semantics::EXACT`] the same model without its
//! approximations.
//!
//! # Example
//!
//! One completion of two tokens, vocabulary 4, features of width 2, two logits kept per token:
//!
//! ```
//! use capo_core::{Acceptance, Arrays, CurvatureModel, Granularity, HostArrays, LastLayer, Loss, Semantics, Step};
//! use capo_core::{OptimizerKind, OptimizerModel, Policy, SecondMoment};
//!
//! let batch = LastLayer {
//!     completions: 1, tokens: 2, group_size: 1, k: 2, width: 2, vocab_size: 4,
//!     action_ids: &[1, 0],
//!     arrays: Arrays::Host(HostArrays {
//!         hidden: &[1.0, 0.5, -0.5, 2.0],
//!         topk_ids: &[3, 1, 0, 2],
//!         topk_logits: &[2.0, 1.9, 9.0, 0.0],
//!         action_logits: &[1.9, 9.0],
//!         logsumexp: &[2.7, 9.1],
//!     }),
//! };
//! let policy = Policy { temperature: 1.0, top_k: None };
//! let optimizer = OptimizerModel {
//!     kind: OptimizerKind::Adam, beta1: 0.9, beta2: 0.999, eps: 1e-8, second_moment: SecondMoment::Kept, weight_decay: 0.0,
//! };
//! let (advantages, loss) = (&[1.0, 1.0], Loss::completion_mean(2));
//! let step = Step { batch, advantages, policy, loss, optimizer, learning_rate: 0.01, moments: None };
//!
//! let acceptance = Acceptance { fisher_threshold: Some(1e-4), hessian_range: Some([-0.01, 0.01]), low_end_kept: false };
//! let mut model = CurvatureModel::new(acceptance, Granularity::Token, Semantics::PAPER)?;
//! let prepared = model.prepare(&step, &[1, 1])?;
//! let assessment = model.assess(&prepared)?;
//! // The uncertain first token would move the policy too far; the second has a probability near 1 and moves nothing.
//! assert_eq!(assessment.token_mask, [0, 1]);
//! assert_eq!(assessment.rejected.fisher, 1);
//!
//! // After the optimizer step, the accepted tokens advance the moments.
//! model.commit(&prepared, &assessment.token_mask)?;
//! assert_eq!(model.steps(), 1);
//! # Ok::<(), capo_core::Error>(())
//! ```

#![deny(missing_docs)]
#![deny(unsafe_code)]

mod accept;
mod backend;
mod certificate;
mod collect;
mod commit;
pub mod cuda;
mod effect;
mod error;
mod gradient;
mod intake;
mod last_layer;
mod model;
mod moments;
mod optimizer;
mod policy;
mod predict;
mod proposal;
mod ranks;
mod row_sums;
mod semantics;
mod shift;
mod softmax;
mod state;
mod step;
mod store;
mod subset;
mod support;

pub use accept::{Acceptance, Assessment, Reason, Rejections};
pub use certificate::Certificate;
pub use error::Error;
pub use last_layer::{Arrays, HostArrays, LastLayer};
pub use model::{BatchShift, CurvatureModel, Prepared};
pub use optimizer::{OptimizerKind, OptimizerModel, SecondMoment};
pub use policy::Policy;
pub use ranks::{OneRank, Ranks};
pub use semantics::{
    CurvatureAverage, EmptyState, Feature, MomentUpdate, ObjectiveShift, OutsideAction,
    PolicyShift, Probabilities, RejectedBatch, Semantics, StateDtype, Switch, Temperature,
    TokenGradient, UntouchedRows, Weights, ZeroAdvantage,
};
pub use step::{HostMoments, Loss, MomentArrays, Reduction, Step};
pub use subset::Granularity;

/// Compiles the example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
