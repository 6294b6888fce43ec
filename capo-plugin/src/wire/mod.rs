//! The wire: every type that crosses between an executable and a plugin. All types are frozen; [`abi`] has the rules.

pub mod abi;
pub mod abi_alignment;
pub mod abi_collective;
pub mod abi_context;
pub mod abi_keys;
pub mod abi_recipe;
pub mod abi_reward;
pub mod abi_step_control;
pub mod abi_sweep;
pub mod abi_top_k;
pub mod abi_traits;
pub mod abi_weight;
