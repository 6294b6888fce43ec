//! Sentences about settings.

use insta::assert_snapshot;
use tests::Folder;

use crate::refused;

/// The sentence of `host train --config` on a file with this text.
fn refused_file(text: &str) -> String {
    let folder = Folder::new();
    folder.write("run.toml", text);
    folder.refused("train --config run.toml")
}

#[test]
fn components_that_are_not_there_or_not_at_this_point() {
    assert_snapshot!(refused("--set advantage.use=grpo.advantag"), @"`[advantage]` names `grpo.advantag`, which no loaded image offers (did you mean `grpo.advantage`?)");
    assert_snapshot!(refused("--set objective.use=zzz"), @"`[objective]` names `zzz`, which no loaded image offers (known here: `bnpo.objective`, `cispo.objective`, `dapo.objective`, `dr_grpo.objective`, `grpo.objective`, `gspo.objective`, `luspo.objective`, `reinforce.objective`, `rloo.objective`, `sapo.objective`, `vespo.objective`; a plugin's components need its `--plugin`)");
    assert_snapshot!(refused("--set advantage.use=grpo.objective"), @"`[advantage]` names `grpo.objective`, which is offered at the objective point (move it to `[objective]`)");
    assert_snapshot!(refused("--plugin libcapo.so --set objective.use=capo.curvature"), @"`[objective]` names `capo.curvature`, which is offered at the mask point (move it to `[[mask]]`)");
    assert_snapshot!(refused("--plugin libcapo.so --set mask.0.use=capo.advantage"), @"`[[mask]]` names `capo.advantage`, which is offered at the advantage point (move it to `[advantage]`)");
    assert_snapshot!(refused("--plugin libcapo.so --set mask.0.use=capo.curvatures"), @"`[[mask]]` names `capo.curvatures`, which no loaded image offers (did you mean `capo.curvature`?)");
}

