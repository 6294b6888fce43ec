//! The metrics that the host records, by name. The first table in configs/README.md's section on
//! metrics is made of them, and `host check` compares a component's records with them.

/// Metrics with one row in the page.
#[derive(Debug)]
pub struct Metrics {
    /// Names. Words in capitals stand for what differs from run to run, as in `rewards/NAME/mean`;
    /// `{a,b}` stands for several names.
    pub names: &'static [&'static str],
    /// What they are, in Markdown.
    pub meaning: &'static str,
}

/// The metrics, in the order of the page.
pub const METRICS: &[Metrics] = &[
    Metrics {
        names: &[
            "reward",
            "reward_std",
            "rewards/NAME/mean",
            "rewards/NAME/std",
        ],
        meaning: "of the rollout's completions: the weighted sum, and each reward before its weight; NAME \
         is the component's id, `ID#2` for its second use",
    },
    Metrics {
        names: &["frac_reward_zero_std"],
        meaning: "share of completions in groups whose \
     `reward` does not differ: without a signal, where the advantage compares it within a group",
    },
    Metrics {
        names: &["frac_advantage_zero"],
        meaning: "share of completions whose every \
     advantage is 0: they teach nothing",
    },
    Metrics {
        names: &[
            "completions/{mean,min,max}_length",
            "completions/{mean,min,max}_terminated_length",
            "completions/clipped_ratio",
        ],
        meaning: "tokens; the last is the share that the length limit cut off",
    },
    Metrics {
        names: &["loss"],
        meaning: "zero up to rounding on policy with group-relative \
     advantages, because their mean is zero; its gradient is not zero",
    },
    Metrics {
        names: &["policy_loss"],
        meaning: "with `entropy_coef`: the loss without the bonus",
    },
    Metrics {
        names: &[
            "dynamic_sampling/{num_gen_batches,dropped_groups,groups_without_difference,reward}",
        ],
        meaning: "with `filter_groups`: sampling rounds; groups sampled and dropped; groups without a \
         difference that had to stay; mean reward of everything sampled",
    },
    Metrics {
        names: &[
            "grad_norm",
            "learning_rate",
            "entropy",
            "num_tokens",
            "num_completions",
            "step_time",
        ],
        meaning: "before clipping; of this step; nats; prompt and completion tokens so far; completions \
         sampled for training so far; seconds",
    },
    Metrics {
        names: &["tokens/{computed,distinct,padding}"],
        meaning: "of this step: tokens that its training pass ran through the model; the least number, \
         with each prompt once; places of the batch that hold no token, which are not computed. \
         `computed` is larger if a micro-batch cuts a group or is computed in parts, and with \
         `lora_dropout`, where rows of one prompt differ",
    },
    Metrics {
        names: &[
            "rejected_grad_norm",
            "grad_norm_unmasked",
            "second_pass_completions",
        ],
        meaning: "with `second_moment = \"kept_and_rejected\"`: norms of g_r and of g_k + g_r before \
         clipping, and the number of completions with a second backward pass. `grad_norm` is then \
         that of g_k; `timing_s/second_moment`, part of `timing_s/backward`, is the time of that \
         pass",
    },
    Metrics {
        names: &["sampling/sampling_logp_difference/{mean,max}"],
        meaning: "absolute differences of the sampler's and the trainer's log-probabilities, nats per \
         token (TRL's names)",
    },
    Metrics {
        names: &["sampling/importance_sampling_ratio/{min,mean,max}"],
        meaning: "probability in the trainer ÷ in the sampler, per token and before any clipping, as TRL's \
         `token_*` modes have it; a completion's ratio is in `rollout_corr/chi2_seq`",
    },
    Metrics {
        names: &["rollout_corr/{kl,k3_kl}"],
        meaning: "KL divergence of the sampler from the trainer by two estimates, nats per token (verl's \
         names, like all of this family)",
    },
    Metrics {
        names: &[
            "rollout_corr/{training,rollout}_{ppl,log_ppl}",
            "rollout_corr/ppl_ratio",
        ],
        meaning: "perplexity of each completion under trainer and sampler, its logarithm, and their \
         quotient, means over completions",
    },
    Metrics {
        names: &[
            "rollout_corr/log_ppl_diff",
            "rollout_corr/log_ppl_{abs_diff,diff_max,diff_min}",
        ],
        meaning: "trainer's log-perplexity less the sampler's: mean, mean of absolute values, extremes \
         over completions",
    },
    Metrics {
        names: &["rollout_corr/{chi2_token,chi2_seq}"],
        meaning: "χ² divergence: mean squared ratio less 1, of tokens and of whole completions, logarithms \
         of ratios bounded to ±20",
    },
    Metrics {
        names: &["eval_accuracy", "eval_reward", "eval_rewards/NAME/mean"],
        meaning: "on held-out prompts, in steps that evaluate: share of right answers, if a reward decides \
         it, and mean rewards",
    },
    Metrics {
        names: &["eval/BENCHMARK/NAME"],
        meaning: "[of \
     benchmarks](../docs/evaluation.md#benchmarks), in steps that evaluate",
    },
    Metrics {
        names: &["mask/rejection_rate", "MASK/rejection_rate"],
        meaning: "rejected tokens ÷ completion tokens, by all masks and by each",
    },
    Metrics {
        names: &["mask/rejected_so_far"],
        meaning: "rejected tokens ÷ completion tokens of \
     the whole run, also in its summary, `host runs` and the report",
    },
    Metrics {
        names: &[
            "mask/rejected_gradient_share",
            "MASK/rejected_gradient_share",
        ],
        meaning: "the rejected tokens' share of a sum over all tokens. A token's term is the square of \
         `weight · dloss_dlogp · (1 − p)`, the derivative of the unmasked loss by the token's own \
         logit. Products of two tokens and the layers below are left out",
    },
    Metrics {
        names: &["WEIGHT/mean", "WEIGHT/below_one"],
        meaning: "for each weight, over the tokens that reached it: the mean factor, and the share of \
         factors below 1",
    },
    Metrics {
        names: &["WEIGHT/weighted_away_gradient_share"],
        meaning: "the share of the same sum that each weight w removed: 1 − w² of each term, over the \
         tokens that reached it; below 0 if it added more than it removed",
    },
    Metrics {
        names: &["step_skipped"],
        meaning: "1 if every token was rejected, the gradient was \
     not finite, or a step control applied nothing of the step and restored the moments",
    },
    Metrics {
        names: &["CONTROL/applied", "step_control/applied"],
        meaning: "share of the step's length that each step control kept of its input, and all \
         together",
    },
    Metrics {
        names: &["step/kl", "step/last_layer_kl"],
        meaning: "KL divergence between the policies before and after the applied step, exact over the \
         vocabulary at the loss temperature, nats per completion token. `step/kl` uses a quarter \
         of the completions, those of a step control's `measure_kl(0.25)` (drawn anew in every \
         step from the seed); `step/last_layer_kl` is the divergence that the head's change alone \
         would cause, on all completions",
    },
    Metrics {
        names: &["step/update_norm", "step/unused_head_update"],
        meaning: "Euclidean norm of the applied step, and of its part in the head's rows whose token \
         occurs in no completion of the batch",
    },
    Metrics {
        names: &["step/tail_mass", "step/kept_advantage"],
        meaning: "before the step: probability outside the top `last_layer_top_k`, mean over completion \
         tokens; mean advantage of the tokens that reach the gradient",
    },
    Metrics {
        names: &["timing_s/STAGE"],
        meaning: "seconds",
    },
    Metrics {
        names: &["warnings/CHECK", "warnings/CHECK/COMPONENT"],
        meaning: "1 for the step after which a [warning](../docs/stability.md#what-a-run-tells-you) was \
         given",
    },
];
