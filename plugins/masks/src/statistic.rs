//! Divergence statistics by name, as in verl's `rollout_rs`: `seq_mean_k3`.

use capo_plugin::{KeyValue, Value, Wanted};

/// A bounded statistic: an estimate of the divergence, for a token or reduced over a completion.
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

impl KeyValue for Statistic {
    const ABOUT: &'static str = "The statistic that is bounded: `token`, `seq_sum`, `seq_mean` or \
                                 `seq_max`, then `_k1`, `_k2` or `_k3`.";

    fn wanted() -> Wanted {
        Wanted::any("the name of a statistic", "names of statistics")
    }

    fn read(value: &Value) -> Result<Self, String> {
        let known = value.as_str().and_then(Self::named);
        known.ok_or_else(|| {
            "use `token`, `seq_sum`, `seq_mean` or `seq_max`, then `_k1`, `_k2` or `_k3`; there is \
             no `seq_max_k1`"
                .to_owned()
        })
    }

    fn json(&self) -> String {
        self.name.json()
    }
}

impl Statistic {
    fn named(name: &str) -> Option<Self> {
        let (over, estimate) = name.rsplit_once('_')?;
        let (_, over) = OVER.into_iter().find(|(known, _)| *known == over)?;
        let (_, estimate) = ESTIMATES
            .into_iter()
            .find(|(known, _)| *known == estimate)?;
        // The maximum of a signed estimate is no measure of its size.
        if over == Over::Max && estimate == Estimate::K1 {
            return None;
        }
        Some(Self {
            name: name.to_owned(),
            over,
            estimate,
        })
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
