//! Cards at the head of a page: what became of the runs, one card for each series of runs that
//! differ in the seed alone.

use super::groups::Group;
use super::tables::{head, line, sentence, shown, table};
use crate::report::found::{Diagnosis, FoundRun, HeldOut, REWARDS, Summary, diagnose, taken_share};
use crate::terminal::{duration, grouped};
use crate::warnings::{Severity, rank};

/// Number of colours of the page's lines.
const COLORS: usize = 10;
/// Largest number of cards whose seeds and advice are unfolded at first.
const UNFOLDED: usize = 3;
/// Number of cards from which on they are narrow.
const MANY: usize = 7;

/// The cards.
pub fn cards(runs: &[FoundRun], groups: &[Group]) -> String {
    let class = if groups.len() >= MANY {
        "cards many"
    } else {
        "cards"
    };
    let open = if groups.len() <= UNFOLDED {
        " open"
    } else {
        ""
    };
    let cards: String = groups
        .iter()
        .enumerate()
        .map(|(number, group)| card(runs, group, number, open))
        .collect();
    let others: Vec<String> = (0..runs.len())
        .filter(|at| !groups.iter().any(|group| group.runs.contains(at)))
        .map(|at| shown(&runs[at].name))
        .collect();
    let others = match &others[..] {
        [] => String::new(),
        names => format!(
            "<p class=\"note\">Of several runs with one seed the longest counts. Without a card: \
             {}.</p>\n",
            names.join(", ")
        ),
    };
    format!("<section class=\"{class}\" aria-label=\"results\">\n{cards}</section>\n{others}")
}

/// A run of a card, with its summary and its held-out measurements.
struct Seed<'a> {
    run: &'a FoundRun,
    summary: Summary,
    held_out: Option<HeldOut>,
}

impl<'a> Seed<'a> {
    fn of(run: &'a FoundRun) -> Self {
        Self {
            run,
            summary: Summary::of(run),
            held_out: HeldOut::of(run),
        }
    }
}

/// The card of a group; `open` is the attribute of its folded parts.
fn card(runs: &[FoundRun], group: &Group, number: usize, open: &str) -> String {
    let seeds: Vec<Seed<'_>> = group.runs.iter().map(|at| Seed::of(&runs[*at])).collect();
    let (found, worst) = findings(&seeds, open);
    let color = number % COLORS;
    let chip = if seeds.len() > 1 {
        format!(" <small class=\"chip\">{} seeds</small>", seeds.len())
    } else {
        String::new()
    };
    format!(
        "<article class=\"card {worst}\">\n\
         <h2><i class=\"swatch\" style=\"background:var(--color-{color})\"></i>{}{chip}{}</h2>\n\
         <p class=\"facts\">{}</p>\n{}<dl>{}</dl>\n{}{found}</article>\n",
        shown(&group.name),
        status(&seeds),
        facts(&seeds),
        outcome(&seeds),
        rows(&seeds),
        if seeds.len() > 1 {
            each_seed(&seeds, open)
        } else {
            String::new()
        },
    )
}

