//! The charts of a page, and the metrics of each.

use std::collections::BTreeSet;

/// A chart. `*` in its metrics stands for a component, a reward or a benchmark. If the title has a `*` too, each of them has its own chart.
#[derive(Debug, Clone, Copy)]
pub struct Chart {
    pub title: &'static str,
    /// Quantity or unit of the values.
    pub unit: &'static str,
    /// True if the axis is logarithmic at first.
    pub log: bool,
    /// The metrics, each with its label in the legend; the label is empty for a single series.
    pub metrics: &'static [(&'static str, &'static str)],
}

type Metrics = &'static [(&'static str, &'static str)];

const fn linear(title: &'static str, unit: &'static str, metrics: Metrics) -> Chart {
    Chart { title, unit, log: false, metrics }
}

const fn logarithmic(title: &'static str, unit: &'static str, metrics: Metrics) -> Chart {
    Chart { title, unit, log: true, metrics }
}

const BATCH: [&str; 2] = ["all tokens", "kept tokens"];
const TOKEN: [&str; 3] = ["mean", "99 of 100 are below", "largest"];

/// Charts, grouped by heading.
pub const SECTIONS: &[(&str, &[Chart])] = &[
    (
        "Results",
        &[
            linear("Held-out accuracy", "share of prompts", &[("eval_accuracy", "")]),
            linear("Held-out reward", "mean of prompts", &[("eval_reward", "")]),
            linear("Held-out reward: *", "mean of prompts", &[("eval_rewards/*/mean", "")]),
            linear("*", "", &[("eval/*", "")]),
            linear("Reward", "mean of completions", &[("reward", "")]),
            linear("Reward: *", "mean of completions", &[("rewards/*/mean", "")]),
            linear("Spread of rewards", "standard deviation", &[("reward_std", "")]),
            linear("Groups without a signal", "share of completions", &[("frac_reward_zero_std", "")]),
            linear(
                "Dynamic sampling",
                "groups of a step",
                &[
                    ("dynamic_sampling/dropped_groups", "dropped"),
                    ("dynamic_sampling/groups_without_difference", "kept without a signal"),
                ],
            ),
        ],
    ),
    (
        "Shifts that the model of curvature foresees",
        &[
            logarithmic(
                "Policy shift m_F of the batch",
                "m_F",
                &[("*/m_f_batch", BATCH[0]), ("*/masked_m_f_batch", BATCH[1])],
            ),
            linear(
                "Objective shift m_H of the batch",
                "m_H",
                &[("*/m_h_batch", BATCH[0]), ("*/masked_m_h_batch", BATCH[1])],
            ),
            logarithmic(
                "Policy shift m_F of tokens",
                "m_F",
                &[("*/m_f/mean", TOKEN[0]), ("*/m_f_p99", TOKEN[1]), ("*/m_f/max", TOKEN[2])],
            ),
            logarithmic(
                "Policy shift m_F of kept tokens",
                "m_F",
                &[("*/masked_m_f_mean", TOKEN[0]), ("*/masked_m_f_max", TOKEN[2])],
            ),
            logarithmic("Size of m_H of tokens", "|m_H|", &[("*/m_h_abs_p50", "median"), ("*/m_h_abs_p99", TOKEN[1])]),
            linear("Objective shift m_H of tokens", "m_H", &[("*/m_h/mean", TOKEN[0]), ("*/m_h/max", TOKEN[2])]),
            linear(
                "Objective shift m_H of kept tokens",
                "m_H",
                &[("*/masked_m_h_mean", TOKEN[0]), ("*/masked_m_h_max", TOKEN[2])],
            ),
        ],
    ),
    (
        "Rejection",
        &[
            linear("Rejected tokens", "share of tokens", &[("mask/rejection_rate", "")]),
            linear("Rejected by *", "share of tokens", &[("*/rejection_rate", "")]),
            linear(
                "Rejected, by reason",
                "share of tokens",
                &[
                    ("*/rejected_fisher", "Fisher"),
                    ("*/rejected_hessian", "Hessian"),
                    ("*/rejected_not_finite", "not finite"),
                ],
            ),
            linear("Gradient that was rejected", "share of squares", &[("mask/rejected_gradient_share", "")]),
            linear("Weighted down by *", "share of tokens", &[("*/below_one", "")]),
            linear("Weighted away by *", "share of squares", &[("*/weighted_away_gradient_share", "")]),
            logarithmic("Threshold of *", "in the unit of its key", &[("*/threshold", "")]),
            linear("Left of the step by *", "share of its length", &[("*/applied", "")]),
        ],
    ),
    (
        "Steps",
        &[
            logarithmic(
                "Policy KL per step",
                "nats per token",
                &[("step/kl", "measured"), ("step/last_layer_kl", "of the last layer")],
            ),
            linear("Length of the step", "Euclidean norm", &[("step/update_norm", "")]),
            linear(
                "Gradient norm",
                "before clipping",
                &[
                    ("grad_norm", "kept"),
                    ("grad_norm_unmasked", "nothing rejected"),
                    ("rejected_grad_norm", "rejected"),
                ],
            ),
            linear("Learning rate", "of the step", &[("learning_rate", "")]),
            linear("Entropy", "nats per token", &[("entropy", "")]),
            linear(
                "Clipped tokens",
                "share of tokens",
                &[
                    ("clip_ratio/region_mean", "either"),
                    ("clip_ratio/low_mean", "low"),
                    ("clip_ratio/high_mean", "high"),
                ],
            ),
            linear("KL to the reference", "nats per token", &[("kl", "")]),
            linear("Loss", "of the step", &[("loss", "all of it"), ("policy_loss", "without the entropy bonus")]),
            linear("Skipped steps", "1 where it was", &[("step_skipped", "")]),
        ],
    ),
    (
        "Lengths",
        &[
            linear(
                "Length of completions",
                "tokens",
                &[("completions/mean_length", "mean"), ("completions/max_length", "longest")],
            ),
            linear("Cut off by the length limit", "share of completions", &[("completions/clipped_ratio", "")]),
        ],
    ),
    (
        "Sampler and trainer",
        &[
            logarithmic(
                "Difference of log-probabilities",
                "nats per token",
                &[
                    ("sampling/sampling_logp_difference/mean", "mean"),
                    ("sampling/sampling_logp_difference/max", "largest"),
                ],
            ),
            linear(
                "Importance ratio",
                "trainer ÷ sampler",
                &[
                    ("sampling/importance_sampling_ratio/mean", "mean"),
                    ("sampling/importance_sampling_ratio/max", "largest"),
                ],
            ),
        ],
    ),
    ("Time", &[linear("Time of a step", "seconds", &[("step_time", "")])]),
];

