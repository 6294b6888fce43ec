//! The theorem's terms against explicit matrices.

use capo_core::{Acceptance, Assessment, CurvatureModel, Granularity, Semantics};

use super::fixture::{ADAM, Dims, GRANULARITIES, OPEN, PRESETS, Rng, SGD, model};
use super::scene::Scene;
use super::whole::{Optimizer, Token, Whole, subsets};

const DIMS: Dims = Dims(4, 3, 4, 5, 6);
const RATE: f64 = 0.1;

fn assess(
    scene: &Scene,
    acceptance: Acceptance,
    granularity: Granularity,
    whole: &Whole,
) -> Assessment {
    let model = CurvatureModel::new(acceptance, granularity, whole.semantics).unwrap();
    scene.assess(&model, &whole.optimizer.model, RATE)
}

/// `|A| |h|² max(|u|², 2 max pi (1 - pi))`, with the slope of the logits.
fn stated_bound(token: &Token) -> f64 {
    let inside = |values: &[f64], f: fn(f64) -> f64| {
        values
            .iter()
            .zip(&token.support)
            .filter(|x| *x.1)
            .map(|x| f(*x.0))
            .collect::<Vec<_>>()
    };
    let realised: f64 = inside(&token.u, |u| u * u).iter().sum();
    let variance = inside(&token.pi, |p| 2.0 * p * (1.0 - p))
        .into_iter()
        .fold(0.0, f64::max);
    let squared: f64 = token.h.iter().map(|h| h * h).sum();
    token.signal.abs() * token.slope.powi(2) * squared * realised.max(variance)
}

/// Norm of the weighed sum of the tokens' Hessians `A (u u' - diag(pi) + pi pi') ⊗ h h'` over the
/// rows that may move, by the power method on the explicit matrix.
fn hessian_norm(tokens: &[Token], weights: &[f64]) -> f64 {
    let (rows, d) = (tokens[0].pi.len(), tokens[0].h.len());
    let size = rows * d;
    let mut matrix = vec![0.0; size * size];
    for (
        Token {
            support,
            pi,
            u,
            h,
            signal,
            slope,
            ..
        },
        weight,
    ) in tokens.iter().zip(weights)
    {
        let scale = signal * slope * slope * weight;
        for (i, j) in (0..size).flat_map(|i| (0..size).map(move |j| (i, j))) {
            let (r, c) = (i / d, j / d);
            if support[r] && support[c] {
                let fisher = f64::from(u8::from(r == c)) * pi[r] - pi[r] * pi[c];
                matrix[i * size + j] += scale * (u[r] * u[c] - fisher) * h[i % d] * h[j % d];
            }
        }
    }
    let (mut x, mut norm) = (vec![1.0; size], 0.0);
    x[0] = 2.0;
    for _ in 0..300 {
        let y: Vec<f64> = matrix
            .chunks(size)
            .map(|row| row.iter().zip(&x).map(|(m, x)| m * x).sum())
            .collect();
        norm = y.iter().map(|y| y * y).sum::<f64>().sqrt()
            / x.iter().map(|x| x * x).sum::<f64>().sqrt();
        let length = y.iter().map(|y| y * y).sum::<f64>().sqrt();
        x = y.iter().map(|y| y / length).collect();
    }
    norm
}

fn close(what: &str, got: f64, expected: f64) {
    assert!(
        (got - expected).abs() <= 3e-6 * expected.abs(),
        "{what}: {got:e} against {expected:e}"
    );
}

