use super::*;

/// The highest rate, to which shares refer, and an entropy.
const TOP: f64 = 1e-3;
const ENTROPY: f64 = 0.15;
/// The guess at a step that is taken whole is as near to the square law.
const NEAR: f64 = 5e-3;

fn step(kl: f64) -> Step {
    Step {
        kl,
        entropy: ENTROPY,
        rate: TOP,
        reach: 1.0,
        earns: true,
    }
}

/// Divergence of a whole step at `times` the rate that it tells: of the first one, or of one after
/// it.
fn at(times: f64, is_first: bool) -> f64 {
    let good = if is_first { ADAMS_FIRST } else { LATER };
    good * ENTROPY * times * times
}

impl Search {
    /// Takes a step that obeys the square law. Returns the share that is told, or the part of a
    /// spike that is taken.
    fn on(&mut self, step: Step) -> f64 {
        self.by(2.0, step)
    }

    /// Takes a step whose divergence grows with the power `law` of its length; a part is measured
    /// where it is asked for.
    fn by(&mut self, law: f64, step: Step) -> f64 {
        let part = self.part(step).map(|share| Part {
            share,
            kl: step.kl * share.powf(law),
        });
        let left = self.take(step, part);
        assert!(part.is_none_or(|part| left <= part.share));
        if part.is_some() { self.share() } else { left }
    }
}

#[test]
fn the_first_steps_tell_the_rate_and_it_stays() {
    let mut search = Search::default();
    let told = |kl: f64, good: f64| 0.5 * (good * ENTROPY / kl).ln();
    let (first, later) = (told(0.3, ADAMS_FIRST), [0.1, 0.2, 0.4, 0.3, 0.1]);
    assert!((search.on(step(0.3)) / first.exp() - 1.0).abs() < 1e-12);
    for (place, kl) in later.into_iter().enumerate() {
        assert_eq!(search.found(), None);
        let sum = 5.0 * first
            + later[..=place]
                .iter()
                .map(|kl| told(*kl, LATER))
                .sum::<f64>();
        let mean = sum / (6 + place) as f64;
        assert!(
            (search.on(step(kl)) / mean.exp() - 1.0).abs() < 1e-12,
            "{kl}"
        );
    }
    let share = search.share();
    assert_eq!(search.found(), Some(share * TOP));
    assert_eq!([0.01, 0.2, 0.3].map(|kl| search.on(step(kl))), [share; 3]);
}

#[test]
fn a_rate_that_is_up_to_half_again_as_high_is_left_alone() {
    for (times, whole) in [(0.1, true), (1.0, true), (1.4, true), (1.6, false)] {
        let mut search = Search::default();
        for place in 0..2 * FIRST {
            let share = search.on(step(at(times, place == 0)));
            assert_eq!(share == 1.0, whole, "{times}");
            assert!(whole || (share * times - 1.0).abs() < NEAR);
        }
    }
}

#[test]
fn a_part_of_a_long_step_tells_the_rate() {
    for law in [1.0, 1.5, 2.0] {
        let (mut search, mut logs) = (Search::default(), Vec::new());
        for place in 0..FIRST {
            let good = if place == 0 { ADAMS_FIRST } else { LATER } * ENTROPY;
            let by_guess = (good / guessed_square(3.0)).sqrt();
            let share = search.part(step(3.0)).unwrap();
            assert!(place > 0 || (share / by_guess - 1.0).abs() < 1e-12);
            search.by(law, step(3.0));
            logs.push(0.5 * (good / (3.0 * share.powf(law - 2.0))).ln());
            let sum = 4.0 * logs[0] + logs.iter().sum::<f64>();
            assert!(
                (search.log - sum / if place == 0 { 5.0 } else { (place + 5) as f64 }).abs()
                    < 1e-12,
                "{law}"
            );
        }
        // A later step is counted as the first ones were.
        let (mean, bend) = (
            search.kl / search.steps as f64,
            (search.bend / FIRST as f64).exp(),
        );
        assert_eq!(search.part(step(300.0)), None);
        assert!(
            (search.on(step(300.0)) / (SPIKE * mean / (300.0 * bend)).sqrt() - 1.0).abs() < 1e-12,
            "{law}"
        );
    }
}

