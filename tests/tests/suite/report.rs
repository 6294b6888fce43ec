//! `host report`: a page that a browser opens, which draws what the runs wrote.

use std::collections::BTreeMap;

use insta::assert_snapshot;
use serde_json::Value;
use tests::{Folder, RunDir, browser};

use crate::refused::assert_refused;

const STEPS: &str = "--set train.max_steps=6 --set eval.num_prompts=16 --set eval.eval_steps=2 --set train.measure_step=2 \
    --set train.learning_rate=1e-3";

/// Two methods with two seeds each.
fn four_runs() -> (Folder, [RunDir; 4]) {
    let folder = Folder::new();
    let train = |recipe: &str, plugin: &str, seed: u32| {
        folder.train(
            &format!("runs/{recipe}-{seed}"),
            &format!("{plugin} {STEPS} --set train.seed={seed}"),
        )
    };
    let capo = "--plugin libcapo.so";
    let runs = [
        train("capo", capo, 1),
        train("capo", capo, 2),
        train("grpo", "", 1),
        train("grpo", "", 2),
    ];
    (folder, runs)
}

/// The values of `name` by step, steps without it left out.
fn metric(run: &RunDir, name: &str) -> BTreeMap<u64, f64> {
    let value =
        |line: &BTreeMap<String, Value>| Some((line["step"].as_u64()?, line.get(name)?.as_f64()?));
    run.lines().iter().filter_map(value).collect()
}

/// Numbers of a page have five digits.
fn assert_close(drawn: Option<f64>, expected: f64, what: &str) {
    let drawn = drawn.unwrap_or_else(|| panic!("{what}: nothing, expected {expected}"));
    assert!(
        (drawn - expected).abs() <= 1e-4 * expected.abs() + 1e-12,
        "{what}: {drawn}, expected {expected}"
    );
}

/// Values by step that the chart `title` draws as `label`, from the column `column`: `y`, `low` or
/// `high`.
fn drawn(charts: &Value, title: &str, label: &str, column: &str) -> BTreeMap<u64, f64> {
    let list = |value: &Value| value.as_array().unwrap().clone();
    let chart = list(charts)
        .into_iter()
        .find(|chart| chart["title"] == title)
        .unwrap_or_else(|| panic!("no {title}"));
    let line = list(&chart["lines"])
        .into_iter()
        .find(|line| line["label"] == label);
    let line = line.unwrap_or_else(|| panic!("{title} has no {label}"));
    let pairs = list(&chart["x"]).into_iter().zip(list(&line[column]));
    pairs
        .filter_map(|(x, y)| Some((x.as_u64()?, y.as_f64()?)))
        .collect()
}

