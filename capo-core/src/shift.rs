//! The two shifts, from a token's projections: the formulas, nothing else.

/// How a token's logits react to a direction `D`, learning rate left out.
///
/// With `v = D h` over the support, `s = u . v` and `q = Var_pi(v)`; both quadratic forms of the model follow from them:
/// `D' F~ D = s²` and `D' H~ D = A (s² - q)` (paper, eq. 8 and 9), and `g . D = A slope` for every direction: `slope` is `s`
/// unless the gradient weighs a token's rows otherwise than the curvatures weigh the token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Curvature {
    pub s: f64,
    pub q: f64,
    pub slope: f64,
}

/// Predicted change of objective and policy under a step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Shift {
    pub m_f: f64,
    pub m_h: f64,
}

impl Curvature {
    /// From probabilities, `u = e_a - pi` and projections over one support.
    pub fn of(pi: &[f64], u: &[f64], v: &[f64]) -> Self {
        let s: f64 = u.iter().zip(v).map(|(u, v)| u * v).sum();
        let mean: f64 = pi.iter().zip(v).map(|(p, v)| p * v).sum();
        let q = pi.iter().zip(v).map(|(p, v)| p * (v - mean) * (v - mean)).sum();
        Self { s, q, slope: s }
    }

    /// Along the token's own gradient `A u ⊗ h`, where `v = A |h|² u`: no projection is needed.
    pub fn along_gradient(pi: &[f64], u: &[f64], advantage: f64, squared_norm: f64) -> Self {
        let unit = Self::of(pi, u, u);
        let scale = advantage * squared_norm;
        let s = scale * unit.s;
        Self { s, q: scale * scale * unit.q, slope: s }
    }

    /// Objective and policy shift of one token (paper, eq. 10).
    pub fn shift(self, learning_rate: f64, advantage: f64) -> Shift {
        let Self { s, q, slope } = self;
        let half = 0.5 * learning_rate * learning_rate;
        Shift { m_f: half * s * s, m_h: learning_rate * advantage * slope + half * advantage * (s * s - q) }
    }
}

impl Shift {
    pub fn is_finite(&self) -> bool {
        self.m_f.is_finite() && self.m_h.is_finite()
    }
}
