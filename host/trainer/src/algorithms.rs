//! Built-in advantage estimators and objectives, and recipes that combine them. Their formulas are
//! in plugins/baselines/README.md.

use capo_baselines::{
    ByCompletion, ByFixedLength, ByToken, Cispo, ClippedSurrogate, Dapo, GroupCentered,
    GroupNormalized, Gspo, LeaveOneOut, Luspo, PolicyGradient, ReinforcePlusPlus,
    RewardAsAdvantage, Rloo, Sapo, Vespo,
};
use capo_plugin::{recipe, register};

/// The recipe of a run that names none and loads no plugin with a recipe.
pub const DEFAULT_RECIPE: &str = "grpo";

/// Advantages that compare the completions of each prompt, those of the plugins that come with
/// `host` included.
pub const GROUP_ADVANTAGES: [&str; 5] = [
    "grpo.advantage",
    "dr_grpo.advantage",
    "rloo.advantage",
    "capo.advantage",
    "drcapo.advantage",
];

/// Recipes of the plugins that come with `host`.
pub const OF_PLUGINS: [(&str, &[&str]); 5] = [
    ("libcapo.so", &["capo", "capo-soft"]),
    ("libdrcapo.so", &["drcapo", "drcapo-soft"]),
    ("libreincapo.so", &["reincapo", "reincapo-soft"]),
    ("libgovernor.so", &["governed-grpo"]),
    (
        "libmasks.so",
        &["dppo", "dppo-kl", "ipo", "icepop", "deepseek-v3.2"],
    ),
];

register!(
    Advantage,
    GroupNormalized,
    "grpo.advantage",
    "(reward - group mean) / (group std + epsilon)."
);
register!(
    Advantage,
    GroupCentered,
    "dr_grpo.advantage",
    "Reward - group mean."
);
register!(
    Advantage,
    LeaveOneOut,
    "rloo.advantage",
    "Reward - mean of the group's other rewards."
);
register!(
    Advantage,
    RewardAsAdvantage,
    "reinforce.advantage",
    "The reward itself."
);
register!(
    Advantage,
    ReinforcePlusPlus,
    "reinforce_plus_plus.advantage",
    "Returns of each token, standardised over all tokens."
);

/// Registers a clipped surrogate with this level and reduction.
macro_rules! clipped {
    ($id:literal, $kind:ty, $about:literal) => {
        register!(Objective, ClippedSurrogate<$kind>, $id, $about);
    };
}

clipped!(
    "grpo.objective",
    ByCompletion,
    "Clipped surrogate, mean over completions of their means."
);
clipped!(
    "dr_grpo.objective",
    ByFixedLength,
    "Clipped surrogate, sum over a fixed length."
);
clipped!(
    "bnpo.objective",
    ByToken,
    "Clipped surrogate, mean over all tokens."
);
clipped!(
    "dapo.objective",
    Dapo,
    "Clipped surrogate with more room above, mean over all tokens."
);
clipped!(
    "gspo.objective",
    Gspo,
    "Clipped surrogate with one ratio per completion."
);
clipped!(
    "luspo.objective",
    Luspo,
    "Clipped surrogate with one ratio per completion, which counts by its length."
);
clipped!(
    "rloo.objective",
    Rloo,
    "Clipped surrogate of whole completions."
);
register!(
    Objective,
    Cispo,
    "cispo.objective",
    "Policy gradient weighted by ratios with a limit."
);
register!(
    Objective,
    Sapo,
    "sapo.objective",
    "Surrogate with a soft gate in place of the clip."
);
register!(
    Objective,
    Vespo,
    "vespo.objective",
    "Policy gradient weighted smoothly by each completion's ratio."
);
register!(
    Objective,
    PolicyGradient,
    "reinforce.objective",
    "Policy gradient, mean over completions of their means."
);

/// Defines a recipe from an advantage estimator and an objective with their defaults; each may have
/// additional lines.
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

algorithm!(
    "grpo",
    "group-normalised advantage, clipped surrogate, no mask",
    "grpo",
    "grpo"
);
algorithm!(
    "dr_grpo",
    "centred advantage, fixed-length reduction, no mask",
    "dr_grpo",
    "dr_grpo"
);
algorithm!(
    "bnpo",
    "group-normalised advantage, clipped surrogate over all tokens, no mask",
    "grpo",
    "bnpo"
);
algorithm!(
    "dapo",
    "group-normalised advantage, a clip with more room above, over all tokens, no mask",
    "grpo",
    "dapo"
);
algorithm!(
    "gspo",
    "group-normalised advantage, one clipped ratio per completion, no mask",
    "grpo",
    "gspo"
);
algorithm!(
    "luspo",
    "group-normalised advantage, one clipped ratio per completion, which counts by its length, no \
     mask",
    "grpo",
    "luspo"
);
algorithm!(
    "cispo",
    "group-normalised advantage, policy gradient by limited ratios, no mask",
    "grpo",
    "cispo"
);
algorithm!(
    "sapo",
    "group-normalised advantage, surrogate with a soft gate, no mask",
    "grpo",
    "sapo"
);
algorithm!(
    "vespo",
    "group-normalised advantage, policy gradient by each completion's ratio, no mask",
    "grpo",
    "vespo"
);
algorithm!(
    "rloo",
    "leave-one-out advantage, clipped surrogate of whole completions, no mask",
    "rloo",
    "rloo"
);
algorithm!(
    "reinforce",
    "reward as advantage, policy gradient, no mask",
    "reinforce",
    "reinforce"
);
algorithm!(
    "reinforce_plus_plus",
    "returns standardised over all tokens, clipped surrogate over all tokens, no mask",
    "reinforce_plus_plus",
    "bnpo"
);
algorithm!(
    "reinforce_plus_plus_baseline",
    "rewards less their group's mean, standardised over all tokens, clipped surrogate over all \
     tokens, no mask",
    "reinforce_plus_plus",
    "bnpo",
    "baseline = \"group\"\n"
);
