//! A comparison on the terminal: a table with a row per mask, a matrix of overlaps, and remarks.

use super::comparison::{Compared, Comparison};
use super::setting::Setting;
use crate::terminal::{grouped, percent, widths};

/// Cell text for a missing number.
pub(super) const NONE: &str = "-";

pub fn lines(comparison: &Comparison) -> Vec<String> {
    let mut lines = head(comparison);
    lines.extend(rows(comparison));
    if comparison.masks.len() > 1 {
        lines.push(String::new());
        lines.extend(matrix(comparison));
    }
    let remarks = remarks(comparison);
    if !remarks.is_empty() {
        lines.push(String::new());
        lines.extend(remarks);
    }
    lines
}

fn head(comparison: &Comparison) -> Vec<String> {
    let batches = comparison.batches.len();
    let plural = if batches == 1 { "" } else { "es" };
    vec![
        format!("{batches} batch{plural}, {}", comparison.size()),
        format!(
            "each mask alone; squared gradient norms by {}",
            comparison.measure()
        ),
        String::new(),
    ]
}

/// The cells of one line, from left to right.
type Cells = [String; 13];

fn rows(comparison: &Comparison) -> Vec<String> {
    let heads = [
        "#", "mask", "setting", "rejected", "", "touched", "", "whole", "", "norm²", "least p",
        "kept A", "ms",
    ];
    let masks = comparison
        .masks
        .iter()
        .zip(1..)
        .map(|(mask, number)| row(mask, number));
    let mut table: Vec<Vec<String>> = [heads.map(str::to_owned)]
        .into_iter()
        .chain(masks)
        .map(Vec::from)
        .collect();
    if comparison.target.is_none() {
        table.iter_mut().for_each(|cells| drop(cells.remove(2)));
    }
    let widths = widths(&table);
    let mut lines = Vec::new();
    for cells in &table {
        let mut line = String::new();
        for (index, cell) in cells.iter().enumerate() {
            // A percentage is set close to its count.
            line += match index {
                0 => "",
                _ if table[0][index].is_empty() => " ",
                _ => "  ",
            };
            let width = widths[index];
            line += &if index == 1 {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            };
        }
        lines.push(line.trim_end().to_owned());
    }
    lines
}

/// The table cells of a mask; a percentage follows its count.
pub(super) fn row(mask: &Compared, number: usize) -> Cells {
    let row = &mask.row;
    let completions = row.completions.max(1) as f64;
    [
        number.to_string(),
        mask.contender.name.clone(),
        setting(&mask.setting),
        grouped(row.count.rejected),
        percent(row.count.rate()),
        grouped(row.touched),
        percent(row.touched as f64 / completions),
        grouped(row.whole),
        percent(row.whole as f64 / completions),
        share(row.gradient_share),
        share(row.least_probable),
        row.kept_advantage
            .map_or_else(|| NONE.to_owned(), |mean| format!("{mean:.4}")),
        format!("{:.2}", 1e3 * row.time.as_secs_f64()),
    ]
}

/// Cell text for a share that may be missing.
fn share(share: Option<f64>) -> String {
    share.map_or_else(|| NONE.to_owned(), percent)
}

/// Cell text for the origin of a key's value.
fn setting(setting: &Setting) -> String {
    match setting {
        Setting::Own => String::new(),
        Setting::NoKey => "no key".to_owned(),
        Setting::Given { value, .. } => format!("given {value}"),
        Setting::Found {
            value,
            remark: None,
            ..
        } => value.clone(),
        Setting::Found {
            value,
            remark: Some(_),
            ..
        } => format!("{value}*"),
        Setting::Nothing { .. } => "nothing*".to_owned(),
    }
}

/// The matrix of overlaps in whole per cent, so that twenty masks fit into 120 columns.
fn matrix(comparison: &Comparison) -> Vec<String> {
    let numbers = 1..=comparison.masks.len();
    let mut lines =
        vec!["overlap, %: tokens that both reject, of those that either does".to_owned()];
    lines.push(format!(
        "{:4}{}",
        "",
        numbers
            .map(|number| format!("{number:>4}"))
            .collect::<String>()
    ));
    for (row, number) in comparison.overlap().iter().zip(1..) {
        let mut line = format!("{number:>4}");
        for overlap in row {
            let share = overlap.share();
            let cell = share.map_or_else(|| NONE.to_owned(), whole_percent);
            line += &format!("{cell:>4}");
        }
        lines.push(line);
    }
    lines
}

