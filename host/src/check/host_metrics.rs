//! Compares the names under which a component records with those of the host's metrics.

use capo_plugin::Point;

use crate::metrics::table::METRICS;

/// True if the host records `metric`, the full name of a metric of a component at `point`.
pub fn has(point: Point, metric: &str) -> bool {
    METRICS
        .iter()
        .flat_map(|row| row.names)
        .flat_map(|names| alternatives(names))
        .any(|pattern| matches(&pattern, point, metric))
}

/// Each name that `{a,b}` in `names` stands for.
fn alternatives(names: &str) -> Vec<String> {
    let parts = names
        .split_once('{')
        .and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    let Some((before, (list, after))) = parts else {
        return vec![names.to_owned()];
    };
    list.split(',')
        .flat_map(|one| alternatives(&format!("{before}{one}{after}")))
        .collect()
}

fn matches(pattern: &str, point: Point, metric: &str) -> bool {
    pattern.split('/').count() == metric.split('/').count()
        && pattern
            .split('/')
            .zip(metric.split('/'))
            .all(|(pattern, part)| fits(pattern, point, part))
}

/// True if one part of a name fits the same part of a pattern.
fn fits(pattern: &str, point: Point, part: &str) -> bool {
    let named = match pattern {
        "MASK" => Point::Mask,
        "WEIGHT" => Point::Weight,
        "CONTROL" => Point::StepControl,
        _ if pattern.chars().all(|c| c.is_ascii_uppercase()) => return true,
        _ => return pattern == part,
    };
    // The name of a mask, a weight or a step control has a dot. An advantage or an objective may
    // record under a name of any form.
    part.contains('.') && (point == named || matches!(point, Point::Advantage | Point::Objective))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_names_of_the_table() {
        for (point, metric, expected) in [
            (Point::Objective, "rollout_corr/training_log_ppl", true),
            (Point::Objective, "a.mask/rejection_rate", true),
            (Point::Objective, "kl/mean", false),
            (Point::Mask, "a.mask/mean", false),
        ] {
            assert_eq!(has(point, metric), expected, "{metric}");
        }
    }
}
