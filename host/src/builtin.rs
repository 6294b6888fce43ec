//! The rewards that come with the trainer: `exact_match` and `reward_model`.

use capo_plugin::register;

use crate::reward::{ExactMatch, RewardModel};

register!(Reward, ExactMatch, "exact_match", "1 where a completion ends with the dataset's answer, else 0", {
    answer_separator = "=" => "the answer is the text after the last one of these; empty compares whole texts"
});

register!(Reward, RewardModel, "reward_model", "what a model that scores texts gives prompt and completion", {
    model_name_or_path => "a directory with a sequence classification, or the id of one that the Hub's cache has",
    label = None::<String> => "the output to take, by its name in `id2label`; a model with one needs none",
    max_length = None::<usize> => "longer texts keep their first so many tokens; absent: the model's positions",
    batch_size = 8 => "most texts of one forward pass",
    add_special_tokens = None::<bool> => "whether texts get the tokens that the model's tokenizer begins and ends one with; absent: where the model is an encoder",
    device = "cpu" => "where the model computes; in a run `train.device` where it is not said",
});
