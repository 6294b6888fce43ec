//! Governors of the optimizer's step, which shorten it where it would move the policy too far, and
//! the recipe that `--plugin libgovernor.so` selects.

#![forbid(unsafe_code)]

mod kl;
mod last_layer;
mod search;
mod slope;
mod target;

use capo_plugin::recipe;

recipe!(
    "governed-grpo",
    "GRPO that finds how much of each step to take",
    include_str!("../recipe.toml")
);

#[cfg(test)]
mod tests {
    #[test]
    fn the_readme_has_the_keys() {
        capo_plugin::testing::key_tables("README.md").unwrap();
    }
}
