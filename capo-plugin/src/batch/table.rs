//! The table of a batch's fields: the one place that describes them.
//!
//! `define_batch!` makes of it [`Batch`], its form on the wire, the buffer that owns a batch, the
//! accessors, the flags of `Inputs`, and [`FIELDS`](crate::fields::FIELDS). From `FIELDS` come
//! batch files, their checks, Python's `Batch` and the tables of the documentation.
//!
//! * The name behind `scalars` or `arrays` is the class of Python that has the fields.
//! * A `required` field is always given. An `optional` scalar has its default where it is left out,
//!   an `optional` array of the block `arrays` is then zeros.
//! * An array has a shape in letters, a type, and perhaps a unit. `optional arrays` are there for
//!   masks. `asked by` is followed by the flag of `Inputs` with which a component asks for the
//!   array, and the flag's bit.
//! * A scalar has a limit, a variant of [`Limit`](crate::fields::Limit).
//! * The order is that of the fields on the wire.

use std::mem::offset_of;
use std::ops::Range;

use abi_stable::StableAbi;
use abi_stable::std_types::{ROption, RSlice};

use super::define::{
    Element, Scalar, define_batch, field, is_required, part_of, read_array, read_option,
    read_scalar,
};
use super::field::{Extent, Extents, Field, Limit, Part, Source, Value};
use super::{
    AgedContext, Denominator, Dims, Inputs, OptimizerInfo, Reduction, TensorBuffer, Values, missing,
};
use crate::cross::Cross;
use crate::{PluginError, RolloutContext, SamplerTopK, Tensor};

define_batch! {
    scalars Progress {
        /// Optimizer step, counted from 0.
        required step: u64 = 0, Any;
        /// Optimizer steps of the whole run.
        optional max_steps: u64 = 1, Any;
        /// Number of earlier uses of this rollout; 0 is on policy.
        optional iteration: u64 = 0, Any;
        /// The run's seed; derive every random draw from it and `step`.
        required seed: u64 = 0, Any;
    }
    scalars Sampling {
        /// Temperature of sampling: divisor of the logits.
        required sampling_temperature: f32 = 1.0, Positive;
        /// The sampler's top-k, in tokens; 0 turns it off.
        optional sampling_top_k: u32 = 0, Any;
        /// The sampler's top-p, a probability; 1 turns it off.
        optional sampling_top_p: f32 = 1.0, Share;
        /// Temperature of `logps`: divisor of the logits.
        required loss_temperature: f32 = 1.0, Positive;
        /// Limit on completion length in tokens; at least T.
        required max_completion_length: usize = 0, Any;
    }
    scalars Optimizer {
        /// Learning rate of the coming step by itself; `None` where it is the optimizer's
        /// `learning_rate`.
        optional step_learning_rate: Option<f64> = None, NotNegative;
    }
    scalars Batch {
        /// Rule that reduces the objective's losses to one number.
        optional reduction: Reduction = Reduction::COMPLETION_MEAN, Any;
        /// Tokens that the reduction counts.
        optional denominator: Denominator = Denominator::KEPT, Any;
    }

    arrays Batch {
        /// ids of the sampled tokens.
        required completion_ids: [B, T] u32;
        /// 1 for a token that the policy drew, up to and including the end token; 0 for padding.
        /// Zeros may also stand between ones, at tokens that others wrote into the completion,
        /// such as the answer of an environment.
        required completion_mask: [B, T] u8;
        /// 1 where the length limit cut the completion off.
        optional truncated: [B] u8;
        /// reward of each completion.
        required rewards: [B] f32 "reward units";
        /// advantage of each token; zeros while the advantage estimator runs.
        required advantages: [B, T] f32 "reward units";
        /// log-probability of each token under the current policy at `loss_temperature`.
        required logps: [B, T] f32 "nats";
    }

    optional arrays Losses {
        /// the objective's loss per token, before masking and reduction. Present for masks.
        losses: [B, T] f32;
        /// derivative of the sum of a completion's `losses` by this token's `logps`. Present for
        /// masks.
        dloss_dlogp: [B, T] f32;
    }
    asked arrays Batch {
        /// log-probability of each token under the policy that sampled the completions.
        old_logps: [B, T] f32 "nats", asked by OLD_LOGPS 0;
        /// log-probability of each token under the reference model, from which training started.
        ref_logps: [B, T] f32 "nats", asked by REF_LOGPS 1;
        /// entropy of the current policy over the full vocabulary.
        entropy: [B, T] f32 "nats", asked by ENTROPY 2;
    }

    tensors {
        /// Features and top logits of the last layer, for each token of a completion.
        last_layer: LastLayer, LayerBuffer, WireLastLayer, asked by LAST_LAYER 3 {
            scalar vocab_size: usize, "V: number of vocabulary entries.";
            /// the feature from which the logits of the token were computed.
            hidden: [B, T, D] f32;
            /// vocabulary ids of the K largest logits, largest first.
            topk_ids: [B, T, K] u32;
            /// the K largest logits themselves, raw (temperature 1), in the order of `topk_ids`.
            topk_logits: [B, T, K] f32;
            /// logsumexp over the full vocabulary of logits ÷ `loss_temperature`.
            logsumexp: [B, T] f32;
            /// raw logit of the sampled token.
            action_logits: [B, T] f32;
        }
        /// The last layer's weight and its moments in the optimizer.
        optimizer_state: OptimizerState, StateBuffer, WireOptimizerState,
            asked by OPTIMIZER_STATE 4 {
            /// the weight.
            weight: [V, D] f32;
            /// first moment, the running mean of gradients.
            exp_avg: [V, D] f32;
            /// second moment, the running mean of squared gradients.
            exp_avg_sq: [V, D] f32;
        }
    }

    context {
        /// Facts about the rollout besides the batch: prompts, texts, rewards of each function, and
        /// the sampler's own log-probabilities.
        rollout_context: RolloutContext, asked by ROLLOUT_CONTEXT 5;
        /// The sampler's most likely tokens at each position, drawn or not, and their
        /// log-probabilities.
        sampler_top_k: SamplerTopK, asked by SAMPLER_TOP_K 6;
    }
}
