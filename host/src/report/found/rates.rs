//! The learning rates that a run took: those of its schedule, times what its step controls left of
//! each step.

use super::FoundRun;
use crate::metrics::lines::{Column, Lines};
use crate::metrics::names::APPLIED;

/// Name of the column of rates that were taken, which is computed here.
pub const TAKEN_RATE: &str = "learning_rate/taken";

/// Adds the column [`TAKEN_RATE`] to the lines of a run.
pub fn add_taken_rates(lines: &mut Lines) {
    let taken = taken(lines);
    if !taken.rows.is_empty() {
        lines.columns.insert(TAKEN_RATE.to_owned(), taken);
    }
}

/// The share of the scheduled learning rates that step controls left, over all steps; `None`
/// without a step control.
pub fn taken_share(run: &FoundRun) -> Option<f64> {
    run.lines.columns.get(&applied())?;
    let taken = sum(&taken(&run.lines));
    let set = sum(run.lines.column("learning_rate"));
    (set > 0.0).then(|| taken / set)
}

/// Sum of the finite values.
fn sum(column: &Column) -> f64 {
    let values = column.numbers().map(|(_, value)| value);
    values.filter(|value| value.is_finite()).sum()
}

fn applied() -> String {
    format!("step_control/{APPLIED}")
}

/// The rate of each step, times the share of its length that was applied. A run without step
/// controls applies all of it.
fn taken(lines: &Lines) -> Column {
    let rates = lines.column("learning_rate");
    let Some(applied) = lines.columns.get(&applied()) else {
        return rates.clone();
    };
    let mut shares = vec![f64::NAN; lines.steps.len()];
    applied
        .numbers()
        .for_each(|(row, share)| shares[row] = share);
    let values = rates
        .rows
        .iter()
        .zip(&rates.values)
        .map(|(row, rate)| rate * shares[*row as usize]);
    Column {
        values: values.collect(),
        rows: rates.rows.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(lines: &str) -> FoundRun {
        let mut lines = Lines::parse(lines.as_bytes()).unwrap();
        add_taken_rates(&mut lines);
        FoundRun::of("run", &[], lines)
    }

    #[test]
    fn a_control_shortens_the_rate() {
        let run = run(
            "{\"step\":0,\"eval_accuracy\":0}\n{\"step\":1,\"learning_rate\":4,\"step_control/applied\":0.25}\n\
             {\"step\":2,\"learning_rate\":2}\n{\"step\":3,\"learning_rate\":2,\"step_control/applied\":0.5}\n",
        );
        let taken: Vec<_> = run.lines.column(TAKEN_RATE).numbers().collect();
        assert_eq!(
            taken,
            [(1, 1.0), (3, 1.0)],
            "a step without a share has no rate"
        );
        assert_eq!(taken_share(&run), Some(0.25));
    }

    #[test]
    fn without_a_control_the_schedule_is_taken() {
        let run = run("{\"step\":1,\"learning_rate\":4}\n");
        assert_eq!(run.lines.column(TAKEN_RATE).last(), Some(4.0));
        assert_eq!(taken_share(&run), None);
    }
}
