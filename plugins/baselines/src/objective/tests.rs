//! Cases that the comparison with TRL and the measured gradients in
//! `host/trainer/tests/suite/objectives.rs` do not hold.

use super::*;
use capo_plugin::Reduction;
use capo_plugin::testing::{Fixture, objective};

#[test]
fn a_ratio_beyond_all_bounds_counts_where_a_limit_holds() {
    // exp(200) is infinite in f32.
    let far = Fixture::new(1, 1).logps(&[-1.0]).old_logps(&[-201.0]);
    let mut clipped = objective::<ClippedSurrogate<ByCompletion>>("delta = 3.0").unwrap();
    assert_eq!(
        far.clone()
            .advantages(&[2.0])
            .evaluate(&mut clipped)
            .unwrap(),
        (vec![-2.4], vec![0.0])
    );
    assert_eq!(
        far.clone()
            .advantages(&[-2.0])
            .evaluate(&mut clipped)
            .unwrap(),
        (vec![6.0], vec![0.0])
    );
    let mut sapo = objective::<Sapo>("").unwrap();
    assert_eq!(
        far.clone().advantages(&[2.0]).evaluate(&mut sapo).unwrap(),
        (vec![-8.0], vec![0.0])
    );
    let mut cispo = objective::<Cispo>("").unwrap();
    assert_eq!(
        far.clone().advantages(&[2.0]).evaluate(&mut cispo).unwrap(),
        (vec![10.0], vec![-10.0])
    );
    let mut vespo = objective::<Vespo>("").unwrap();
    assert_eq!(
        far.advantages(&[2.0]).evaluate(&mut vespo).unwrap().1,
        [0.0]
    );
}

#[test]
fn ids_differ_in_their_defaults() {
    let reduction = |component: capo_plugin::ObjectiveHandle| component.reduction();
    assert_eq!(
        reduction(objective::<ClippedSurrogate<Dapo>>("").unwrap()),
        Reduction::TOKEN_MEAN
    );
    assert_eq!(
        reduction(objective::<ClippedSurrogate<Luspo>>("").unwrap()),
        Reduction::COMPLETION_SUM
    );
    // A ratio of 1.25 is below DAPO's upper clip and above GRPO's.
    let up = Fixture::new(1, 1)
        .logps(&[-1.0])
        .old_logps(&[-1.0 - 1.25_f32.ln()])
        .advantages(&[1.0]);
    let slope =
        |mut component: capo_plugin::ObjectiveHandle| up.evaluate(&mut component).unwrap().1[0];
    assert!(slope(objective::<ClippedSurrogate<Dapo>>("").unwrap()) < -1.0);
    assert!(slope(objective::<ClippedSurrogate<Dapo>>("epsilon_high = 0.2").unwrap()) == 0.0);
    assert!(slope(objective::<ClippedSurrogate<ByToken>>("").unwrap()) == 0.0);
    assert!(slope(objective::<ClippedSurrogate<Gspo>>("").unwrap()) == 0.0);
}

#[test]
fn values_and_pairs_that_do_not_go_are_refused() {
    let said = [
        objective::<ClippedSurrogate<ByCompletion>>("epsilon = -1"),
        objective::<PolicyGradient>("beta = -0.5"),
        objective::<ClippedSurrogate<Dapo>>("delta = 0"),
        objective::<Cispo>("kl_estimator = \"k2\""),
        objective::<Sapo>("sapo_temperature_neg = -1"),
    ];
    let said = said.map(|component| component.err().unwrap().to_string());
    assert_eq!(
        include_str!("refused.txt").lines().collect::<Vec<_>>(),
        said
    );
}
