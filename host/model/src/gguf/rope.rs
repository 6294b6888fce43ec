//! The scaling of rotary embeddings, in the form of `rope_scaling` in `config.json`.

use std::f64::consts::TAU;

use anyhow::{Result, bail, ensure};
use candle_core::quantized::gguf_file::TensorInfo;
use serde_json::{Map, Value as Json, json};

use super::metadata::shortest;

/// Name of the tensor with the divisors of the rotary frequencies.
pub(super) const DIVISORS: &str = "rope_freqs.weight";
/// Bounds of the scaling type `llama3`, the same in all its models: turns over the original
/// positions.
const LOW: f64 = 1.0;
const HIGH: f64 = 4.0;
/// Default number of original positions, used if the divisors do not determine it.
const POSITIONS: f64 = 8192.0;

/// Most divisors, which bounds the memory to read them.
const MOST: usize = 1 << 12;

/// Names of settings in GGUF and in transformers.
const SETTINGS: [(&str, &str); 4] = [
    ("type", "rope_type"),
    (
        "original_context_length",
        "original_max_position_embeddings",
    ),
    ("yarn_beta_fast", "beta_fast"),
    ("yarn_beta_slow", "beta_slow"),
];

/// Refuses a tensor of more divisors than any head has.
pub(super) fn check(info: &TensorInfo) -> Result<()> {
    let shape = info.shape.dims();
    ensure!(
        shape.iter().product::<usize>() <= MOST,
        "tensor `{DIVISORS}` has shape {shape:?}, expected half of a head's width \
         (fetch the file again)"
    );
    Ok(())
}

/// Moves the scaling's settings out of the architecture's `settings`. Unknown keys stay in the
/// scaling, and its reader refuses them.
pub(super) fn scaling(settings: &mut Map<String, Json>) -> Option<Json> {
    let keys: Vec<String> = settings
        .keys()
        .filter(|key| key.starts_with("rope.scaling."))
        .cloned()
        .collect();
    let mut scaling = Map::new();
    for key in keys {
        let name = key.trim_start_matches("rope.scaling.");
        let name = SETTINGS
            .iter()
            .find(|(old, _)| *old == name)
            .map_or(name, |(_, new)| new);
        scaling.extend(settings.remove(&key).map(|value| (name.to_owned(), value)));
    }
    // The key only says how the model was made.
    scaling.remove("finetuned");
    if scaling.is_empty() || scaling.get("rope_type").is_some_and(|kind| kind == "none") {
        return None;
    }
    scaling.entry("rope_type").or_insert(json!("linear"));
    Some(Json::Object(scaling))
}

/// The `llama3` scaling that has these divisors, for heads of `width` and frequencies of base
/// `theta`. `None` if all divisors are 1.
pub(super) fn llama3(divisors: &[f32], width: u64, theta: f64) -> Result<Option<Json>> {
    let most = divisors.iter().copied().fold(1.0, f32::max);
    if divisors.len() as u64 * 2 != width {
        return refused();
    }
    if divisors.iter().all(|divisor| *divisor == 1.0) {
        return Ok(None);
    }
    let Some(factor) = shortest(most).as_f64().filter(|factor| factor.is_finite()) else {
        return refused();
    };
    let rule = Llama3 {
        factor,
        theta,
        count: divisors.len() as f64,
    };
    let original = rule.original(divisors);
    if !rule.explains(divisors, original) {
        return refused();
    }
    Ok(Some(json!({
        "rope_type": "llama3", "factor": factor, "low_freq_factor": LOW, "high_freq_factor": HIGH,
        "original_max_position_embeddings": original as u64,
    })))
}

/// The scaling type `llama3`, without its number of original positions.
struct Llama3 {
    factor: f64,
    /// Base of the frequencies.
    theta: f64,
    /// Number of frequencies.
    count: f64,
}

impl Llama3 {
    fn frequency(&self, index: usize) -> f64 {
        self.theta.powf(-(index as f64) / self.count)
    }

    /// The number of original positions. A divisor between the bounds determines the number of
    /// turns of its frequency, and so the positions.
    fn original(&self, divisors: &[f32]) -> f64 {
        for (index, divisor) in divisors.iter().enumerate() {
            let divisor = f64::from(*divisor);
            if divisor > 1.001 && divisor < 0.999 * self.factor {
                let kept = (1.0 / divisor - 1.0 / self.factor) / (1.0 - 1.0 / self.factor);
                let turns = kept * (HIGH - LOW) + LOW;
                return (turns * TAU / self.frequency(index)).round();
            }
        }
        POSITIONS
    }

    /// True if all `divisors` follow from `original` positions.
    fn explains(&self, divisors: &[f32], original: f64) -> bool {
        divisors.iter().enumerate().all(|(index, divisor)| {
            let turns = original * self.frequency(index) / TAU;
            let kept = ((turns - LOW) / (HIGH - LOW)).clamp(0.0, 1.0);
            (f64::from(*divisor) * ((1.0 - kept) / self.factor + kept) - 1.0).abs() < 1e-4
        })
    }
}

fn refused<T>() -> Result<T> {
    bail!(
        "tensor `{DIVISORS}` has divisors of frequencies that do not follow the type `llama3` \
         (use the original model)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The divisors of a model, as llama.cpp's converter computes them.
    fn divisors(width: usize, theta: f64, factor: f64, original: f64) -> Vec<f32> {
        let divisor = |index: usize| {
            let length = TAU * theta.powf(2.0 * index as f64 / width as f64);
            let smooth = (original / length - LOW) / (HIGH - LOW);
            let between = 1.0 / ((1.0 - smooth) / factor + smooth);
            if length < original / HIGH {
                1.0
            } else if length > original / LOW {
                factor
            } else {
                between
            }
        };
        (0..width / 2).map(|index| divisor(index) as f32).collect()
    }

    #[test]
    fn finds_the_scaling_of_divisors() {
        // Llama 3.1 and 3.2, a model with another length, and a model without frequencies between
        // the bounds.
        let cases = [
            (128, 5e5, 8.0, 8192.0),
            (64, 5e5, 32.0, 8192.0),
            (64, 1e4, 4.0, 2048.0),
            (4, 1e8, 8.0, 8192.0),
        ];
        for (width, theta, factor, original) in cases {
            let divisors = divisors(width, theta, factor, original);
            let scaling = llama3(&divisors, width as u64, theta).unwrap().unwrap();
            assert_eq!(scaling["factor"].as_f64(), Some(factor));
            assert_eq!(
                scaling["original_max_position_embeddings"].as_f64(),
                Some(original)
            );
        }
        assert!(llama3(&[1.0; 4], 8, 10_000.0).unwrap().is_none());
    }

    #[test]
    fn refuses_other_divisors() {
        for divisors in [
            &[1.0, 2.0, 1.0, 8.0][..],
            &[1.0, f32::NAN, 8.0, 8.0],
            &[1.0, -1.0, 0.0, f32::INFINITY],
            &[8.0],
        ] {
            let error = llama3(divisors, 8, 10_000.0).unwrap_err().to_string();
            assert!(
                error.starts_with("tensor `rope_freqs.weight` has divisors"),
                "{error}"
            );
        }
    }
}
