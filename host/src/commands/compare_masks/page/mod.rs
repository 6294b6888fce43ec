//! Shows a comparison on one HTML page that works without a network or a library.

mod completions;

use anyhow::Result;

use super::comparison::{Compared, Comparison, Overlap};
use super::setting::Setting;
use super::table::{self, NONE, whole_percent};
use crate::commands::batches::Batches;
use crate::report::html::escape;
use crate::terminal::{grouped, percent};

/// The page. Tables are written as HTML. Completions are data, which the page's script shows as text when they are opened.
pub fn html(comparison: &Comparison, batches: &Batches<'_>) -> Result<String> {
    let completions = completions::data(comparison, batches)?;
    let (style, script) = (include_str!("style.css"), include_str!("page.js"));
    let sections = [
        head(comparison),
        masks(comparison),
        overlaps(comparison),
        settings(comparison),
        completions::section(&completions),
    ];
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Masks compared</title>\n\
         <style>\n{style}</style>\n</head>\n<body>\n{}<script>\n{script}</script>\n</body>\n</html>\n",
        sections.concat()
    ))
}

fn head(comparison: &Comparison) -> String {
    let Comparison { batches, target, left_out, .. } = comparison;
    let files: String = batches.iter().map(|path| format!("<li>{}</li>", escape(&path.to_string_lossy()))).collect();
    let target = target.as_ref().map_or_else(String::new, |target| {
        format!(
            " Thresholds were searched: the value that rejects most without exceeding {}.",
            escape(&target.to_string())
        )
    });
    let left_out: String =
        left_out.iter().map(|sentence| format!("<p class=\"note\">{}</p>\n", escape(sentence))).collect();
    format!(
        "<h1>Masks compared</h1>\n<p>{}. Each mask ran alone over all batches in order.{target}</p>\n{left_out}\
         <details><summary>{} batch files</summary><ol class=\"files\">{files}</ol></details>\n",
        comparison.size(),
        batches.len()
    )
}

/// Share from which a cell's colour is too dark for dark text.
const DARK: f64 = 0.8;

/// The table with a row per mask.
fn masks(comparison: &Comparison) -> String {
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
fn overlaps(comparison: &Comparison) -> String {
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
    let lines: String = masks.iter().zip(&comparison.overlap()).zip(1..).map(line).collect();
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
fn settings(comparison: &Comparison) -> String {
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
