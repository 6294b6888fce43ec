//! The page's tables: the runs, and a comparison of their settings.

use std::collections::BTreeSet;

use capo_system::terminal;

use crate::report::found::{FoundRun, Summary};
use crate::report::html::escape;
use crate::terminal::{duration, grouped, percent};

/// Text of an empty cell.
const NONE: &str = "–";

/// A run's text in HTML, with its control characters made visible.
pub fn shown(text: &str) -> String {
    escape(&terminal::escape(text))
}

/// A sentence in HTML, of which the parts in backticks are set as code. Lines break between the
/// words of code, never after a hyphen in one.
pub fn sentence(text: &str) -> String {
    let mut parts = text.split('`');
    let first = shown(parts.next().unwrap_or_default());
    let mut sentence = first;
    for (at, part) in parts.enumerate() {
        sentence += &if at % 2 == 0 {
            let words: Vec<String> = part.split(' ').map(code_word).collect();
            format!("<code>{}</code>", words.join(" "))
        } else {
            shown(part)
        };
    }
    sentence
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
        "<div class=\"wide\" tabindex=\"0\"><table{class}>\n<thead><tr>{heads}</tr></thead>\n\
         <tbody>\n{rows}</tbody>\n</table></div>\n"
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
    let of = run.max_steps.map_or_else(String::new, |max_steps| {
        format!(" <small>of {}</small>", grouped(max_steps))
    });
    let best = run.best_accuracy.zip(run.best_step);
    let best =
        best.map(|(best, step)| format!("{} <small>step {}</small>", percent(best), grouped(step)));
    // The columns that a narrow screen shows without scrolling come first.
    let cells = [
        run.held_out(),
        best,
        run.reward.map(|reward| format!("{reward:.3}")),
        Some(format!("{}{of}", grouped(run.step))),
        Some(run.status.to_owned()),
        run.recipe.as_deref().map(shown),
        run.seed.map(|seed| seed.to_string()),
        run.rejected.map(percent),
        run.num_tokens.map(|tokens| grouped(tokens as u64)),
        Some(duration(run.seconds)),
    ];
    let cells: String = cells
        .iter()
        .map(|cell| format!("<td>{}</td>", cell.as_deref().unwrap_or(NONE)))
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
    let mut differing = String::new();
    let mut same = String::new();
    for key in keys {
        let mut values = runs.iter().map(|run| run.settings.get(key));
        if values.all(|value| value == runs[0].settings.get(key)) {
            same += &setting(key, &runs[..1]);
        } else {
            differing += &setting(key, runs);
        }
    }
    let names: String = runs.iter().map(|run| head(&shown(&run.name))).collect();
    let apart = if differing.is_empty() {
        String::new()
    } else {
        folded("Settings that differ", &of_settings(&names, &differing))
    };
    let all = if runs.len() == 1 {
        "Settings"
    } else {
        "Settings that all runs share"
    };
    apart + &folded(all, &of_settings(&head("value"), &same))
}

fn of_settings(heads: &str, rows: &str) -> String {
    table(" class=\"settings\"", &(head("setting") + heads), rows)
}

/// A row with a cell for each run.
fn setting(key: &str, runs: &[FoundRun]) -> String {
    let mut cells = String::new();
    for run in runs {
        let value = run.settings.get(key).map(|value| shown(value));
        cells += &format!("<td>{}</td>", value.as_deref().unwrap_or(NONE));
    }
    line("", key, &cells)
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
    fn differing_settings_come_first_and_texts_are_escaped() {
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
    fn code_breaks_only_between_its_words() {
        let expected = "try <code><span>--set</span> <span>a=&lt;i&gt;</span></code>, or \
         <code><span>open</span></code>";
        assert_eq!(sentence("try `--set a=<i>`, or `open"), expected);
    }
}
