//! Data of a page's charts: the series of every run in every chart.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Value, json};

use super::catalog::{self, Found};
use super::groups::Group;
use super::series::{Columns, Series};
use crate::report::found::{Column, FoundRun, HeldOut, TAKEN_RATE};

/// Largest count of numbers in all series together, which limits the page's size; then the smallest
/// and largest limit per series.
const NUMBERS: usize = 400_000;
const FEWEST: usize = 150;
const MOST: usize = 1000;
/// Numbers per bucket: mean, smallest and largest value.
const OF_A_BUCKET: u64 = 3;

#[derive(Serialize)]
struct Line {
    run: usize,
    /// Index of the metric in the chart, which sets the line's style.
    style: usize,
    /// Text in the legend, beside the run.
    name: String,
    #[serde(flatten)]
    series: Series,
}

/// The charts, with their runs.
pub fn data(runs: &[FoundRun], groups: &[Group]) -> Value {
    let is_masked = runs.iter().any(|run| !run.checked.mask.is_empty());
    let names = runs
        .iter()
        .flat_map(|run| run.lines.columns.keys())
        .map(String::as_str);
    let names: BTreeSet<&str> = names
        .filter(|name| is_masked || !name.starts_with("mask/"))
        .collect();
    let mut found = catalog::find(&names);
    leave_out_repeated(&mut found, runs);
    let main = main_charts(&found, runs);
    let (constant, found): (Vec<Found>, Vec<Found>) = found.into_iter().partition(|one| {
        let is_main = main.iter().any(|main| main.title == one.title);
        !is_main && constant_of(one, runs).is_some()
    });
    let bucket = Buckets::of(runs, &found);
    let mut columns: Vec<Columns<'_>> = runs.iter().map(|run| Columns::new(&run.lines)).collect();
    let charts: Vec<Value> = found
        .iter()
        .map(|found| chart(found, runs, &mut columns, &bucket))
        .collect();
    let mut all_runs = Vec::new();
    for (run, columns) in runs.iter().zip(columns) {
        let seed = run.whole("train.seed");
        all_runs.push(json!({ "name": run.name, "seed": seed, "grids": columns.grids }));
    }
    let groups: Vec<Value> = groups
        .iter()
        .map(|group| json!({ "name": group.name, "runs": group.runs }))
        .collect();
    let constant: Vec<Value> = constant
        .iter()
        .map(|one| json!({ "title": one.title, "value": constant_of(one, runs) }))
        .collect();
    json!({
        "runs": all_runs,
        "groups": groups,
        "bucket": bucket.width,
        "main": main,
        "charts": charts,
        "constant": constant,
    })
}

/// A chart that the page shows large, before all others.
#[derive(Serialize)]
struct Main {
    title: String,
    /// Words that help to read it.
    hint: &'static str,
}

/// Metrics that tell whether a run is stable, the most telling first, each with a hint.
const STABILITY: [(&str, &str); 4] = [
    (
        "step/kl",
        "how far a step moves the policy: a jump comes before a collapse",
    ),
    (
        "step/last_layer_kl",
        "how far a step moves the policy: a jump comes before a collapse",
    ),
    (
        "entropy",
        "a healthy run's falls slowly: a fall to 0 or a steep rise is a collapse",
    ),
    ("grad_norm", "a steep rise comes before a collapse"),
];

/// The charts that answer what became of the runs: held-out quality, training reward, and
/// stability.
fn main_charts(found: &[Found], runs: &[FoundRun]) -> Vec<Main> {
    let held_out = runs.iter().find_map(HeldOut::metric);
    let held_out = held_out.map(|name| (name, "answers to prompts that training does not see"));
    let mut trained: Vec<&FoundRun> = runs.iter().collect();
    trained.retain(|run| run.lines.column("reward").last().is_some());
    // Runs can be compared by what all of them have.
    let stability = STABILITY.into_iter().find(|(name, _)| {
        let mut columns = trained.iter().map(|run| run.lines.column(name));
        columns.all(|column| column.last().is_some())
    });
    let reward = Some((
        "reward".to_owned(),
        "what training raises: it should rise together with the held-out answers",
    ));
    let chosen = [
        held_out,
        reward,
        stability.map(|(name, hint)| (name.to_owned(), hint)),
    ];
    let mut main = Vec::new();
    for (name, hint) in chosen.into_iter().flatten() {
        let chart = found
            .iter()
            .find(|found| found.metrics.iter().any(|(_, metric, _)| *metric == name));
        if let Some(Found { title, .. }) = chart {
            let title = title.clone();
            main.push(Main { title, hint });
        }
    }
    main
}

/// Leaves out charts that repeat an earlier one of their section. A run with one reward, for
/// example, has the same curve for that reward and for the sum of all.
fn leave_out_repeated(found: &mut Vec<Found>, runs: &[FoundRun]) {
    let mut seen: Vec<(&str, Vec<&Column>)> = Vec::new();
    found.retain(|Found { chart, metrics, .. }| {
        let [(_, name, _)] = &metrics[..] else {
            return true;
        };
        let columns: Vec<&Column> = runs.iter().map(|run| run.lines.column(name)).collect();
        let is_new = !seen
            .iter()
            .any(|(section, known)| *section == chart.section && is_repeated(known, &columns));
        seen.push((chart.section, columns));
        is_new
    });
}

/// Largest difference between two values of one thing, in parts of their range: rewards are sums in
/// f32.
const EQUAL: f64 = 1e-5;