#[test]
fn a_step_that_is_whole_or_tells_nothing_is_measured_once() {
    for kl in [at(1.4, true), 0.0, f64::NAN, f64::INFINITY, 1e300] {
        assert_eq!(Search::default().part(step(kl)), None, "{kl}");
    }
    assert!(
        Search::default()
            .part(step(at(1.6, true)))
            .is_some_and(|share| share < 1.0 / 1.5)
    );
    assert_eq!(
        Search::default().part(Step {
            reach: 0.05,
            earns: false,
            ..step(0.1)
        }),
        None
    );
    let (mut earned, mut right) = (Search::default(), Search::default());
    earned.on(step(0.1));
    assert_eq!(
        earned.part(Step {
            earns: false,
            ..step(0.1)
        }),
        None
    );
    // One long step after a first one that was right is taken as that one was.
    right.on(step(at(1.0, true)));
    assert_eq!(
        (
            right.part(step(at(4.0, false))),
            right.on(step(at(4.0, false)))
        ),
        (None, 1.0)
    );
    // A part that could not be measured leaves nothing, and changes nothing else.
    let mut broken = earned;
    assert_eq!(
        broken.take(
            step(0.1),
            Some(Part {
                share: 0.5,
                kl: f64::NAN
            })
        ),
        0.0
    );
    assert_eq!(broken, earned);
}

/// The first gradient moves a weight by less than the rate where zeros came before it, and tells
/// the same.
#[test]
fn a_short_first_step_tells_the_rate_too() {
    let first = |kl: f64, reach: f64| Search::default().on(Step { reach, ..step(kl) });
    assert!((first(at(4.0 * 0.5, true), 0.5) / first(at(4.0, true), 1.0) - 1.0).abs() < NEAR);
    assert!((first(at(4.0 * 0.05, true), 0.05) / first(at(4.0, true), 1.0) - 1.0).abs() < NEAR);
    // Weight decay alone tells nothing.
    assert_eq!(
        Search::default().on(Step {
            reach: 0.05,
            earns: false,
            ..step(0.1)
        }),
        1.0
    );
    for reach in [0.0, f64::NAN, f64::INFINITY] {
        assert_eq!(first(0.1, reach), 1.0);
    }
}

#[test]
fn a_less_certain_policy_takes_longer_steps() {
    let first = |entropy| {
        Search::default()
            .on(Step {
                entropy,
                ..step(1.0)
            })
            .powi(2)
    };
    for (entropy, counts) in [(0.5, 0.5), (3.0, MOST_ENTROPY)] {
        assert!((first(entropy) / (ADAMS_FIRST * counts) - 1.0).abs() < 1e-12);
    }
    for unknown in [0.0, NEAR, f64::NAN] {
        assert!((first(unknown) / (ADAMS_FIRST * LEAST_ENTROPY) - 1.0).abs() < 1e-12);
    }
}

#[test]
fn steps_that_move_nothing_change_nothing() {
    let (mut silent, mut plain) = (Search::default(), Search::default());
    for kl in [0.0, 1e-14, 7e-14] {
        assert_eq!(silent.on(step(kl)), 1.0);
    }
    assert_eq!(
        silent,
        Search {
            rate: TOP,
            earned: true,
            ..plain
        }
    );
    for _ in 0..10 {
        assert_eq!(silent.on(step(0.5)), plain.on(step(0.5)));
    }
}

#[test]
fn steps_without_an_advantage_tell_nothing() {
    let without = |kl: f64| Step {
        earns: false,
        ..step(kl)
    };
    let (mut sparse, mut plain) = (Search::default(), Search::default());
    for kl in [0.3, 0.1, 0.2, 0.4, 0.3, 0.1, 0.2] {
        let share = plain.on(step(kl));
        assert_eq!(sparse.on(step(kl)), share);
        // Adam's mean goes on, as far as steps are taken; a spike is one without an advantage too.
        assert_eq!(sparse.on(without(0.1 * kl)), share);
        assert!(sparse.on(without(1e6)) < 0.1 * share);
        assert_eq!(sparse, plain);
    }
    // Where no batch has one, they are unknown.
    let (mut unknown, mut plain) = (Search::default(), Search::default());
    for kl in [0.3, 0.1, 0.2, 0.4, 0.3, 0.1, 0.2] {
        assert_eq!(unknown.on(without(kl)), plain.on(step(kl)));
    }
}

