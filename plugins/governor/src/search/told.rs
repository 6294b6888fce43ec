//! The rate that the first steps tell.

/// The rates that the first steps told: logarithms of their shares of the highest one so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Told {
    /// The logarithm that the first step told.
    pub first: f64,
    /// The sum of the logarithms that the steps after it told.
    pub later: f64,
    /// The number of steps that told one.
    pub count: u64,
}

impl Told {
    /// The higher one of the first step's rate and of the geometric mean of the others'.
    ///
    /// Either may be far too low, because a step may move the policy far without harm. On few-shot
    /// tasks the first step moves what all answers have in common: there it told as little as a
    /// fifth of what the others did. On another task the second and the third step move the policy
    /// far.
    pub(crate) fn log(self) -> f64 {
        if self.count < 2 {
            return self.first;
        }
        self.first.max(self.later / (self.count - 1) as f64)
    }

    /// These rates and the one of another step, whose logarithm is `log`.
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

    /// These rates times one number, whose logarithm is `log`.
    pub(crate) fn times(self, log: f64) -> Self {
        Self {
            first: self.first + log,
            later: self.later + log * self.count.saturating_sub(1) as f64,
            ..self
        }
    }
}