#[test]
fn terms_equal_those_of_explicit_matrices() {
    for (semantics, granularity) in PRESETS
        .into_iter()
        .flat_map(|x| GRANULARITIES.map(|y| (x, y)))
    {
        for (optimizer, temperature) in [(SGD, 1.0), (SGD, 0.7), (ADAM, 0.7)] {
            let scene = Scene::full(&mut Rng(110), DIMS, temperature);
            let whole = Whole {
                semantics,
                optimizer: Optimizer::new(optimizer, DIMS),
            };
            let mut m_f = assess(&scene, OPEN, granularity, &whole).m_f;
            m_f.sort_by(f32::total_cmp);
            // Some subsets are rejected where there are several, and count for nothing.
            let scale = if granularity == Granularity::Batch {
                2.0
            } else {
                0.5
            };
            let threshold = scale * f64::from(m_f[5] + m_f[11]);
            let acceptance = Acceptance {
                fisher_threshold: Some(threshold),
                ..OPEN
            };
            let got = assess(&scene, acceptance, granularity, &whole);
            assert!(
                got.token_mask.contains(&1)
                    && got.token_mask.contains(&0) != (granularity == Granularity::Batch)
            );
            let of_subsets: Vec<_> = subsets(&scene, granularity, &scene.batch.mask)
                .iter()
                .filter(|subset| got.token_mask[subset.tokens[0]] == 1)
                .map(|subset| whole.shifts(&scene, RATE, subset))
                .collect();
            let kept = (0..12).filter(|&at| got.token_mask[at] == 1);
            let tokens: Vec<Token> = kept.map(|at| whole.token(&scene, at)).collect();
            let certificate = got.certificate;

            let r = of_subsets.iter().map(|x| x.norm).fold(0.0, f64::max);
            close("r", certificate.step_norm, r);
            let batch = &subsets(&scene, Granularity::Batch, &got.token_mask)[0];
            let weights = whole.averages(&scene, batch);
            let m = tokens
                .iter()
                .zip(&weights)
                .map(|(token, weight)| weight * stated_bound(token))
                .sum::<f64>();
            close("M", certificate.hessian_bound, m);
            let norm = hessian_norm(&tokens, &weights);
            assert!(
                norm > 0.05 * m && norm <= m * (1.0 + 1e-6),
                "norm {norm} and its bound {m}"
            );
            let least = of_subsets
                .iter()
                .map(|x| x.m_h)
                .fold(f64::INFINITY, f64::min);
            assert!(
                (certificate.omega - (least - m * r * r)).abs() < 1e-5 * (least.abs() + m * r * r)
            );
            let largest = (0..12)
                .map(|at| whole.token(&scene, at).signal.abs())
                .fold(0.0, f64::max);
            // Horizon 5: C = 5 sqrt(4 . 9 / 3) max |A|.
            close(
                "gap",
                certificate.gap,
                5.0 * 12.0f64.sqrt() * largest * threshold.sqrt(),
            );
            assert!(!certificate.holds());
        }
    }
}

/// Without a threshold, what `delta_F` would have to be: the largest accepted shift.
#[test]
fn without_a_threshold_the_gap_uses_the_largest_shift() {
    let scene = Scene::full(&mut Rng(111), DIMS, 1.0);
    let whole = Whole {
        semantics: Semantics::PAPER,
        optimizer: Optimizer::new(SGD, DIMS),
    };
    let got = assess(&scene, OPEN, Granularity::Token, &whole);
    let largest = f64::from(got.m_f.iter().copied().fold(0.0, f32::max));
    let advantage = f64::from(scene.batch.advantages.iter().copied().fold(0.0, f32::max));
    close(
        "gap",
        got.certificate.gap,
        5.0 * 12.0f64.sqrt() * advantage * largest.sqrt(),
    );
}

#[test]
fn holds_for_a_step_that_cannot_fail() {
    for (semantics, granularity) in PRESETS
        .into_iter()
        .flat_map(|x| GRANULARITIES.map(|y| (x, y)))
    {
        let mut scene = Scene::full(&mut Rng(112), DIMS, 1.0);
        let run = |scene: &Scene, rate: f64| {
            scene
                .assess(&model(semantics, granularity), &SGD, rate)
                .certificate
        };
        // One token to come: no state that a changed policy could be led astray to. A small step's
        // gain is first order.
        scene.max_completion_length = 1;
        let one = run(&scene, 1e-3);
        assert!(one.gap == 0.0 && one.omega > 0.0 && one.holds(), "{one:?}");
        let still = run(&scene, 0.0);
        assert!(
            still.omega == 0.0 && !still.holds(),
            "a step that gains nothing: {still:?}"
        );
        scene.max_completion_length = 2;
        let two = run(&scene, 1e-3);
        assert!(
            two.gap > 0.0 && two.holds() == (two.omega >= two.gap),
            "{two:?}"
        );
        scene.max_completion_length = 1000;
        assert!(!run(&scene, 1e-3).holds());
        let far = run(
            &Scene {
                max_completion_length: 1,
                ..scene.clone()
            },
            10.0,
        );
        assert!(far.omega < 0.0 && !far.holds(), "{far:?}");
    }
}

