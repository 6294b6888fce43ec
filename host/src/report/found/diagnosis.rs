//! Events of a run: the findings that the checks during a run would have made, over all of its
//! steps.

use std::collections::BTreeMap;

use serde::Serialize;

use super::FoundRun;
use crate::run::provenance;
use crate::warnings::{Finding, Setup, Watch, rank};

/// A finding, and the steps at which it applied.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diagnosis {
    /// The finding as of the first of these steps.
    #[serde(flatten)]
    pub finding: Finding,
    /// The first step after which it applied.
    pub first: u64,
    /// The last step after which it applied.
    pub last: u64,
    /// Number of such steps.
    pub steps: u64,
}

/// All findings about a run, past and present, the most serious first.
pub fn diagnose(run: &FoundRun) -> Vec<Diagnosis> {
    let plugins = provenance::latest(&run.dir).unwrap_or_default();
    let mut watch = Watch::new(Setup::of(run.checked.clone(), plugins));
    let mut found: BTreeMap<(usize, String), Diagnosis> = BTreeMap::new();
    for (step, values) in run.lines.rows() {
        for finding in watch.look(step, &values) {
            let key = (rank(finding.check), finding.metric());
            let diagnosis = found.entry(key).or_insert(Diagnosis {
                finding,
                first: step,
                last: step,
                steps: 0,
            });
            diagnosis.last = step;
            diagnosis.steps += 1;
        }
    }
    found.into_values().collect()
}

impl Diagnosis {
    /// The steps of the finding, in words.
    pub fn when(&self) -> String {
        let Self {
            first, last, steps, ..
        } = self;
        match steps {
            1 => format!("after step {first}"),
            _ if last - first + 1 == *steps => format!("after steps {first} to {last}"),
            _ => format!("after {steps} of steps {first} to {last}"),
        }
    }
}
