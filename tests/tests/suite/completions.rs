//! The log of completions: its numbers for each token agree with the metrics, and a resume writes
//! the same bytes.

use std::collections::BTreeMap;

use host::report::found::{Row, completions};
use serde_json::Value;
use tests::{Folder, RunDir, names};

const STEPS: &str = "--plugin libcapo.so --set train.max_steps=4 --set train.save_steps=2 --set eval.num_prompts=0 --set train.learning_rate=1e-3";
const TOKENS: &str = "--set logging.log_completions=true --set logging.log_tokens=true";

fn found(run: &RunDir) -> BTreeMap<u64, Vec<Row>> {
    completions(run.path(), usize::MAX).unwrap()
}

/// All numbers of a list of every completion.
fn numbers(rows: &[Row], name: &str) -> Vec<f64> {
    rows.iter()
        .flat_map(|row| row[name].as_array().unwrap())
        .map(|value| value.as_f64().unwrap())
        .collect()
}

fn kept_mean(token_mask: &[f64], values: &[f64]) -> f64 {
    let kept: f64 = token_mask
        .iter()
        .zip(values)
        .map(|(keep, value)| keep * value)
        .sum();
    kept / token_mask.iter().sum::<f64>()
}

#[test]
fn columns_of_tokens_agree_with_the_metrics() {
    let folder = Folder::new();
    let run = folder.train("run", &format!("{STEPS} {TOKENS}"));
    let found = found(&run);
    assert_eq!(found.len(), 4);
    let mut rejected = 0;
    for line in run.metrics() {
        let rows = &found[&line["step"].as_u64().unwrap()];
        assert_eq!(rows.len(), 48);
        let token_mask = numbers(rows, "tokens/token_mask");
        let count = token_mask.len() as f64;
        let mean = |values: Vec<f64>| values.iter().sum::<f64>() / count;
        for (metric, found) in [
            ("mask/rejection_rate", 1.0 - mean(token_mask.clone())),
            ("entropy", mean(numbers(rows, "tokens/entropy"))),
            (
                "capo.curvature/m_f/mean",
                mean(numbers(rows, "tokens/capo.curvature/m_f")),
            ),
            (
                "capo.curvature/masked_m_f_mean",
                kept_mean(&token_mask, &numbers(rows, "tokens/capo.curvature/m_f")),
            ),
            ("completions/mean_length", count / 48.0),
            (
                "reward",
                rows.iter()
                    .map(|row| row["rewards/exact_match"].as_f64().unwrap())
                    .sum::<f64>()
                    / 48.0,
            ),
        ] {
            let expected = line[metric].as_f64().unwrap();
            assert!(
                (found - expected).abs() < 1e-6 * expected.abs().max(1e-6),
                "{metric}: {found}, {expected}"
            );
        }
        for row in rows {
            let text: String = row["tokens/text"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(Value::as_str)
                .collect();
            assert_eq!(text, row["completion"]);
            let by = row["tokens/rejected_by"].as_array().unwrap();
            let of_row = row["tokens/token_mask"].as_array().unwrap();
            assert!(
                by.iter()
                    .zip(of_row)
                    .all(|(by, keep)| (by == "capo.curvature") == (*keep == 0))
            );
            rejected += by.iter().filter(|by| !by.is_null()).count();
        }
    }
    assert!(rejected > 0, "nothing was tried");
}

#[test]
fn formats_agree_and_a_resume_writes_the_same_bytes() {
    let folder = Folder::new();
    let jsonl = |run: &RunDir| vec![std::fs::read(run.path().join("completions.jsonl")).unwrap()];
    let parquet = |run: &RunDir| {
        let folder = run.path().join("completions");
        names(&folder)
            .iter()
            .map(|name| std::fs::read(folder.join(name)).unwrap())
            .collect::<Vec<_>>()
    };
    let resumed = |format: &str, read: &dyn Fn(&RunDir) -> Vec<Vec<u8>>| {
        let settings = format!("{STEPS} {TOKENS} --set logging.completions_format={format}");
        let run = folder.train(format, &settings);
        let (whole, found) = (read(&run), found(&run));
        // The run looks as if it had been killed before its last checkpoint.
        std::fs::remove_dir_all(run.last_checkpoint()).unwrap();
        assert_eq!(read(&folder.resume(format)), whole);
        (whole.len(), found)
    };
    let [(_, lines), (files, tables)] = [resumed("jsonl", &jsonl), resumed("parquet", &parquet)];
    assert_eq!((lines, files), (tables, 4));
    assert!(!folder.path().join("parquet/completions.jsonl").exists());
}

#[test]
fn writes_as_many_completions_as_are_asked_for() {
    let folder = Folder::new();
    let train = |name: &str, keys: &[&str]| {
        let keys: String = keys
            .iter()
            .map(|key| format!(" --set logging.{key}"))
            .collect();
        let rows = found(&folder.train(
            name,
            &format!("{STEPS} --set logging.log_completions=true{keys}"),
        ));
        rows.into_iter()
            .map(|(step, rows)| (step, rows.len()))
            .collect::<Vec<_>>()
    };
    assert_eq!(train("all", &[]), [(1, 48), (2, 48), (3, 48), (4, 48)]);
    assert_eq!(
        train("few", &["completions_steps=3", "num_completions=5"]),
        [(1, 5), (4, 5)]
    );
    assert_eq!(
        train("prompts", &["log_unique_prompts=true"]),
        [(1, 6), (2, 6), (3, 6), (4, 6)]
    );
}
