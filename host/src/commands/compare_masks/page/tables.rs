//! The page's tables.

use super::super::comparison::{Compared, Comparison};
use super::super::row::Overlap;
use super::super::setting::Setting;
use super::super::table::{self, NONE, whole_percent};
use crate::report::html::escape;
use crate::report::terminal::{grouped, percent};

/// Share from which a cell's colour is too dark for dark text.
const DARK: f64 = 0.8;

/// The table with a row per mask.
pub fn masks(comparison: &Comparison) -> String {
    let norm = format!(
        "Share of the sum of all tokens' squared gradient norms, by {}, that was rejected.",
        comparison.measure()
    );
    let heads = [
        ("#", "Its number below."),
        ("mask", "Its component; a second use of one is #2."),
        ("setting", "The value of its threshold, where one was searched or given; * has a remark below."),
        ("rejected", "Rejected tokens, and their share of all."),
        ("touched", "Completions that lost a token, and their share of all."),
        ("whole", "Completions that lost every token, and their share of all."),
        ("norm²", &norm),
        ("least p", "Of the n rejected tokens, the share that is among the n least probable ones."),
        ("kept A", "Mean advantage of the tokens that were kept."),
        ("ms", "Time of the mask's calls per batch, all threads together."),
    ];
    let heads: String =
        heads.iter().map(|(head, about)| format!("<th title=\"{}\">{}</th>", escape(about), escape(head))).collect();
    let rows: String = comparison.masks.iter().zip(1..).map(|(mask, number)| row(mask, number)).collect();
    format!(
        "<h2>What each rejects</h2>\n<div class=\"wide\"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n\
         </table></div>\n"
    )
}

fn row(mask: &Compared, number: usize) -> String {
    let [number, name, setting, rejected, of_tokens, touched, of_touched, whole, of_whole, rest @ ..] =
        table::row(mask, number);
    let counted = |count: String, share: String| format!("{count} <small>{share}</small>");
    let counts = [counted(rejected, of_tokens), counted(touched, of_touched), counted(whole, of_whole)];
    let cells = [escape(&setting)].into_iter().chain(counts).chain(rest);
    let cells: String = cells.map(|cell| format!("<td>{cell}</td>")).collect();
    format!("<tr><td>{number}</td><th>{}</th>{cells}</tr>\n", escape(&name))
}

/// The matrix with a coloured cell for every pair of masks; empty for one mask.
pub fn overlaps(comparison: &Comparison) -> String {
    let masks = &comparison.masks;
    if masks.len() < 2 {
        return String::new();
    }
    let name = |mask: &Compared| escape(&mask.contender.name);
    let heads: String =
        masks.iter().zip(1..).map(|(mask, n)| format!("<th title=\"{}\">{n}</th>", name(mask))).collect();
    let line = |((mask, overlaps), number): ((&Compared, &Vec<Overlap>), usize)| {
        let cells: String = masks.iter().zip(overlaps).map(|(other, overlap)| cell(mask, other, *overlap)).collect();
        format!("<tr><th>{number} {}</th>{cells}</tr>\n", name(mask))
    };
    let lines: String = masks.iter().zip(&comparison.overlap).zip(1..).map(line).collect();
    format!(
        "<h2>Overlap</h2>\n<p>Tokens that both masks reject, of those that either does, in per cent.</p>\n\
         <div class=\"wide\"><table class=\"overlap\">\n<thead><tr><th></th>{heads}</tr></thead>\n<tbody>\n{lines}</tbody>\n\
         </table></div>\n"
    )
}

fn cell(mask: &Compared, other: &Compared, overlap: Overlap) -> String {
    let Overlap { both, either } = overlap;
    let (name, other) = (escape(&mask.contender.name), escape(&other.contender.name));
    let Some(share) = overlap.share() else {
        return format!("<td title=\"{name} and {other}: neither rejects a token\">{NONE}</td>");
    };
    let class = if share >= DARK { " class=\"dark\"" } else { "" };
    let (both, either) = (grouped(both), grouped(either));
    format!(
        "<td{class} style=\"--share:{share:.3}\" title=\"{name} and {other}: {both} of {either} tokens, {}\">{}</td>",
        percent(share),
        escape(&whole_percent(share))
    )
}

/// Each mask's configuration table, with remarks.
pub fn settings(comparison: &Comparison) -> String {
    let line = |mask: &Compared| {
        let table = toml::to_string(&mask.contender.config).unwrap_or_default();
        let remark = match &mask.setting {
            Setting::Found { remark: Some(remark), .. } | Setting::Nothing { remark, .. } => {
                format!("<p class=\"note\">{}</p>\n", escape(remark))
            }
            _ => String::new(),
        };
        format!("<dt>{}</dt><dd><pre>[[mask]]\n{}</pre>{remark}</dd>\n", escape(&mask.contender.name), escape(&table))
    };
    let lines: String = comparison.masks.iter().map(line).collect();
    format!("<details><summary>Settings</summary><dl>\n{lines}</dl></details>\n")
}