/// Whether the runs are done.
fn status(seeds: &[Seed<'_>]) -> String {
    let finished = with_status(seeds, "finished");
    let running = with_status(seeds, "running");
    let (text, class) = match seeds {
        [Seed { summary, .. }] => {
            let of = summary.max_steps.map_or_else(String::new, |max_steps| {
                format!(" of {}", grouped(max_steps))
            });
            match summary.status {
                "finished" => ("finished".to_owned(), "finished"),
                status => (
                    format!("{status}, step {}{of}", grouped(summary.step)),
                    status,
                ),
            }
        }
        seeds if finished == seeds.len() => ("finished".to_owned(), "finished"),
        seeds if running > 0 => (format!("{running} of {} running", seeds.len()), "running"),
        seeds => (format!("{finished} of {} finished", seeds.len()), "stopped"),
    };
    format!(" <small class=\"chip {class}\">{text}</small>")
}

fn with_status(seeds: &[Seed<'_>], status: &str) -> usize {
    let statuses = seeds.iter().map(|seed| seed.summary.status);
    statuses.filter(|one| *one == status).count()
}

/// Method, size and time.
fn facts(seeds: &[Seed<'_>]) -> String {
    let first = &seeds[0].summary;
    let seed = first
        .seed
        .filter(|_| seeds.len() == 1)
        .map(|seed| format!("seed {seed}"));
    let steps = (first.step > 0).then(|| {
        format!(
            "{} steps",
            grouped(mean(seeds.iter().map(|seed| seed.summary.step as f64)).round() as u64)
        )
    });
    let time = mean(seeds.iter().map(|seed| seed.summary.seconds));
    let time = (time > 0.0).then(|| duration(time) + if seeds.len() > 1 { " each" } else { "" });
    [first.recipe.as_deref().map(shown), seed, steps, time]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" · ")
}

/// The answer of the card: how well the model answers now, and how well it did.
fn outcome(seeds: &[Seed<'_>]) -> String {
    let measured: Vec<&HeldOut> = seeds
        .iter()
        .filter_map(|seed| seed.held_out.as_ref())
        .collect();
    let Some(one) = measured.first() else {
        let nothing = "nothing was measured on held-out prompts";
        return format!("<p class=\"outcome\"><small>{nothing}</small></p>\n");
    };
    let first = mean(measured.iter().map(|found| found.first.value));
    let last: Vec<f64> = measured.iter().map(|found| found.last.value).collect();
    let now = mean(last.iter().copied());
    let gain = if one.is_share() {
        format!("{:+.1} points", 100.0 * (now - first))
    } else {
        format!("{:+.3}", now - first)
    };
    let error = standard_error(&last).map_or_else(String::new, |error| {
        let error = if one.is_share() {
            format!("{:.1}", 100.0 * error)
        } else {
            format!("{error:.3}")
        };
        format!(" <small>± {error}</small>")
    });
    let direction = if now < first { "down" } else { "up" };
    let since = if measured.iter().all(|found| found.first.step == 0) {
        ""
    } else {
        ", since its first measurement"
    };
    let only = if measured
        .iter()
        .all(|found| found.first.step == found.last.step)
    {
        ", measured once"
    } else {
        ""
    };
    format!(
        "<p class=\"outcome\"><small>{}{since}{only}</small><span>{} <span \
         class=\"arrow\">→</span> <b>{}</b>{error}</span> <em \
         class=\"{direction}\">{gain}</em></p>\n",
        shown(&one.title()),
        one.shown(first),
        one.shown(now),
    )
}

/// Best, training reward and learning rate.
fn rows(seeds: &[Seed<'_>]) -> String {
    let ends: Vec<(f64, f64)> = seeds
        .iter()
        .filter_map(|seed| seed.run.lines.column("reward").ends(REWARDS))
        .collect();
    let reward = (!ends.is_empty()).then(|| {
        let first = mean(ends.iter().map(|(first, _)| *first));
        let last = mean(ends.iter().map(|(_, last)| *last));
        format!("{first:.3} → {last:.3}")
    });
    [
        ("best", best(seeds)),
        ("training reward", reward),
        ("learning rate", rate(seeds)),
    ]
    .into_iter()
    .filter_map(|(title, value)| Some(format!("<dt>{title}</dt><dd>{}</dd>", value?)))
    .collect()
}

/// The best held-out value, and its step.
fn best(seeds: &[Seed<'_>]) -> Option<String> {
    let measured: Vec<&HeldOut> = seeds
        .iter()
        .filter_map(|seed| seed.held_out.as_ref())
        .collect();
    let one = measured.first()?;
    let steps = range(
        &measured
            .iter()
            .map(|found| found.best.step)
            .collect::<Vec<_>>(),
    );
    let value = one.shown(mean(measured.iter().map(|found| found.best.value)));
    let when = if measured.iter().all(|found| found.best.step == 0) {
        "before training".to_owned()
    } else {
        format!("after step {steps}")
    };
    let of = if measured.len() > 1 {
        "on average, "
    } else {
        ""
    };
    Some(format!("{value} <small>{of}{when}</small>"))
}

/// The learning rate that was found, or else the one that was taken, beside the one that was set.
fn rate(seeds: &[Seed<'_>]) -> Option<String> {
    let set = seeds[0].summary.learning_rate?;
    let found: Vec<f64> = seeds
        .iter()
        .filter_map(|seed| seed.summary.found_rate)
        .collect();
    if !found.is_empty() {
        return Some(format!(
            "{} found <small>of {} set</small>",
            span(&found),
            short_rate(set)
        ));
    }
    let taken: Vec<f64> = seeds
        .iter()
        .filter_map(|seed| Some(set * taken_share(seed.run)?))
        .collect();
    Some(match &taken[..] {
        [] => short_rate(set),
        taken => format!(
            "{} taken <small>of {} set</small>",
            span(taken),
            short_rate(set)
        ),
    })
}

/// A learning rate in a few characters: `5e-4`.
fn short_rate(rate: f64) -> String {
    format!("{rate:.1e}").replace(".0e", "e")
}

/// The smallest and the largest rate; one rate if they look alike.
fn span(rates: &[f64]) -> String {
    let low = short_rate(rates.iter().copied().fold(f64::INFINITY, f64::min));
    let high = short_rate(rates.iter().copied().fold(0.0, f64::max));
    if low == high {
        low
    } else {
        format!("{low} to {high}")
    }
}

/// A row for each seed.
fn each_seed(seeds: &[Seed<'_>], open: &str) -> String {
    let heads: String = ["run", "after", "best", "at step"]
        .into_iter()
        .map(head)
        .collect();
    let mut rows = String::new();
    for Seed { run, held_out, .. } in seeds {
        let cells = match held_out {
            Some(found) => [
                found.shown(found.last.value),
                found.shown(found.best.value),
                grouped(found.best.step),
            ],
            None => ["–"; 3].map(str::to_owned),
        };
        let cells = cells.map(|cell| format!("<td>{cell}</td>")).concat();
        rows += &line("", &run.name, &cells);
    }
    format!(
        "<details{open}><summary>each seed</summary>\n{}</details>\n",
        table(" class=\"seeds\"", &heads, &rows)
    )
}

/// What a check found in some runs of a card.
struct Common<'a> {
    /// Name of the finding, by which it is the same in several runs.
    metric: String,
    found: Vec<(&'a FoundRun, Diagnosis)>,
}

impl Common<'_> {
    fn severity(&self) -> Severity {
        self.found[0].1.finding.severity
    }
}

/// The findings about the runs of a card in HTML, and the class of the gravest.
fn findings(seeds: &[Seed<'_>], open: &str) -> (String, &'static str) {
    let mut all: Vec<Common<'_>> = Vec::new();
    for seed in seeds {
        for diagnosis in diagnose(seed.run) {
            let metric = diagnosis.finding.metric();
            match all.iter_mut().find(|one| one.metric == metric) {
                Some(one) => one.found.push((seed.run, diagnosis)),
                None => all.push(Common {
                    metric,
                    found: vec![(seed.run, diagnosis)],
                }),
            }
        }
    }
    all.sort_by_key(|one| (one.severity(), rank(one.found[0].1.finding.check)));
    let mut shown: String = all
        .iter()
        .map(|one| finding(one, seeds.len(), open))
        .collect();
    for Seed { run, .. } in seeds {
        let of = if seeds.len() > 1 {
            format!("{}: ", super::tables::shown(&run.name))
        } else {
            String::new()
        };
        for remark in &run.remarks {
            let remark = sentence(remark);
            shown += &format!("<div class=\"finding warning\"><p>{of}{remark}</p></div>\n");
        }
    }
    let has_remarks = seeds.iter().any(|seed| !seed.run.remarks.is_empty());
    let worst = match all.first().map(Common::severity) {
        Some(Severity::Error) => "error",
        Some(Severity::Warning) => "warning",
        _ if has_remarks => "warning",
        _ => "",
    };
    if shown.is_empty() && seeds.iter().any(|seed| !seed.run.lines.steps.is_empty()) {
        shown = "<p class=\"fine\">the checks found nothing</p>\n".to_owned();
    }
    (shown, worst)
}

/// One finding, in the words of the first run that has it.
fn finding(common: &Common<'_>, seeds: usize, open: &str) -> String {
    let found = &common.found;
    let (_, first) = &found[0];
    let class = match common.severity() {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Info => "info",
    };
    let runs: Vec<String> = found.iter().map(|(run, _)| shown(&run.name)).collect();
    let when = match seeds {
        1 => first.when(),
        _ if found.len() == seeds => {
            format!("in all {seeds} seeds, as in {} {}", runs[0], first.when())
        }
        _ => format!(
            "in {} of {seeds} seeds ({}), {}",
            found.len(),
            runs.join(", "),
            first.when()
        ),
    };
    let advice = first.finding.advice();
    let advice = if advice.is_empty() {
        advice
    } else {
        format!(
            "<details class=\"advice\"{open}><summary>what to try</summary><p>{}</p></details>",
            sentence(&advice)
        )
    };
    let what = sentence(&first.finding.what);
    let page = first.finding.page;
    let check = first.finding.check;
    format!(
        "<div class=\"finding {class}\"><p><b>{when}</b>: {what}</p>{advice}<small>{page}, check \
         <code>{check}</code></small></div>\n"
    )
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

/// Standard error of the mean; `None` of a single value.
fn standard_error(values: &[f64]) -> Option<f64> {
    let mean = mean(values.iter().copied());
    let count = values.len() as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (values.len() > 1).then(|| (squares / (count - 1.0) / count).sqrt())
}

/// The smallest and the largest number.
fn range(numbers: &[u64]) -> String {
    let low = numbers.iter().min().copied().unwrap_or(0);
    let high = numbers.iter().max().copied().unwrap_or(0);
    if low == high {
        grouped(low)
    } else {
        format!("{} to {}", grouped(low), grouped(high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::found::Lines;

    fn run(name: &str, settings: &[(&str, &str)], lines: &str) -> FoundRun {
        FoundRun::of(name, settings, Lines::parse(lines.as_bytes()).unwrap())
    }

    fn card(runs: &[FoundRun]) -> String {
        let group = Group {
            name: runs[0].name.clone(),
            runs: (0..runs.len()).collect(),
        };
        super::card(runs, &group, 0, "")
    }

    fn has(card: &str, parts: &[&str]) {
        parts
            .iter()
            .for_each(|part| assert!(card.contains(part), "no {part}\n{card}"));
    }

    #[test]
    fn a_card_has_the_result_first() {
        let settings = [
            ("recipe", "\"grpo\""),
            ("train.seed", "7"),
            ("train.max_steps", "2"),
            ("train.learning_rate", "1e-3"),
        ];
        let lines = "{\"step\":0,\"eval_accuracy\":0.5}\n{\"step\":1,\"reward\":0.25,\"learning_rate\":1,\"step_control/applied\":0.25,\"eval_accuracy\":0.9}\n\
             {\"step\":2,\"reward\":0.75,\"learning_rate\":1,\"step_control/applied\":0.75,\"eval_accuracy\":0.875}\n";
        has(
            &card(&[run("<a>", &settings, lines)]),
            &[
                "</i>&lt;a&gt; <small class=\"chip finished\">finished</small>",
                "grpo · seed 7 · 2 steps",
                "<small>held-out accuracy</small><span>50.0% <span class=\"arrow\">→</span> \
                 <b>87.5%</b></span> <em class=\"up\">+37.5 points</em>",
                "<dt>best</dt><dd>90.0% <small>after step 1</small></dd>",
                "<dt>training reward</dt><dd>0.250 → 0.750</dd>",
                "<dt>learning rate</dt><dd>5e-4 taken <small>of 1e-3 set</small></dd>",
                "<p class=\"fine\">the checks found nothing</p>",
            ],
        );
    }

    #[test]
    fn seeds_share_a_card() {
        let of = |name: &str, accuracy: f64, steps: u64| {
            let lines = format!(
                "{{\"step\":0,\"eval_accuracy\":0.5}}\n{{\"step\":{steps},\"eval_accuracy\":{accuracy}}}\n"
            );
            run(name, &[("train.max_steps", "4")], &lines)
        };
        has(
            &card(&[of("a", 0.25, 4), of("b", 0.75, 2)]),
            &[
                "<small class=\"chip\">2 seeds</small> <small class=\"chip stopped\">1 of 2 \
                 finished</small>",
                "50.0% <span class=\"arrow\">→</span> <b>50.0%</b> <small>± 25.0</small>",
                "<dd>62.5% <small>on average, after step 0 to 2</small></dd>",
                "<th scope=\"row\">b</th><td>75.0%</td><td>75.0%</td><td>2</td>",
            ],
        );
    }

    #[test]
    fn what_went_wrong_is_told_with_its_gravity() {
        let untaught: String = (1..=20)
            .map(|step| format!("{{\"step\":{step},\"reward\":0,\"frac_advantage_zero\":1}}\n"))
            .collect();
        let one = card(&[run("a", &[], &untaught)]);
        has(
            &one,
            &[
                "<article class=\"card error\">",
                "<div class=\"finding error\"><p><b>after steps 10 to 20</b>: the completions of \
                 each prompt earned alike",
            ],
        );
        let two = card(&[run("a", &[], &untaught), run("b", &[], "{\"step\":1}\n")]);
        has(&two, &["<b>in 1 of 2 seeds (a), after steps 10 to 20</b>"]);
    }
}
