//! The charts of a page, and the metrics of each.

use std::collections::BTreeSet;

/// The table of charts, which says what its columns are.
const CHARTS: &str = include_str!("charts.txt");

/// A chart. `*` in its metrics stands for a component, a reward or a benchmark. If the title has a
/// `*` too, each of them has its own chart.
#[derive(Debug, Clone)]
pub struct Chart {
    /// Heading of the chart.
    pub section: &'static str,
    pub title: &'static str,
    /// Quantity or unit of the values.
    pub unit: &'static str,
    /// True if the axis is logarithmic at first.
    pub log: bool,
    /// The metrics, each with its label in the legend; the label is empty for a single series.
    pub metrics: Vec<(&'static str, &'static str)>,
}

/// All charts, in order.
pub fn all() -> Vec<Chart> {
    let mut section = "";
    let mut charts = Vec::new();
    for line in CHARTS.lines() {
        section = line.strip_prefix("# ").unwrap_or(section);
        if let [title, unit, scale, metrics] = line.split(" | ").collect::<Vec<_>>()[..]
            && !section.is_empty()
        {
            let metrics = metrics
                .split("; ")
                .map(|metric| metric.split_once(" = ").unwrap_or((metric, "")))
                .collect();
            let unit = if unit == "-" { "" } else { unit };
            charts.push(Chart {
                section,
                title,
                unit,
                log: scale == "log",
                metrics,
            });
        }
    }
    charts
}

/// One chart of a page, with `*` replaced and with its matching metrics.
pub struct Found {
    pub chart: Chart,
    /// Title, with `*` filled in.
    pub title: String,
    /// For each metric: the index of its pattern, its name, and the text for `*` if the title does
    /// not contain it.
    pub metrics: Vec<(usize, String, String)>,
}

/// The charts for runs with metrics of these names.
pub fn find(names: &BTreeSet<&str>) -> Vec<Found> {
    let charts = all();
    let literal: BTreeSet<&str> = charts
        .iter()
        .flat_map(|chart| &chart.metrics)
        .map(|(name, _)| *name)
        .collect();
    let mut found = Vec::new();
    for chart in charts {
        let mut matches = Vec::new();
        for (number, (pattern, _)) in chart.metrics.iter().enumerate() {
            for name in names {
                // A metric that one chart names in full appears in no other chart.
                if pattern != name && literal.contains(name) {
                    continue;
                }
                if let Some(star) = between(pattern, name) {
                    matches.push((number, (*name).to_owned(), star.to_owned()));
                }
            }
        }
        if !chart.title.contains('*') {
            found.push(Found {
                title: chart.title.to_owned(),
                chart,
                metrics: matches,
            });
            continue;
        }
        let stars: BTreeSet<String> = matches.iter().map(|(_, _, star)| star.clone()).collect();
        for one in stars {
            let of = matches.iter().filter(|(_, _, star)| *star == one);
            let metrics = of
                .map(|(number, name, _)| (*number, name.clone(), String::new()))
                .collect();
            found.push(Found {
                title: chart.title.replace('*', &one),
                chart: chart.clone(),
                metrics,
            });
        }
    }
    found.retain(|found| !found.metrics.is_empty());
    found
}

/// The non-empty text that `*` of `pattern` matches in `name`; empty for a pattern without `*`.
/// `None` if they do not match.
fn between<'a>(pattern: &str, name: &'a str) -> Option<&'a str> {
    match pattern.split_once('*') {
        None => (pattern == name).then_some(""),
        Some((before, after)) => name
            .strip_prefix(before)?
            .strip_suffix(after)
            .filter(|star| !star.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn titles(names: &[&str]) -> Vec<String> {
        find(&names.iter().copied().collect())
            .into_iter()
            .map(|found| found.title)
            .collect()
    }

    #[test]
    fn each_component_has_a_chart_and_their_total_has_one() {
        let names = [
            "mask/rejection_rate",
            "a.mask/rejection_rate",
            "b.mask#2/rejection_rate",
        ];
        assert_eq!(
            titles(&names),
            [
                "Rejected tokens",
                "Rejected by a.mask",
                "Rejected by b.mask#2"
            ]
        );
        assert_eq!(
            titles(&["eval/gsm8k/pass@1", "rewards/exact_match/mean"]),
            ["gsm8k/pass@1", "Reward: exact_match"]
        );
    }

    #[test]
    fn several_metrics_share_a_chart() {
        let names = ["x/m_f_batch", "y/masked_m_f_batch", "unknown", "/m_f_batch"];
        let [found] = find(&names.into_iter().collect()).try_into().ok().unwrap();
        let metrics: Vec<_> = found
            .metrics
            .iter()
            .map(|(number, name, star)| (*number, &name[..], &star[..]))
            .collect();
        assert_eq!(
            metrics,
            [(0, "x/m_f_batch", "x"), (1, "y/masked_m_f_batch", "y")]
        );
    }

    #[test]
    fn no_metric_is_in_two_charts_and_every_line_is_a_chart() {
        let (charts, mut seen) = (all(), BTreeSet::new());
        assert!(
            charts
                .iter()
                .flat_map(|chart| &chart.metrics)
                .all(|(name, _)| seen.insert(*name))
        );
        let lines = CHARTS
            .lines()
            .skip_while(|line| !line.starts_with("# "))
            .filter(|line| !line.starts_with("# "));
        assert_eq!(charts.len(), lines.count());
    }
}
