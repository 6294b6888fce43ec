//! The host's metrics, as the first table of configs/README.md's section on metrics names them.

use capo_plugin::Point;

const PAGE: &str = include_str!("../../../configs/README.md");

/// True if the host records `metric`, the full name of a metric of a component at `point`.
pub fn has(point: Point, metric: &str) -> bool {
    patterns().any(|pattern| matches(&pattern, point, metric))
}

/// The names of the table, with words in capitals for what differs: `rewards/NAME/mean`.
fn patterns() -> impl Iterator<Item = String> {
    let (_, section) = PAGE.split_once("\n## Metrics\n").unwrap_or_default();
    let rows = section
        .lines()
        .skip_while(|line| !line.starts_with("| `"))
        .take_while(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .flat_map(alternatives)
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
    // The name of a mask, a weight or a step control has a dot. Others record under their own
    // names, or under names of any form.
    let own = |part: &str, of: Point| {
        part.contains('.') && (point == of || matches!(point, Point::Advantage | Point::Objective))
    };
    let fits = |(pattern, part): (&str, &str)| match pattern {
        "MASK" => own(part, Point::Mask),
        "WEIGHT" => own(part, Point::Weight),
        "CONTROL" => own(part, Point::StepControl),
        _ if pattern.chars().all(|c| c.is_ascii_uppercase()) => true,
        _ => pattern == part,
    };
    pattern.split('/').count() == metric.split('/').count()
        && pattern.split('/').zip(metric.split('/')).all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_table() {
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
