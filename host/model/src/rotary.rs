//! Rotary position embedding and its scaling, from `rope_theta` with `rope_scaling`, or from
//! `rope_parameters`.
//!
//! Source: `transformers.modeling_rope_utils`.

use std::f64::consts::TAU;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

use super::family::shown;
use super::ops::Frequencies;

const DEFAULT_THETA: f64 = 10_000.0;

/// The rotary embedding of a model: base and scaling.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotary {
    /// Base of the frequencies.
    pub theta: f64,
    /// Rule that stretches the frequencies to more positions than in the model's first training.
    pub scaling: Scaling,
}

/// The kinds of scaling, under the names of `rope_type`.
#[derive(Debug, Clone, PartialEq)]
pub enum Scaling {
    /// `default`: no scaling.
    Default,
    /// `linear`: every frequency is divided by the factor.
    Linear {
        /// Divisor of every frequency.
        factor: f64,
    },
    /// `llama3`: low frequencies are divided, high frequencies are unchanged, and frequencies
    /// between them are interpolated.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Number of turns over the original positions below which a frequency is low.
        low_freq_factor: f64,
        /// Number of turns above which a frequency is high.
        high_freq_factor: f64,
        /// Number of positions in the first training.
        original: f64,
    },
    /// `yarn`: like `llama3` by the index of the frequency; cosines and sines are also multiplied
    /// by a factor.
    Yarn {
        /// Divisor of low frequencies.
        factor: f64,
        /// Number of positions in the first training.
        original: f64,
        /// Factor of cosines and sines.
        attention_factor: f64,
        /// Number of turns over the original positions from which a frequency is unchanged.
        beta_fast: f64,
        /// Number of turns up to which a frequency is divided.
        beta_slow: f64,
        /// True if the two bounds are rounded to whole indices.
        truncate: bool,
    },
}

impl Rotary {
    /// The rotary embedding from `config.json`, as transformers 4 (`rope_theta`, `rope_scaling`) or
    /// 5 (`rope_parameters`) writes it.
    ///
    /// Errors: a setting that its kind does not know, a missing or invalid setting, and two places
    /// that differ.
    pub(super) fn of(json: &Map<String, Value>, positions: usize) -> Result<Self> {
        let theta = at_least_1("rope_theta", json.get("rope_theta"))?.unwrap_or(DEFAULT_THETA);
        let old = Settings::read_from(json, "rope_scaling", theta, positions)?;
        let new = Settings::read_from(json, "rope_parameters", theta, positions)?;
        match (old, new) {
            (None, None) => Ok(Self {
                theta,
                scaling: Scaling::Default,
            }),
            (Some(rotary), None) | (None, Some(rotary)) => Ok(rotary),
            (Some(old), Some(new)) => {
                ensure!(
                    old == new,
                    "`rope_scaling` and `rope_parameters` differ \
                     (remove one of them from `config.json`)"
                );
                Ok(new)
            }
        }
    }

    /// The frequencies for heads of `width`, in 32-bit floats as in transformers.
    pub(super) fn frequencies(&self, width: usize) -> Frequencies {
        let plain = Frequencies::new(width, self.theta);
        match self.scaling {
            Scaling::Default => plain,
            Scaling::Linear { factor } => plain.map(|_, frequency| frequency / factor),
            Scaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original,
            } => plain.map(|_, frequency| {
                let turns = original * frequency / TAU;
                let kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor))
                    .clamp(0.0, 1.0);
                mix(frequency, factor, kept)
            }),
            Scaling::Yarn {
                factor,
                original,
                attention_factor,
                beta_fast,
                beta_slow,
                truncate,
            } => {
                let width = width as f64;
                // The index of the frequency that makes `turns` turns over the original positions
                // is `width · ln(positions / (turns · τ)) / (2 ln(base))`.
                let mut low = width * (original / (beta_fast * TAU)).ln() / (2.0 * self.theta.ln());
                let mut high =
                    width * (original / (beta_slow * TAU)).ln() / (2.0 * self.theta.ln());
                if truncate {
                    low = low.floor();
                    high = high.ceil();
                }
                let low = low.max(0.0);
                let mut high = high.min(width - 1.0);
                if low == high {
                    high += 0.001;
                }
                let scaled = plain.map(|i, frequency| {
                    let share = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    mix(frequency, factor, 1.0 - share)
                });
                scaled.amplified(attention_factor as f32)
            }
        }
    }
}

/// Interpolates between `frequency` (share `kept`) and `frequency / factor` (the rest).
fn mix(frequency: f64, factor: f64, kept: f64) -> f64 {
    frequency / factor * (1.0 - kept) + frequency * kept
}

/// The settings that have not been read yet; reading a setting removes it.
struct Settings {
    /// The key of `config.json` that holds the settings.
    place: &'static str,
    left: Map<String, Value>,
}

