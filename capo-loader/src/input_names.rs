//! Names of the inputs that a component asks the trainer for.

use capo_plugin::Inputs;

/// Names of the inputs, as the fields of a batch are called.
pub(crate) fn input_names(inputs: Inputs) -> Vec<&'static str> {
    let named = [
        (Inputs::OLD_LOGPS, "old_logps"),
        (Inputs::REF_LOGPS, "ref_logps"),
        (Inputs::ENTROPY, "entropy"),
        (Inputs::LAST_LAYER, "last_layer"),
        (Inputs::OPTIMIZER_STATE, "optimizer_state"),
        (Inputs::ROLLOUT_CONTEXT, "rollout_context"),
        (Inputs::SAMPLER_TOP_K, "sampler_top_k"),
        (Inputs::ALIGNMENT, "alignment"),
    ];
    let known = named.iter().filter(|(flag, _)| inputs.contains(*flag)).map(|(_, name)| *name);
    let unknown = (inputs.0 & !Inputs::KNOWN.0 != 0).then_some("something that this host does not know");
    known.chain(unknown).collect()
}
