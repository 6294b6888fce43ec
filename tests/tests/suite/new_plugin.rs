//! `host new-plugin`: its plugins build, pass their tests and run, and bad input is refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use insta::assert_snapshot;
use tests::{Folder, artifacts, names};

use crate::ONE_STEP;
use crate::refused::assert_refused;

/// Makes a plugin at `point`, runs its tests, builds it, checks it and trains one step with it, as
/// its README says.
fn made(point: &str) -> Folder {
    let folder = Folder::new();
    let name = format!("my-{point}");
    // The place is the same each time, so that cargo reuses what it built there before.
    let dir = artifacts::target().join("new-plugins");
    let crate_folder = dir.join(&name);
    if crate_folder.exists() {
        std::fs::remove_dir_all(&crate_folder).unwrap();
    }
    let said = folder.said(&format!(
        "new-plugin {name} --point {point} --dir {}",
        dir.display()
    ));
    // The lock file of this repository, so that nothing is downloaded.
    std::fs::copy(
        artifacts::workspace().join("Cargo.lock"),
        crate_folder.join("Cargo.lock"),
    )
    .unwrap();
    let target = artifacts::target().join("examples");
    let run = |words: &[&str]| artifacts::cargo_in(&crate_folder, &target, words);
    // A toolchain may come without rustfmt. The plugin has its own settings, so those of this
    // repository do not apply.
    std::fs::write(crate_folder.join("rustfmt.toml"), "").unwrap();
    if run(&["fmt", "--version"]).is_ok() {
        run(&["fmt", "--check"]).unwrap();
    }
    assert_no_checkout(&crate_folder);
    run(&["test", "--offline", "--quiet"]).unwrap();
    run(&["build", "--offline", "--quiet"]).unwrap();
    let file = format!("libmy_{}.so", point.replace('-', "_"));
    let library = target.join("debug").join(&file);
    let checked = folder.said(&format!("check {}", library.display()));
    assert!(
        checked
            .trim_end()
            .ends_with("0 skipped, 0 warning, 0 failed, 0 crashed"),
        "{checked}"
    );
    let (_, setting) = said
        .trim_end()
        .split_once(&format!("{file} "))
        .expect("it says how to use it");
    let readme = std::fs::read_to_string(crate_folder.join("README.md")).unwrap();
    assert!(readme.contains(setting), "{readme}");
    assert!(
        !readme.contains("plugin-") && !readme.contains("plugin_name"),
        "{readme}"
    );
    let args = format!(
        "--plugin {} {} {ONE_STEP}",
        library.display(),
        setting.replace('\'', "")
    );
    let run = folder.train("run", &args);
    let config = run.text("config.toml");
    assert!(
        config.contains(&format!("use = \"my-{point}.{point}\"")),
        "{config}"
    );
    folder
}

/// No file names the checkout from which `host` was built, so the crate also builds without it.
fn assert_no_checkout(folder: &Path) {
    let checkout = artifacts::workspace().display().to_string();
    for file in artifacts::files(folder) {
        let text = tests::text(&file);
        assert!(
            !text.contains(&checkout) && !text.contains("workspace = true"),
            "{}",
            file.display()
        );
    }
}