impl Settings {
    /// The rotary embedding under the key `place`; `None` if the key is absent. `theta` is the base
    /// unless the settings have another.
    fn read_from(
        json: &Map<String, Value>,
        place: &'static str,
        theta: f64,
        positions: usize,
    ) -> Result<Option<Rotary>> {
        let left = match json.get(place) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Object(settings)) => settings.clone(),
            Some(other) => bail!(
                "`{place}` is `{}`, expected an object (correct `config.json`)",
                shown(other)
            ),
        };
        Self { place, left }.read(theta, positions).map(Some)
    }

    fn read(mut self, theta: f64, positions: usize) -> Result<Rotary> {
        let theta =
            at_least_1("rope_theta", self.left.remove("rope_theta").as_ref())?.unwrap_or(theta);
        let partial = self.number("partial_rotary_factor")?.unwrap_or(1.0);
        ensure!(
            partial == 1.0,
            "`partial_rotary_factor` of `{}` is {partial}, only 1 is supported \
             (use a checkpoint whose heads turn as a whole)",
            self.place
        );
        let kind = self.kind()?;
        let scaling = match kind.as_str() {
            "default" => Scaling::Default,
            "linear" => Scaling::Linear {
                factor: self.factor(&kind)?,
            },
            "llama3" => self.llama3(positions)?,
            "yarn" => self.yarn(theta, positions)?,
            other => bail!(
                "`rope_type` of `{}` is `{other}`, supported are `default`, `linear`, `llama3` and \
                 `yarn` (use a checkpoint with one of these)",
                self.place
            ),
        };
        match self.left.iter().find(|(_, value)| !value.is_null()) {
            None => Ok(Rotary { theta, scaling }),
            Some((key, value)) => bail!(
                "`{key}` of `{}` is `{}`, which is an unknown setting of `{kind}` \
                 (remove it if it changes nothing)",
                self.place,
                shown(value)
            ),
        }
    }

    /// The value of `rope_type`, or of its older name `type`.
    fn kind(&mut self) -> Result<String> {
        let [new, old] =
            ["rope_type", "type"].map(|key| self.left.remove(key).filter(|kind| !kind.is_null()));
        if let (Some(new), Some(old)) = (&new, &old) {
            ensure!(
                new == old,
                "`rope_type` and `type` of `{}` differ (remove `type` from `config.json`)",
                self.place
            );
        }
        Ok(new
            .or(old)
            .map_or_else(|| "default".to_owned(), |kind| shown(&kind)))
    }

    fn llama3(&mut self, positions: usize) -> Result<Scaling> {
        let factor = self.factor("llama3")?;
        let low_freq_factor = self.needed("llama3", "low_freq_factor")?;
        let high_freq_factor = self.needed("llama3", "high_freq_factor")?;
        ensure!(
            high_freq_factor > low_freq_factor,
            "`high_freq_factor` of `{}` is {high_freq_factor}, expected more than \
             `low_freq_factor` {low_freq_factor} (correct `config.json`)",
            self.place
        );
        Ok(Scaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original: self.original(positions)?,
        })
    }

    fn yarn(&mut self, theta: f64, positions: usize) -> Result<Scaling> {
        ensure!(
            theta > 1.0,
            "`rope_theta` is 1, expected more for `yarn` (correct `config.json`)"
        );
        let factor = self.factor("yarn")?;
        let mscale = self.number("mscale")?;
        let mscale_all_dim = self.number("mscale_all_dim")?;
        let attention_factor = match (self.number("attention_factor")?, mscale, mscale_all_dim) {
            (Some(factor), ..) => factor,
            (None, Some(mscale), Some(all)) => yarn_scale(factor, mscale) / yarn_scale(factor, all),
            _ => yarn_scale(factor, 1.0),
        };
        let beta_fast = self.number("beta_fast")?.unwrap_or(32.0);
        let beta_slow = self.number("beta_slow")?.unwrap_or(1.0);
        ensure!(
            beta_fast >= beta_slow,
            "`beta_fast` of `{}` is {beta_fast}, expected at least `beta_slow` {beta_slow} \
             (correct `config.json`)",
            self.place
        );
        let truncate = match self.left.remove("truncate") {
            None | Some(Value::Null) => true,
            Some(Value::Bool(truncate)) => truncate,
            Some(other) => bail!(
                "`truncate` of `{}` is `{}`, expected true or false",
                self.place,
                shown(&other)
            ),
        };
        let original = self.original(positions)?;
        Ok(Scaling::Yarn {
            factor,
            original,
            attention_factor,
            beta_fast,
            beta_slow,
            truncate,
        })
    }

    /// Number of positions in the first training.
    fn original(&mut self, positions: usize) -> Result<f64> {
        Ok(self
            .number("original_max_position_embeddings")?
            .unwrap_or(positions as f64))
    }

    fn factor(&mut self, kind: &str) -> Result<f64> {
        at_least_1("factor", self.left.get("factor"))?;
        self.needed(kind, "factor")
    }

    /// The number under `key`. An absent key is an error.
    fn needed(&mut self, kind: &str, key: &str) -> Result<f64> {
        let place = self.place;
        self.number(key)?.with_context(|| {
            format!("`{place}` of type `{kind}` has no `{key}` (correct `config.json`)")
        })
    }

    fn number(&mut self, key: &str) -> Result<Option<f64>> {
        number(key, self.left.remove(key).as_ref())
    }
}

/// The factor of attention that `mscale` stands for, at the scaling factor `factor`.
fn yarn_scale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 {
        1.0
    } else {
        0.1 * mscale * factor.ln() + 1.0
    }
}

/// A number above 0; `None` if it is absent or null.
fn number(key: &str, value: Option<&Value>) -> Result<Option<f64>> {
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let number = value
        .as_f64()
        .filter(|number| *number > 0.0 && *number <= f64::from(f32::MAX));
    number.map(Some).with_context(|| {
        format!(
            "`{key}` is `{}`, expected a number above 0 (correct `config.json`)",
            shown(value)
        )
    })
}

/// A number of at least 1, which keeps all frequencies finite; `None` if it is absent or null.
fn at_least_1(key: &str, value: Option<&Value>) -> Result<Option<f64>> {
    let number = number(key, value)?;
    ensure!(
        number.is_none_or(|number| number >= 1.0),
        "`{key}` is {}, expected at least 1 (correct `config.json`)",
        number.unwrap_or_default()
    );
    Ok(number)
}