/// True if the columns of all runs have the same curve as the `known` ones, up to the scale of
/// their axis.
fn is_repeated(known: &[&Column], columns: &[&Column]) -> bool {
    let same_rows = known.iter().zip(columns).all(|(known, column)| {
        let mut values = known.values.iter().zip(&column.values);
        known.rows == column.rows && values.all(|(x, y)| x.is_nan() == y.is_nan())
    });
    let x = numbers(known);
    let y = numbers(columns);
    let lowest = (0..x.len()).min_by(|a, b| x[*a].total_cmp(&x[*b]));
    let highest = (0..x.len()).max_by(|a, b| x[*a].total_cmp(&x[*b]));
    let (Some(lowest), Some(highest)) = (lowest, highest) else {
        return same_rows;
    };
    let range = (x[highest] - x[lowest]).max(x[highest].abs());
    if !same_rows || x.iter().zip(&y).all(|(x, y)| are_near(*x, *y, range)) {
        return same_rows;
    }
    // Two places lie on a line in any case.
    let scale = (y[highest] - y[lowest]) / (x[highest] - x[lowest]);
    let inner = x
        .iter()
        .filter(|value| ![x[lowest], x[highest]].contains(value))
        .count();
    let rise = y[highest] - y[lowest];
    let mut places = x.iter().zip(&y);
    inner > 0
        && scale > 0.0
        && scale.is_finite()
        && places.all(|(x_at, y_at)| are_near(y[lowest] + scale * (x_at - x[lowest]), *y_at, rise))
}

/// The values of the columns, without gaps.
fn numbers(columns: &[&Column]) -> Vec<f64> {
    let values = columns.iter().flat_map(|column| &column.values);
    values.copied().filter(|value| !value.is_nan()).collect()
}

/// True if two values of a curve with this range count as equal.
fn are_near(a: f64, b: f64, range: f64) -> bool {
    (a - b).abs() <= EQUAL * range.max(f64::MIN_POSITIVE)
}

/// The value of a chart that has the same in every step of every run; `None` if it differs, or
/// there are too few steps to tell.
fn constant_of(found: &Found, runs: &[FoundRun]) -> Option<f64> {
    let columns: Vec<&Column> = found
        .metrics
        .iter()
        .flat_map(|(_, name, _)| runs.iter().map(move |run| run.lines.column(name)))
        .collect();
    let is_long = columns.iter().any(|column| column.values.len() > 1);
    let mut values = columns
        .iter()
        .flat_map(|column| column.values.iter().copied());
    let first = values.next()?;
    (is_long && values.all(|value| value == first)).then_some(first)
}

fn chart(
    found: &Found,
    runs: &[FoundRun],
    columns: &mut [Columns<'_>],
    buckets: &Buckets,
) -> Value {
    let mut lines = Vec::new();
    for (run, columns) in columns.iter_mut().enumerate() {
        let recorded = &runs[run].lines.columns;
        let metrics: Vec<_> = found
            .metrics
            .iter()
            .filter(|(_, name, _)| recorded.contains_key(name))
            .collect();
        for (style, name, star) in &metrics {
            let (_, word) = found.chart.metrics[*style];
            // If several components recorded the metric, the legend says which one.
            let alone = metrics
                .iter()
                .filter(|(other, _, _)| other == style)
                .count()
                == 1;
            let name_of_line = if alone {
                word.to_owned()
            } else {
                format!("{star} {word}").trim().to_owned()
            };
            let bucket = (longest(runs, name) > buckets.limit)
                .then_some(buckets.width)
                .flatten();
            lines.push(Line {
                run,
                style: *style,
                name: name_of_line,
                series: columns.series(name, bucket),
            });
        }
    }
    let Found { title, chart, .. } = found;
    let unit = if chart.unit.is_empty() && title.contains('@') {
        "% of prompts"
    } else {
        chart.unit
    };
    // Held-out measurements and the learning rate have no noise of a batch, and are not smoothed.
    let exact = found
        .metrics
        .iter()
        .all(|(_, name, _)| name.starts_with("eval") || name == TAKEN_RATE);
    json!({
        "section": chart.section,
        "title": title,
        "unit": unit,
        "log": chart.log,
        "exact": exact,
        "lines": lines,
    })
}

/// Largest number of values of `name` in any run.
fn longest(runs: &[FoundRun], name: &str) -> usize {
    runs.iter()
        .map(|run| run.lines.column(name).rows.len())
        .max()
        .unwrap_or(0)
}

/// Rule for averaging long series over buckets.
struct Buckets {
    /// Largest number of values without buckets.
    limit: usize,
    /// Number of steps in a bucket, equal in all runs so that seeds align. `None` if no series is
    /// long.
    width: Option<u64>,
}

impl Buckets {
    fn of(runs: &[FoundRun], found: &[Found]) -> Self {
        let metrics = found.iter().flat_map(|found| &found.metrics);
        let names: Vec<&String> = metrics.map(|(_, name, _)| name).collect();
        let mut series = 0;
        for run in runs {
            let columns = &run.lines.columns;
            series += names
                .iter()
                .filter(|name| columns.contains_key(**name))
                .count();
        }
        let limit = (NUMBERS / series.max(1)).clamp(FEWEST, MOST);
        let is_long = names.iter().any(|name| longest(runs, name) > limit);
        let last = runs
            .iter()
            .filter_map(|run| run.lines.steps.last())
            .max()
            .copied()
            .unwrap_or(0);
        let buckets = limit as u64 / OF_A_BUCKET;
        Self {
            limit,
            width: is_long.then(|| last / buckets + 1),
        }
    }
}