/// Output of `cargo ARGS` in the checkout.
fn cargo_says(args: &[&str]) -> String {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    artifacts::clean(&mut command, &artifacts::target().join("package"));
    let output = command
        .args(args)
        .current_dir(artifacts::workspace())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// A fresh folder with a crate and its copy of `capo-plugin`.
fn carried() -> (Folder, PathBuf) {
    let folder = Folder::new();
    folder.said("new-plugin calm");
    let vendored = folder.path().join("calm/vendor/capo-plugin");
    (folder, vendored)
}

#[test]
fn carries_the_files_that_cargo_packs() {
    let (_folder, vendored) = carried();
    let packed = |package: &str| {
        let flags = ["package", "--list", "--allow-dirty", "--offline", "-p"];
        cargo_says(&[&flags[..], &[package]].concat())
    };
    let macros = packed("capo-plugin-derive");
    let names = macros.lines().map(|name| format!("derive/{name}"));
    let packed = packed("capo-plugin");
    let names: Vec<String> = packed.lines().map(str::to_owned).chain(names).collect();
    // Cargo makes these files, or dependents never build them.
    let left_out = |name: &&String| {
        let name = name.trim_start_matches("derive/");
        let made = [".cargo_vcs_info.json", "Cargo.lock", "Cargo.toml.orig"].contains(&name);
        made || ["tests/", "benches/", "examples/"]
            .iter()
            .any(|folder| name.starts_with(folder))
    };
    let expected: Vec<&String> = names.iter().filter(|name| !left_out(name)).collect();
    for name in &expected {
        let text =
            std::fs::read(vendored.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        if !name.ends_with("Cargo.toml") {
            assert!(
                text == std::fs::read(artifacts::workspace().join("capo-plugin").join(name))
                    .unwrap(),
                "{name}"
            );
        }
    }
    assert_eq!(artifacts::files(&vendored).len(), expected.len());
}

#[test]
fn its_manifest_agrees_with_the_package() {
    let (_folder, vendored) = carried();
    let flags = [
        "--no-verify",
        "--exclude-lockfile",
        "--allow-dirty",
        "--offline",
        "--quiet",
        "-p",
        "capo-plugin",
    ];
    let _ = cargo_says(&[&["package"][..], &flags].concat());
    let ours: toml::Table = std::fs::read_to_string(vendored.join("Cargo.toml"))
        .unwrap()
        .parse()
        .unwrap();
    let name = format!(
        "capo-plugin-{}",
        ours["package"]["version"].as_str().unwrap()
    );
    let archive = artifacts::target().join(format!("package/package/{name}.crate"));
    let unpack = Command::new("tar")
        .arg("-xOzf")
        .arg(archive)
        .arg(format!("{name}/Cargo.toml"))
        .output()
        .unwrap();
    let packed: toml::Table = String::from_utf8(unpack.stdout).unwrap().parse().unwrap();
    let plain = |value: &toml::Value| match value {
        toml::Value::String(version) => {
            toml::Table::from_iter([("version".into(), version.clone().into())]).into()
        }
        toml::Value::Table(table) => {
            let without_path = table.clone().into_iter().filter(|(key, _)| key != "path");
            toml::Table::from_iter(without_path).into()
        }
        other => other.clone(),
    };
    let dependencies = |table: &toml::Table| -> BTreeMap<String, toml::Value> {
        let listed = table["dependencies"].as_table().unwrap();
        listed
            .iter()
            .map(|(name, value)| (name.clone(), plain(value)))
            .collect()
    };
    assert_eq!(dependencies(&ours), dependencies(&packed));
    for key in [
        "name",
        "version",
        "edition",
        "rust-version",
        "license",
        "description",
    ] {
        assert_eq!(
            ours["package"].get(key),
            packed["package"].get(key),
            "{key}"
        );
    }
    assert_eq!(ours["lints"], packed["lints"]);
}

#[test]
fn a_new_mask_builds_and_passes_the_checks() {
    let folder = made("mask");
    let run = folder.run_dir("run");
    assert!(run.metric("my-mask.mask/surprise/max")[0] > 0.5);
    assert_eq!(run.metric("my-mask.mask/rejection_rate"), [0.0]);
}

#[test]
#[ignore = "slow: it builds crates and their dependencies; .ci/long runs it"]
fn every_other_point() {
    let metric = |point: &str, name: &str| made(point).run_dir("run").metric(name);
    let means = metric("weight", "my-weight.weight/mean");
    assert!(
        means.iter().all(|mean| (0.5..1.0).contains(mean)),
        "{means:?}"
    );
    assert_eq!(metric("advantage", "advantage_limited"), [0.0]);
    assert_eq!(metric("objective", "ratio_limited"), [0.0]);
    assert!((1.0..=8.0).contains(&metric("environment", "environment/turns")[0]));
    let folder = made("reward");
    let [right, mean] = ["right", "mean"].map(|name| {
        folder
            .run_dir("run")
            .metric(&format!("rewards/my-reward.reward/{name}"))[0]
    });
    assert!(
        0.5 < right && mean < right && right - mean < 0.2,
        "{right} {mean}"
    );
    let folder = made("step-control");
    let run = folder.run_dir("run");
    // The first step of a warm-up moves nothing.
    assert_eq!(run.metric("my-step-control.step-control/applied"), [1.0]);
    // Two passes over the same policy may differ by rounding.
    assert!(run.metric("my-step-control.step-control/kl")[0].abs() < 1e-12);
}

#[test]
fn prints_what_to_do_next() {
    let folder = Folder::new();
    assert_snapshot!(folder.said("new-plugin calm --dir plugins --capo-plugin 1.0"), @r#"
    made `plugins/calm` with the mask `calm.mask`; next:
      cd plugins/calm
      cargo test
      cargo build --release
      host train --plugin target/release/libcalm.so --set 'mask=[{use="calm.mask"}]'
    "#);
    let made = folder.path().join("plugins/calm");
    let manifest = std::fs::read_to_string(made.join("Cargo.toml")).unwrap();
    assert!(
        manifest.contains("capo-plugin = { version = \"1.0\" }"),
        "{manifest}"
    );
    assert!(
        names(&made)
            .into_iter()
            .eq([".gitignore", "Cargo.toml", "README.md", "src"])
    );
    assert!(
        names(&made.join("src"))
            .into_iter()
            .eq(["lib.rs", "snapshots", "tests.rs"])
    );
    assert_eq!(
        names(&folder.path().join("plugins")).len(),
        1,
        "nothing else is left there"
    );
    let source = |name: &str, args: &str| {
        folder.said(&format!("new-plugin {name} {args}"));
        let made = folder.path().join(name);
        let manifest = std::fs::read_to_string(made.join("Cargo.toml")).unwrap();
        assert_eq!(made.join("vendor").exists(), args.is_empty(), "{args}");
        manifest
            .lines()
            .find(|line| line.starts_with("capo-plugin = "))
            .unwrap()
            .to_owned()
    };
    let own = artifacts::workspace()
        .join("capo-plugin")
        .display()
        .to_string();
    assert_eq!(
        source("given", &format!("--capo-plugin {own}")),
        format!("capo-plugin = {{ path = \"{own}\" }}")
    );
    assert_snapshot!(source("own", ""), @r#"capo-plugin = { path = "vendor/capo-plugin" }"#);
    assert_snapshot!(source("exact", "--capo-plugin =1.0.0"), @r#"capo-plugin = { version = "=1.0.0" }"#);
    assert_snapshot!(source("hub", "--capo-plugin https://example.org/capo.git"), @r#"capo-plugin = { git = "https://example.org/capo.git" }"#);
    assert_snapshot!(source("local", "--capo-plugin file:///srv/capo"), @r#"capo-plugin = { git = "file:///srv/capo" }"#);
    assert_snapshot!(source("short", "--capo-plugin git@example.org:team/capo.git"), @r#"capo-plugin = { git = "ssh://git@example.org/team/capo.git" }"#);
}

#[test]
fn refuses_bad_names_and_folders() {
    let folder = Folder::new();
    folder.write("taken/file", "");
    folder.write("file", "");
    assert_refused("new_plugin", &folder);
}
