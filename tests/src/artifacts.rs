//! The files under test. They are built when a test first asks for them, so that they are never
//! older than the sources.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::names;

/// The workspace's folder.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the package lies in the workspace")
        .to_owned()
}

/// The folder that holds `host` and every plugin of the workspace, all of the profile of this test
/// run. On a machine without the sources, such as one with a GPU, it holds the earlier build.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = profile_folder();
        let profile = match folder.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "dev",
            Some(name) => name,
        };
        let manifest = workspace().join("Cargo.toml");
        if !manifest.exists() {
            return folder;
        }
        // Built with the tests, so that dependencies keep the features that `cargo test` has
        // already built them with.
        cargo(
            &manifest,
            &target(),
            &[
                "--workspace",
                "--lib",
                "--bins",
                "--tests",
                "--profile",
                profile,
            ],
        )
        .expect("the workspace builds");
        folder
    })
}

/// Path of a file in [`folder`].
pub fn file(name: &str) -> PathBuf {
    folder().join(name)
}

/// The example plugin `name`, built as a third party would: outside this workspace. `profile` is
/// `dev` or `release`.
pub fn example(name: &str, profile: &str) -> PathBuf {
    let manifest = workspace()
        .join("plugins/examples")
        .join(name)
        .join("Cargo.toml");
    build(&manifest, &name.replace('-', "_"), profile)
}

/// Arguments that load these example plugins.
pub fn load_examples(names: &[&str]) -> String {
    names
        .iter()
        .map(|name| format!(" --plugin {}", example(name, "dev").display()))
        .collect()
}

/// The library `name` of the crate with `manifest`, built outside this workspace.
pub fn build(manifest: &Path, name: &str, profile: &str) -> PathBuf {
    let target = target().join("examples");
    cargo(
        manifest,
        &target,
        &["--locked", "--offline", "--profile", profile],
    )
    .or_else(|_| cargo(manifest, &target, &["--locked", "--profile", profile]))
    .expect("the plugin builds");
    target
        .join(if profile == "dev" { "debug" } else { profile })
        .join(format!("lib{name}.so"))
}

/// Writes a file unless it is there already, so that cargo has nothing to do for sources that it
/// knows.
pub fn put(path: &Path, text: &str) {
    if !std::fs::read_to_string(path).is_ok_and(|old| old == text) {
        std::fs::create_dir_all(path.parent().expect("a file has a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file is written");
    }
}

/// All files in `folder` and below, in the order of their paths.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let paths = names(folder).into_iter().map(|name| folder.join(name));
    paths
        .flat_map(|path| {
            if path.is_dir() {
                files(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

/// The folder `target/<profile>`; test executables are in its `deps`.
fn profile_folder() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    test.parent()
        .and_then(Path::parent)
        .expect("a test lies in `target/<profile>/deps`")
        .to_owned()
}

/// The target folder of this test run.
pub fn target() -> PathBuf {
    profile_folder()
        .parent()
        .expect("a profile's folder lies in the target folder")
        .to_owned()
}

/// Runs `cargo build`; an error has its output.
pub fn cargo(manifest: &Path, target: &Path, args: &[&str]) -> Result<(), String> {
    let folder = manifest.parent().expect("a manifest lies in a folder");
    cargo_in(folder, target, &[&["build", "--quiet"], args].concat())
}

/// Runs `cargo ARGS` in `folder`; an error has its output.
pub fn cargo_in(folder: &Path, target: &Path, args: &[&str]) -> Result<(), String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(folder);
    clean(&mut command, target);
    let output = command
        .output()
        .map_err(|error| format!("cargo cannot be run: {error}"))?;
    let said = || {
        [output.stdout.as_slice(), &output.stderr]
            .map(String::from_utf8_lossy)
            .concat()
    };
    if output.status.success() {
        Ok(())
    } else {
        Err(said())
    }
}

/// Sets the target folder of the cargo that `command` starts, and removes variables that are meant
/// only for this test.
pub fn clean(command: &mut Command, target: &Path) {
    command.env("CARGO_TARGET_DIR", target);
    // Variables that cargo set for this test's own package must not reach that build.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        let ours = ["CARGO_PKG_", "CARGO_MANIFEST_", "INSTA_"]
            .iter()
            .any(|prefix| name.starts_with(prefix));
        if ours || name == "LD_LIBRARY_PATH" {
            command.env_remove(name.as_ref());
        }
    }
}