#[test]
fn a_browser_draws_what_the_runs_wrote() {
    let (folder, runs) = four_runs();
    let said = folder.said("report runs --out report.html");
    assert!(said.starts_with("4 runs in report.html ("), "{said}");
    let page = folder.path().join("report.html");
    let expression = "(async () => { const seeds = capo.drawn(); capo.set({ seeds: false }); const runs = capo.drawn(); \
        capo.set({ weight: 0.5 }); const smooth = capo.drawn(); capo.set({ weight: 0, axis: 'completions' }); \
        const completions = capo.drawn(); await null; const { canvas } = capo.charts[0].uplot.ctx; \
        const pixels = capo.charts[0].uplot.ctx.getImageData(0, 0, canvas.width, canvas.height).data; \
        const colored = pixels.filter((_, at) => at % 4 === 3).filter((alpha) => alpha > 0).length; \
        const picture = capo.charts[0].picture().toDataURL(); const logarithmic = capo.charts.filter((chart) => chart.isLog).map(({ uplot: { scales: { y } } }) => [y.min, decades(null, null, y.min, y.max)[0]]); \
        return { seeds, runs, smooth, completions, colored, picture, logarithmic }; })()";
    let Some(found) = browser::evaluate(&page, expression) else {
        return;
    };
    let charts = [
        ("Reward", "", "reward"),
        ("Held-out accuracy", "", "eval_accuracy"),
        ("Gradient norm", ", kept", "grad_norm"),
        ("Policy KL per step", ", measured", "step/kl"),
        ("Rejected tokens", "", "mask/rejection_rate"),
        (
            "Policy shift m_F of the batch",
            ", kept tokens",
            "capo.curvature/masked_m_f_batch",
        ),
        (
            "Objective shift m_H of the batch",
            ", all tokens",
            "capo.curvature/m_h_batch",
        ),
        (
            "Rejected, by reason",
            ", Hessian",
            "capo.curvature/rejected_hessian",
        ),
    ];
    for (title, word, name) in charts {
        for (run, title_of_run) in runs.iter().zip(["capo-1", "capo-2", "grpo-1", "grpo-2"]) {
            let expected = metric(run, name);
            if expected.is_empty() {
                continue;
            }
            let y = drawn(&found["runs"], title, &format!("{title_of_run}{word}"), "y");
            // A logarithmic axis has no place for 0.
            let shown = expected
                .iter()
                .filter(|(step, value)| **value > 0.0 || y.contains_key(step));
            for (step, value) in shown {
                assert_close(
                    y.get(step).copied(),
                    *value,
                    &format!("{title} of {title_of_run}, step {step}"),
                );
            }
        }
    }
    let titles: Vec<&str> = found["runs"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|chart| chart["title"].as_str())
        .collect();
    for repeated in [
        "Reward: exact_match",
        "Held-out reward",
        "Held-out reward: exact_match",
    ] {
        assert!(!titles.contains(&repeated), "{titles:?}");
    }
    let [first, second] = [metric(&runs[0], "reward"), metric(&runs[1], "reward")];
    let [y, low, high] =
        ["y", "low", "high"].map(|column| drawn(&found["seeds"], "Reward", "capo", column));
    assert_eq!(y.len(), 6);
    for (step, a) in &first {
        let (mean, error) = ((a + second[step]) / 2.0, (a - second[step]).abs() / 2.0);
        assert_close(y.get(step).copied(), mean, "mean");
        assert_close(low.get(step).copied(), mean - error, "mean - error");
        assert_close(high.get(step).copied(), mean + error, "mean + error");
    }
    let smooth = drawn(&found["smooth"], "Reward", "capo-1", "y");
    // (0.25 a + 0.5 b) / 0.75
    assert_close(
        smooth.get(&2).copied(),
        first[&1] / 3.0 + first[&2] * 2.0 / 3.0,
        "the average",
    );
    let by_completions = drawn(&found["completions"], "Reward", "capo-1", "y");
    assert_close(
        by_completions.get(&96).copied(),
        first[&2],
        "after two steps of 48 completions",
    );
    assert!(
        found["colored"].as_u64().unwrap() > 1000,
        "{} pixels",
        found["colored"]
    );
    let picture = found["picture"].as_str().unwrap();
    let lowest = found["logarithmic"].as_array().unwrap();
    assert!(
        !lowest.is_empty() && lowest.iter().all(|pair| pair[0] == pair[1]),
        "labels below an axis: {lowest:?}"
    );
    assert!(
        picture.starts_with("data:image/png;base64,") && picture.len() > 3000,
        "{picture}"
    );
}

