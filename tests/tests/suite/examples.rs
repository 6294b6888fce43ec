//! The example plugins, built as a third party would, and one of them in either profile.

use tests::artifacts::{example, load_examples, workspace};
use tests::{Folder, names};

use crate::FOUR_STEPS;

#[test]
#[ignore = "slow: it builds twice; .ci/long runs it"]
fn debug_and_release_do_the_same() {
    let folder = Folder::new();
    let mask = "mask=[{use=\"example.surprise-cap\",max_nats=0.5}]";
    let [debug, release] = ["dev", "release"].map(|profile| {
        let library = example("surprise-cap", profile);
        folder.train(
            profile,
            &format!("--plugin {} --set {mask} {FOUR_STEPS}", library.display()),
        )
    });
    debug.assert_same(&release);
    let rejected = debug.metric("example.surprise-cap/rejection_rate");
    assert!(
        rejected.iter().all(|&rate| rate < 0.5) && rejected.iter().any(|&rate| rate > 0.0),
        "{rejected:?}"
    );
    assert!(
        debug
            .metric("example.surprise-cap/largest_nats")
            .iter()
            .any(|&nats| nats > 0.5)
    );
    assert_ne!(
        debug.weights(),
        folder.train("without", FOUR_STEPS).weights()
    );
}

#[test]
fn gspo_clips_completions_of_used_rollouts() {
    let folder = Folder::new();
    let plugin = load_examples(&["gspo"]);
    let run = folder.train(
        "gspo",
        &format!("{plugin} --set train.num_iterations=2 {FOUR_STEPS}"),
    );
    let config = run.text("config.toml");
    assert!(
        config.contains("use = \"grpo.advantage\"") && config.contains("use = \"example.gspo\""),
        "{config}"
    );
    let clipped = run.metric("clip_ratio/region_mean");
    assert_eq!(
        [clipped[0], clipped[2]],
        [0.0; 2],
        "a fresh rollout is on policy"
    );
    assert!(
        clipped[3] > 0.0 && clipped.iter().all(|&share| share <= 1.0),
        "{clipped:?}"
    );
}

#[test]
fn each_example_has_its_row_and_its_page() {
    let examples = workspace().join("plugins/examples");
    let text = |name: &str| tests::text(&examples.join(name));
    let (readme, manifest) = (text("README.md"), text("Cargo.toml"));
    let folders = names(&examples)
        .into_iter()
        .filter(|name| examples.join(name).join("Cargo.toml").exists());
    let folders: Vec<String> = folders.collect();
    assert_eq!(folders, ["gspo", "surprise-cap"]);
    for name in folders {
        assert!(
            readme.contains(&format!("| [{name}]({name}) |")),
            "no row for `{name}`"
        );
        assert!(
            manifest.contains(&format!("\"{name}\"")),
            "`{name}` is not a member"
        );
        assert!(
            text(&format!("{name}/README.md")).contains(&format!("use = \"example.{name}\"")),
            "{name}"
        );
        let source = text(&format!("{name}/src/lib.rs"));
        let (code, _) = source.split_once("#[cfg(test)]").unwrap();
        assert!(
            code.contains("#![forbid(unsafe_code)]") && code.lines().count() <= 80,
            "{name}"
        );
    }
}
