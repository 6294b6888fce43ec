//! Thresholds on the shifts, and the tokens that pass them.

use crate::Error;
use crate::backend::saturate;
use crate::certificate::Certificate;
use crate::error::ensure;
use crate::shift::Shift;

/// The region of shifts in which a subset of tokens is kept (paper, eq. 11), with strict bounds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Acceptance {
    /// Keep while `m_F` is below this value, nats; `None` switches the test off.
    pub fisher_threshold: Option<f64>,
    /// Keep while `m_H` is strictly inside this range, reward units; `None` switches the test off.
    ///
    /// `[-x, x]` bounds only the size of the predicted change. With a lower bound of 0 or more, a
    /// step of learning rate 0 keeps nothing, because its shift is 0, unless `low_end_kept` is set.
    pub hessian_range: Option<[f64; 2]>,
    /// Also keep an `m_H` equal to the low end: the released code's one-sided test is
    /// `0 <= m_H < x`.
    pub low_end_kept: bool,
}

/// The model's prediction for each token, and the kept tokens. All tokens of a subset have the
/// subset's shifts.
#[derive(Debug, Clone, PartialEq)]
pub struct Assessment {
    /// `[B, T]`, nats: policy shift `m_F` of the step of each token's subset; 0 on padding, NaN
    /// where not finite.
    pub m_f: Vec<f32>,
    /// `[B, T]`, reward units: objective shift `m_H` of that step; 0 on padding, NaN where not
    /// finite.
    pub m_h: Vec<f32>,
    /// `[B, T]`, nats: KL divergence from the old to the new policy under that step in the
    /// last-layer model. It is `m_F` without its Taylor error, averaged over the policy. 0 on
    /// padding, NaN where not finite.
    pub kl: Vec<f32>,
    /// `[B, T]`, reward units: change of the ratio surrogate `A pi'(a) / pi(a)` in that model,
    /// which is `m_H` without its Taylor error. 0 on padding, NaN where not finite.
    pub surrogate: Vec<f32>,
    /// `[B, T]`: 1 where the token is accepted, else 0.
    pub token_mask: Vec<u8>,
    /// `[B, T]`: reason for which each token was rejected.
    pub reasons: Vec<Reason>,
    /// Number of assessed tokens, accepted or not.
    pub tokens: usize,
    /// Number of rejected tokens by reason.
    pub rejected: Rejections,
    /// Number of tokens whose decision would differ with the first-order part of `m_H` only,
    /// `lr g . D`.
    pub changed_by_second_order: usize,
    /// The quantities of the paper's theorem for the accepted subsets.
    pub certificate: Certificate,
}

/// Reason for which a token was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Reason {
    /// The token is accepted, or padding.
    #[default]
    None = 0,
    /// `m_F` is at or above its threshold.
    Fisher = 1,
    /// `m_H` is on or outside its range.
    Hessian = 2,
    /// Both tests failed.
    Both = 3,
    /// Data or shifts hold a NaN or an infinity, so no other test was made.
    NotFinite = 4,
}

/// Numbers of rejected tokens. A token that fails both tests counts in `fisher` and `hessian`, and
/// once in `total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rejections {
    /// Tokens with [`Reason::Fisher`] or [`Reason::Both`].
    pub fisher: usize,
    /// Tokens with [`Reason::Hessian`] or [`Reason::Both`].
    pub hessian: usize,
    /// Tokens with [`Reason::NotFinite`].
    pub not_finite: usize,
    /// All rejected tokens.
    pub total: usize,
}

impl Acceptance {
    pub(crate) fn check(&self) -> Result<(), Error> {
        if let Some(x) = self.fisher_threshold {
            ensure(x > 0.0, || {
                format!(
                    "`fisher_threshold` is {x}, expected above 0 (leave it out to switch it off)"
                )
            })?;
        }
        let Some([low, high]) = self.hessian_range else {
            return Ok(());
        };
        ensure(low < high, || {
            format!(
                "`hessian_range` is [{low}, {high}], expected a low end below the high end (leave \
                 it out to switch it off)"
            )
        })
    }

    /// True if any test is made.
    pub(crate) fn tests(&self) -> bool {
        self.fisher_threshold.is_some() || self.hessian_range.is_some()
    }

    /// Reason to reject these finite shifts; `Reason::None` if they pass.
    fn reason(&self, m_f: f64, m_h: f64) -> Reason {
        let fisher = self.fisher_threshold.is_none_or(|limit| m_f < limit);
        let hessian = self
            .hessian_range
            .is_none_or(|[low, high]| (low < m_h || self.low_end_kept && low == m_h) && m_h < high);
        match (fisher, hessian) {
            (true, true) => Reason::None,
            (false, true) => Reason::Fisher,
            (true, false) => Reason::Hessian,
            (false, false) => Reason::Both,
        }
    }
}

