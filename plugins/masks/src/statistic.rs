//! Divergence statistics by name, as in verl's `rollout_rs`: `seq_mean_k3`.

use capo_plugin::prelude::*;

/// A bounded statistic: an estimate of the divergence, for a token or reduced over a completion.
#[derive(Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Statistic {
    pub(crate) name: String,
    pub(crate) over: Over,
    pub(crate) estimate: Estimate,
}

/// Reduction over tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Over {
    Token,
    Sum,
    Mean,
    Max,
}

/// Estimate of a token's divergence from its ratio r.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Estimate {
    /// −ln r.
    K1,
    /// (ln r)² / 2.
    K2,
    /// r − 1 − ln r.
    K3,
}

const OVER: [(&str, Over); 4] = [
    ("token", Over::Token),
    ("seq_sum", Over::Sum),
    ("seq_mean", Over::Mean),
    ("seq_max", Over::Max),
];
const ESTIMATES: [(&str, Estimate); 3] = [
    ("k1", Estimate::K1),
    ("k2", Estimate::K2),
    ("k3", Estimate::K3),
];

impl Default for Statistic {
    fn default() -> Self {
        Self {
            name: "seq_mean_k3".into(),
            over: Over::Mean,
            estimate: Estimate::K3,
        }
    }
}

impl TryFrom<String> for Statistic {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let found = name.rsplit_once('_').and_then(|(over, estimate)| {
            let (_, over) = OVER.into_iter().find(|(known, _)| *known == over)?;
            let (_, estimate) = ESTIMATES
                .into_iter()
                .find(|(known, _)| *known == estimate)?;
            // The maximum of a signed estimate is no measure of its size.
            ((over, estimate) != (Over::Max, Estimate::K1)).then_some((over, estimate))
        });
        match found {
            Some((over, estimate)) => Ok(Self {
                name,
                over,
                estimate,
            }),
            None => Err(format!(
                "`rollout_rs` is `{name}` (use `token`, `seq_sum`, `seq_mean` or `seq_max`, then `_k1`, `_k2` or `_k3`; there is no `seq_max_k1`)"
            )),
        }
    }
}

impl Estimate {
    /// Estimate for one token, nats.
    pub(crate) fn of(self, log_ratio: f32) -> f32 {
        match self {
            Self::K1 => -log_ratio,
            Self::K2 => 0.5 * log_ratio * log_ratio,
            Self::K3 => log_ratio.exp() - 1.0 - log_ratio,
        }
    }
}
