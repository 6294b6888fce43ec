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
        length: 1.0,
        reach: 1.0,
        earns: true,
    }
}

/// A slope of so many standard errors.
fn slope(errors: f64, search: &Search) -> Slope {
    let squares = 1e-3;
    let cost = search.listening.cost.unwrap().exp();
    Slope {
        fall: errors * (2.0 * cost * squares).sqrt(),
        squares,
        upside: 1.0,
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

    /// Takes a step whose divergence grows with the power `law` of its length. A part of it is
    /// measured as the governor does.
    fn by(&mut self, law: f64, step: Step) -> f64 {
        let begins = self.begins();
        let share = if begins {
            self.part(step)
        } else {
            Some(self.left(step.rate))
        };
        let part = share.map(|share| Part {
            share,
            kl: step.kl * share.powf(law),
        });
        let left = self.take(step, part);
        assert!(part.is_none_or(|part| left <= part.share));
        if begins && part.is_some() {
            self.left(step.rate)
        } else {
            left
        }
    }
}

/// The rate is the higher one of what the first step and the mean of the others tell.
#[test]
fn the_first_steps_tell_the_rate_and_it_stays() {
    let told = |kl: f64, good: f64| 0.5 * (good * ENTROPY / kl).ln();
    let later = [0.1, 0.2, 0.4, 0.3, 0.1];
    for (kl, is_higher) in [(0.2, true), (3.0, false)] {
        let mut search = Search::default();
        let first = told(kl, ADAMS_FIRST);
        assert!((search.on(step(kl)) / first.exp() - 1.0).abs() < 1e-12);
        for (place, kl) in later.into_iter().enumerate() {
            assert_eq!(search.found(), None);
            let sum: f64 = later[..=place].iter().map(|kl| told(*kl, LATER)).sum();
            let mean = sum / (place + 1) as f64;
            assert_eq!(first > mean, is_higher);
            assert!(
                (search.on(step(kl)) / first.max(mean).exp() - 1.0).abs() < 1e-12,
                "{kl}"
            );
        }
        let share = search.left(TOP);
        assert_eq!(search.found(), Some(share * TOP));
        assert_eq!([0.01, 0.2, 0.3].map(|kl| search.on(step(kl))), [share; 3]);
    }
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
            // After the first step this mean is no number, which `max` drops.
            let later = logs[1..].iter().sum::<f64>() / place as f64;
            assert!((search.log() - logs[0].max(later)).abs() < 1e-12, "{law}");
        }
        // A later step is measured at the length that it has.
        let most = SPIKE * search.kl / search.steps as f64;
        let share = search.left(TOP);
        let taken = 300.0 * share.powf(law);
        assert!(taken > most);
        assert!(
            (search.by(law, step(300.0)) / (share * (most / taken).sqrt()) - 1.0).abs() < 1e-12
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
                ..step(at(times * part, number == 0))
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
            let expected = (highest * late).min(if after { schedule } else { 1.0 });
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
            assert!(
                place < silent || (left * part * 10.0 - 1.0).abs() < NEAR,
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
    assert_eq!(Search::load(&search.save()), Some(search));
    for kl in [0.1, 0.2] {
        search.on(step(kl));
        search.hear(slope(1.5, &search), TOP).unwrap();
        assert_eq!(Search::load(&search.save()), Some(search));
    }
    assert_ne!(search.listening.lift, 0.0);
    for foreign in [
        "",
        "0",
        "7ff8000000000000 0 0 0 0 0 0 none 0 1 true",
        "0 0 0 0 0 0 0 7ff8000000000000 0 1 true",
        "0 0 0 0 0 0 0 none -1 1 true",
        "0 0 0 0 0 0 0 none 0 -1 true",
        "0 0 0 0 0 0 0 none 0 1 2",
        "0 0 0 0 0 0 none 0 1 true",
    ] {
        assert_eq!(Search::load(foreign), None);
    }
}

/// Takes as many steps as tell the rate, at `times` that rate.
fn told(times: f64) -> Search {
    let mut search = Search::default();
    for place in 0..FIRST {
        search.on(step(at(times, place == 0)));
    }
    search
}

/// Until the coming steps descend no more, the rate that the first ones told is raised; it comes
/// back, and goes below that rate only where the loss rises along the steps.
#[test]
fn a_rate_follows_the_slopes() {
    let mut search = told(300.0);
    let first = search.found().unwrap();
    let mut hear = |errors: f64, times: usize| {
        for _ in 0..times {
            let heard = search.hear(slope(errors, &search), TOP).unwrap();
            assert!((heard / errors.clamp(-3.0, 3.0) - 1.0).abs() < 1e-12);
        }
        search.found().unwrap() / first
    };
    // The n-th one moves it by n fiftieths: the first of the slope, the others of what is above
    // one standard error.
    assert!((hear(2.0, 5) / 0.32_f64.exp() - 1.0).abs() < 1e-12);
    assert!((hear(1.0, 5) / 0.32_f64.exp() - 1.0).abs() < 1e-12);
    assert!((hear(0.5, 2) / 0.09_f64.exp() - 1.0).abs() < 1e-12);
    // Later ones move it less, so that it settles.
    let thirteenth: f64 = 0.09 - 3.0 / 13.0 * 0.5;
    assert!((hear(0.5, 1) / thirteenth.exp() - 1.0).abs() < 1e-12);
    let back = hear(0.5, 100);
    assert!(back < 1.1 && back > 0.9, "{back}");
    let low = hear(-5.0, 10);
    assert!(low < 0.9 * back, "{low}");
    assert!(hear(0.5, 10) > low);
}

#[test]
fn a_rate_that_does_not_limit_the_steps_is_not_raised() {
    for (times, raised) in [(1.0, false), (10.0, true)] {
        let mut search = told(times);
        let before = search.found().unwrap();
        search.hear(slope(3.0, &search), TOP).unwrap();
        assert_eq!(search.found().unwrap() > before, raised);
        // What was raised is never above what was set.
        for _ in 0..40 {
            search.hear(slope(3.0, &search), TOP).unwrap();
        }
        assert_eq!(search.found(), Some(TOP));
        assert_eq!(search.left(TOP), 1.0);
        // But it is lowered.
        for _ in 0..40 {
            search.hear(slope(-3.0, &search), TOP).unwrap();
        }
        assert!(search.left(TOP) < 1.0);
    }
}

/// With the same slopes a policy that is rarely right goes further than one that mostly is.
#[test]
fn what_is_left_to_gain_counts() {
    let found = |upside: f64| {
        let mut search = told(300.0);
        for _ in 0..20 {
            let one = slope(0.7, &search);
            search.hear(Slope { upside, ..one }, TOP).unwrap();
        }
        search.found().unwrap()
    };
    let [rare, even, mostly] = [2.5, 1.0, 0.4].map(found);
    assert!(rare > 1.3 * even, "{rare} {even}");
    assert!(even > 1.01 * mostly, "{even} {mostly}");
    // The level of one in 7.25 that are right, from the second slope on.
    let level = 1.0 / 2.5;
    let gains = |of: std::ops::RangeInclusive<u32>| {
        of.map(|n| (0.02 * f64::from(n)).min(3.0 / f64::from(n)))
            .sum::<f64>()
    };
    let moves = 0.7 * gains(1..=1) + (0.7 - level) * gains(2..=20);
    let first = told(300.0).found().unwrap();
    assert!((rare / first / f64::exp(moves) - 1.0).abs() < 1e-9);
}

/// A slope is of first order, and a step of a nat is not.
#[test]
fn a_step_that_went_far_asks_for_no_longer_one() {
    let mut search = told(10.0);
    search.listening.last = 2.0 * 0.5;
    let before = search.found().unwrap();
    search.hear(slope(3.0, &search), TOP).unwrap();
    assert_eq!(search.found(), Some(before));
    search.hear(slope(-3.0, &search), TOP).unwrap();
    assert!(search.found().unwrap() < before);
}

#[test]
fn what_says_nothing_moves_nothing() {
    let mut search = Search::default();
    let any = Slope {
        fall: 1.0,
        squares: 1e-3,
        upside: 1.0,
    };
    assert_eq!(search.hear(any, TOP), None);
    search.on(step(0.3));
    let before = search;
    assert_eq!(
        search.hear(
            Slope {
                fall: f64::NAN,
                ..any
            },
            TOP
        ),
        None
    );
    assert_eq!(search, before);
}
