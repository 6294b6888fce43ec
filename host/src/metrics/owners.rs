//! Who records a metric. Each name has one owner, so that no number is averaged with another's.

use std::collections::BTreeMap;

/// Who records a metric: the host, or the component of this name in reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    Host,
    Component(String),
}

/// The owner of each metric of a run so far.
#[derive(Debug, Default)]
pub struct Owners(BTreeMap<String, Owner>);

impl Owners {
    /// Makes `owner` the owner of `metric`. If it has another one, returns that owner.
    pub fn claim(&mut self, metric: &str, owner: Owner) -> Result<(), Owner> {
        let known = self.0.entry(metric.to_owned()).or_insert_with(|| owner.clone());
        if *known == owner { Ok(()) } else { Err(known.clone()) }
    }
}