#[test]
fn shows_a_run_of_which_little_can_be_read() {
    let folder = Folder::new();
    let run = folder.train(
        "runs/whole",
        "--set train.max_steps=2 --set eval.num_prompts=0",
    );
    let metrics = run.text("metrics.jsonl");
    for (name, config, metrics) in [
        (
            "torn",
            "[train]\nmax_steps = 4\n",
            &metrics[..metrics.len() - 20],
        ),
        ("empty", "not TOML", ""),
        (
            "<script>alert(1)</script>",
            "recipe = \"</script>\u{202e}\"\n",
            "{\"step\":1,\"reward\":null}\n",
        ),
    ] {
        folder.write(
            &format!("runs/{name}/config.toml").replace("</", "<"),
            config,
        );
        folder.write(
            &format!("runs/{name}/metrics.jsonl").replace("</", "<"),
            metrics,
        );
    }
    let outcome = folder.host("report runs --out report.html").succeeded();
    assert_snapshot!(outcome.stderr, @"
    warning: `runs/empty`: `config.toml` cannot be used: settings are not TOML: TOML parse error at line 1, column 5
    warning: `runs/torn`: `metrics.jsonl`: the last line is torn and left out
    ");
    let Some(found) = browser::evaluate(
        &folder.path().join("report.html"),
        "[capo.drawn().map(({ title }) => title).slice(0, 2), document.scripts.length, document.querySelector('.part table').textContent]",
    ) else {
        return;
    };
    assert_eq!(found[0][0], "Reward");
    assert_eq!(found[1], 9, "no script of others");
    let table = found[2].as_str().unwrap();
    assert!(
        table.contains("<script>alert(1)<script>") && table.contains("</script>\\u202e"),
        "{table}"
    );
}

#[test]
fn a_mean_over_seeds_goes_on_after_a_seed_ends() {
    let folder = Folder::new();
    for (seed, steps, tokens) in [(1, 4, 10), (2, 2, 100)] {
        folder.write(
            &format!("runs/a-{seed}/config.toml"),
            format!("recipe = \"grpo\"\n[train]\nseed = {seed}\n"),
        );
        let line = |step: u64| serde_json::json!({ "step": step, "reward": 1.0, "num_tokens": step * tokens });
        folder.write(
            &format!("runs/a-{seed}/metrics.jsonl"),
            tests::to_json_lines((1..=steps).map(line)),
        );
    }
    folder.said("report runs --out report.html");
    let expression = "(() => { capo.set({ axis: 'tokens' }); return capo.drawn()[0].x; })()";
    let Some(found) = browser::evaluate(&folder.path().join("report.html"), expression) else {
        return;
    };
    assert_eq!(
        found,
        serde_json::json!([55, 110, 120, 130]),
        "the means, then on by what the longer run took"
    );
}

/// The page's buckets of so many steps.
#[test]
fn shows_a_step_that_no_run_reaches() {
    let folder = Folder::new();
    folder.write("run/config.toml", "");
    let lines = (1..=2000)
        .chain([u64::MAX])
        .map(|step| serde_json::json!({ "step": step, "reward": 1.0 }));
    folder.write("run/metrics.jsonl", tests::to_json_lines(lines));
    folder.said("report run --out report.html");
}

#[test]
fn a_browser_shows_completions_that_cannot_act() {
    let folder = Folder::new();
    folder.write("run/config.toml", "recipe = \"capo\"\n");
    folder.write("run/metrics.jsonl", "{\"step\":1,\"reward\":1.0}\n");
    let hostile = "</script><img src=x onerror=alert(1)>\u{202e}";
    let row = serde_json::json!({ "step": 1, "prompt": hostile, "completion": hostile, "reward": 0.5, "tokens/id": [7, 8, 8, 9],
        "tokens/text": [hostile, "a\n", null, null], "tokens/token_mask": [0, 1, 1, 1], "tokens/rejected_by": ["capo.curvature", null, null, null],
        "tokens/advantage": [-1.25, 0.5, null, null] });
    folder.write("run/completions.jsonl", format!("{row}\n"));
    folder.said("report run --out report.html");
    let expression = "(() => { const text = (selector) => [...document.querySelectorAll(selector)].map((one) => one.textContent); \
        capo.tokens.show(document.querySelector('.text s')); \
        return [text('.prompt'), text('.text s'), text('.text i'), text('.detail b, .detail span'), document.images.length, text('.token-legend span')]; })()";
    let Some(found) = browser::evaluate(&folder.path().join("report.html"), expression) else {
        return;
    };
    let shown = "</script><img src=x onerror=alert(1)>\\u202e";
    let legend = ["advantage -1.25  1.25", "struck out rejected by a mask"];
    let detail = [
        "token 0, id 7, rejected by capo.curvature",
        "advantage -1.25",
    ];
    assert_eq!(
        found,
        serde_json::json!([
            [shown],
            [shown],
            ["a↵\n", "⟨8⟩", "⟨end⟩"],
            detail,
            0,
            legend
        ])
    );
}

/// The number of steps in the run of [`answered`].
const STEPS_OF_ONE: u64 = 40;

/// A run that ends well below its beginning, under a control that took a quarter of each step, with
/// completions whose first values are 0.
fn answered(folder: &Folder) {
    folder.write(
        "run/config.toml",
        "recipe = \"grpo\"\ntrain.learning_rate = 1e-3\ntrain.max_steps = 40\neval.num_prompts = 512\n",
    );
    let line = |step: u64| {
        let mut line = serde_json::json!({ "step": step });
        if step == 0 || step == STEPS_OF_ONE {
            let accuracy = if step == 0 { 0.557 } else { 0.387 };
            // Another unit, and in f32.
            line["eval_accuracy"] = accuracy.into();
            line["eval_reward"] = f64::from(accuracy as f32).into();
        }
        if step > 0 {
            let noise = [0.1, -0.1, 0.0][step as usize % 3];
            let values = [
                ("reward", 0.5 + noise),
                ("rewards/math/mean", 1.0 + 2.0 * noise),
                ("entropy", 0.1 + 0.1 * noise),
            ];
            values
                .iter()
                .for_each(|(name, value)| line[*name] = (*value).into());
            line["learning_rate"] = (1e-5 * step as f64).into();
            line["step_control/applied"] = 0.25.into();
            line["step_skipped"] = 0.into();
        }
        line
    };
    folder.write(
        "run/metrics.jsonl",
        tests::to_json_lines((0..=STEPS_OF_ONE).map(line)),
    );
    let row = serde_json::json!({ "step": 1, "prompt": "1+1=", "completion": "2", "reward": 1, "tokens/id": [1, 2], "tokens/text": ["2", null],
        "tokens/token_mask": [1, 1], "tokens/m_f": [0, 0], "tokens/advantage": [0, 0], "tokens/entropy": [0.5, 0.1] });
    folder.write("run/completions.jsonl", format!("{row}\n"));
}

#[test]
fn a_page_begins_with_its_answer() {
    let folder = Folder::new();
    answered(&folder);
    folder.said("report run");
    let expression = "(() => { const text = (selector) => [...document.querySelectorAll(selector)].map((one) => one.textContent); \
        const drawn = capo.drawn(); const top = (selector) => document.querySelector(selector).getBoundingClientRect().top; \
        return { outcome: text('.card .outcome'), finding: text('.card .finding.error b'), rate: text('.card dd').at(-1), \
        order: top('.card') < top('#charts') && top('#charts') < top('#tokens'), main: capo.data.main.map(({ title }) => title), \
        titles: drawn.map(({ title }) => title), open: document.querySelectorAll('main details[open]').length, \
        shown: [capo.charts[0].show(0.557), capo.charts[1].show(0.5)], weight: capo.state.weight, drawn, \
        constant: capo.data.constant, colored: document.querySelectorAll('.text [style]').length, by: capo.tokens.by.value, \
        broken: [...document.querySelectorAll('.advice code span')].filter((word) => word.getBoundingClientRect().height > 30).length, \
        commands: text('.advice code') }; })()";
    let Some(found) = browser::evaluate(&folder.path().join("report.html"), expression) else {
        return;
    };
    assert_eq!(
        found["outcome"],
        serde_json::json!(["held-out accuracy55.7% → 38.7% -17.0 points"])
    );
    assert_eq!(found["finding"], serde_json::json!(["after step 40"]));
    assert_eq!(found["rate"], "2.5e-4 taken of 1e-3 set");
    assert_eq!(found["order"], true);
    assert_eq!(
        found["main"],
        serde_json::json!(["Held-out accuracy", "Reward", "Entropy"])
    );
    assert_eq!(
        found["titles"],
        serde_json::json!(["Held-out accuracy", "Reward", "Entropy", "Learning rate"]),
        "nothing twice"
    );
    assert_eq!(
        [&found["open"], &found["broken"]],
        [0, 0],
        "folded, and no word of code is broken"
    );
    assert_eq!(found["commands"][0], "--set train.learning_rate=3.3e-4");
    assert_eq!(found["shown"], serde_json::json!(["55.7%", "0.5"]));
    let constant = [
        ("Left of the step by step_control", serde_json::json!(0.25)),
        ("Skipped steps", serde_json::json!(0)),
    ];
    let constant =
        constant.map(|(title, value)| serde_json::json!({ "title": title, "value": value }));
    assert_eq!(found["constant"], serde_json::json!(constant));
    assert_eq!(
        [&found["by"], &found["colored"]],
        [&serde_json::json!("entropy"), &serde_json::json!(2)]
    );
    // Smoothed over the raw ones, except for what was measured on held-out prompts.
    assert!(
        found["weight"].as_f64().unwrap() > 0.5,
        "{}",
        found["weight"]
    );
    let [smooth, raw] = ["y", "raw"].map(|column| drawn(&found["drawn"], "Reward", "run", column));
    assert!((smooth[&40] - 0.5).abs() < 0.05, "{smooth:?}");
    assert_close(raw.get(&40).copied(), 0.4, "before smoothing");
    assert_close(
        drawn(&found["drawn"], "Held-out accuracy", "run", "y")
            .get(&40)
            .copied(),
        0.387,
        "as it was measured",
    );
    assert_close(
        drawn(&found["drawn"], "Learning rate", "run", "y")
            .get(&40)
            .copied(),
        1e-4,
        "a quarter of the schedule's",
    );
}

#[test]
fn says_that_a_table_is_cut() {
    let folder = Folder::new();
    answered(&folder);
    folder.said("report run");
    let expression = "(() => { document.querySelectorAll('.part').forEach((part) => { part.open = true; }); const cut = (width) => { \
        document.body.style.width = width; markTables(); return document.querySelectorAll('.wide.cut').length > 0; }; \
        return [cut('380px'), cut('2400px')]; })()";
    let Some(found) = browser::evaluate(&folder.path().join("report.html"), expression) else {
        return;
    };
    assert_eq!(found, serde_json::json!([true, false]));
}

#[test]
fn replaces_only_pages_by_default() {
    let folder = Folder::new();
    answered(&folder);
    for _ in 0..2 {
        let said = folder.said("report run");
        assert!(said.starts_with("1 run in report.html ("), "{said}");
    }
    folder.write("report.html", "<!doctype html>\n<title>mine</title>\n");
    assert_snapshot!(folder.refused("report run"), @"`report.html` exists and is no report (name another file with `--out`, or this one with `--out report.html`)");
    folder.said("report run --out report.html");
    assert!(folder.text("report.html").contains("capo host report"));
}

#[test]
fn refuses_a_report_before_anything_is_read() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path().join("folder.html")).unwrap();
    assert_refused("report", &folder);
}
