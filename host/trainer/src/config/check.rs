//! Limits on single settings and on combinations of settings.

use anyhow::Result;
use capo_loader::{ComponentConfig, component_names};
use host_data::Arithmetic;
use host_model::device::{CPU, Dtype};
use host_model::optim::OptimizerName;
use host_model::optim::adamw::SecondMoment;
use host_model::schedule::ScheduleKind;

use super::setting::{self, Settings, given};
use super::{
    Config, DataConfig, EnvironmentConfig, Format, LossDistribution, RolloutConfig, Sizes, TEST,
    TrainConfig, datasets,
};
use crate::algorithms::GROUP_ADVANTAGES;
use crate::exam::RightAnswer;
use crate::reward::{self, RewardConfig};
use crate::{refuse, require};

/// Refuses settings that are out of range, contradict each other or disable each other. Returns the
/// sizes of the run.
pub(super) fn check(config: &Config) -> Result<Sizes> {
    let Config {
        data,
        rollout,
        train,
        ..
    } = config;
    config.model.check()?;
    config.logging.check()?;
    in_section("model", &config.model)?;
    in_section("data", data)?;
    in_section("rollout", rollout)?;
    in_section("train", train)?;
    in_section("eval", &config.eval)?;
    in_section("logging", &config.logging)?;
    in_section("warnings", &config.warnings)?;
    environment(config)?;
    require!(
        ["reward", "data.preset"],
        !config.reward.is_empty(),
        "the number of `[[reward]]` tables is 0 (give one, as `--set 'reward=[{{use=\"math\"}}]'` \
         does, or `data.preset`, which brings one)"
    );
    optimizer(train)?;
    warmup(train.lr_scheduler_type, train.warmup_ratio)?;
    self::data(data)?;
    config.check_eval()?;
    let sizes = Sizes::new(rollout, train)?;
    require!(
        ["train.save_steps"],
        train.save_steps.is_multiple_of(sizes.steps_per_rollout),
        "`train.save_steps` is {}, but checkpoints are written between rollouts, every {} steps \
         (use a multiple)",
        train.save_steps,
        sizes.steps_per_rollout
    );
    score_at_sampling(config, &sizes)?;
    best_model(config, &sizes)?;
    dynamic_sampling(rollout)?;
    groups_of_one(config)?;
    require!(
        ["train.second_moment"],
        train.second_moment == SecondMoment::Kept
            || !(config.mask.is_empty() && config.weight.is_empty()),
        "`train.second_moment` is `kept_and_rejected`, but nothing rejects tokens (add a \
         component with `--mask` or `--weight`, or remove it)"
    );
    loss_factors(config)?;
    require!(
        [
            "train.loss_distribution",
            "train.loss_temperature",
            "rollout.temperature"
        ],
        train.loss_distribution == LossDistribution::Full
            || rollout.temperature == train.loss_temperature as f32,
        "`train.loss_distribution` is `sampler`, but `train.loss_temperature` is {} and \
         `rollout.temperature` {} (set both to the same)",
        train.loss_temperature,
        rollout.temperature
    );
    Ok(sizes)
}

/// Refuses numbers of a section outside of the limits that stand at their fields.
pub fn in_section<S: Settings>(section: &str, settings: &S) -> Result<()> {
    if let Some(refused) = setting::check(settings)? {
        let setting = format!("{section}.{}", refused.setting);
        refuse!([setting.clone()], "`{setting}` {refused}");
    }
    Ok(())
}

/// Refuses the environment's reward without an environment, turns that are longer than an episode,
/// and thoughts without a template.
fn environment(config: &Config) -> Result<()> {
    let Some(EnvironmentConfig { episode, .. }) = &config.environment else {
        let own = config
            .reward
            .iter()
            .find(|reward| reward.id == reward::OF_ENVIRONMENT);
        require!(
            ["reward", "environment"],
            own.is_none(),
            "`[[reward]]` names `{}`, but the run has no environment (add `[environment]`)",
            reward::OF_ENVIRONMENT
        );
        return Ok(());
    };
    in_section("environment", episode)?;
    let length = episode.max_turn_length;
    let most = config.rollout.max_completion_length;
    require!(
        [
            "environment.max_turn_length",
            "rollout.max_completion_length"
        ],
        length <= most,
        "`environment.max_turn_length` is {length}, but a whole episode has at most \
         `rollout.max_completion_length` {most} tokens (lower the one, or raise the other)"
    );
    require!(
        ["environment.keep_thinking", "data.format"],
        !episode.keep_thinking || config.data.format == Format::Chat,
        "`environment.keep_thinking` is true, but `data.format` is `text`, and no template drops \
         thoughts (set `data.format` to `chat`, or remove it)"
    );
    Ok(())
}