#[test]
fn is_empty_without_an_accepted_subset() {
    let scene = Scene::full(&mut Rng(113), DIMS, 1.0);
    let whole = Whole {
        semantics: Semantics::EXACT,
        optimizer: Optimizer::new(ADAM, DIMS),
    };
    let none = Acceptance {
        fisher_threshold: Some(1e-300),
        ..OPEN
    };
    for granularity in GRANULARITIES {
        let got = assess(&scene, none, granularity, &whole).certificate;
        assert_eq!(
            (got.step_norm, got.hessian_bound, got.omega, got.gap),
            (0.0, 0.0, 0.0, 0.0)
        );
        assert!(!got.holds());
    }
}

/// `C` is 0 where one token is all there is to come, whatever the threshold.
#[test]
fn an_infinite_threshold_counts_as_none() {
    let scene = Scene {
        max_completion_length: 1,
        ..Scene::full(&mut Rng(114), DIMS, 1.0)
    };
    let whole = Whole {
        semantics: Semantics::PAPER,
        optimizer: Optimizer::new(SGD, DIMS),
    };
    let endless = Acceptance {
        fisher_threshold: Some(f64::INFINITY),
        ..OPEN
    };
    let [got, open] =
        [endless, OPEN].map(|acceptance| assess(&scene, acceptance, Granularity::Token, &whole));
    assert_eq!(got.certificate, open.certificate);
    assert_eq!(got.certificate.gap, 0.0);
}

/// Tokens without a gradient are kept even so; the step of their completion is none that was
/// accepted.
#[test]
fn ignores_a_rejected_subset_with_exempt_tokens() {
    let mut scene = Scene::full(&mut Rng(115), DIMS, 1.0);
    scene.batch.hidden[..3 * 5]
        .iter_mut()
        .for_each(|h| *h *= 5.0);
    let whole = Whole {
        semantics: Semantics::EXACT,
        optimizer: Optimizer::new(SGD, DIMS),
    };
    scene.derivatives[1] = 0.0;
    let open = assess(&scene, OPEN, Granularity::Completion, &whole);
    let threshold = f64::from(open.m_f[3..].iter().copied().fold(0.0, f32::max)) * 1.01;
    assert!(f64::from(open.m_f[0]) > threshold);
    let acceptance = Acceptance {
        fisher_threshold: Some(threshold),
        ..OPEN
    };
    let got = assess(&scene, acceptance, Granularity::Completion, &whole);
    assert_eq!(got.token_mask, [0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
    let mut without = scene.clone();
    without.batch.mask[..3].fill(0);
    let [a, b] = [
        got,
        assess(&without, acceptance, Granularity::Completion, &whole),
    ]
    .map(|x| x.certificate);
    assert_eq!(
        (a.step_norm, a.hessian_bound, a.omega),
        (b.step_norm, b.hessian_bound, b.omega)
    );
}

/// A token without a gradient proposes nothing, and takes nothing from what the others do.
#[test]
fn an_exempt_token_proposes_no_step() {
    let mut scene = Scene::full(&mut Rng(116), DIMS, 1.0);
    scene.derivatives[4] = 0.0;
    let whole = Whole {
        semantics: Semantics::EXACT,
        optimizer: Optimizer::new(SGD, DIMS),
    };
    let got = assess(&scene, OPEN, Granularity::Token, &whole);
    assert_eq!((got.token_mask[4], got.tokens), (1, 11));
    let least = (0..12)
        .filter(|&at| at != 4)
        .map(|at| got.m_h[at])
        .fold(f32::INFINITY, f32::min);
    let certificate = got.certificate;
    close(
        "omega",
        certificate.omega + certificate.hessian_bound * certificate.step_norm.powi(2),
        f64::from(least),
    );
}
