//! Shows runs on one HTML page that works without a network. uPlot, which draws its charts, is
//! included.

mod cards;
mod catalog;
mod charts;
mod costs;
mod groups;
mod series;
mod tables;
mod tokens;

use super::found::{FoundRun, add_taken_rates};
use super::html;

/// Scripts of the page, each after the scripts that it needs. `"use strict"` applies to each.
const SCRIPTS: [&str; 5] = [
    include_str!("assets/uPlot.iife.min.js"),
    include_str!("assets/series.js"),
    include_str!("assets/chart.js"),
    include_str!("assets/tokens.js"),
    include_str!("assets/page.js"),
];
const STYLES: [&str; 2] = [
    include_str!("assets/uPlot.min.css"),
    include_str!("assets/style.css"),
];
const THEME: &str = include_str!("assets/theme.js");
/// License of uPlot, which must accompany every copy of it.
const LICENSE: &str = include_str!("assets/uPlot.LICENSE");

/// Name that the page gives itself, by which it is known again.
const GENERATOR: &str = "<meta name=\"generator\" content=\"capo host report\">";

/// True if a file with these bytes at its beginning is a page of this command.
pub fn is_page(start: &[u8]) -> bool {
    let marks = [GENERATOR, EARLIER];
    marks.iter().any(|mark| {
        start
            .windows(mark.len())
            .any(|part| part == mark.as_bytes())
    })
}

/// Beginning of the comment in pages of versions that had no [`GENERATOR`].
const EARLIER: &str = "<!--\nuPlot 1.6.32\n";

/// The page about `runs`.
pub fn html(mut runs: Vec<FoundRun>) -> String {
    runs.iter_mut()
        .for_each(|run| add_taken_rates(&mut run.lines));
    let groups = groups::group(&runs);
    let data = charts::data(&runs, &groups);
    let (completions, remarks) = tokens::data(&runs);
    let remarks: String = remarks
        .iter()
        .map(|remark| tables::sentence(remark))
        .map(|remark| format!("<p class=\"finding warning\">{remark}</p>\n"))
        .collect();
    let scripts: String = SCRIPTS
        .iter()
        .map(|script| format!("<script>\n{script}</script>\n"))
        .collect();
    let title = match &runs[..] {
        [run] => tables::shown(&run.name),
        runs => format!("{} runs", runs.len()),
    };
    let all_runs = if runs.len() == 1 {
        "The run in a row"
    } else {
        "All runs in a table"
    };
    let parts = [
        tables::folded(all_runs, &tables::overview(&runs)),
        tables::folded("Cost of a step", &costs::table(&runs, &groups)),
        tables::settings(&runs),
    ];
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n{GENERATOR}\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<!--\nuPlot 1.6.32\n{LICENSE}-->\n<script>\n{THEME}</script>\n\
         <style>\n{}</style>\n</head>\n<body>\n\
         <header><h1>{title}</h1>\
         <button id=\"theme\" type=\"button\" title=\"light or dark\"></button></header>\n{}\
         <form id=\"controls\"></form>\n\
         <noscript><p>Charts are drawn by a script, which is switched off.</p></noscript>\n\
         <main id=\"charts\"></main>\n<div id=\"tokens\"></div>\n{remarks}\
         <h2>Tables</h2>\n{}{}{}{scripts}</body>\n</html>\n",
        STYLES.concat(),
        cards::cards(&runs, &groups),
        parts.concat(),
        html::data("data", &data),
        html::data("completions", &completions),
    )
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::report::found::Lines;

    /// A run of `steps` steps, with every metric that a chart shows.
    fn run(number: u64, steps: u64) -> FoundRun {
        let names = catalog::all().into_iter().flat_map(|chart| chart.metrics);
        let names: Vec<String> = names
            .map(|(name, _)| name.replace('*', "capo.curvature"))
            .collect();
        let mut text = String::new();
        for step in 1..=steps {
            write!(
                text,
                "{{\"step\":{step},\"num_tokens\":{},\"num_completions\":{}",
                577 * step,
                48 * step
            )
            .unwrap();
            for (name, at) in names.iter().zip(1_u64..) {
                // Numbers have as many digits as measured ones.
                let value =
                    ((number * 7919 + step * 104_729 + at * 1_299_709) % 1_000_003) as f64 / 3.0;
                write!(text, ",\"{name}\":{value}").unwrap();
            }
            text.push_str("}\n");
        }
        let settings = [("recipe", "\"capo\""), ("train.seed", &number.to_string())];
        FoundRun::of(
            &format!("run-{number}"),
            &settings,
            Lines::parse(text.as_bytes()).unwrap(),
        )
    }

    #[test]
    fn a_page_of_many_long_runs_stays_small() {
        let runs: Vec<FoundRun> = (0..20).map(|number| run(number, 1000)).collect();
        let size = html(runs).len();
        assert!((1_000_000..5_000_000).contains(&size), "{size} bytes");
    }
}