/// Refuses names in `train.loss_factors` that are not masks or weights of the run.
fn loss_factors(config: &Config) -> Result<()> {
    let names = [
        component_names(&config.mask),
        component_names(&config.weight),
    ]
    .concat();
    if let Some(name) = config
        .train
        .loss_factors
        .iter()
        .find(|name| !names.contains(name))
    {
        refuse!(
            ["train.loss_factors"],
            "`train.loss_factors` names `{name}`, which is no mask \
         and no weight of this run (add it to `[[mask]]` or `[[weight]]`, or leave it out)"
        );
    }
    Ok(())
}

/// Refuses settings of the best checkpoint without a metric that chooses it, and evaluations at
/// steps that have no checkpoint.
fn best_model(config: &Config, sizes: &Sizes) -> Result<()> {
    let Config { train, eval, .. } = config;
    let Some(metric) = &train.metric_for_best_model else {
        if let Some((key, _)) = given(train, "metric") {
            refuse!(
                [format!("train.{key}"), "train.metric_for_best_model"],
                "`train.{key}` is set, but no metric is compared (set \
                 `train.metric_for_best_model`, or remove it)"
            );
        }
        return Ok(());
    };
    require!(
        ["train.metric_for_best_model", "eval.eval_steps"],
        eval.eval_steps > 0,
        "`train.metric_for_best_model` is `{metric}`, but `eval.eval_steps` is 0: only the last \
         step is evaluated (set how often)"
    );
    require!(
        ["eval.eval_steps", "train.metric_for_best_model"],
        eval.eval_steps.is_multiple_of(sizes.steps_per_rollout),
        "`eval.eval_steps` is {}, but checkpoints are written between rollouts, every {} steps \
         (use a multiple, or remove `train.metric_for_best_model`)",
        eval.eval_steps,
        sizes.steps_per_rollout
    );
    require!(
        ["train.metric_for_best_model", "eval.num_prompts"],
        !metric.starts_with("eval_") || eval.num_prompts > 0,
        "`train.metric_for_best_model` is `{metric}`, but `eval.num_prompts` is 0 (set it)"
    );
    require!(
        ["train.metric_for_best_model", "eval.reward"],
        RightAnswer::of(config) != RightAnswer::Undecided
            || !(metric == "eval_accuracy" || metric.contains('@')),
        "`train.metric_for_best_model` is `{metric}`, but of several rewards none says which \
         answers are right (name it with `eval.reward`)"
    );
    let benchmark = metric
        .strip_prefix("eval/")
        .map(|rest| rest.split('/').next().unwrap_or(rest));
    if let Some(name) = benchmark.filter(|name| *name != TEST) {
        require!(
            ["train.metric_for_best_model", "eval.benchmark"],
            eval.benchmark
                .iter()
                .any(|benchmark| benchmark.name == name),
            "`train.metric_for_best_model` is `{metric}`, but no benchmark is called `{name}` \
             (add an `[[eval.benchmark]]` table)"
        );
    }
    Ok(())
}

