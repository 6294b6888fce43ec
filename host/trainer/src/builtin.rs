//! Built-in rewards and environments: `reward_model`, and those that `capo-rewards` and
//! `capo-environments` register.

use capo_plugin::register;
// These imports link the crates, so that what they register is built in.
use capo_environments as _;
use capo_rewards as _;

use crate::reward::RewardModel;

register!(Reward, RewardModel, "reward_model", "what a model that scores texts gives prompt and \
 completion", {
    model_name_or_path => "a directory with a sequence classification, or the id of one that the \
     Hub's cache has",
    label = None::<String> => "the output to take, by its name in `id2label`; a model with one \
     needs none",
    max_length = None::<usize> => "longer texts keep their first so many tokens; absent: the \
     model's positions",
    batch_size = 8 => "most texts of one forward pass",
    add_special_tokens = None::<bool> => "add the tokenizer's begin and end tokens to each text; \
     by default for encoders only",
    device = "cpu" => "where the model computes; in a run `train.device` where it is not said",
});
