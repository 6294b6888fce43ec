//! The example plugin, built as a third party would, in either profile.

use insta::assert_snapshot;
use tests::{Folder, RunDir, artifacts};

use crate::FOUR_STEPS;

fn train(folder: &Folder, profile: &str) -> RunDir {
    let library = artifacts::example(profile);
    let mask = "mask=[{use=\"example.surprise-cap\",max_nats=0.5}]";
    folder.train(profile, &format!("--plugin {} --set {mask} {FOUR_STEPS}", library.display()))
}

#[test]
fn debug_and_release_do_the_same() {
    let folder = Folder::new();
    let (debug, release) = (train(&folder, "dev"), train(&folder, "release"));
    debug.assert_same(&release);
    let rejected = debug.metric("example.surprise-cap/rejection_rate");
    assert!(rejected.iter().all(|&rate| rate < 0.5) && rejected.iter().any(|&rate| rate > 0.0), "{rejected:?}");
    assert!(debug.metric("example.surprise-cap/largest_nats").iter().any(|&nats| nats > 0.5));
    assert_ne!(debug.weights(), folder.train("without", FOUR_STEPS).weights());
}

#[test]
fn it_is_listed_with_its_keys() {
    let folder = Folder::new();
    let listed = folder.host(&format!("plugins --plugin {}", artifacts::example("dev").display())).succeeded().stdout;
    let (_, mask) = listed.split_once("mask\n").unwrap();
    assert_snapshot!(mask.lines().take(2).collect::<Vec<_>>().join("\n"), @"
    example.surprise-cap     drops tokens above a surprise limit
                             keys: max_nats
    ");
}

#[test]
fn its_keys_are_checked() {
    let folder = Folder::new();
    let plugin = artifacts::example("dev").display().to_string();
    let refused = |keys: &str| {
        let mask = format!("mask=[{{use=\"example.surprise-cap\",{keys}}}]");
        folder.host(&format!("train --plugin {plugin} --set {mask}")).refused()
    };
    assert_snapshot!(refused("max_nat=1"), @r#"`[[mask]]` with `use = "example.surprise-cap"`: unknown key `max_nat` (did you mean `max_nats`?)"#);
    assert_snapshot!(refused("max_nats=\"much\""), @r#"`[[mask]]` with `use = "example.surprise-cap"`: invalid type: string "much", expected f32"#);
    assert_snapshot!(refused(""), @r#"`[[mask]]` with `use = "example.surprise-cap"`: missing field `max_nats`"#);
}
