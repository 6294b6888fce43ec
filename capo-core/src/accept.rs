//! Thresholds on the shifts, and which tokens pass them.

use crate::Error;
use crate::backend::saturate;
use crate::shift::Shift;

/// The region of shifts in which a subset of tokens is kept (paper, eq. 11), with strict bounds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Acceptance {
    /// Keep while `m_F` is below this, nats; `None` switches the test off.
    pub fisher_threshold: Option<f64>,
    /// Keep while `m_H` is between these, reward units; `None` switches the test off.
    ///
    /// `[-x, x]` bounds the size of the predicted change alone. With a lower bound of 0 or more, a step of learning
    /// rate 0 keeps nothing, for its shift is 0.
    pub hessian_range: Option<[f64; 2]>,
}

/// What the model predicts for each token and which tokens it keeps; all tokens of a subset carry the subset's shifts.
#[derive(Debug, Clone, PartialEq)]
pub struct Assessment {
    /// Policy shift `m_F` of the step that each token belongs to, `[B, T]`, nats; 0 on padding, NaN where not finite.
    pub m_f: Vec<f32>,
    /// Objective shift `m_H` of that step, `[B, T]`, reward units; 0 on padding, NaN where not finite.
    pub m_h: Vec<f32>,
    /// `[B, T]`: 1 where the token is accepted, else 0.
    pub keep: Vec<u8>,
    /// Tokens assessed, accepted or not.
    pub tokens: usize,
    /// Tokens that were not accepted, by reason.
    pub rejected: Rejections,
}

/// Numbers of rejected tokens; one that fails both tests counts under both and once in `total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rejections {
    /// `m_F` at or above its threshold.
    pub fisher: usize,
    /// `m_H` on or outside its range.
    pub hessian: usize,
    /// Data or shifts hold a NaN or an infinity; no other test is made.
    pub not_finite: usize,
    /// All rejected tokens.
    pub total: usize,
}

impl Acceptance {
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.fisher_threshold.is_some_and(|x| x.is_nan() || x <= 0.0) {
            let x = self.fisher_threshold.unwrap_or_default();
            return Err(Error::new(format!(
                "`fisher_threshold` is {x}, expected above 0 (leave it out to switch it off)"
            )));
        }
        match self.hessian_range {
            Some([low, high]) if low.is_nan() || high.is_nan() || low >= high => Err(Error::new(format!(
                "`hessian_range` is [{low}, {high}], expected a low end below the high end (leave it out to switch it off)"
            ))),
            _ => Ok(()),
        }
    }
}

impl Assessment {
    pub(crate) fn new(positions: usize) -> Self {
        let (m_f, m_h, keep) = (vec![0.0; positions], vec![0.0; positions], vec![0; positions]);
        Self { m_f, m_h, keep, tokens: 0, rejected: Rejections::default() }
    }

    /// Enters the shifts of the token at flat position `token` and decides on it.
    pub(crate) fn judge(&mut self, token: usize, shift: Shift, acceptance: &Acceptance) {
        if !shift.is_finite() {
            return self.refuse(token);
        }
        let fisher = acceptance.fisher_threshold.is_none_or(|limit| shift.m_f < limit);
        let hessian = acceptance.hessian_range.is_none_or(|[low, high]| low < shift.m_h && shift.m_h < high);
        self.m_f[token] = saturate(shift.m_f);
        self.m_h[token] = saturate(shift.m_h);
        self.keep[token] = u8::from(fisher && hessian);
        self.tokens += 1;
        self.rejected.fisher += usize::from(!fisher);
        self.rejected.hessian += usize::from(!hessian);
        self.rejected.total += usize::from(!(fisher && hessian));
    }

    /// Rejects a token whose data or shifts are not finite.
    pub(crate) fn refuse(&mut self, token: usize) {
        self.m_f[token] = f32::NAN;
        self.m_h[token] = f32::NAN;
        self.tokens += 1;
        self.rejected.not_finite += 1;
        self.rejected.total += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Acceptance = Acceptance { fisher_threshold: Some(0.5), hessian_range: Some([-0.25, 1.0]) };

    fn judged(m_f: f64, m_h: f64) -> Assessment {
        let mut assessment = Assessment::new(1);
        assessment.judge(0, Shift { m_f, m_h }, &BOTH);
        assessment
    }

    #[test]
    fn bounds_are_strict() {
        for (m_f, m_h, keep) in [(0.49, 0.99, 1), (0.0, -0.24, 1), (0.5, 0.0, 0), (0.0, 1.0, 0), (0.0, -0.25, 0)] {
            assert_eq!(judged(m_f, m_h).keep, [keep], "{m_f} {m_h}");
        }
    }

    #[test]
    fn a_token_that_fails_both_tests_is_rejected_once() {
        let rejected = judged(1.0, 2.0).rejected;
        assert_eq!(rejected, Rejections { fisher: 1, hessian: 1, not_finite: 0, total: 1 });
    }

    #[test]
    fn shifts_that_are_not_finite_are_rejected_even_without_thresholds() {
        for (m_f, m_h) in [(f64::NAN, 0.0), (0.0, f64::NAN), (f64::INFINITY, 0.0), (0.0, f64::NEG_INFINITY)] {
            let mut assessment = Assessment::new(2);
            assessment.judge(1, Shift { m_f, m_h }, &Acceptance::default());
            assert_eq!(assessment.keep, [0, 0]);
            assert_eq!(assessment.rejected, Rejections { fisher: 0, hessian: 0, not_finite: 1, total: 1 });
            assert!(assessment.m_f[1].is_nan() && assessment.m_h[1].is_nan());
        }
    }
}
