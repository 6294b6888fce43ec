use capo_plugin::Episode;
use capo_plugin::testing::{self, Records, snapshot};
use insta::assert_snapshot;

use super::*;

#[test]
fn says_where_the_number_lies() {
    let mut game = testing::environment::<Guess>("most = 9").unwrap();
    let mut episode = Episode::new(0, "");
    episode.seed = 6;
    game.begin(&mut Records::default(), &Episodes::new(vec![episode]))
        .unwrap();
    let mut say = |text: &str| {
        let turns = [Turn::new(0, text)];
        game.respond(&mut Records::default(), &turns)
            .unwrap()
            .remove(0)
    };
    assert_eq!(say("It is 5.").messages[0].content, "+");
    assert_eq!(say("8, or 9?").messages[0].content, "=");
    assert_eq!(say("no idea").messages[0].content, " ");
    let last = say("7");
    assert!(last.ended && last.reward == 1.0);
}

/// Runs the checks of `host check` behind the real ABI, as in a trainer; an error means a broken
/// rule. Among them is a state that is saved and loaded between two steps.
#[test]
fn keeps_the_rules_in_every_episode() {
    testing::conform(&[]).unwrap();
}

#[test]
fn does_what_it_did() {
    let mut game = testing::environment::<Guess>("").unwrap();
    assert_snapshot!(snapshot(&mut game));
}
