//! Built-in advantage estimators and objectives, and recipes that combine them. Their formulas are in docs/objectives.md.

use capo_baselines::{
    ByCompletion, ByFixedLength, ByToken, Cispo, ClippedSurrogate, Dapo, GroupCentered, GroupNormalized, Gspo,
    LeaveOneOut, Luspo, PolicyGradient, ReinforcePlusPlus, RewardAsAdvantage, Rloo, Sapo, Vespo,
};
use capo_plugin::{recipe, register};

/// The recipe of a run that names none and loads no plugin with a recipe.
pub const DEFAULT_RECIPE: &str = "grpo";

register!(
    AdvantageEstimator,
    GroupNormalized,
    "grpo.advantage",
    "(reward - group mean) / (group std + epsilon)",
    GroupNormalized::KEYS
);
register!(AdvantageEstimator, GroupCentered, "dr_grpo.advantage", "reward - group mean");
register!(
    AdvantageEstimator,
    LeaveOneOut,
    "rloo.advantage",
    "reward - mean of the group's other rewards",
    LeaveOneOut::KEYS
);
register!(AdvantageEstimator, RewardAsAdvantage, "reinforce.advantage", "the reward itself", RewardAsAdvantage::KEYS);
register!(
    AdvantageEstimator,
    ReinforcePlusPlus,
    "reinforce_plus_plus.advantage",
    "returns of each token, standardised over all tokens",
    ReinforcePlusPlus::KEYS
);

register!(
    Objective,
    ClippedSurrogate<ByCompletion>,
    "grpo.objective",
    "clipped surrogate, mean over completions of their means",
    ClippedSurrogate::<ByCompletion>::KEYS
);
register!(
    Objective,
    ClippedSurrogate<ByFixedLength>,
    "dr_grpo.objective",
    "clipped surrogate, sum over a fixed length",
    ClippedSurrogate::<ByFixedLength>::KEYS
);
register!(
    Objective,
    ClippedSurrogate<ByToken>,
    "bnpo.objective",
    "clipped surrogate, mean over all tokens",
    ClippedSurrogate::<ByToken>::KEYS
);
register!(
    Objective,
    ClippedSurrogate<Dapo>,
    "dapo.objective",
    "clipped surrogate with more room above, mean over all tokens",
    ClippedSurrogate::<Dapo>::KEYS
);
register!(
    Objective,
    ClippedSurrogate<Gspo>,
    "gspo.objective",
    "clipped surrogate with one ratio per completion",
    ClippedSurrogate::<Gspo>::KEYS
);
register!(
    Objective,
    ClippedSurrogate<Luspo>,
    "luspo.objective",
    "clipped surrogate with one ratio per completion, which counts by its length",
    ClippedSurrogate::<Luspo>::KEYS
);
register!(
    Objective,
    ClippedSurrogate<Rloo>,
    "rloo.objective",
    "clipped surrogate of whole completions",
    ClippedSurrogate::<Rloo>::KEYS
);
register!(Objective, Cispo, "cispo.objective", "policy gradient weighted by ratios with a limit", Cispo::KEYS);
register!(Objective, Sapo, "sapo.objective", "surrogate with a soft gate in place of the clip", Sapo::KEYS);
register!(
    Objective,
    Vespo,
    "vespo.objective",
    "policy gradient weighted smoothly by each completion's ratio",
    Vespo::KEYS
);
register!(
    Objective,
    PolicyGradient,
    "reinforce.objective",
    "policy gradient, mean over completions of their means",
    PolicyGradient::KEYS
);

/// Defines a recipe from an advantage estimator and an objective with their defaults; each may have additional lines.
macro_rules! algorithm {
    ($name:literal, $about:literal, $advantage:literal, $objective:literal $(, $more:literal)?) => {
        recipe!(
            $name,
            $about,
            concat!(
                "[advantage]\nuse = \"", $advantage, ".advantage\"\n", $($more,)?
                "\n[objective]\nuse = \"", $objective, ".objective\"\n"
            )
        );
    };
}

algorithm!("grpo", "group-normalised advantage, clipped surrogate, no mask", "grpo", "grpo");
algorithm!("dr_grpo", "centred advantage, fixed-length reduction, no mask", "dr_grpo", "dr_grpo");
algorithm!("bnpo", "group-normalised advantage, clipped surrogate over all tokens, no mask", "grpo", "bnpo");
algorithm!("dapo", "group-normalised advantage, a clip with more room above, over all tokens, no mask", "grpo", "dapo");
algorithm!("gspo", "group-normalised advantage, one clipped ratio per completion, no mask", "grpo", "gspo");
algorithm!(
    "luspo",
    "group-normalised advantage, one clipped ratio per completion, which counts by its length, no mask",
    "grpo",
    "luspo"
);
algorithm!("cispo", "group-normalised advantage, policy gradient by limited ratios, no mask", "grpo", "cispo");
algorithm!("sapo", "group-normalised advantage, surrogate with a soft gate, no mask", "grpo", "sapo");
algorithm!("vespo", "group-normalised advantage, policy gradient by each completion's ratio, no mask", "grpo", "vespo");
algorithm!("rloo", "leave-one-out advantage, clipped surrogate of whole completions, no mask", "rloo", "rloo");
algorithm!("reinforce", "reward as advantage, policy gradient, no mask", "reinforce", "reinforce");
algorithm!(
    "reinforce_plus_plus",
    "returns standardised over all tokens, clipped surrogate over all tokens, no mask",
    "reinforce_plus_plus",
    "bnpo"
);
algorithm!(
    "reinforce_plus_plus_baseline",
    "rewards less their group's mean, standardised over all tokens, clipped surrogate over all tokens, no mask",
    "reinforce_plus_plus",
    "bnpo",
    "baseline = \"group\"\n"
);
