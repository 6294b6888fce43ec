//! Limits of a number.

use crate::wire::KeyLimits;

/// Limits of a number in a table. A number outside of them is refused.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Limits {
    /// The smallest number.
    pub at_least: Option<f64>,
    /// Numbers must be larger than this.
    pub above: Option<f64>,
    /// The largest number.
    pub at_most: Option<f64>,
    /// Numbers must be smaller than this.
    pub below: Option<f64>,
    /// True if an infinite number passes where no limit excludes it.
    pub infinite: bool,
}

impl Limits {
    /// True if `number` lies within the limits.
    pub fn hold(&self, number: f64) -> bool {
        (self.infinite && !number.is_nan() || number.is_finite())
            && self.at_least.is_none_or(|low| number >= low)
            && self.above.is_none_or(|low| number > low)
            && self.at_most.is_none_or(|high| number <= high)
            && self.below.is_none_or(|high| number < high)
    }

    /// The limits in words, without the remark that a number is finite.
    pub fn in_short(&self, is_whole: bool) -> Option<String> {
        let unlimited = Self {
            infinite: true,
            ..*self
        };
        unlimited.words(is_whole, None)
    }

    /// The limits in words, such as `at least 1`, which complete "it must be". Of two limits of a
    /// whole number, only the one that `value` exceeds, unless there is no `value`.
    pub fn words(&self, is_whole: bool, value: Option<f64>) -> Option<String> {
        let finite = if self.infinite { "" } else { "finite and " };
        Some(
            match (self.at_least, self.above, self.at_most, self.below) {
                (Some(0.0), None, Some(high), None) => format!("between 0 and {high}"),
                (Some(low), None, Some(high), None) => match value {
                    None => format!("from {low} to {high}"),
                    Some(value) if value < low => format!("at least {low}"),
                    Some(_) => format!("at most {high}"),
                },
                (Some(low), None, None, Some(high)) => {
                    format!("{low} or more and less than {high}")
                }
                (None, Some(low), Some(high), None) => format!("above {low} and at most {high}"),
                (None, Some(low), None, Some(high)) => format!("above {low} and below {high}"),
                (None, Some(low), ..) => format!("{finite}above {low}"),
                (Some(low), ..) if is_whole => format!("at least {low}"),
                (Some(0.0), ..) if self.infinite => "0 or more".to_owned(),
                (Some(0.0), ..) => "finite, 0 or more".to_owned(),
                (Some(low), ..) => format!("{finite}at least {:e}", low as f32),
                (None, None, Some(high), _) => format!("at most {high}"),
                (None, None, None, Some(high)) => format!("below {high}"),
                (None, None, None, None) if value.is_some_and(|value| !value.is_finite()) => {
                    "finite".to_owned()
                }
                (None, None, None, None) => return None,
            },
        )
    }
}

impl KeyLimits {
    /// These limits, of whole numbers or of any.
    pub(crate) fn new(limits: Limits, whole: bool) -> Self {
        Self {
            at_least: limits.at_least.into(),
            above: limits.above.into(),
            at_most: limits.at_most.into(),
            below: limits.below.into(),
            infinite: limits.infinite,
            whole,
        }
    }
}

impl From<KeyLimits> for Limits {
    fn from(limits: KeyLimits) -> Self {
        Self {
            at_least: limits.at_least.into(),
            above: limits.above.into(),
            at_most: limits.at_most.into(),
            below: limits.below.into(),
            infinite: limits.infinite,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_numbers_within_the_limits() {
        let share = Limits {
            at_least: Some(0.0),
            at_most: Some(1.0),
            ..Limits::default()
        };
        assert!(share.hold(0.0) && share.hold(1.0));
        assert!(!share.hold(-0.1) && !share.hold(1.1) && !share.hold(f64::NAN));
        let open = Limits {
            above: Some(0.0),
            ..Limits::default()
        };
        assert!(!open.hold(0.0) && open.hold(1e-300) && !open.hold(f64::INFINITY));
        let unlimited = Limits {
            infinite: true,
            ..open
        };
        assert!(unlimited.hold(f64::INFINITY) && !unlimited.hold(f64::NAN));
    }

    #[test]
    fn says_what_a_number_must_be() {
        let words = |at_least, above, at_most, below, infinite| {
            let limits = Limits {
                at_least,
                above,
                at_most,
                below,
                infinite,
            };
            limits.words(false, None)
        };
        let none = None;
        let said = [
            words(Some(0.0), none, Some(1.0), none, false),
            words(Some(2.0), none, Some(4.0), none, false),
            words(none, Some(0.0), none, Some(1.0), false),
            words(none, Some(0.0), none, none, false),
            words(none, Some(0.0), none, none, true),
            words(Some(0.0), none, none, none, true),
            words(none, none, none, Some(3.0), false),
        ];
        let expected = [
            "between 0 and 1",
            "from 2 to 4",
            "above 0 and below 1",
            "finite and above 0",
            "above 0",
            "0 or more",
            "below 3",
        ];
        assert_eq!(said.map(Option::unwrap), expected);
        assert_eq!(Limits::default().words(false, None), None);
    }
}
