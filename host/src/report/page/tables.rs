//! The page's tables: the runs, and a comparison of their settings.

use std::collections::BTreeSet;

use capo_system::terminal;

use crate::report::found::{FoundRun, Summary};
use crate::report::html::escape;
use crate::terminal::{duration, grouped, percent};

/// Text of an empty cell.
const NONE: &str = "–";

/// Others' text in HTML, with its control characters made visible.
pub fn shown(text: &str) -> String {
    escape(&terminal::escape(text))
}

/// A sentence in HTML, of which the parts in backticks are set as code. Lines break between the
/// words of code, never after a hyphen in one.
pub fn sentence(text: &str) -> String {
    let mut parts = text.split('`');
    let first = shown(parts.next().unwrap_or_default());
    let code = |(at, part): (usize, &str)| match at % 2 {
        0 => {
            format!(
                "<code>{}</code>",
                part.split(' ').map(code_word).collect::<Vec<_>>().join(" ")
            )
        }
        _ => shown(part),
    };
    first + &parts.enumerate().map(code).collect::<String>()
}

/// Longest word of code that a phone shows in one line, characters.
const ONE_LINE: usize = 40;

fn code_word(word: &str) -> String {
    let class = if word.chars().count() > ONE_LINE {
        " class=\"long\""
    } else {
        ""
    };
    format!("<span{class}>{}</span>", shown(word))
}

/// A table that scrolls where it is too wide; `class` is an attribute or empty.
pub fn table(class: &str, heads: &str, rows: &str) -> String {
    format!(
        "<div class=\"wide\" tabindex=\"0\"><table{class}>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
    )
}

/// A cell at the head of a column.
pub fn head(text: &str) -> String {
    format!("<th scope=\"col\">{text}</th>")
}

/// A row of finished cells under the title `title`, which is escaped.
pub fn line(class: &str, title: &str, cells: &str) -> String {
    format!(
        "<tr{class}><th scope=\"row\">{}</th>{cells}</tr>\n",
        shown(title)
    )
}

/// The table with a row per run.
pub fn overview(runs: &[FoundRun]) -> String {
    let heads = [
        "run", "held-out", "best", "reward", "steps", "status", "recipe", "seed", "rejected",
        "tokens", "time",
    ];
    let heads: String = heads.into_iter().map(head).collect();
    let rows: String = runs.iter().map(|run| row(&Summary::of(run))).collect();
    table("", &heads, &rows)
}

fn row(run: &Summary) -> String {
    let none = || NONE.to_owned();
    let of = run.max_steps.map_or_else(String::new, |max_steps| {
        format!(" <small>of {}</small>", grouped(max_steps))
    });
    let best = match (run.best_accuracy, run.best_step) {
        (Some(best), Some(step)) => {
            format!("{} <small>step {}</small>", percent(best), grouped(step))
        }
        _ => none(),
    };
    // The columns that a narrow screen shows without scrolling come first.
    let cells = [
        run.held_out().unwrap_or_else(none),
        best,
        run.reward
            .map_or_else(none, |reward| format!("{reward:.3}")),
        format!("{}{of}", grouped(run.step)),
        run.status.to_owned(),
        run.recipe.as_deref().map_or_else(none, shown),
        run.seed.map_or_else(none, |seed| seed.to_string()),
        run.rejected.map_or_else(none, percent),
        run.num_tokens
            .map_or_else(none, |tokens| grouped(tokens as u64)),
        duration(run.seconds),
    ];
    let cells: String = cells
        .iter()
        .map(|cell| format!("<td>{cell}</td>"))
        .collect();
    line("", &run.name, &cells)
}

/// The table of settings by run; settings that differ come first.
pub fn settings(runs: &[FoundRun]) -> String {
    let keys: BTreeSet<&str> = runs
        .iter()
        .flat_map(|run| run.settings.keys())
        .map(String::as_str)
        .collect();
    let value = |run: &FoundRun, key: &str| run.settings.get(key).cloned();
    let (differing, same): (Vec<&str>, Vec<&str>) = keys.into_iter().partition(|key| {
        runs.iter()
            .any(|run| value(run, key) != value(&runs[0], key))
    });
    let names: String = runs.iter().map(|run| head(&shown(&run.name))).collect();
    let row = |key: &str, runs: &[FoundRun]| {
        let cell =
            |run: &FoundRun| value(run, key).map_or_else(|| NONE.to_owned(), |value| shown(&value));
        let cells: String = runs
            .iter()
            .map(|run| format!("<td>{}</td>", cell(run)))
            .collect();
        line("", key, &cells)
    };
    let differing: String = differing.into_iter().map(|key| row(key, runs)).collect();
    let same: String = same.into_iter().map(|key| row(key, &runs[..1])).collect();
    let table =
        |heads: &str, rows: &str| table(" class=\"settings\"", &(head("setting") + heads), rows);
    let apart = if differing.is_empty() {
        String::new()
    } else {
        folded("Settings that differ", &table(&names, &differing))
    };
    let all = if runs.len() == 1 {
        "Settings"
    } else {
        "Settings that all runs share"
    };
    apart + &folded(all, &table(&head("value"), &same))
}

/// A part of the page that is folded at first.
pub fn folded(title: &str, body: &str) -> String {
    format!("<details class=\"part\"><summary>{title}</summary>\n{body}</details>\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::found::Lines;

    fn run(name: &str, seed: &str) -> FoundRun {
        FoundRun::of(
            name,
            &[("train.seed", seed), ("recipe", "\"<b>\"")],
            Lines::default(),
        )
    }

    #[test]
    fn what_differs_comes_first_and_nothing_is_markup() {
        let runs = [run("one\u{202e}", "1"), run("<two>", "2")];
        let settings = settings(&runs);
        let (apart, same) = settings.split_once("Settings that all runs share").unwrap();
        assert!(
            apart.contains("<th scope=\"row\">train.seed</th><td>1</td><td>2</td>"),
            "{apart}"
        );
        assert!(
            same.contains("<th scope=\"row\">recipe</th><td>&quot;&lt;b&gt;&quot;</td></tr>"),
            "{same}"
        );
        let overview = overview(&runs);
        assert!(
            overview.contains("<th scope=\"row\">one\\u202e</th><td>–</td>"),
            "{overview}"
        );
        assert!(
            overview.contains("<td>stopped</td><td>&lt;b&gt;</td><td>1</td>"),
            "{overview}"
        );
    }

    #[test]
    fn code_breaks_between_its_words_alone() {
        let expected = "try <code><span>--set</span> <span>a=&lt;i&gt;</span></code>, or <code><span>open</span></code>";
        assert_eq!(sentence("try `--set a=<i>`, or `open"), expected);
    }
}