/// Refuses `train.score_at_sampling` unless the sampler's log-probabilities are of the same
/// distribution as the step's.
fn score_at_sampling(config: &Config, sizes: &Sizes) -> Result<()> {
    if !config.train.score_at_sampling {
        return Ok(());
    }
    let key = "`train.score_at_sampling` is on";
    require!(
        [
            "train.score_at_sampling",
            "rollout.temperature",
            "train.loss_temperature",
            "rollout.top_k",
            "rollout.top_p",
            "rollout.dtype",
            "train.dtype"
        ],
        !config.sampler_differs(),
        "{key}, but completions are drawn from another distribution than the one that the loss \
         sees (set `rollout.temperature` to `train.loss_temperature`, `rollout.top_k` to 0, \
         `rollout.top_p` to 1 and `rollout.dtype` to `train.dtype`, or turn it off)"
    );
    let uses = sizes.steps_per_rollout;
    require!(
        [
            "train.score_at_sampling",
            "train.steps_per_generation",
            "train.num_iterations"
        ],
        uses == 1,
        "{key}, but {uses} steps use each rollout, and all after the first have another policy \
         (use each once, or turn it off)"
    );
    require!(
        ["train.score_at_sampling", "rollout.filter_groups"],
        !config.rollout.filter_groups,
        "{key}, but `rollout.filter_groups` puts a rollout together from several (turn one of \
         them off)"
    );
    require!(
        ["train.score_at_sampling", "model.lora_dropout"],
        config.model.lora().is_none_or(|lora| lora.dropout == 0.0),
        "{key}, but the passes of a step have dropout and the sampler has none (set \
         `model.lora_dropout` to 0, or turn it off)"
    );
    Ok(())
}

/// Refuses dynamic sampling with groups of one, and its limit without dynamic sampling.
fn dynamic_sampling(rollout: &RolloutConfig) -> Result<()> {
    let group = rollout.num_generations;
    let most = rollout.max_num_gen_batches;
    if rollout.filter_groups {
        require!(
            ["rollout.filter_groups", "rollout.num_generations"],
            group > 1,
            "`rollout.filter_groups` is on, but `rollout.num_generations` is {group}, and a group \
             of one has no difference (raise it, or turn it off)"
        );
        return Ok(());
    }
    require!(
        ["rollout.max_num_gen_batches", "rollout.filter_groups"],
        most == RolloutConfig::default().max_num_gen_batches,
        "`rollout.max_num_gen_batches` is {most}, but `rollout.filter_groups` is off, and each \
         rollout is sampled once (turn it on, or remove it)"
    );
    Ok(())
}

/// Refuses groups of one if the advantage compares the completions of each prompt: every advantage
/// would be 0.
fn groups_of_one(config: &Config) -> Result<()> {
    let ComponentConfig { id, table } = &config.advantage;
    let baseline = table.get("baseline").and_then(toml::Value::as_str);
    require!(
        ["rollout.num_generations"],
        config.rollout.num_generations > 1
            || !(GROUP_ADVANTAGES.contains(&id.as_str()) || baseline == Some("group")),
        "`rollout.num_generations` is 1, but `{id}` compares the completions of each prompt (use \
         2 or more, or an advantage that does not: `--set recipe=reinforce`)"
    );
    Ok(())
}

/// Gives the rewards and an advantage that sums them itself the same weights: those of the
/// advantage, else those of the rewards. So the metric `reward` has the weights that the run learns
/// by, as in TRL. Refuses weights that contradict each other.
pub(super) fn reward_weights(config: &mut Config) -> Result<()> {
    const KEY: &str = "reward_weights";
    let Config {
        advantage: ComponentConfig { id, table },
        reward: rewards,
        ..
    } = config;
    let sums = table
        .get("multi_objective_aggregation")
        .and_then(toml::Value::as_str)
        == Some("normalize_then_sum");
    if !sums || !GROUP_ADVANTAGES.contains(&id.as_str()) {
        return Ok(());
    }
    let Some(own) = table.get(KEY) else {
        if rewards.iter().any(|reward| reward.weight != 1.0) {
            let weights: Vec<f64> = rewards.iter().map(|reward| reward.weight).collect();
            table.insert(KEY.into(), weights.into());
        }
        return Ok(());
    };
    // The component itself refuses a value that is not a list of numbers.
    let Ok(own) = own.clone().try_into::<Vec<f64>>() else {
        return Ok(());
    };
    let given = own.len();
    let count = rewards.len();
    require!(
        [format!("advantage.{KEY}"), "reward"],
        given == count,
        "`advantage.{KEY}` has {given} numbers, but the run has {count} rewards (give one for \
         each `[[reward]]`, in their order)"
    );
    for (RewardConfig { id, weight, .. }, own) in rewards.iter_mut().zip(own) {
        require!(
            [format!("advantage.{KEY}"), "reward"],
            *weight == 1.0 || *weight == own,
            "the `weight` of the reward `{id}` is {weight}, but its number in `advantage.{KEY}` \
             is {own} (remove one of them)"
        );
        *weight = own;
    }
    Ok(())
}

