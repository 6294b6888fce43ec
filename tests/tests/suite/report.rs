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
        folder.train(&format!("runs/{recipe}-{seed}"), &format!("{plugin} {STEPS} --set train.seed={seed}"))
    };
    let capo = "--plugin libcapo.so";
    let runs = [train("capo", capo, 1), train("capo", capo, 2), train("grpo", "", 1), train("grpo", "", 2)];
    (folder, runs)
}

/// The values of `name` by step, steps without it left out.
fn metric(run: &RunDir, name: &str) -> BTreeMap<u64, f64> {
    let value = |line: &BTreeMap<String, Value>| Some((line["step"].as_u64()?, line.get(name)?.as_f64()?));
    run.lines().iter().filter_map(value).collect()
}

/// Numbers of a page have five digits.
fn assert_close(drawn: Option<f64>, expected: f64, what: &str) {
    let drawn = drawn.unwrap_or_else(|| panic!("{what}: nothing, expected {expected}"));
    assert!((drawn - expected).abs() <= 1e-4 * expected.abs() + 1e-12, "{what}: {drawn}, expected {expected}");
}

/// Values by step that the chart `title` draws as `label`, from the column `column`: `y`, `low` or `high`.
fn drawn(charts: &Value, title: &str, label: &str, column: &str) -> BTreeMap<u64, f64> {
    let list = |value: &Value| value.as_array().unwrap().clone();
    let chart = list(charts).into_iter().find(|chart| chart["title"] == title).unwrap_or_else(|| panic!("no {title}"));
    let line = list(&chart["lines"]).into_iter().find(|line| line["label"] == label);
    let line = line.unwrap_or_else(|| panic!("{title} has no {label}"));
    let pairs = list(&chart["x"]).into_iter().zip(list(&line[column]));
    pairs.filter_map(|(x, y)| Some((x.as_u64()?, y.as_f64()?))).collect()
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
    let Some(found) = browser::evaluate(&page, expression) else { return };
    let charts = [
        ("Reward", "", "reward"),
        ("Held-out accuracy", "", "eval_accuracy"),
        ("Gradient norm", ", kept", "grad_norm"),
        ("Policy KL per step", ", measured", "step/kl"),
        ("Rejected tokens", "", "mask/rejection_rate"),
        ("Policy shift m_F of the batch", ", kept tokens", "capo.curvature/masked_m_f_batch"),
        ("Objective shift m_H of the batch", ", all tokens", "capo.curvature/m_h_batch"),
        ("Rejected, by reason", ", Hessian", "capo.curvature/rejected_hessian"),
    ];
    for (title, word, name) in charts {
        for (run, title_of_run) in runs.iter().zip(["capo-1", "capo-2", "grpo-1", "grpo-2"]) {
            let expected = metric(run, name);
            if expected.is_empty() {
                continue;
            }
            let y = drawn(&found["runs"], title, &format!("{title_of_run}{word}"), "y");
            // A logarithmic axis has no place for 0.
            let shown = expected.iter().filter(|(step, value)| **value > 0.0 || y.contains_key(step));
            for (step, value) in shown {
                assert_close(y.get(step).copied(), *value, &format!("{title} of {title_of_run}, step {step}"));
            }
        }
    }
    let titles: Vec<&str> =
        found["runs"].as_array().unwrap().iter().filter_map(|chart| chart["title"].as_str()).collect();
    for repeated in ["Reward: exact_match", "Held-out reward", "Held-out reward: exact_match"] {
        assert!(!titles.contains(&repeated), "{titles:?}");
    }
    let [first, second] = [metric(&runs[0], "reward"), metric(&runs[1], "reward")];
    let [y, low, high] = ["y", "low", "high"].map(|column| drawn(&found["seeds"], "Reward", "capo", column));
    assert_eq!(y.len(), 6);
    for (step, a) in &first {
        let (mean, error) = ((a + second[step]) / 2.0, (a - second[step]).abs() / 2.0);
        assert_close(y.get(step).copied(), mean, "mean");
        assert_close(low.get(step).copied(), mean - error, "mean - error");
        assert_close(high.get(step).copied(), mean + error, "mean + error");
    }
    let smooth = drawn(&found["smooth"], "Reward", "capo-1", "y");
    // (0.25 a + 0.5 b) / 0.75
    assert_close(smooth.get(&2).copied(), first[&1] / 3.0 + first[&2] * 2.0 / 3.0, "the average");
    let by_completions = drawn(&found["completions"], "Reward", "capo-1", "y");
    assert_close(by_completions.get(&96).copied(), first[&2], "after two steps of 48 completions");
    assert!(found["colored"].as_u64().unwrap() > 1000, "{} pixels", found["colored"]);
    let picture = found["picture"].as_str().unwrap();
    let lowest = found["logarithmic"].as_array().unwrap();
    assert!(!lowest.is_empty() && lowest.iter().all(|pair| pair[0] == pair[1]), "labels below an axis: {lowest:?}");
    assert!(picture.starts_with("data:image/png;base64,") && picture.len() > 3000, "{picture}");
}

