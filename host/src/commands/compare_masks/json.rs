//! Writes a comparison as JSON, with all of its numbers unrounded.

use serde_json::{Value, json};

use super::comparison::{Compared, Comparison, Overlap};
use super::setting::Setting;

pub fn document(comparison: &Comparison) -> Value {
    let Comparison {
        batches,
        target,
        tokens,
        masks,
        left_out,
    } = comparison;
    let overlap: Vec<Vec<Option<f64>>> = comparison
        .overlap()
        .into_iter()
        .map(|row| row.into_iter().map(Overlap::share).collect())
        .collect();
    json!({
        "host": env!("CARGO_PKG_VERSION"),
        "batches": batches.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
        "target_rate": target.as_ref().map(|target| target.rate),
        "tokens": tokens.logps.len(),
        "completions": tokens.completions.len(),
        "mean_advantage": comparison.mean_advantage(),
        "gradient": if tokens.last_layer { "last_layer" } else { "logit" },
        "masks": masks.iter().map(mask).collect::<Vec<_>>(),
        "overlap": overlap,
        "left_out": left_out,
    })
}

fn mask(
    Compared {
        contender,
        setting,
        row,
        ..
    }: &Compared,
) -> Value {
    let (key, remark) = match setting {
        Setting::Found { key, remark, .. } => (Some(key), remark.as_ref()),
        Setting::Nothing { key, remark } => (Some(key), Some(remark)),
        _ => (None, None),
    };
    json!({
        "name": contender.name,
        "use": contender.config.id,
        "settings": contender.config.table,
        "searched": key,
        "remark": remark,
        "rejected": row.count.rejected,
        "rejected_share": row.count.rate(),
        "completions_touched": row.touched,
        "completions_rejected": row.whole,
        "gradient_share_removed": row.gradient_share,
        "least_probable_share": row.least_probable,
        "mean_advantage_kept": row.kept_advantage,
        "ms_per_batch": 1e3 * row.time.as_secs_f64(),
    })
}
