//! `host new-plugin`: what it makes builds, passes its tests and runs; what it refuses.

use insta::assert_snapshot;
use tests::{Folder, artifacts};

use crate::ONE_STEP;

/// Makes a plugin at `point`, runs its tests, builds it, checks it and trains one step with it, as its README says.
fn made(point: &str) -> Folder {
    let folder = Folder::new();
    let name = format!("my-{point}");
    // At the same place in every run, so that cargo replaces what it built there before.
    let dir = artifacts::target().join("new-plugins");
    let crate_folder = dir.join(&name);
    if crate_folder.exists() {
        std::fs::remove_dir_all(&crate_folder).unwrap();
    }
    let said = folder.host(&format!("new-plugin {name} --point {point} --dir {}", dir.display())).succeeded().stdout;
    // The versions that this repository is tested with, so that nothing is fetched.
    std::fs::copy(artifacts::workspace().join("Cargo.lock"), crate_folder.join("Cargo.lock")).unwrap();
    let target = artifacts::target().join("examples");
    let run = |words: &[&str]| artifacts::cargo_in(&crate_folder, &target, words);
    // A toolchain may come without rustfmt; where this one's settings lie above the folder, they are not the plugin's.
    std::fs::write(crate_folder.join("rustfmt.toml"), "").unwrap();
    if run(&["fmt", "--version"]).is_ok() {
        run(&["fmt", "--check"]).unwrap();
    }
    run(&["test", "--offline", "--quiet"]).unwrap();
    run(&["build", "--offline", "--quiet"]).unwrap();
    let library = target.join("debug").join(format!("libmy_{point}.so"));
    let checked = folder.host(&format!("check {}", library.display())).succeeded().stdout;
    assert!(checked.trim_end().ends_with("0 skipped, 0 warning, 0 failed, 0 crashed"), "{checked}");
    let (_, setting) = said.trim_end().split_once(&format!("libmy_{point}.so ")).expect("it says how to use it");
    let readme = std::fs::read_to_string(crate_folder.join("README.md")).unwrap();
    assert!(readme.contains(setting), "{readme}");
    assert!(!readme.contains("plugin-") && !readme.contains("plugin_name"), "{readme}");
    let args = format!("--plugin {} {} {ONE_STEP}", library.display(), setting.replace('\'', ""));
    let run = folder.train("run", &args);
    let config = std::fs::read_to_string(run.path().join("config.toml")).unwrap();
    assert!(config.contains(&format!("use = \"my-{point}.{point}\"")), "{config}");
    folder
}

#[test]
fn a_mask() {
    let folder = made("mask");
    let run = folder.run_dir("run");
    assert!(run.metric("my-mask.mask/surprise/max")[0] > 0.5);
    assert_eq!(run.metric("my-mask.mask/rejection_rate"), [0.0]);
}

#[test]
fn an_advantage() {
    assert_eq!(made("advantage").run_dir("run").metric("advantage_limited"), [0.0]);
}

#[test]
fn an_objective() {
    assert_eq!(made("objective").run_dir("run").metric("ratio_limited"), [0.0]);
}

#[test]
fn a_reward() {
    let folder = made("reward");
    let run = folder.run_dir("run");
    let (right, mean) =
        (run.metric("rewards/my-reward.reward/right")[0], run.metric("rewards/my-reward.reward/mean")[0]);
    assert!(0.5 < right && mean < right && right - mean < 0.2, "{right} {mean}");
}

#[test]
fn what_it_says() {
    let folder = Folder::new();
    assert_snapshot!(folder.host("new-plugin calm --dir plugins --capo-plugin 1.0").succeeded().stdout, @r#"
    made `plugins/calm` with the mask `calm.mask`; next:
      cd plugins/calm
      cargo test
      cargo build --release
      host train --plugin target/release/libcalm.so --set 'mask=[{use="calm.mask"}]'
    "#);
    let made = folder.path().join("plugins/calm");
    let manifest = std::fs::read_to_string(made.join("Cargo.toml")).unwrap();
    assert!(manifest.contains("capo-plugin = { version = \"1.0\" }"), "{manifest}");
    let mut files = Vec::new();
    for folder in [made.clone(), made.join("src")] {
        files.extend(std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()));
    }
    files.sort();
    assert_eq!(files, [".gitignore", "Cargo.toml", "README.md", "lib.rs", "src", "tests.rs"]);
    assert_eq!(std::fs::read_dir(folder.path().join("plugins")).unwrap().count(), 1, "nothing else is left there");
    // A folder of `capo-plugin`, by default the one that `host` was built from.
    let own = artifacts::workspace().join("capo-plugin");
    for args in ["new-plugin own".to_owned(), format!("new-plugin given --capo-plugin {}", own.display())] {
        let _ = folder.host(&args).succeeded();
        let name = args.split(' ').nth(1).unwrap();
        let manifest = std::fs::read_to_string(folder.path().join(name).join("Cargo.toml")).unwrap();
        assert!(manifest.contains(&format!("capo-plugin = {{ path = \"{}\" }}", own.display())), "{manifest}");
    }
}

#[test]
fn what_it_refuses() {
    let folder = Folder::new();
    let refused = |args: &str| folder.host(&format!("new-plugin {args}")).refused();
    assert_snapshot!(refused("Calm"), @"`Calm` is no name of a crate: it holds `C` (use lowercase letters, digits, `-` and `_`, a letter first)");
    assert_snapshot!(refused("9lives"), @"`9lives` is no name of a crate: it does not start with a letter (use lowercase letters, digits, `-` and `_`, a letter first)");
    assert_snapshot!(refused("calm.mask"), @"`calm.mask` is no name of a crate: it holds `.` (use lowercase letters, digits, `-` and `_`, a letter first)");
    assert_snapshot!(refused("../calm"), @"`../calm` is no name of a crate: it holds `.` (use lowercase letters, digits, `-` and `_`, a letter first)");
    assert_snapshot!(refused("match"), @"`match` is taken by Rust or by a dependency (choose another name)");
    assert_snapshot!(refused("capo_plugin"), @"`capo_plugin` is taken by Rust or by a dependency (choose another name)");
    assert_snapshot!(refused(&"a".repeat(65)), @"the plugin's name has 65 characters (at most 64)");
    assert_snapshot!(refused("calm --capo-plugin ."), @"`--capo-plugin .` is not the folder of `capo-plugin` (give the one with its Cargo.toml)");
    assert_snapshot!(refused("calm --capo-plugin nowhere/capo-plugin"), @"`--capo-plugin nowhere/capo-plugin` is neither a folder nor a version (give a path to `capo-plugin`, or a version such as `1.0`)");
    assert_snapshot!(refused("calm --capo-plugin 1.0.0.0"), @"`--capo-plugin 1.0.0.0` is neither a folder nor a version (give a path to `capo-plugin`, or a version such as `1.0`)");
    assert_snapshot!(refused("calm --point filter").lines().next().unwrap(), @"invalid value 'filter' for '--point <POINT>'");
    folder.write("taken/file", "");
    assert_snapshot!(refused("taken"), @"`taken` exists already (choose another name, or another `--dir`)");
    folder.write("file", "");
    assert_snapshot!(refused("calm --dir file"), @"cannot make `file`: File exists (os error 17)");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "a refusal leaves nothing behind");
}
