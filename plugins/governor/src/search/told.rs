//! What the first steps tell of the rate.

/// The rates that the first steps told: logarithms of their shares of the highest one so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Told {
    /// Of the first step.
    pub first: f64,
    /// Sum over the steps after it.
    pub later: f64,
    /// Number of all these steps.
    pub count: u64,
}

impl Told {
    /// The higher one of the first step's rate and of the geometric mean of the others'.
    ///
    /// Either may be far too low, because a step may move the policy far without harm. The first one
    /// of a few-shot task moves what all answers have in common, and tells a fifth of what the next
    /// ones do. On another task the second and the third move it far.
    pub(crate) fn log(self) -> f64 {
        if self.count < 2 {
            return self.first;
        }
        self.first.max(self.later / (self.count - 1) as f64)
    }

    /// With another step, which tells `log`.
    pub(crate) fn and(self, log: f64) -> Self {
        let (first, later) = if self.count == 0 {
            (log, 0.0)
        } else {
            (self.first, self.later + log)
        };
        Self {
            first,
            later,
            count: self.count + 1,
        }
    }

    /// The same rates as shares of another one: `log` is added to each logarithm.
    pub(crate) fn times(self, log: f64) -> Self {
        Self {
            first: self.first + log,
            later: self.later + log * self.count.saturating_sub(1) as f64,
            ..self
        }
    }
}