#[test]
fn a_step_far_beyond_those_before_it_is_shortened() {
    let mut search = Search::default();
    for _ in 0..4 {
        search.on(step(at(1.0, false)));
    }
    let mean = search.kl / search.steps as f64;
    assert!((search.on(step(3.0)) / (SPIKE * mean / 3.0).sqrt() - 1.0).abs() < NEAR);
    assert_eq!(
        [f64::NAN, f64::INFINITY].map(|kl| search.on(step(kl))),
        [0.0; 2]
    );
}

/// From `STEADY` steps on, the highest rate falls with the root of their number, unless a schedule
/// has lowered the rate further.
#[test]
fn a_long_run_ends_at_a_smaller_rate() {
    for (times, schedule) in [
        (10.0, 1.0),
        (10.0, 0.8),
        (10.0, 0.1),
        (1.0, 1.0),
        (0.1, 1.0),
    ] {
        let (mut search, mut lengths) = (Search::default(), Vec::new());
        for number in 0..9 * STEADY {
            let part = if number < STEADY { 1.0 } else { schedule };
            let left = search.on(Step {
                rate: TOP * part,
                ..step(at(times, number == 0))
            });
            lengths.push(part * left);
        }
        let highest = if times > 1.0 {
            1.0 / times
        } else {
            1.5 / times
        };
        for (number, length) in lengths.iter().enumerate() {
            let after = number >= STEADY as usize;
            let late = if after {
                (STEADY as f64 / number as f64).sqrt()
            } else {
                1.0
            };
            let expected = if times > 1.0 && after {
                highest * late.min(schedule)
            } else {
                (highest * late).min(1.0)
            };
            assert!(
                (length / expected - 1.0).abs() < NEAR,
                "{times} {schedule} {number}: {length} {expected}"
            );
        }
        // Where it fell, and where it was left alone.
        assert_eq!(
            lengths[9 * STEADY as usize - 1] < 0.99 * lengths[0],
            times >= 1.0
        );
    }
}

/// In a warm-up steps are whole up to 1.5 times the rate that the first ones tell, and then as long
/// as at a constant rate. A rate of 0 comes before them.
#[test]
fn a_warm_up_ends_at_the_rate_that_its_first_steps_tell() {
    for steps in [5_u64, 20, 40] {
        for (times, end) in [(1.0, 1.0), (1.4, 1.0), (10.0, 0.1), (300.0, 1.0 / 300.0)] {
            let mut search = Search::default();
            let length = |place: u64| {
                let part = place.min(steps) as f64 / steps as f64;
                part * search.on(Step {
                    rate: TOP * part,
                    ..step(at(times * part, place == 1))
                })
            };
            let lengths: Vec<f64> = (0..STEADY).map(length).collect();
            assert_eq!(lengths[0], 0.0);
            let last = lengths[STEADY as usize - 1];
            assert!(
                (last / end - 1.0).abs() < NEAR,
                "{steps} {times}: {last} {end}"
            );
            let most = lengths.iter().copied().fold(0.0, f64::max);
            assert!(most <= 1.5 * last + NEAR, "{steps} {times}: {most} {last}");
        }
    }
}

/// A schedule that lowers the rate while it is told, after steps that move nothing.
#[test]
fn a_rate_is_told_where_it_falls() {
    for silent in [0, 3] {
        let mut search = Search::default();
        for place in 0..silent + FIRST {
            let part = 1.0 - place as f64 / (silent + FIRST + 1) as f64;
            let kl = if place < silent {
                0.0
            } else {
                at(10.0 * part, place == silent)
            };
            let left = search.on(Step {
                rate: TOP * part,
                ..step(kl)
            });
            let top = 1.0 - silent as f64 / (silent + FIRST + 1) as f64;
            assert!(
                place < silent || (left * top * 10.0 - 1.0).abs() < NEAR,
                "{silent} {place}: {left}"
            );
        }
        assert!(
            (search.found().unwrap() / (TOP / 10.0) - 1.0).abs() < NEAR,
            "{silent}"
        );
    }
}

#[test]
fn a_state_comes_back_to_the_bit() {
    let mut search = Search::default();
    let _ = [0.1, 0.2].map(|kl| search.on(step(kl)));
    assert_eq!(Search::load(&search.save()), Some(search));
    for foreign in [
        "",
        "0",
        "7ff8000000000000 0 0 0 1 true",
        "0 0 0 0 -1 true",
        "0 0 0 0 1 2",
        "0 0 0 1 true",
    ] {
        assert_eq!(Search::load(foreign), None);
    }
}