impl Assessment {
    pub(crate) fn new(positions: usize) -> Self {
        Self {
            m_f: vec![0.0; positions],
            m_h: vec![0.0; positions],
            kl: vec![0.0; positions],
            surrogate: vec![0.0; positions],
            token_mask: vec![0; positions],
            reasons: vec![Reason::None; positions],
            tokens: 0,
            rejected: Rejections::default(),
            changed_by_second_order: 0,
            certificate: Certificate::default(),
        }
    }

    /// Stores the shifts of the token at flat position `token` and decides about it.
    pub(crate) fn judge(&mut self, token: usize, shift: &Shift, acceptance: &Acceptance) {
        if !(shift.m_f.is_finite() && shift.m_h.is_finite()) {
            return self.refuse(token);
        }
        self.enter(token, shift);
        let reason = acceptance.reason(shift.m_f, shift.m_h);
        let first_order = acceptance.reason(shift.m_f, shift.first_order);
        self.tokens += 1;
        self.reasons[token] = reason;
        self.token_mask[token] = u8::from(reason == Reason::None);
        self.rejected.fisher += usize::from(matches!(reason, Reason::Fisher | Reason::Both));
        self.rejected.hessian += usize::from(matches!(reason, Reason::Hessian | Reason::Both));
        self.rejected.total += usize::from(reason != Reason::None);
        self.changed_by_second_order +=
            usize::from((reason == Reason::None) != (first_order == Reason::None));
    }

    /// Keeps a token without a test; the token does not count.
    pub(crate) fn exempt(&mut self, token: usize, shift: &Shift) {
        self.enter(token, shift);
        self.token_mask[token] = 1;
    }

    /// Rejects a token whose data or shifts are not finite.
    pub(crate) fn refuse(&mut self, token: usize) {
        for values in [
            &mut self.m_f,
            &mut self.m_h,
            &mut self.kl,
            &mut self.surrogate,
        ] {
            values[token] = f32::NAN;
        }
        self.tokens += 1;
        self.reasons[token] = Reason::NotFinite;
        self.rejected.not_finite += 1;
        self.rejected.total += 1;
    }

    fn enter(&mut self, token: usize, shift: &Shift) {
        self.m_f[token] = reported(shift.m_f);
        self.m_h[token] = reported(shift.m_h);
        self.kl[token] = reported(shift.kl);
        self.surrogate[token] = reported(shift.surrogate);
    }
}

/// The nearest `f32`, or NaN for a number that is not finite.
fn reported(x: f64) -> f32 {
    if x.is_finite() { saturate(x) } else { f32::NAN }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Acceptance = Acceptance {
        fisher_threshold: Some(0.5),
        hessian_range: Some([-0.25, 1.0]),
        low_end_kept: false,
    };

    fn judged(m_f: f64, m_h: f64) -> Assessment {
        let mut assessment = Assessment::new(1);
        assessment.judge(
            0,
            &Shift {
                m_f,
                m_h,
                ..Shift::default()
            },
            &BOTH,
        );
        assessment
    }

    #[test]
    fn bounds_are_strict() {
        for (m_f, m_h, token_mask) in [
            (0.49, 0.99, 1),
            (0.0, -0.24, 1),
            (0.5, 0.0, 0),
            (0.0, 1.0, 0),
            (0.0, -0.25, 0),
        ] {
            assert_eq!(judged(m_f, m_h).token_mask, [token_mask], "{m_f} {m_h}");
        }
    }

    #[test]
    fn shifts_that_are_not_finite_are_rejected_even_without_thresholds() {
        for (m_f, m_h) in [
            (f64::NAN, 0.0),
            (0.0, f64::NAN),
            (f64::INFINITY, 0.0),
            (0.0, f64::NEG_INFINITY),
        ] {
            let mut assessment = Assessment::new(2);
            assessment.judge(
                1,
                &Shift {
                    m_f,
                    m_h,
                    ..Shift::default()
                },
                &Acceptance::default(),
            );
            assert_eq!(assessment.token_mask, [0, 0]);
            assert_eq!(
                assessment.rejected,
                Rejections {
                    fisher: 0,
                    hessian: 0,
                    not_finite: 1,
                    total: 1
                }
            );
            assert!(assessment.m_f[1].is_nan() && assessment.m_h[1].is_nan());
        }
    }
}