/// A share in whole per cent; only an exact 0 or 1 gives 0 or 100.
pub(super) fn whole_percent(share: f64) -> String {
    match 100.0 * share {
        percent if percent > 0.0 && percent < 0.5 => "<1".to_owned(),
        percent if (99.5..100.0).contains(&percent) => "99".to_owned(),
        percent => format!("{percent:.0}"),
    }
}

/// Remarks about keys that were searched or given, and about masks that were left out.
fn remarks(comparison: &Comparison) -> Vec<String> {
    let mut sets = Vec::new();
    let mut remarks = Vec::new();
    for Compared {
        contender, setting, ..
    } in &comparison.masks
    {
        let name = &contender.name;
        match setting {
            Setting::Own => {}
            Setting::NoKey => {
                remarks.push(format!("`{name}` has no key to search: it ran as it is"))
            }
            Setting::Given { key, value } => {
                remarks.push(format!(
                    "`{name}` ran with `{key} = {value}`, which was given"
                ));
            }
            Setting::Nothing { remark, .. } => remarks.push(format!("* `{name}`: {remark}")),
            Setting::Found { key, value, remark } => {
                sets.push(format!("  --set mask.{name}.{key}={value}"));
                remarks.extend(remark.iter().map(|remark| format!("* `{name}`: {remark}")));
            }
        }
    }
    if let (Some(target), false) = (&comparison.target, sets.is_empty()) {
        sets.insert(0, format!("for the target {target}:"));
    }
    sets.into_iter()
        .chain(remarks)
        .chain(comparison.left_out.iter().cloned())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::comparison::Row;
    use super::super::contender::Contender;
    use super::super::tokens::Tokens;
    use super::*;
    use crate::commands::sweep::Count;

    /// A mask with a long name that rejected a tenth of many tokens.
    fn mask() -> Compared {
        let config = capo_loader::ComponentConfig {
            id: "masks.probability-quantile".into(),
            table: toml::Table::new(),
        };
        let row = Row {
            count: Count {
                rejected: 12_345,
                tokens: 123_450,
            },
            touched: 1234,
            whole: 123,
            completions: 12_345,
            gradient_share: Some(0.9876),
            least_probable: Some(1.0),
            kept_advantage: Some(-0.1234),
            time: Duration::from_millis(23),
        };
        let setting = Setting::Found {
            key: "share".into(),
            value: "9.97e-2".into(),
            remark: Some("too few".into()),
        };
        Compared {
            contender: Contender {
                name: config.id.clone(),
                config,
                key: None,
            },
            setting,
            row,
            rejected: vec![true],
        }
    }

    #[test]
    fn twenty_masks_fit_into_a_terminal() {
        let comparison = Comparison {
            batches: vec!["batch-000000.safetensors".into()],
            target: Some("10%".parse().unwrap()),
            tokens: Tokens::default(),
            masks: (0..20).map(|_| mask()).collect(),
            left_out: Vec::new(),
        };
        let tables = [rows(&comparison), matrix(&comparison)].concat();
        let widest = tables
            .iter()
            .max_by_key(|line| line.chars().count())
            .unwrap();
        assert!(widest.chars().count() <= 120, "{widest}");
        assert_eq!(
            tables
                .iter()
                .filter(|line| line.contains("masks.probability-quantile"))
                .count(),
            20
        );
    }

    #[test]
    fn writes_0_and_100_only_for_exact_shares() {
        let shares = [0.0, 0.001, 0.004, 0.006, 0.5, 0.994, 0.996, 0.9999, 1.0];
        assert_eq!(
            shares.map(whole_percent),
            ["0", "<1", "<1", "1", "50", "99", "99", "99", "100"]
        );
    }
}
