//! Saving and loading: bit for bit, or not at all.

use capo_core::CurvatureModel;

use super::fixture::{ADAM, Dims, Rng, open_model};
use super::scene::Scene;

const DIMS: Dims = Dims(2, 3, 2, 5, 30);

fn step(model: &mut CurvatureModel, rng: &mut Rng) -> (Vec<f32>, Vec<f32>) {
    let scene = Scene::full(rng, DIMS, 1.0);
    let assessment = scene.assess(model, &ADAM, 0.1);
    scene.commit_kept(model, &ADAM, &assessment.token_mask);
    (assessment.m_f, assessment.m_h)
}

fn after_steps(count: usize) -> CurvatureModel {
    let (mut model, mut rng) = (open_model(), Rng(1));
    for _ in 0..count {
        step(&mut model, &mut rng);
    }
    model
}

#[test]
fn a_loaded_model_continues_bit_for_bit() {
    let mut straight = after_steps(4);
    let mut resumed = open_model();
    resumed.load(&straight.save().unwrap()).unwrap();
    assert_eq!((resumed.steps(), resumed.rows()), (4, straight.rows()));
    let (mut a, mut b) = (Rng(2), Rng(2));
    for _ in 0..4 {
        assert_eq!(step(&mut straight, &mut a), step(&mut resumed, &mut b));
    }
    assert_eq!(straight.save().unwrap(), resumed.save().unwrap());
    // Loading replaces what was there, a model without history included.
    resumed.load(&open_model().save().unwrap()).unwrap();
    assert_eq!((resumed.steps(), resumed.rows()), (0, 0));
}

#[test]
fn refuses_truncated_or_corrupt_state_unchanged() {
    let mut model = after_steps(2);
    let before = model.save().unwrap();
    let good = after_steps(3).save().unwrap();
    for length in 0..good.len() {
        assert!(
            model.load(&good[..length]).is_err(),
            "cut to {length} bytes"
        );
    }
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        assert!(model.load(&bad).is_err(), "bit flipped in byte {at}");
    }
    assert!(
        model.load(&[&good[..], &[0]].concat()).is_err(),
        "a byte too many"
    );
    assert_eq!(model.save().unwrap(), before);
    model.load(&good).unwrap();
}

#[test]
fn refusals_give_their_reason() {
    let mut model = open_model();
    let good = after_steps(2).save().unwrap();
    let mut say = |bytes: &[u8]| model.load(bytes).unwrap_err().to_string();
    let advice = "(it is damaged or not one: resume from another checkpoint)";
    assert_eq!(
        say(b"hello"),
        format!("curvature state does not begin with `capocurv` {advice}")
    );
    assert_eq!(
        say(&good[..20]),
        format!("curvature state has 20 bytes, expected at least 58 {advice}")
    );
    assert!(say(&good[..90]).starts_with("curvature state has checksum "));
    let newer = [&good[..8], &[9], &good[9..]].concat();
    assert_eq!(
        say(&newer),
        "curvature state has format version 9, expected 3 (resume with the version that wrote it)"
    );
}

#[test]
fn state_of_another_vocabulary_or_width_is_refused() {
    let good = after_steps(1).save().unwrap();
    for (dims, who) in [
        (Dims(2, 3, 2, 5, 31), "vocabulary 31 and width 5"),
        (Dims(2, 3, 2, 6, 30), "vocabulary 30 and width 6"),
    ] {
        let other = Scene::full(&mut Rng(3), dims, 1.0);
        let sentence = |subject: &str| {
            format!(
                "{subject} {who}, the curvature state has 30 and 5 (use the model it was made with, or start without a state)"
            )
        };
        // A model with history refuses to load it,
        let mut model = open_model();
        other.commit(&mut model, &ADAM);
        let before = model.save().unwrap();
        assert_eq!(
            model.load(&good).unwrap_err().to_string(),
            sentence("this model has")
        );
        assert_eq!(model.save().unwrap(), before);
        // one without loads it and refuses the batch.
        let mut model = open_model();
        model.load(&good).unwrap();
        let result = model.prepare(&other.step(&ADAM, 0.1), &other.batch.mask);
        assert_eq!(result.unwrap_err().to_string(), sentence("the batch has"));
        assert_eq!(model.save().unwrap(), good);
    }
}
