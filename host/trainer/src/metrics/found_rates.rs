//! Learning rates that a step control found, which change during a run.

/// The learning rates of a run's steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FoundRates {
    /// The median. A run without the step control that takes this rate has about as long steps.
    pub middle: f64,
    pub lowest: f64,
    pub highest: f64,
}

impl FoundRates {
    /// `None` without a rate.
    pub fn of(rates: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut rates: Vec<f64> = rates.into_iter().collect();
        rates.sort_by(f64::total_cmp);
        Some(Self {
            middle: *rates.get(rates.len() / 2)?,
            lowest: *rates.first()?,
            highest: *rates.last()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_the_median() {
        assert_eq!(FoundRates::of([]), None);
        for (rates, expected) in [
            (vec![2.0], [2.0, 2.0, 2.0]),
            (vec![3.0, 1.0, 2.0], [1.0, 2.0, 3.0]),
            (vec![4.0, 3.0, 1.0, 2.0], [1.0, 3.0, 4.0]),
        ] {
            let [lowest, middle, highest] = expected;
            let expected = FoundRates {
                middle,
                lowest,
                highest,
            };
            assert_eq!(FoundRates::of(rates), Some(expected));
        }
    }
}
