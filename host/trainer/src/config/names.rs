//! Settings of TRL that have no field of their own here: what has their effect, or why there is
//! none. configs/names.md is made of these tables, and hints about unknown keys read them.

/// A table of configs/names.md.
#[derive(Debug)]
pub struct Names {
    /// The table's name in the page.
    pub table: &'static str,
    /// The heading of its first column.
    pub from: &'static str,
    pub rows: &'static [Foreign],
}

/// What somebody who knows TRL looks for.
#[derive(Debug)]
pub struct Foreign {
    /// Names of settings, which a hint finds.
    pub names: &'static [&'static str],
    /// What the page says in place of the list of names.
    pub called: &'static str,
    pub here: Here,
    /// What differs, or why there is nothing here.
    pub differs: &'static [Text],
}

/// What has the effect of a setting of TRL.
#[derive(Debug)]
pub enum Here {
    /// A setting of the same name in this section, of certain components perhaps.
    SameIn {
        section: &'static str,
        more: &'static str,
    },
    Other(&'static [Text]),
    Nothing,
}

/// A part of a sentence.
#[derive(Debug)]
pub enum Text {
    Words(&'static str),
    /// Words that link to an address in the page.
    Link(&'static str, &'static str),
}

use Here::{Nothing, Other, SameIn};
use Text::{Link, Words};

impl Text {
    /// The sentence without its links.
    pub fn plain(parts: &[Self]) -> String {
        parts
            .iter()
            .map(|part| match part {
                Words(words) | Link(words, _) => *words,
            })
            .collect()
    }

    /// The sentence in Markdown.
    pub fn markdown(parts: &[Self]) -> String {
        parts
            .iter()
            .map(|part| match part {
                Words(words) => (*words).to_owned(),
                Link(words, address) => format!("[{words}]({address})"),
            })
            .collect()
    }
}

/// The setting of TRL with this name.
pub fn find(name: &str) -> Option<&'static Foreign> {
    TABLES
        .iter()
        .flat_map(|table| table.rows)
        .find(|foreign| foreign.names.contains(&name))
}

/// A setting that has no counterpart.
const fn none(names: &'static [&'static str], why: &'static [Text]) -> Foreign {
    Foreign {
        names,
        called: "",
        here: Nothing,
        differs: why,
    }
}

/// A setting whose effect something of another name has.
const fn other(
    names: &'static [&'static str],
    here: &'static [Text],
    differs: &'static [Text],
) -> Foreign {
    Foreign {
        names,
        called: "",
        here: Other(here),
        differs,
    }
}

/// A setting of the same name in the table of a component.
const fn same(
    names: &'static [&'static str],
    section: &'static str,
    more: &'static str,
    differs: &'static [Text],
) -> Foreign {
    Foreign {
        names,
        called: "",
        here: SameIn { section, more },
        differs,
    }
}

/// Something that the page describes in words.
const fn called(words: &'static str, foreign: Foreign) -> Foreign {
    Foreign {
        called: words,
        ..foreign
    }
}