/// One chart of a page, with `*` replaced and with its matching metrics.
pub struct Found {
    /// Heading of the chart.
    pub section: &'static str,
    pub chart: Chart,
    /// Title, with `*` filled in.
    pub title: String,
    /// For each metric: the index of its pattern, its name, and the text for `*` if the title does not contain it.
    pub metrics: Vec<(usize, String, String)>,
}

/// The charts for runs with metrics of these names.
pub fn find(names: &BTreeSet<&str>) -> Vec<Found> {
    let literal: BTreeSet<&str> = SECTIONS
        .iter()
        .flat_map(|(_, charts)| charts.iter().flat_map(|chart| chart.metrics).map(|(name, _)| *name))
        .collect();
    let mut found = Vec::new();
    for (section, charts) in SECTIONS {
        for chart in *charts {
            let matches = chart.metrics.iter().enumerate().flat_map(|(number, (pattern, _))| {
                // A metric that one chart names in full appears in no other chart.
                let named = |name: &&&str| pattern == *name || !literal.contains(**name);
                let star = |name: &&str| Some((number, (*name).to_owned(), between(pattern, name)?.to_owned()));
                names.iter().filter(named).filter_map(star).collect::<Vec<_>>()
            });
            let matches: Vec<_> = matches.collect();
            if !chart.title.contains('*') {
                let title = chart.title.to_owned();
                found.push(Found { section, chart: *chart, title, metrics: matches });
                continue;
            }
            let stars: BTreeSet<String> = matches.iter().map(|(_, _, star)| star.clone()).collect();
            for one in stars {
                let of = matches.iter().filter(|(_, _, star)| *star == one);
                let metrics = of.map(|(number, name, _)| (*number, name.clone(), String::new())).collect();
                found.push(Found { section, chart: *chart, title: chart.title.replace('*', &one), metrics });
            }
        }
    }
    found.retain(|found| !found.metrics.is_empty());
    found
}

/// The non-empty text that `*` of `pattern` matches in `name`; empty for a pattern without `*`. `None` if they do not match.
fn between<'a>(pattern: &str, name: &'a str) -> Option<&'a str> {
    match pattern.split_once('*') {
        None => (pattern == name).then_some(""),
        Some((before, after)) => name.strip_prefix(before)?.strip_suffix(after).filter(|star| !star.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn titles(names: &[&str]) -> Vec<String> {
        find(&names.iter().copied().collect()).into_iter().map(|found| found.title).collect()
    }

    #[test]
    fn a_component_has_its_own_chart_and_what_is_of_all_has_one() {
        let names = ["mask/rejection_rate", "a.mask/rejection_rate", "b.mask#2/rejection_rate"];
        assert_eq!(titles(&names), ["Rejected tokens", "Rejected by a.mask", "Rejected by b.mask#2"]);
        assert_eq!(titles(&["eval/gsm8k/pass@1", "rewards/exact_match/mean"]), ["gsm8k/pass@1", "Reward: exact_match"]);
    }

    #[test]
    fn several_metrics_share_a_chart() {
        let names = ["x/m_f_batch", "y/masked_m_f_batch", "unknown", "/m_f_batch"];
        let [found] = find(&names.into_iter().collect()).try_into().ok().unwrap();
        let metrics: Vec<_> =
            found.metrics.iter().map(|(number, name, star)| (*number, &name[..], &star[..])).collect();
        assert_eq!(metrics, [(0, "x/m_f_batch", "x"), (1, "y/masked_m_f_batch", "y")]);
    }

    #[test]
    fn no_metric_is_in_two_charts() {
        let mut seen = BTreeSet::new();
        let metrics = SECTIONS.iter().flat_map(|(_, charts)| charts.iter().flat_map(|chart| chart.metrics));
        assert!(metrics.into_iter().all(|(name, _)| seen.insert(name)));
    }
}
