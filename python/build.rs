//! With the feature `wheel`, which maturin turns on: puts the plugins that the wheel carries into
//! the package, `capo_rl/plugins`.
//!
//! A build script and no build backend, so that `pip install`, `maturin build` and
//! `maturin develop` all carry them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The packages whose libraries are carried.
const PLUGINS: [&str; 6] = [
    "capo",
    "capo-rewards",
    "drcapo",
    "governor",
    "masks",
    "reincapo",
];

/// Names a folder with libraries that are built already.
const BUILT: &str = "CAPO_WHEEL_PLUGINS";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_WHEEL").is_none() {
        return;
    }
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let workspace = package.parent().expect("the package lies in the workspace");
    for source in [
        "Cargo.lock",
        "capo-core",
        "capo-plugin",
        "math-answer",
        "plugins",
    ] {
        println!(
            "cargo:rerun-if-changed={}",
            workspace.join(source).display()
        );
    }
    println!("cargo:rerun-if-env-changed={BUILT}");
    let built = match env::var_os(BUILT) {
        Some(folder) => workspace.join(folder),
        None => build(workspace),
    };
    let folder = package.join("capo_rl/plugins");
    fs::create_dir_all(&folder).expect("the package's folder can be written");
    for plugin in PLUGINS {
        let name = format!(
            "{}{}{}",
            env::consts::DLL_PREFIX,
            plugin.replace('-', "_"),
            env::consts::DLL_SUFFIX
        );
        // One that is missing is put there again.
        println!("cargo:rerun-if-changed={}", folder.join(&name).display());
        place(&built.join(&name), &folder.join(&name));
    }
}

/// Builds the plugins, in a folder of their own: the one of this build is locked. The folder where
/// the libraries are.
fn build(workspace: &Path) -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace.join("target"), |folder| workspace.join(folder));
    let target = target.join("wheel");
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets it"));
    cargo
        .current_dir(workspace)
        .args(["build", "--target-dir"])
        .arg(&target);
    let mut folder = target;
    let cargos = |name: &str| env::var(name).expect("cargo sets it");
    let (triple, profile) = (cargos("TARGET"), cargos("PROFILE"));
    if triple != cargos("HOST") {
        cargo.args(["--target", &triple]);
        folder.push(triple);
    }
    if profile == "release" {
        cargo.arg("--release");
    }
    cargo.args(PLUGINS.iter().flat_map(|plugin| ["-p", plugin]));
    let status = cargo.status().expect("cargo can be started");
    assert!(
        status.success(),
        "the plugins could not be built (see cargo's messages)"
    );
    folder.join(profile)
}

/// Copies a library, unless the same is there: its time stays, and so nothing is built again.
fn place(from: &Path, to: &Path) {
    let bytes = fs::read(from)
        .unwrap_or_else(|error| panic!("`{}` cannot be read: {error}", from.display()));
    if fs::read(to).ok().as_deref() != Some(&bytes[..]) {
        fs::write(to, bytes)
            .unwrap_or_else(|error| panic!("`{}` cannot be written: {error}", to.display()));
    }
}