/// Refuses a warm-up that the schedule would ignore.
pub fn warmup(kind: ScheduleKind, warmup_ratio: f64) -> Result<()> {
    require!(
        ["train.warmup_ratio", "train.lr_scheduler_type"],
        kind != ScheduleKind::Constant || warmup_ratio == 0.0,
        "`train.warmup_ratio` is {warmup_ratio}, but `train.lr_scheduler_type` `constant` has no \
         warm-up (use `constant_with_warmup`, or set `train.warmup_ratio` to 0)"
    );
    Ok(())
}

/// Refuses settings that the chosen optimizer does not read.
fn optimizer(train: &TrainConfig) -> Result<()> {
    match train.optimizer {
        OptimizerName::AdamW => require!(
            ["train.sgd_momentum", "train.optimizer", "train.adam_beta1"],
            train.sgd_momentum == 0.0,
            "`train.sgd_momentum` is {}, but `train.optimizer` is `adamw`, whose momentum is \
             `train.adam_beta1` (set `train.optimizer` to `sgd`, or remove it)",
            train.sgd_momentum
        ),
        OptimizerName::Sgd => {
            require!(
                ["train.second_moment", "train.optimizer"],
                train.second_moment == SecondMoment::Kept,
                "`train.second_moment` is `kept_and_rejected`, but `train.optimizer` is `sgd`, \
                 which has no second moment (set `train.optimizer` to `adamw`, or remove it)"
            );
            if let Some((key, value)) = given(train, "adam") {
                refuse!(
                    [format!("train.{key}"), "train.optimizer"],
                    "`train.{key}` is {value}, but `train.optimizer` is `sgd`, which does not \
                     read it (set `train.optimizer` to `adamw`, or remove it)"
                );
            }
        }
    }
    require!(
        ["train.moments_dtype", "train.device"],
        train.moments_dtype == Dtype::F32 || train.device == CPU,
        "`train.moments_dtype` is `bf16`, which only the CPU supports, but `train.device` is `{}` \
         (remove one of them)",
        train.device
    );
    Ok(())
}

/// Refuses settings of files for a dataset that is not in files, and settings of conversations for
/// plain-text prompts.
pub fn data(data: &DataConfig) -> Result<()> {
    if let (Format::Text, Some((key, _))) = (data.format, given(data, "chat")) {
        refuse!(
            [format!("data.{key}"), "data.format"],
            "`data.{key}` is set, but `data.format` \
         is `text`, which has no use for it (set `data.format` to `chat`, or remove it)"
        );
    }
    require!(
        ["data.add_special_tokens", "data.format"],
        data.format == Format::Text || data.add_special_tokens,
        "`data.add_special_tokens` is `false`, but `data.format` is `chat`, whose template alone \
         writes special tokens (remove it)"
    );
    datasets::check(data)?;
    if !Arithmetic::NAMES.contains(&data.dataset_name.as_str()) {
        return Ok(());
    }
    let name = &data.dataset_name;
    require!(
        [
            "data.dataset_name",
            "data.eval_dataset_name",
            "data.dataset_test_split"
        ],
        data.eval_dataset_name.is_none() && data.dataset_test_split.is_none(),
        "dataset `{name}` has its own held-out prompts (remove `eval_dataset_name` and \
         `dataset_test_split`)"
    );
    if let Some((key, column)) = given(data, "columns") {
        let column = column.as_str().unwrap_or_default();
        refuse!(
            [format!("data.{key}"), "data.dataset_name"],
            "`data.{key}` is `{column}`, but dataset `{name}` has no columns (remove it)"
        );
    }
    if let Some((key, _)) = given(data, "rows") {
        refuse!(
            [format!("data.{key}"), "data.dataset_name"],
            "`data.{key}` is set, but dataset `{name}` is made, not read (remove it)"
        );
    }
    Ok(())
}
