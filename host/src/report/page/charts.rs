//! Data of a page's charts: the series of every run in every chart.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Value, json};

use super::catalog::{self, Found};
use super::groups::Group;
use super::series::{Columns, Series};
use crate::report::found::{Column, FoundRun};

/// Largest count of numbers in all series together, which limits the page's size; then the smallest and largest limit per series.
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
    let names = runs.iter().flat_map(|run| run.lines.columns.keys()).map(String::as_str);
    let names: BTreeSet<&str> = names.filter(|name| is_masked || !name.starts_with("mask/")).collect();
    let mut found = catalog::find(&names);
    // The only reward repeats the reward, the reward of held-out prompts their accuracy, and the only mask what all reject.
    let mut seen = Vec::new();
    found.retain(|Found { chart, metrics, .. }| {
        let [(_, name, _)] = &metrics[..] else { return true };
        let columns: Vec<&Column> = runs.iter().map(|run| run.lines.column(name)).collect();
        let is_new = !seen.contains(&(chart.section, columns.clone()));
        seen.push((chart.section, columns));
        is_new
    });
    let bucket = Buckets::of(runs, &found);
    let mut columns: Vec<Columns<'_>> = runs.iter().map(|run| Columns::new(&run.lines)).collect();
    let charts: Vec<Value> = found.iter().map(|found| chart(found, runs, &mut columns, &bucket)).collect();
    let run = |(run, columns): (&FoundRun, Columns<'_>)| json!({ "name": run.name, "seed": run.whole("train.seed"), "grids": columns.grids });
    json!({
        "runs": runs.iter().zip(columns).map(run).collect::<Vec<_>>(),
        "groups": groups.iter().map(|group| json!({ "name": group.name, "runs": group.runs })).collect::<Vec<_>>(),
        "bucket": bucket.width,
        "charts": charts,
    })
}

fn chart(found: &Found, runs: &[FoundRun], columns: &mut [Columns<'_>], buckets: &Buckets) -> Value {
    let mut lines = Vec::new();
    for (run, columns) in columns.iter_mut().enumerate() {
        let has = |(_, name, _): &&(usize, String, String)| runs[run].lines.columns.contains_key(name);
        let metrics: Vec<_> = found.metrics.iter().filter(has).collect();
        for (style, name, star) in &metrics {
            let (_, word) = found.chart.metrics[*style];
            // If several components recorded the metric, the legend says which one.
            let alone = metrics.iter().filter(|(other, _, _)| other == style).count() == 1;
            let name_of_line = if alone { word.to_owned() } else { format!("{star} {word}").trim().to_owned() };
            let bucket = (longest(runs, name) > buckets.limit).then_some(buckets.width).flatten();
            lines.push(Line { run, style: *style, name: name_of_line, series: columns.series(name, bucket) });
        }
    }
    let Found { title, chart, .. } = found;
    json!({ "section": chart.section, "title": title, "unit": chart.unit, "log": chart.log, "lines": lines })
}

/// Largest number of values of `name` in any run.
fn longest(runs: &[FoundRun], name: &str) -> usize {
    runs.iter().map(|run| run.lines.column(name).rows.len()).max().unwrap_or(0)
}

/// Rule for averaging long series over buckets.
struct Buckets {
    /// Largest number of values without buckets.
    limit: usize,
    /// Number of steps in a bucket, equal in all runs so that seeds align. `None` if no series is long.
    width: Option<u64>,
}

impl Buckets {
    fn of(runs: &[FoundRun], found: &[Found]) -> Self {
        let has = |run: &FoundRun, name: &str| usize::from(run.lines.columns.contains_key(name));
        let metrics = || found.iter().flat_map(|found| &found.metrics);
        let count: usize = metrics().map(|(_, name, _)| runs.iter().map(|run| has(run, name)).sum::<usize>()).sum();
        let limit = (NUMBERS / count.max(1)).clamp(FEWEST, MOST);
        let is_long = metrics().any(|(_, name, _)| longest(runs, name) > limit);
        let last = runs.iter().filter_map(|run| run.lines.steps.last()).max().copied().unwrap_or(0);
        let buckets = limit as u64 / OF_A_BUCKET;
        Self { limit, width: is_long.then(|| last / buckets + 1) }
    }
}