/// The tables, in the order of the page.
pub const TABLES: &[Names] = &[
    Names {
        table: "model",
        from: "TRL",
        rows: &[
            none(
                &["model_revision"],
                &[Words(
                    "the cache's `main`; name a snapshot's directory for another revision",
                )],
            ),
            none(
                &["attn_implementation", "use_liger_kernel", "use_kernels"],
                &[Words("there is one implementation")],
            ),
            none(
                &["disable_dropout", "cast_lm_head_to_fp32"],
                &[Words(
                    "models have no dropout but LoRA's; the head and logits are always f32",
                )],
            ),
            none(
                &[
                    "use_dora",
                    "lora_modules_to_save",
                    "lora_target_parameters",
                    "lora_task_type",
                ],
                &[Words("adapters are plain LoRA on linear layers")],
            ),
            none(
                &[
                    "load_in_4bit",
                    "load_in_8bit",
                    "bnb_4bit_quant_type",
                    "use_bnb_nested_quant",
                    "bnb_4bit_quant_storage",
                ],
                &[Words("trained weights are f32, also those of a GGUF file")],
            ),
            none(
                &[
                    "model_init_kwargs",
                    "trust_remote_code",
                    "router_aux_loss_coef",
                ],
                &[Words(
                    "no code from a model's folder runs; no mixture of experts is trained",
                )],
            ),
        ],
    },
    Names {
        table: "data",
        from: "TRL",
        rows: &[
            called(
                "columns of the dataset",
                other(
                    &[],
                    &[Words("`prompt_column`, `answer_column`, `preset`")],
                    &[Words(
                        "TRL and `host` pass every column to the reward functions; `host` also \
                         has one column for the answer",
                    )],
                ),
            ),
            called(
                "`prompt` as a list of messages",
                other(&["prompt"], &[Words("`data.format = \"chat\"`")], &[]),
            ),
            other(
                &["chat_template_kwargs"],
                &[Words(
                    "`data.enable_thinking`, `data.system_prompt`, `data.chat_template`, \
                     `data.date`",
                )],
                &[Words("no others")],
            ),
            called(
                "`prompt` as a text",
                other(
                    &["prompt"],
                    &[Words("the same")],
                    &[
                        Words("begins with the tokenizer's special tokens, as in TRL: "),
                        Link(
                            "where a prompt begins",
                            "../docs/data.md#where-a-prompt-begins",
                        ),
                        Words(", with two differences"),
                    ],
                ),
            ),
            called(
                "rows without an answer",
                other(
                    &[],
                    &[Words("the same")],
                    &[Words(
                        "unless a reward is `exact_match`, `number` or `math`",
                    )],
                ),
            ),
            none(&["dataset_streaming"], &[Words("rows are held in memory")]),
            none(
                &["remove_unused_columns", "pad_to_multiple_of"],
                &[Words(
                    "rewards see every column; nothing is padded to a multiple",
                )],
            ),
        ],
    },
    Names {
        table: "sampling",
        from: "TRL",
        rows: &[
            other(
                &["num_generations_eval"],
                &[Words("`samples` of an `[[eval.benchmark]]` table")],
                &[Link("evaluation", "../docs/evaluation.md")],
            ),
            none(
                &[
                    "min_p",
                    "repetition_penalty",
                    "generation_kwargs",
                    "cache_implementation",
                ],
                &[Words("not available")],
            ),
            none(
                &[
                    "use_vllm",
                    "vllm_mode",
                    "vllm_model_impl",
                    "vllm_enable_sleep_mode",
                    "vllm_structured_outputs_regex",
                    "vllm_server_base_url",
                    "vllm_server_host",
                    "vllm_server_port",
                    "vllm_server_timeout",
                    "vllm_group_port",
                    "vllm_gpu_memory_utilization",
                    "vllm_max_model_length",
                    "vllm_tensor_parallel_size",
                ],
                &[Words(
                    "`host` samples itself; `rollout.max_num_seqs` refills as vLLM does",
                )],
            ),
        ],
    },
    Names {
        table: "training",
        from: "TRL",
        rows: &[
            none(
                &["num_train_epochs"],
                &[Words(
                    "set `train.max_steps`, 100 by default; TRL trains 3 epochs",
                )],
            ),
            other(
                &["save_strategy"],
                &[Words("`train.save_steps`")],
                &[Words("always counted in steps")],
            ),
            other(
                &["resume_from_checkpoint"],
                &[Words("`host train --resume RUN`")],
                &[Words("to the same bits")],
            ),
            none(
                &[
                    "use_adaptive_entropy",
                    "entropy_coef_min",
                    "entropy_coef_max",
                    "entropy_coef_delta",
                    "entropy_target",
                ],
                &[Words("not available: set `train.entropy_coef`")],
            ),
            none(
                &[
                    "deepspeed",
                    "fsdp",
                    "ds3_gather_for_generation",
                    "torch_empty_cache_steps",
                    "lr_scheduler_kwargs",
                ],
                &[Words("not available")],
            ),
        ],
    },
    Names {
        table: "rewards",
        from: "TRL",
        rows: &[
            other(
                &["reward_funcs"],
                &[Words("`[[reward]]` tables")],
                &[
                    Link("built in", "../docs/rewards.md"),
                    Words(", or "),
                    Link("a plugin", "../docs/plugins.md"),
                    Words(", or `command`, a program of yours in any language"),
                ],
            ),
            other(
                &["accuracy_reward"],
                &[Words("`use = \"math\"`")],
                &[
                    Link("compared", "../docs/rewards.md"),
                    Words(" with `math-verify` on several hundred answers"),
                ],
            ),
            other(
                &["think_format_reward"],
                &[Words("`use = \"format\"`")],
                &[],
            ),
            called(
                "`get_soft_overlong_punishment(…)`",
                other(
                    &["get_soft_overlong_punishment"],
                    &[Words("`use = \"soft_overlong\"`")],
                    &[],
                ),
            ),
            called(
                "a reward model's id",
                other(
                    &[],
                    &[Words("`use = \"reward_model\"`")],
                    &[Words("prompt and completion as texts, no chat template")],
                ),
            ),
            other(
                &["reward_weights"],
                &[Words("`weight` in each `[[reward]]` table")],
                &[Words(
                    "with `normalize_then_sum` also `reward_weights` in `[advantage]`",
                )],
            ),
        ],
    },
    Names {
        table: "loss",
        from: "TRL",
        rows: &[
            same(
                &["scale_rewards"],
                "advantage",
                " with `use = \"grpo.advantage\"`",
                &[Words(
                    "`\"group\"`, `\"batch\"`, `\"none\"`; statistics are over an optimizer step, \
                     TRL's over one generation",
                )],
            ),
            same(
                &["multi_objective_aggregation"],
                "advantage",
                ", beside `reward_weights`",
                &[],
            ),
            other(
                &["loss_type"],
                &[Words(
                    "`recipe`, above all sections, or `use` in `[objective]`",
                )],
                &[Words(
                    "`grpo`, `bnpo`, `dr_grpo`, `dapo`, `cispo`, `sapo`, `luspo`, `vespo`; TRL's \
                     default is `dapo`, ours `grpo`",
                )],
            ),
            same(
                &["importance_sampling_level"],
                "objective",
                "",
                &[Words("`recipe = \"gspo\"` has its epsilons as well")],
            ),
            same(
                &["epsilon", "epsilon_high", "delta"],
                "objective",
                "",
                &[Words(
                    "other defaults: `epsilon_high` 0.28 in `dapo` and 5 in `cispo`; 3e-4 and \
                     4e-4 in `gspo` and `luspo`",
                )],
            ),
            same(
                &["sapo_temperature_pos", "sapo_temperature_neg"],
                "objective",
                " with `use = \"sapo.objective\"`",
                &[],
            ),
            same(
                &[
                    "vespo_k_pos",
                    "vespo_lambda_pos",
                    "vespo_k_neg",
                    "vespo_lambda_neg",
                ],
                "objective",
                " with `use = \"vespo.objective\"`",
                &[],
            ),
            same(
                &["beta"],
                "objective",
                "",
                &[Words("with `kl_estimator` for others than TRL's k3")],
            ),
            same(
                &["use_bias_correction_kl"],
                "objective",
                "",
                &[Words("off by default; TRL's is on")],
            ),
            called(
                "`normalize_advantages`, `reward_clip_range`, RLOO's `beta`",
                same(
                    &["normalize_advantages", "reward_clip_range", "beta"],
                    "advantage",
                    " with `use = \"rloo.advantage\"`",
                    &[Words("`beta` is 0 by default, TRL's 0.05")],
                ),
            ),
            other(
                &["tools", "environment_factory"],
                &[Link("`[environment]`", "../docs/environments.md")],
                &[Words(
                    "a program of yours, or a plugin; TRL's functions and classes run as they are \
                     with `python_tools.py`",
                )],
            ),
        ],
    },
    Names {
        table: "logging",
        from: "TRL, transformers",
        rows: &[
            none(
                &[
                    "log_multimodal",
                    "log_completions_hub_repo",
                    "push_to_hub",
                    "hub_model_id",
                ],
                &[Words(
                    "nothing is uploaded; `host export` writes a folder that `hf upload` takes",
                )],
            ),
            called(
                "callbacks",
                none(
                    &[],
                    &[
                        Words("a "),
                        Link("plugin", "../docs/plugins.md"),
                        Words(
                            " acts at seven points of a step; another program can follow \
                             `metrics.jsonl`",
                        ),
                    ],
                ),
            ),
            called(
                "names of metrics",
                other(
                    &[],
                    &[Words("TRL's where TRL has the metric")],
                    &[Link("all of them", "README.md#metrics")],
                ),
            ),
        ],
    },
];
