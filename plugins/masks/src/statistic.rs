//! Divergence statistics by name, as in verl's `rollout_rs`: `seq_mean_k3`.

use std::fmt;

use capo_plugin::prelude::*;
use serde::Serialize;

/// A bounded statistic: an estimate of the divergence, for a token or reduced over a completion.
#[derive(Deserialize, Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Statistic {
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

const OVER: [(&str, Over); 4] =
    [("token", Over::Token), ("seq_sum", Over::Sum), ("seq_mean", Over::Mean), ("seq_max", Over::Max)];
const ESTIMATES: [(&str, Estimate); 3] = [("k1", Estimate::K1), ("k2", Estimate::K2), ("k3", Estimate::K3)];

impl Default for Statistic {
    fn default() -> Self {
        Self { over: Over::Mean, estimate: Estimate::K3 }
    }
}

impl TryFrom<String> for Statistic {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let all = OVER.iter().flat_map(|over| ESTIMATES.iter().map(move |estimate| (over, estimate)));
        // The maximum of a signed estimate is no measure of its size.
        let known = all.filter(|((_, over), (_, estimate))| (*over, *estimate) != (Over::Max, Estimate::K1));
        let mut named = known.filter(|((over, _), (estimate, _))| format!("{over}_{estimate}") == name);
        let found = named.next().map(|((_, over), (_, estimate))| Self { over: *over, estimate: *estimate });
        found.ok_or_else(|| format!("`rollout_rs` is `{name}` (use `token`, `seq_sum`, `seq_mean` or `seq_max`, then `_k1`, `_k2` or `_k3`; there is no `seq_max_k1`)"))
    }
}

impl fmt::Display for Statistic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let over = OVER.iter().find(|(_, over)| *over == self.over).map_or("", |(name, _)| name);
        let estimate = ESTIMATES.iter().find(|(_, estimate)| *estimate == self.estimate).map_or("", |(name, _)| name);
        write!(f, "{over}_{estimate}")
    }
}

impl From<Statistic> for String {
    fn from(statistic: Statistic) -> Self {
        statistic.to_string()
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
