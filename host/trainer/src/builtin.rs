//! Built-in rewards and environments: `reward_model`, and those that `capo-rewards` and
//! `capo-environments` register.

use capo_plugin::register;
// These imports link the crates, so that what they register is built in.
use capo_environments as _;
use capo_rewards as _;

use crate::reward::RewardModel;

register!(Reward, RewardModel, RewardModel::ID);
