//! Random batches, each a function of a seed and a number, so that one of them can be run alone.

use anyhow::{Context, Result};
use capo_plugin::testing::Fixture;
use capo_plugin::{ErrorKind, PluginError};
use serde::{Deserialize, Serialize};

use super::instance::Subject;

/// Consecutive cases of a seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cases {
    /// The seed.
    pub seed: u64,
    /// The first case.
    pub first: u64,
    /// How many.
    pub count: u64,
}

/// What names case `case` of component `id` in sentences and for `--reproduce`.
pub fn name(id: &str, seed: u64, case: u64) -> String {
    format!("{id}@{seed}.{case}")
}

/// Component id and case of a [`name`].
///
/// # Errors
///
/// When `text` is not of that form.
pub fn parse(text: &str) -> Result<(String, Cases)> {
    let parts = || {
        let (id, numbers) = text.rsplit_once('@')?;
        let (seed, case) = numbers.split_once('.')?;
        Some((id.to_owned(), Cases { seed: seed.parse().ok()?, first: case.parse().ok()?, count: 1 }))
    };
    parts().with_context(|| {
        format!("`--reproduce {text}` is no case (write `COMPONENT@SEED.CASE`, as `--fuzz` printed it)")
    })
}

fn batch(seed: u64, case: u64) -> Fixture {
    Fixture::random(seed.rotate_left(32) ^ case)
}

/// Runs the cases, each told to `begin` first; how many were refused with a sentence, or what is wrong with one.
pub fn run(subject: &Subject<'_>, cases: Cases, begin: &mut dyn FnMut(u64)) -> Result<u64, String> {
    let mut refused = 0;
    for case in cases.first..cases.first + cases.count {
        begin(case);
        let batch = batch(cases.seed, case);
        match one(subject, &batch) {
            Ok(true) => {}
            Ok(false) => refused += 1,
            Err(sentence) => {
                let (dims, name) = (batch.batch().dims, name(subject.id, cases.seed, case));
                let shape = format!("B = {}, T = {}, G = {}", dims.completions, dims.tokens, dims.group_size);
                return Err(format!("{shape}: {sentence} (run it alone with `--reproduce {name}`)"));
            }
        }
    }
    Ok(refused)
}

/// Whether the component took the batch, twice: the second time it has a past.
fn one(subject: &Subject<'_>, batch: &Fixture) -> Result<bool, String> {
    let life = || {
        let mut instance = subject.create()?;
        Ok([instance.step(batch)?, instance.step(batch)?])
    };
    match (life(), life()) {
        (Ok(first), Ok(second)) => {
            let mask = batch.batch().completion_mask;
            let place = first
                .iter()
                .zip(&second)
                .find_map(|(one, two)| one.difference(two, 0.0).or_else(|| one.record_difference(two, mask)));
            place.map_or(Ok(true), |place| Err(format!("two fresh instances differ: {place}")))
        }
        (Err(first), Err(second)) if first == second && !is_broken(&first) => Ok(false),
        (Err(error), _) | (_, Err(error)) => Err(error.to_string()),
    }
}

/// Whether an error is more than a refusal.
fn is_broken(error: &PluginError) -> bool {
    matches!(error.kind(), ErrorKind::PANIC | ErrorKind::CONTRACT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_names_its_case() {
        let (id, cases) = parse(&name("a.b-c", 7, 13)).unwrap();
        assert_eq!((id.as_str(), cases), ("a.b-c", Cases { seed: 7, first: 13, count: 1 }));
        for text in ["", "a.b", "a.b@7", "a.b@7.x", "a.b@-1.2"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
