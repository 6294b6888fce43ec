//! The completions about which the masks disagree most, with the tokens that each mask rejected.

use std::ops::Range;
use std::path::Path;

use anyhow::Result;
use capo_loader::RecordedBatch;
use serde_json::{Value, json};

use super::super::comparison::Comparison;
use crate::commands::batches::Batches;
use crate::report::html;

/// Largest number of completions on a page.
const MOST: usize = 60;

/// The shown completions, each with its tokens and with the positions that every mask rejected.
pub fn data(comparison: &Comparison, batches: &Batches<'_>) -> Result<Value> {
    let tokens = &comparison.tokens;
    let chosen = chosen(comparison, &tokens.completions);
    let (mut shown, mut at) = (vec![Value::Null; chosen.len()], 0);
    batches.each(|path, batch| {
        let dims = batch.scalars.dims;
        let has_tokens = |b: &usize| batch.completion_mask[dims.row(*b)].contains(&1);
        for b in (0..dims.completions as usize).filter(has_tokens) {
            if let Some(place) = chosen.iter().position(|&index| index == at) {
                shown[place] = completion(comparison, &tokens.completions[at], path, batch, b);
            }
            at += 1;
        }
        Ok(())
    })?;
    let names: Vec<_> = comparison.masks.iter().map(|mask| &mask.contender.name).collect();
    Ok(json!({ "masks": names, "completions": shown }))
}

/// Indices of completions with rejected tokens. Those with the most disagreements between pairs of masks, per token, come first.
fn chosen(comparison: &Comparison, completions: &[Range<usize>]) -> Vec<usize> {
    let masks = &comparison.masks;
    let scored = |(index, range): (usize, &Range<usize>)| {
        let rejecting = |token| masks.iter().filter(|mask| mask.rejected[token]).count();
        let counts = range.clone().map(rejecting);
        let (pairs, all) =
            counts.fold((0, 0), |(pairs, all), count| (pairs + count * (masks.len() - count), all + count));
        (all > 0).then_some(((pairs, all), index))
    };
    let mut scores: Vec<_> = completions.iter().enumerate().filter_map(scored).collect();
    scores.sort_by(|(a, _), (b, _)| b.cmp(a));
    scores.into_iter().take(MOST).map(|(_, index)| index).collect()
}

/// One completion, whose tokens have the indices `range` among all tokens.
fn completion(comparison: &Comparison, range: &Range<usize>, path: &Path, batch: &RecordedBatch, b: usize) -> Value {
    let places: Vec<usize> = batch.scalars.dims.row(b).filter(|&i| batch.completion_mask[i] == 1).collect();
    let texts = texts(batch, b);
    let start = batch.scalars.dims.row(b).start;
    let token = |&i: &usize| {
        json!([texts[i - start], batch.completion_ids[i], short(batch.advantages[i]), short(batch.logps[i])])
    };
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    json!({
        "batch": name,
        "completion": b,
        "reward": short(batch.rewards[b]),
        "truncated": batch.truncated[b] == 1,
        "tokens": places.iter().map(token).collect::<Vec<_>>(),
        "rejected": comparison.masks.iter().map(|mask| runs(&mask.rejected[range.clone()])).collect::<Vec<_>>(),
    })
}

/// `[T]`: text of each token of completion b. It is `None` for special tokens, padding and parts of a character, and if the batch
/// was recorded without text.
fn texts(batch: &RecordedBatch, b: usize) -> Vec<Option<String>> {
    let tokens = batch.scalars.dims.tokens as usize;
    let Some(context) = &batch.context else { return vec![None; tokens] };
    let lent = context.data.lend(context.age);
    let text = |t: usize| lent.text(b).get(lent.span(b, t)).filter(|text| !text.is_empty()).map(str::to_owned);
    (0..tokens).map(text).collect()
}

/// The value with four digits after the decimal point.
fn short(value: f32) -> Value {
    json!((f64::from(value) * 1e4).round() / 1e4)
}

/// First index and length of every run of rejected tokens.
fn runs(rejected: &[bool]) -> Vec<[usize; 2]> {
    let mut runs: Vec<[usize; 2]> = Vec::new();
    for place in (0..rejected.len()).filter(|&place| rejected[place]) {
        match runs.last_mut() {
            Some([start, length]) if *start + *length == place => *length += 1,
            _ => runs.push([place, 1]),
        }
    }
    runs
}

pub fn section(data: &Value) -> String {
    format!(
        "<h2>Completions</h2>\n<p>Those that the masks disagree about most. Rejected tokens are struck out; point at a token for \
         its advantage and log-probability.</p>\n<div id=\"completions\"><noscript>Completions are shown by a script, which is \
         switched off.</noscript></div>\n{}",
        html::data("data", data)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_stretches() {
        assert_eq!(runs(&[true, true, false, true]), [[0, 2], [3, 1]]);
        assert_eq!(runs(&[false, false]), Vec::<[usize; 2]>::new());
    }
}
