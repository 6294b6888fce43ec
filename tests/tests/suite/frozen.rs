//! A plugin built on the released `capo-plugin` 1.0.0, in today's `host`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use capo_system::files::sha256_hex;
use insta::assert_snapshot;
use tests::{Folder, artifacts};

use crate::FOUR_STEPS;

/// The frozen sources, unpacked where cargo builds them.
fn sources() -> &'static Path {
    static SOURCES: OnceLock<PathBuf> = OnceLock::new();
    SOURCES.get_or_init(|| {
        let (frozen, evolution) = (
            artifacts::workspace().join("tests/evolution/1.0.0"),
            artifacts::target().join("evolution"),
        );
        // Files of an archive from before the release would stand beside those of this one.
        drop(std::fs::remove_dir_all(evolution.join("1.0.0/capo-plugin")));
        std::fs::create_dir_all(evolution.join("1.0.0")).unwrap();
        // The archive's times stay, so that cargo has nothing to do for sources that it knows.
        let (archive, into) = (frozen.join("capo-plugin.tar.gz"), evolution.join("1.0.0"));
        let unpacked = Command::new("tar")
            .arg("-xzf")
            .arg(archive)
            .arg("-C")
            .arg(&into)
            .status();
        assert!(
            unpacked.unwrap().success(),
            "tar unpacks the frozen sources"
        );
        for name in [
            "Cargo.toml",
            "Cargo.lock",
            "plugin/Cargo.toml",
            "plugin/src/lib.rs",
        ] {
            artifacts::put(&into.join(name), &tests::text(&frozen.join(name)));
        }
        into
    })
}

/// The plugin on the `capo-plugin` that was released.
pub fn frozen() -> PathBuf {
    artifacts::build(&sources().join("plugin/Cargo.toml"), "frozen", "dev")
}

/// The source of the frozen plugin, built on today's `capo-plugin`.
fn today() -> PathBuf {
    let root = artifacts::target().join("evolution/frozen_today");
    let text = |name: &str| tests::text(&sources().join(name));
    let own = artifacts::workspace().join("capo-plugin");
    let manifest = text("plugin/Cargo.toml")
        .replace("[lib]", "[workspace]\n\n[lib]\nname = \"frozen_today\"")
        .replace("../capo-plugin", own.to_str().unwrap());
    for (name, text) in [
        ("Cargo.toml", manifest),
        ("Cargo.lock", text("Cargo.lock")),
        ("src/lib.rs", text("plugin/src/lib.rs")),
    ] {
        artifacts::put(&root.join(name), &text);
    }
    // Not `--locked`: the frozen lock also holds what the benchmarks of `capo-plugin` need.
    let (manifest, target) = (
        root.join("Cargo.toml"),
        artifacts::target().join("examples"),
    );
    artifacts::cargo(&manifest, &target, &["--offline"]).expect("the plugin builds");
    target.join("debug/libfrozen_today.so")
}

#[test]
fn the_sources_are_as_they_were() {
    let root = sources();
    let names = ["capo-plugin", "plugin"]
        .map(|folder| artifacts::files(&root.join(folder)))
        .concat();
    let mut all = Vec::new();
    for name in &names {
        all.extend(name.strip_prefix(root).unwrap().to_str().unwrap().bytes());
        all.extend(std::fs::read(name).unwrap());
    }
    assert_eq!(names.len(), 68);
    assert_snapshot!(sha256_hex(&all), @"e9722a34ac89d87f04fecd22e26bf02f404076263b9fb712854c432da0d179b7");
}

#[test]
fn it_offers_what_it_registers() {
    let (folder, library) = (Folder::new(), frozen());
    let listed = folder.said(&format!("--verbose plugins --plugin {}", library.display()));
    let key = "factor (required)  # largest surprise kept, in means of the steps before; search 1.0..50.0";
    assert!(
        listed.contains(key) && listed.contains("asks for rollout_context, sampler_top_k"),
        "{listed}"
    );
    for id in [
        "environment",
        "reward",
        "advantage",
        "objective",
        "mask",
        "weight",
        "step-control",
    ] {
        assert!(
            listed.contains(&format!("  frozen.{id} ")),
            "{id}: {listed}"
        );
    }
    let mask = format!(
        "train --plugin {} --set mask=[{{use=\"frozen.mask\",facto=1}}]",
        library.display()
    );
    assert_snapshot!(folder.refused(&mask), @r#"`[[mask]]` with `use = "frozen.mask"`: unknown key `facto` (did you mean `factor`?)"#);
}

#[test]
fn it_trains_and_resumes_as_if_built_today() {
    let folder = Folder::new();
    let args = |library: &Path| {
        let reuse = "--set train.num_iterations=2 --set mask.0.factor=5.0 --set environment.use=frozen.environment";
        format!("--plugin {} {reuse} {FOUR_STEPS}", library.display())
    };
    let whole = folder.assert_resumes(&args(&frozen()), [2]);
    assert!(
        whole
            .metric("frozen.mask/rejection_rate")
            .iter()
            .any(|&rate| rate > 0.0)
    );
    assert_eq!(
        whole.metric("environment/frozen.environment/episodes"),
        [48.0, 48.0, 96.0, 96.0]
    );
    assert_eq!(whole.metric("frozen.mask/steps"), [0.0, 1.0, 2.0, 3.0]);
    assert!(
        whole.metric("largest_ratio")[3] > 1.0
            && whole.metric("frozen.mask/learning_rate")[2] > 0.0
    );
    assert!(
        whole.metric("frozen.weight/text_bytes")[3] > 0.0
            && whole.metric("frozen.weight/sampler_logps")[3] < 0.0
    );
    for name in ["norm", "fisher", "last_layer_kl", "kl", "weights"] {
        assert!(
            whole.metric(&format!("frozen.step-control/{name}"))[3] > 0.0,
            "{name}"
        );
    }
    assert_ne!(whole.metric("frozen.step-control/alignment")[3], 1.0);
    folder
        .train("today", &args(&today()))
        .assert_same_files(&whole);
    // One of them takes up what the other left.
    folder.train("changed", &format!("{} --stop-after 2", args(&frozen())));
    let resume = format!(
        "train --resume changed --allow-changed-plugins --plugin {}",
        today().display()
    );
    folder.said(&resume);
    folder.run_dir("changed").assert_same_files(&whole);
}
