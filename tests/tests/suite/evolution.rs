//! Plugins of other revisions of `capo-plugin`: the example plugin, built against changed copies of it.

use std::path::{Path, PathBuf};

use insta::assert_snapshot;
use tests::{Folder, artifacts};

use crate::ONE_STEP;

/// A copy of `capo-plugin` and of the example plugin, in a workspace of their own.
struct Copy {
    name: &'static str,
    root: PathBuf,
}

impl Copy {
    fn new(name: &'static str) -> Self {
        let root = artifacts::target().join("evolution").join(name);
        let copy = Self { name, root };
        let source = artifacts::workspace();
        let manifest = std::fs::read_to_string(source.join("Cargo.toml")).unwrap();
        let (_, settings) = manifest.split_once("[workspace.package]").unwrap();
        let (settings, _) = settings.split_once("[profile.").unwrap();
        let members = "[workspace]\nresolver = \"3\"\nmembers = [\"capo-plugin\"]\nexclude = [\"plugins/examples\"]\n";
        copy.write("Cargo.toml", &format!("{members}\n[workspace.package]{settings}"));
        let example = "plugins/examples/surprise-cap";
        for folder in ["capo-plugin", "capo-plugin/src", "capo-plugin/src/testing", example, &format!("{example}/src")]
        {
            for entry in std::fs::read_dir(source.join(folder)).unwrap() {
                let path = entry.unwrap().path();
                if path.is_file() {
                    let name = path.strip_prefix(&source).unwrap().to_str().unwrap().to_owned();
                    copy.write(&name, &std::fs::read_to_string(&path).unwrap());
                }
            }
        }
        copy.change(&format!("{example}/Cargo.toml"), "[lib]\n", &format!("[lib]\nname = \"{name}\"\n"))
    }

    /// Writes a file unless it is there already, so that cargo has nothing to do for a copy that it knows.
    fn write(&self, name: &str, text: &str) {
        let path = self.root.join(name);
        if std::fs::read_to_string(&path).is_ok_and(|old| old == text) {
            return;
        }
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn change(self, file: &str, from: &str, to: &str) -> Self {
        let text = std::fs::read_to_string(self.root.join(file)).unwrap();
        assert!(text.contains(from), "`{file}` holds no `{from}`");
        self.write(file, &text.replacen(from, to, 1));
        self
    }

    /// As if `capo-plugin` had this version.
    fn version(self, version: &str) -> Self {
        let (from, to) = ("version = \"1.0.0\"", format!("version = \"{version}\""));
        let locked = format!("name = \"capo-plugin\"\n{from}");
        let changed = format!("name = \"capo-plugin\"\n{to}");
        self.change("capo-plugin/Cargo.toml", from, &to).change(
            "plugins/examples/surprise-cap/Cargo.lock",
            &locked,
            &changed,
        )
    }

    /// The plugin built on it.
    fn build(self) -> PathBuf {
        // The example's own target folder: both have their dependencies in common.
        let target = artifacts::target().join("examples");
        let manifest = self.root.join("plugins/examples/surprise-cap/Cargo.toml");
        artifacts::cargo(&manifest, &target, &["--locked", "--offline"])
            .or_else(|_| artifacts::cargo(&manifest, &target, &["--locked"]))
            .expect("the changed copy builds");
        target.join("debug").join(format!("lib{}.so", self.name))
    }
}

/// What `host plugins` says about a plugin, its path left out; with `--verbose`, the differences follow.
fn refused(library: &Path) -> String {
    let folder = Folder::new();
    let library = library.display().to_string();
    let sentence = folder.host(&format!("plugins --plugin {library}")).refused();
    assert!(sentence.lines().count() == 1, "one sentence without `--verbose`: {sentence}");
    let verbose = folder.host(&format!("--verbose plugins --plugin {library}")).refused();
    assert!(verbose.starts_with(&sentence), "{verbose}");
    assert!(verbose.lines().count() > 1 || !sentence.contains("--verbose"), "{verbose}");
    sentence.replace(&library, "LIBRARY")
}

#[test]
fn a_later_minor_version_is_the_same_abi() {
    let library = Copy::new("later_minor").version("1.9.3").build();
    let folder = Folder::new();
    let train = |name: &str, library: &Path| {
        let mask = "mask=[{use=\"example.surprise-cap\",max_nats=0.5}]";
        folder.train(name, &format!("--plugin {} --set {mask} {ONE_STEP}", library.display()))
    };
    train("later", &library).assert_same(&train("own", &artifacts::example("dev")));
}

#[test]
fn another_major_version() {
    let library = Copy::new("other_major").version("2.0.0").build();
    assert_snapshot!(refused(&library), @"`LIBRARY` was built against capo-plugin 2.0.0, this host speaks 1.0.0 (rebuild it against `capo-plugin` 1.x; `--verbose` shows the differences)");
}

#[test]
fn another_root_revision() {
    let copy = Copy::new("other_root");
    let library = copy.change("capo-plugin/src/abi.rs", "ABI_VERSION: u32 = 1;", "ABI_VERSION: u32 = 2;").build();
    assert_snapshot!(refused(&library), @"`LIBRARY` speaks plugin ABI 2, this host speaks 1 (rebuild the plugin against `capo-plugin` 1.x)");
}

#[test]
fn another_layout_under_a_known_id() {
    let copy = Copy::new("other_layout");
    let library = copy.change("capo-plugin/src/tensor.rs", "pub lanes: u16,", "pub lanes: u32,").build();
    assert_snapshot!(refused(&library), @"`LIBRARY` has another layout under extension `capo.advantage/1` (rebuild it against a released `capo-plugin`)");
}

#[test]
fn a_plugin_from_before_the_reward_point() {
    let answer = "        REWARD_POINT => ROption::RSome(Extension::of(&REWARD)),\n";
    let library = Copy::new("before_rewards").change("capo-plugin/src/image.rs", answer, "").build();
    let folder = Folder::new();
    let train = |name: &str, library: &Path| {
        let mask = "mask=[{use=\"example.surprise-cap\",max_nats=0.5}]";
        folder.train(name, &format!("--plugin {} --set {mask} {ONE_STEP}", library.display()))
    };
    train("before", &library).assert_same(&train("own", &artifacts::example("dev")));
}

#[test]
fn another_layout_of_the_reward_point_alone() {
    let copy = Copy::new("other_rewards");
    let library = copy.change("capo-plugin/src/abi_reward.rs", "pub truncated: u8,", "pub truncated: u32,").build();
    assert_snapshot!(refused(&library), @"`LIBRARY` has another layout under extension `capo.reward/1` (rebuild it against a released `capo-plugin`)");
}
