//! Random batches for checks. Each is a function of a seed and a number, so that a single one can
//! be run again.

use anyhow::{Context, Result};
use capo_plugin::testing::check::{Subject, take_random};
use serde::{Deserialize, Serialize};

/// Consecutive cases of a seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cases {
    pub seed: u64,
    pub first: u64,
    pub count: u64,
}

/// Name of case `case` of component `id`, for messages and for `--reproduce`.
pub fn name(id: &str, seed: u64, case: u64) -> String {
    format!("{id}@{seed}.{case}")
}

/// Component id and case of a [`name`].
pub fn parse(text: &str) -> Result<(String, Cases)> {
    parts(text).with_context(|| {
        format!(
            "`--reproduce {text}` is no case (write `COMPONENT@SEED.CASE`, as `--fuzz` printed it)"
        )
    })
}

fn parts(name: &str) -> Option<(String, Cases)> {
    let (id, numbers) = name.rsplit_once('@')?;
    let (seed, case) = numbers.split_once('.')?;
    let cases = Cases {
        seed: seed.parse().ok()?,
        first: case.parse().ok()?,
        count: 1,
    };
    Some((id.to_owned(), cases))
}

/// Runs the cases and passes each to `begin` first. Returns the number of cases that were refused
/// with an error, or what failed.
pub fn run(subject: &Subject<'_>, cases: Cases, begin: &mut dyn FnMut(u64)) -> Result<u64, String> {
    let mut refused = 0;
    for case in cases.first..cases.first + cases.count {
        begin(case);
        let taken = take_random(subject, cases.seed.rotate_left(32) ^ case);
        let taken = taken.map_err(|what| {
            let name = name(subject.id, cases.seed, case);
            format!("{what} (run it alone with `--reproduce {name}`)")
        })?;
        refused += u64::from(!taken);
    }
    Ok(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_names_its_case() {
        let (id, cases) = parse(&name("a.b-c", 7, 13)).unwrap();
        assert_eq!(
            (id.as_str(), cases),
            (
                "a.b-c",
                Cases {
                    seed: 7,
                    first: 13,
                    count: 1
                }
            )
        );
        for text in ["", "a.b", "a.b@7", "a.b@7.x", "a.b@-1.2"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