#[test]
fn keys_of_components() {
    assert_snapshot!(refused("--plugin libcapo.so --set mask.0.fisher_treshold=1"), @r#"`[[mask]]` with `use = "capo.curvature"`: unknown key `fisher_treshold` (did you mean `fisher_threshold`?)"#);
    assert_snapshot!(refused("--set objective.zzz=1"), @r#"`[objective]` with `use = "grpo.objective"`: unknown key `zzz` (known: `epsilon`, `epsilon_high`, `delta`, `importance_sampling_level`, `beta`, `kl_estimator`, `use_bias_correction_kl`, `reduction`)"#);
    assert_snapshot!(refused("--set objective.epsilon=-1"), @r#"`[objective]` with `use = "grpo.objective"`: `epsilon` is -1 (use 0 or more)"#);
    // JSON, in which components get their keys, has neither.
    assert_snapshot!(refused("--set objective.epsilon=inf"), @r#"`[objective]` with `use = "grpo.objective"`: `epsilon` is inf (give a finite number)"#);
    assert_snapshot!(refused("--plugin libcapo.so --set mask.0.hessian_range=[-1,nan]"), @r#"`[[mask]]` with `use = "capo.curvature"`: `hessian_range` is NaN (give a finite number)"#);
    assert_snapshot!(refused("--set objective.epsilon=wide"), @r#"`[objective]` with `use = "grpo.objective"`: invalid type: string "wide", expected f32"#);
    assert_snapshot!(refused("--plugin libmisbehave.so --set mask=[{use=\"misbehave.mask\"}]"), @r#"`[[mask]]` with `use = "misbehave.mask"`: missing field `sin`"#);
    assert_snapshot!(refused("--set advantage.scale_rewards=groop"), @r#"`[advantage]` with `use = "grpo.advantage"`: unknown variant `groop`, expected one of `group`, `batch`, `none`"#);
}

#[test]
fn sections_and_keys() {
    assert_snapshot!(refused("--set train.learning_rat=1"), @"`[train]` of `--set`: unknown key `learning_rat` (did you mean `learning_rate`?)");
    assert_snapshot!(refused("--set train.zzz=1"), @"`[train]` of `--set`: unknown key `zzz` (known: `device`, `dtype`, `seed`, `max_steps`, `per_device_train_batch_size`, `gradient_checkpointing`, `score_at_sampling`, `activation_budget`, `gradient_accumulation_steps`, `steps_per_generation`, `generation_batch_size`, `num_iterations`, `learning_rate`, `lr_scheduler_type`, `warmup_ratio`, `weight_decay`, `optimizer`, `sgd_momentum`, `adam_beta1`, `adam_beta2`, `adam_epsilon`, `second_moment`, `moments_dtype`, `max_grad_norm`, `loss_temperature`, `loss_distribution`, `entropy_coef`, `mask_denominator`, `loss_factors`, `last_layer_top_k`, `measure_step`, `save_steps`, `save_minutes`, `save_total_limit`, `metric_for_best_model`, `greater_is_better`, `early_stopping_patience`, `early_stopping_threshold`, `max_completions`, `max_time`, `component_timeout`, `component_state_limit`, `output_dir`, `mask_truncated_completions`, `top_entropy_quantile`, `off_policy_mask_threshold`, `vllm_importance_sampling_correction`, `vllm_importance_sampling_mode`, `vllm_importance_sampling_clip_max`, `vllm_importance_sampling_clip_min`)");
    assert_snapshot!(refused("--set trian.seed=1"), @"the default config and `--set trian.seed`: unknown key `trian` (did you mean `train`?)");
    assert_snapshot!(refused("--set reward.0.weigth=1"), @r#"`[[reward]]` with `use = "exact_match"`: unknown key `weigth` (did you mean `weight`?)"#);
    assert_snapshot!(refused("--set reward.0.use=exact_mach"), @"`[[reward]]` names `exact_mach`, which no loaded image offers (did you mean `exact_match`?)");
    assert_snapshot!(refused("--set data.dataset_name=embedded:arithmetik"), @"no dataset `embedded:arithmetik`: neither an embedded one, nor a file or folder, nor in the Hub's cache (embedded: `embedded:arithmetic`; fetch one with `hf download --repo-type dataset OWNER/NAME`)");
}

#[test]
fn settings_that_components_stand_for() {
    assert_snapshot!(refused("--set train.top_entropy_quantil=0.2"), @"`[train]` of `--set`: unknown key `top_entropy_quantil` (did you mean `top_entropy_quantile`?)");
    assert_snapshot!(refused("--set train.top_entropy_quantile=0.2"), @"`train.top_entropy_quantile` is done by `masks.entropy-quantile` (give `--plugin libmasks.so`, which has it)");
    assert_snapshot!(refused("--set recipe=grpo --plugin libmasks.so --set train.top_entropy_quantile=2"), @r#"`[[mask]]` with `use = "masks.entropy-quantile"`: `top_entropy_quantile` is 2 (use 0 to 1)"#);
    assert_snapshot!(refused("--set recipe=grpo --plugin libmasks.so --set train.vllm_importance_sampling_mode=token"), @"`[train]` of `--set`: unknown variant `token`, expected one of `token_truncate`, `token_mask`, `sequence_truncate`, `sequence_mask`, in `vllm_importance_sampling_mode`");
    assert_snapshot!(refused("--set train.loss_factors=[\"masks.tis\"]"), @"the settings of the default config and `--set train.loss_factors` do not fit together: `train.loss_factors` names `masks.tis`, which is no mask and no weight of this run (add it to `[[mask]]` or `[[weight]]`, or leave it out)");
    assert_snapshot!(refused("--set recipe=vespo --set objective.vllm_importance_sampling_clip_min=0.5"), @r#"`[objective]` with `use = "vespo.objective"`: `vllm_importance_sampling_clip_min` is set, but `vllm_importance_sampling_mode` is not, and nothing is corrected (set it, or remove the limit)"#);
    assert_snapshot!(refused("--set recipe=grpo --plugin libmasks.so --mask masks.truncated --set train.mask_truncated_completions=true"), @"`train.mask_truncated_completions` of `--set` is the component `masks.truncated`, which is named as well (leave one out)");
    assert_snapshot!(refused("--set recipe=grpo --plugin libmasks.so --set mask=[{use=\"masks.truncated\"}] --set train.mask_truncated_completions=true"), @"`train.mask_truncated_completions` of `--set` is the component `masks.truncated`, which is named as well (leave one out)");
}

#[test]
fn what_is_appended_joins_a_whole_list_that_is_set() {
    let args = "train --dry-run --plugin libmasks.so --set recipe=grpo --mask masks.random --set train.top_entropy_quantile=0.5";
    let said = Folder::new().said(&format!("{args} --set mask=[{{use=\"masks.truncated\"}}]"));
    assert!(said.contains("masks      masks.truncated, masks.entropy-quantile, masks.random\n"), "{said}");
}

#[test]
fn an_evaluation_needs_no_plugin_for_what_only_training_uses() {
    for set in ["train.mask_truncated_completions=true", "mask=[{use=\"masks.truncated\"}]"] {
        Folder::new().said(&format!("eval --num-prompts 4 --set {set}"));
    }
}

#[test]
fn values_of_the_wrong_type() {
    assert_snapshot!(refused("--set train.max_steps=many"), @r#"`[train]` of `--set`: invalid type: string "many", expected u64, in `max_steps`"#);
    assert_snapshot!(refused("--set train.max_steps=-1"), @"`[train]` of `--set`: invalid value: integer `-1`, expected u64, in `max_steps`");
    assert_snapshot!(refused("--set train.learning_rate=true"), @"`[train]` of `--set`: invalid type: boolean `true`, expected f64, in `learning_rate`");
    assert_snapshot!(refused("--set train.lr_scheduler_type=cosin"), @"`[train]` of `--set`: unknown variant `cosin`, expected one of `linear`, `cosine`, `constant`, `constant_with_warmup`, in `lr_scheduler_type`");
    assert_snapshot!(refused("--set advantage.use=7"), @"`use` of `[advantage]` in the default config and `--set advantage.use` is 7 (give a component's id as a string)");
    assert_snapshot!(refused("--set advantage=7"), @"`[advantage]` in `--set` is not a table");
    assert_snapshot!(refused("--set mask.use=misbehave.mask"), @"`--set mask.use=...`: this run has no mask (add one with `--mask ID`; `host plugins` lists those on offer)");
}

#[test]
fn values_out_of_range() {
    assert_snapshot!(refused("--set train.max_steps=0"), @"the settings of `--set` do not fit together: `train.max_steps` is 0 (it must be at least 1)");
    assert_snapshot!(refused("--set train.learning_rate=nan"), @"the settings of `--set` do not fit together: `train.learning_rate` is NaN (it must be finite, 0 or more)");
    assert_snapshot!(refused("--set train.save_minutes=-1"), @"the settings of `--set` do not fit together: `train.save_minutes` is -1 (it must be finite, 0 or more)");
    assert_snapshot!(refused("--set rollout.temperature=0"), @"the settings of `--set` do not fit together: `rollout.temperature` is 0 (it must be above 0 and at most 100; for greedy evaluation see `[eval]`; sampling needs more than 0)");
    assert_snapshot!(refused("--set rollout.num_generations=7"), @"the settings of the default config and `--set rollout.num_generations` do not fit together: one optimizer step takes 48 completions (`train.per_device_train_batch_size` 48 × `train.gradient_accumulation_steps` 1), which is not a multiple of `rollout.num_generations` 7 (a step holds whole groups)");
    assert_snapshot!(refused("--set train.gradient_accumulation_steps=2 --set train.steps_per_generation=3"), @"the settings of `--set` do not fit together: one rollout makes 144 completions, which is not a multiple of the 96 of an optimizer step (set `train.steps_per_generation` to a multiple of `train.gradient_accumulation_steps`)");
    assert_snapshot!(refused("--set train.num_iterations=2 --set train.save_steps=3"), @"the settings of `--set` do not fit together: `train.save_steps` is 3, but checkpoints are written between rollouts, every 2 steps (use a multiple)");
    assert_snapshot!(refused("--set train.adam_epsilon=0"), @"the settings of `--set` do not fit together: `train.adam_epsilon` is 0 (it must be finite and at least 1.1754944e-38; 1e-8 is usual)");
    assert_snapshot!(refused("--set rollout.max_completion_length=100"), @"`data.max_prompt_length` 16 and `rollout.max_completion_length` 100 make 116 tokens, the model has 64 positions (lower one of them)");
}

#[test]
fn numbers_that_no_run_could_use() {
    let product = |a: &str, b: &str| {
        refused(&format!("--set train.per_device_train_batch_size={a} --set train.gradient_accumulation_steps={b}"))
    };
    assert_snapshot!(product("4611686018427387904", "4"), @"the settings of `--set` do not fit together: `train.per_device_train_batch_size` 4611686018427387904 × `train.gradient_accumulation_steps` 4 are more completions of one optimizer step than the 1048576 that are possible (lower one of them)");
    assert_snapshot!(product("2305843009213693953", "8"), @"the settings of `--set` do not fit together: `train.per_device_train_batch_size` 2305843009213693953 × `train.gradient_accumulation_steps` 8 are more completions of one optimizer step than the 1048576 that are possible (lower one of them)");
    assert_snapshot!(product("8", "9223372036854775807"), @"the settings of `--set` do not fit together: `train.per_device_train_batch_size` 8 × `train.gradient_accumulation_steps` 9223372036854775807 are more completions of one optimizer step than the 1048576 that are possible (lower one of them)");
    assert_snapshot!(refused("--set train.per_device_train_batch_size=2097152"), @"the settings of the default config and `--set train.per_device_train_batch_size` do not fit together: `train.per_device_train_batch_size` 2097152 × `train.gradient_accumulation_steps` 1 are more completions of one optimizer step than the 1048576 that are possible (lower one of them)");
    assert_snapshot!(refused("--set train.steps_per_generation=9223372036854775807"), @"the settings of the default config and `--set train.steps_per_generation` do not fit together: `train.per_device_train_batch_size` 48 × `train.steps_per_generation` 9223372036854775807 are more completions of one rollout than the 1048576 that are possible (lower one of them)");
    assert_snapshot!(refused("--set rollout.num_generations=9223372036854775807"), @"the settings of the default config and `--set rollout.num_generations` do not fit together: one optimizer step takes 48 completions (`train.per_device_train_batch_size` 48 × `train.gradient_accumulation_steps` 1), which is not a multiple of `rollout.num_generations` 9223372036854775807 (a step holds whole groups)");
    assert_snapshot!(refused("--set rollout.max_completion_length=9223372036854775807"), @"the settings of `--set` do not fit together: `rollout.max_completion_length` is 9223372036854775807 (it must be at most 16777216)");
    assert_snapshot!(refused("--set data.max_prompt_length=9223372036854775807"), @"the settings of `--set` do not fit together: `data.max_prompt_length` is 9223372036854775807 (it must be at most 16777216)");
    assert_snapshot!(refused("--set data.max_prompt_length=7"), @"a prompt has 8 tokens, `data.max_prompt_length` is 7 (raise it, or shorten the prompt `781+548=`)");
    assert_snapshot!(refused("--set train.num_iterations=9223372036854775807"), @"the settings of `--set` do not fit together: `train.num_iterations` is 9223372036854775807 (it must be at most 1000)");
    assert_snapshot!(refused("--set eval.num_prompts=9223372036854775807"), @"dataset `embedded:arithmetic` has 81306 held-out prompts, 9223372036854775807 were asked for (set `num_prompts` of `[eval]` to at most 81306)");
    // As many steps as can be counted are no more than one can wait for.
    let endless = "--set train.max_steps=9223372036854775807 --set rollout.top_k=9223372036854775807";
    let folder = Folder::new();
    folder.said(&format!("train {endless} --stop-after 1 --set eval.num_prompts=0"));
}

#[test]
fn settings_that_silence_one_another() {
    assert_snapshot!(refused("--set train.lr_scheduler_type=constant"), @"the settings of the default config and `--set train.lr_scheduler_type` do not fit together: `train.warmup_ratio` is 0.05, but `train.lr_scheduler_type` `constant` has no warm-up (use `constant_with_warmup`, or set `train.warmup_ratio` to 0)");
    assert_snapshot!(refused("--set train.sgd_momentum=0.9"), @"the settings of the default config and `--set train.sgd_momentum` do not fit together: `train.sgd_momentum` is 0.9, but `train.optimizer` is `adamw`, whose momentum is `train.adam_beta1` (set `train.optimizer` to `sgd`, or remove it)");
    assert_snapshot!(refused("--set train.optimizer=sgd --set train.second_moment=kept_and_rejected"), @"the settings of `--set` do not fit together: `train.second_moment` is `kept_and_rejected`, but `train.optimizer` is `sgd`, which has no second moment (set `train.optimizer` to `adamw`, or remove it)");
    assert_snapshot!(refused("--set data.prompt_column=question"), @"the settings of `--set` do not fit together: `data.prompt_column` is `question`, but dataset `embedded:arithmetic` has no columns (remove it)");
    assert_snapshot!(refused("--set data.eval_dataset_name=held_out.jsonl"), @"the settings of the default config and `--set` do not fit together: dataset `embedded:arithmetic` has its own held-out prompts (remove `eval_dataset_name` and `dataset_test_split`)");
    let folder = Folder::new();
    assert_snapshot!(folder.refused("eval --num-prompts 0"), @"`eval.num_prompts` is 0: there is nothing to measure (give `--num-prompts`, or a file with `--benchmark`)");
    assert_snapshot!(folder.refused("eval --set model.fresh_weights=true"), @"`model.fresh_weights` is true: there is no model to measure (name one with `--model`)");
    let sft = |args: &str| folder.refused(&format!("sft --output-dir out {args}"));
    assert_snapshot!(sft("--set train.lr_scheduler_type=constant"), @"the settings of the default config and `--set train.lr_scheduler_type` do not fit together: `train.warmup_ratio` is 0.05, but `train.lr_scheduler_type` `constant` has no warm-up (use `constant_with_warmup`, or set `train.warmup_ratio` to 0)");
    assert_snapshot!(sft("--set eval.max_completion_length=0"), @"the settings of the default config and `--set eval.max_completion_length` do not fit together: `eval.max_completion_length` is 0, but 2048 held-out prompts are to be answered (set it, or `eval.num_prompts` to 0)");
    assert_snapshot!(sft("--set train.learning_rate=-1"), @"the settings of `--set` do not fit together: `train.learning_rate` is -1 (it must be finite, 0 or more)");
    assert_snapshot!(sft("--set train.per_device_train_batch_size=9223372036854775807"), @"the settings of `--set` do not fit together: `train.per_device_train_batch_size` is 9223372036854775807 (it must be at most 1048576)");
    assert_snapshot!(sft("--set train.max_steps=9223372036854775807"), @"the settings of the default config and `--set train.max_steps` do not fit together: `train.max_steps` 9223372036854775807 × `train.per_device_train_batch_size` 64 are more examples than can be counted (lower one of them)");
    assert_snapshot!(sft("--set eval.max_completion_length=100"), @"`data.max_prompt_length` 16 and `eval.max_completion_length` 100 make 116 tokens, the model has 64 positions (lower one of them)");
}

#[test]
fn overrides_that_are_malformed() {
    assert_snapshot!(refused("--set train.seed"), @"`--set train.seed` has no `=` (write `--set section.key=value`)");
    assert_snapshot!(refused("--set =1"), @"`--set =...` has an empty key (write `--set section.key=value`)");
    assert_snapshot!(refused("--set train..seed=1"), @"`--set train..seed=...` has an empty key (write `--set section.key=value`)");
    assert_snapshot!(refused("--set recipe.name=1 --set recipe=capo"), @"recipe `capo` is unknown (did you mean `sapo`? a plugin's recipe needs its `--plugin`)");
    assert_snapshot!(refused("--plugin libcapo.so --set mask.3.fisher_threshold=1"), @"`--set mask.3.fisher_threshold=...`: `mask` has entries 0 to 0 (write `--set mask.0.key=value`)");
    assert_snapshot!(refused("--set reward.first.weight=1"), @"`--set reward.first.weight=...`: no reward is called so (there are `exact_match`; write `--set reward.exact_match.KEY=VALUE` or `--set reward.0.KEY=VALUE`)");
}

#[test]
fn config_files() {
    assert_snapshot!(refused("--config absent.toml"), @"config `absent.toml` cannot be read: No such file or directory (os error 2)");
    assert_snapshot!(refused_file("[train\nseed = 1"), @"`run.toml` is not TOML: line 1: unclosed table, expected `]`");
    assert_snapshot!(refused_file("train = 1"), @"`[model]` of `run.toml`: missing field `model_name_or_path` (configs/README.md lists every key)");
    assert_snapshot!(refused_file("[train]\nseed = 1\n"), @"`[model]` of `run.toml`: missing field `model_name_or_path` (configs/README.md lists every key)");
    assert_snapshot!(refused_file("[model]\nmodel_name_or_path = 1\n"), @"`[model]` of `run.toml`: invalid type: integer `1`, expected a string, in `model_name_or_path`");
    let folder = Folder::new();
    folder.write("binary.toml", [0xff, 0xfe]);
    assert_snapshot!(folder.refused("train --config binary.toml"), @"config `binary.toml` cannot be read: stream did not contain valid UTF-8");
}
