//! Lines that a run prints at its start about the adapter that it trains.

use capo_plugin::{Inputs, Mask, StepControlFn, Weight};

use super::terminal::grouped;
use crate::model::{Adapter, Targets};
use crate::run::Run;

/// The adapter's size, and a line about components that predict steps of the last layer, which stays frozen. Empty without an adapter.
pub(super) fn describe(run: &Run) -> Vec<String> {
    let Some(adapter) = run.policy.adapter() else { return Vec::new() };
    let (trained, frozen) = (adapter.params().element_count(), run.policy.weights().element_count());
    let (trained, all) = (grouped(trained as u64), grouped((trained + frozen) as u64));
    let size = format!("lora       {}; trainable {trained} of {all}", settings(adapter));
    let of = |id: &str, inputs: Inputs| inputs.contains(Inputs::LAST_LAYER).then(|| id.to_owned());
    let components = &run.components;
    let masks = components.masks.iter().filter_map(|mask| of(Mask::id(mask), mask.inputs()));
    let weights = components.weights.iter().filter_map(|weight| of(Weight::id(weight), weight.inputs()));
    let controls =
        components.step_controls.iter().filter_map(|control| of(StepControlFn::id(control), control.inputs()));
    let looking: Vec<String> = masks.chain(weights).chain(controls).collect();
    let head =
        format!("head       frozen; {} predicts the step that it would take if it were trained", looking.join(", "));
    [Some(size), (!looking.is_empty()).then_some(head)].into_iter().flatten().collect()
}

fn settings(adapter: &Adapter) -> String {
    let config = adapter.config();
    let targets = match &config.targets {
        Targets::OfFamily => "q_proj, v_proj".to_owned(),
        Targets::AllLinear => "all-linear".to_owned(),
        Targets::Named(names) => names.join(", "),
        Targets::Pattern(pattern) => pattern.clone(),
    };
    let root = if config.rslora { ", divided by the root of the rank" } else { "" };
    format!("rank {}, alpha {}{root}, dropout {}, of {targets}", config.r, config.alpha, config.dropout)
}
