//! The published masks and token weights, one file each. Each gives the same numbers as its source.
//!
//! `policies` selects the two compared policies. `sequence` and `statistic` reduce tokens to
//! completions. `tokens` lists remaining tokens and drops tokens. `rated` lets a threshold follow
//! the run. Values of a completion cover all its tokens, even those that other masks dropped;
//! fractions and quantiles cover only the remaining tokens.

#![forbid(unsafe_code)]

mod checks;
mod clip_cov;
mod dppo;
mod dppo_top_k;
mod drpo;
mod entropy_quantile;
mod icepop;
mod ipo;
mod kl_cov;
mod low_probability;
mod m2po;
mod mis;
mod off_policy_sequence;
mod policies;
mod probability_floor;
mod rated;
mod ratio_range;
mod sequence;
mod share;
mod statistic;
mod tis;
mod tokens;
mod trm;
mod truncated;

use capo_plugin::recipe;

recipe!(
    "dppo",
    "policy gradient by the ratio to the sampler, DPPO-Binary-TV",
    include_str!("../recipes/dppo.toml")
);
recipe!(
    "dppo-kl",
    "policy gradient by the ratio to the sampler, DPPO-Binary-KL",
    include_str!("../recipes/dppo-kl.toml")
);
recipe!(
    "ipo",
    "policy gradient by the ratio to the sampler, IPO",
    include_str!("../recipes/ipo.toml")
);
recipe!(
    "icepop",
    "GRPO with IcePop's weights",
    include_str!("../recipes/icepop.toml")
);
recipe!(
    "deepseek-v3.2",
    "GRPO with centred advantages and off-policy sequence masking",
    include_str!("../recipes/deepseek-v3.2.toml")
);

#[cfg(test)]
mod tests;