#[test]
fn a_run_of_which_little_can_be_read_is_shown() {
    let folder = Folder::new();
    let run = folder.train("runs/whole", "--set train.max_steps=2 --set eval.num_prompts=0");
    let metrics = run.text("metrics.jsonl");
    for (name, config, metrics) in [
        ("torn", "[train]\nmax_steps = 4\n", &metrics[..metrics.len() - 20]),
        ("empty", "not TOML", ""),
        ("<script>alert(1)</script>", "recipe = \"</script>\u{202e}\"\n", "{\"step\":1,\"reward\":null}\n"),
    ] {
        folder.write(&format!("runs/{name}/config.toml").replace("</", "<"), config);
        folder.write(&format!("runs/{name}/metrics.jsonl").replace("</", "<"), metrics);
    }
    let outcome = folder.host("report runs --out report.html").succeeded();
    assert_snapshot!(outcome.stderr, @"
    warning: `runs/empty`: `config.toml` cannot be used: settings are not TOML: TOML parse error at line 1, column 5
    warning: `runs/torn`: `metrics.jsonl`: the last line is torn and left out
    ");
    let Some(found) = browser::evaluate(
        &folder.path().join("report.html"),
        "[capo.drawn().map(({ title }) => title).slice(0, 2), document.scripts.length, document.querySelector('table').innerText]",
    ) else {
        return;
    };
    assert_eq!(found[0][0], "Reward");
    assert_eq!(found[1], 9, "no script of others");
    let table = found[2].as_str().unwrap();
    assert!(table.contains("<script>alert(1)<script>") && table.contains("</script>\\u202e"), "{table}");
}

#[test]
fn a_line_over_seeds_goes_on_where_a_seed_ends() {
    let folder = Folder::new();
    for (seed, steps, tokens) in [(1, 4, 10), (2, 2, 100)] {
        folder.write(&format!("runs/a-{seed}/config.toml"), format!("recipe = \"grpo\"\n[train]\nseed = {seed}\n"));
        let line = |step: u64| serde_json::json!({ "step": step, "reward": 1.0, "num_tokens": step * tokens });
        folder.write(&format!("runs/a-{seed}/metrics.jsonl"), tests::to_json_lines((1..=steps).map(line)));
    }
    folder.said("report runs --out report.html");
    let expression = "(() => { capo.set({ axis: 'tokens' }); return capo.drawn()[0].x; })()";
    let Some(found) = browser::evaluate(&folder.path().join("report.html"), expression) else { return };
    assert_eq!(found, serde_json::json!([55, 110, 120, 130]), "the means, then on by what the longer run took");
}

/// The page's buckets of so many steps.
#[test]
fn a_step_that_no_run_reaches_is_shown() {
    let folder = Folder::new();
    folder.write("run/config.toml", "");
    let lines = (1..=2000).chain([u64::MAX]).map(|step| serde_json::json!({ "step": step, "reward": 1.0 }));
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
        "tokens/text": [hostile, "a\n", null, null], "tokens/keep": [0, 1, 1, 1], "tokens/rejected_by": ["capo.curvature", null, null, null],
        "tokens/advantage": [-1.25, 0.5, null, null] });
    folder.write("run/completions.jsonl", format!("{row}\n"));
    folder.said("report run --out report.html");
    let expression = "(() => { const text = (selector) => [...document.querySelectorAll(selector)].map((one) => one.textContent); \
        capo.tokens.show(document.querySelector('.text s')); \
        return [text('.prompt'), text('.text s'), text('.text i'), text('.detail b, .detail span'), document.images.length, capo.tokens.by.value]; })()";
    let Some(found) = browser::evaluate(&folder.path().join("report.html"), expression) else { return };
    let shown = "</script><img src=x onerror=alert(1)>\\u202e";
    let detail = ["token 0, id 7, rejected by capo.curvature", "advantage -1.25"];
    assert_eq!(found, serde_json::json!([[shown], [shown], ["a↵\n", "⟨8⟩", "⟨end⟩"], detail, 0, "advantage"]));
}

#[test]
fn a_report_is_refused_before_anything_is_read() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path().join("folder.html")).unwrap();
    assert_refused("report", &folder);
}
