//! The components that come with the trainer: `reward_model`, `grpo.*`, `dr_grpo.*`, `reinforce.*`, and the rewards of `capo-rewards`,
//! which offers them itself.

use capo_baselines::{
    ByCompletion, ByFixedLength, ClippedSurrogate, GroupCentered, GroupNormalized, PolicyGradient, RewardAsAdvantage,
};
use capo_plugin::{recipe, register};
// Linked, so that what it offers is built in.
use capo_rewards as _;

use crate::reward::RewardModel;

/// The recipe of a run that names none and loads no plugin with one.
pub const DEFAULT_RECIPE: &str = "grpo";

register!(Reward, RewardModel, "reward_model", "what a model that scores texts gives prompt and completion", {
    model_name_or_path => "a directory with a sequence classification, or the id of one that the Hub's cache has",
    label = None::<String> => "the output to take, by its name in `id2label`; a model with one needs none",
    max_length = None::<usize> => "longer texts keep their first so many tokens; absent: the model's positions",
    batch_size = 8 => "most texts of one forward pass",
    add_special_tokens = None::<bool> => "whether texts get the tokens that the model's tokenizer begins and ends one with; absent: where the model is an encoder",
    device = "cpu" => "where the model computes; in a run `train.device` where it is not said",
});

register!(
    AdvantageEstimator,
    GroupNormalized,
    "grpo.advantage",
    "(reward - group mean) / (group std + epsilon)",
    GroupNormalized::KEYS
);
register!(
    Objective,
    ClippedSurrogate<ByCompletion>,
    "grpo.objective",
    "clipped surrogate, mean over completions of their means",
    ClippedSurrogate::<ByCompletion>::KEYS
);
recipe!(
    "grpo",
    "group-normalised advantage, clipped surrogate, no mask",
    "[advantage]\nuse = \"grpo.advantage\"\n\n[objective]\nuse = \"grpo.objective\"\n"
);

register!(AdvantageEstimator, GroupCentered, "dr_grpo.advantage", "reward - group mean");
register!(
    Objective,
    ClippedSurrogate<ByFixedLength>,
    "dr_grpo.objective",
    "clipped surrogate, sum over a fixed length",
    ClippedSurrogate::<ByFixedLength>::KEYS
);
recipe!(
    "dr_grpo",
    "centred advantage, fixed-length reduction, no mask",
    "[advantage]\nuse = \"dr_grpo.advantage\"\n\n[objective]\nuse = \"dr_grpo.objective\"\n"
);

register!(AdvantageEstimator, RewardAsAdvantage, "reinforce.advantage", "the reward itself");
register!(
    Objective,
    PolicyGradient,
    "reinforce.objective",
    "policy gradient, mean over completions of their means",
    PolicyGradient::KEYS
);
recipe!(
    "reinforce",
    "reward as advantage, policy gradient, no mask",
    "[advantage]\nuse = \"reinforce.advantage\"\n\n[objective]\nuse = \"reinforce.objective\"\n"
);
