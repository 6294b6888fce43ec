//! Governors of the optimizer's step, which shorten it where it would move the policy too far, and
//! the recipe that `--plugin libgovernor.so` selects.

#![forbid(unsafe_code)]

mod kl;
mod last_layer;
mod search;
mod target;

use capo_plugin::{recipe, register};

use kl::Kl;
use last_layer::LastLayerGovernor;

register!(StepControl, Kl, "governor.kl", "shortens steps to what the policy can take, or to a KL divergence", {
    target = kl::TARGET => "`auto`: the share of the steps finds itself; or the largest KL divergence of a step, nats per completion token",
    fraction = kl::FRACTION => "share of the completions on which it is measured, above 0 and at most 1",
    every = kl::EVERY => "measure every so many steps; in between the KL is told from Adam's second moment",
});
register!(
    StepControl,
    LastLayerGovernor,
    "governor.last-layer",
    "shortens steps that would move the policy too far by the last layer alone",
    { target = last_layer::TARGET => "largest predicted KL divergence of the last layer's step, nats per kept token" }
);
recipe!(
    "governed-grpo",
    "GRPO that finds how much of each step to take",
    include_str!("../recipe.toml")
);
