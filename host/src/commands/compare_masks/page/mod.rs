//! Shows a comparison on one HTML page that works without a network or a library.

mod completions;
mod tables;

use anyhow::Result;

use super::comparison::Comparison;
use super::tokens::Tokens;
use crate::commands::batches::Batches;
use crate::report::html::escape;
use crate::report::terminal::grouped;

/// The page. Tables are written as HTML. Completions are data, which the page's script shows as text when they are opened.
pub fn html(comparison: &Comparison, tokens: &Tokens, batches: &Batches<'_>) -> Result<String> {
    let completions = completions::data(comparison, tokens, batches)?;
    let (style, script) = (include_str!("style.css"), include_str!("page.js"));
    let sections = [
        head(comparison),
        tables::masks(comparison),
        tables::overlaps(comparison),
        tables::settings(comparison),
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
    let Comparison { batches, tokens, completions, mean_advantage, target, left_out, .. } = comparison;
    let (tokens, completions) = (grouped(*tokens), grouped(*completions));
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
        "<h1>Masks compared</h1>\n<p>{tokens} tokens in {completions} completions, mean advantage {mean_advantage:.4}. \
         Each mask ran alone over all batches in order.{target}</p>\n{left_out}\
         <details><summary>{} batch files</summary><ol class=\"files\">{files}</ol></details>\n",
        batches.len()
    )
}
