//! `[environment]`: episodes of several turns.

use capo_loader::ComponentConfig;
use serde::{Deserialize, Serialize};

use super::rollout::LONGEST;
use super::setting::{Setting, Settings, settings};

/// Section `[environment]`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EnvironmentConfig {
    /// The environment, and the keys that it reads.
    #[serde(flatten)]
    pub component: ComponentConfig,
    #[serde(flatten)]
    pub episode: EpisodeConfig,
}

/// The keys of `[environment]` that `host` reads.
#[settings]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpisodeConfig {
    /// Most turns of the model in an episode.
    #[setting(default = 8, at_least = 1, trl = ["max_tool_calling_iterations"])]
    #[setting(differs = "one more: it counts the last turn too")]
    #[setting(verl = ["rollout.multi_turn.max_assistant_turns"])]
    pub max_turns: usize,
    /// The longest turn of the model; 0 is no limit but `rollout.max_completion_length`, which
    /// holds for the whole episode.
    #[setting(default = 0, unit = "tokens", at_most = LONGEST)]
    pub max_turn_length: usize,
    /// The longest message of the environment. Of a longer one the model reads the beginning, and
    /// how much was cut.
    #[setting(default = 256, unit = "tokens", at_least = 1, at_most = LONGEST)]
    #[setting(verl = ["rollout.multi_turn.max_tool_response_length"])]
    pub max_observation_length: usize,
    /// With a chat template that drops thoughts from earlier turns: true lets the model go on
    /// reading them.
    #[setting(default = false)]
    pub keep_thinking: bool,
}
