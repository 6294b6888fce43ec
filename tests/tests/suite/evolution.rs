//! Plugins of other revisions of `capo-plugin`: the example plugin, built against changed copies of
//! it.

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
        copy.write(
            "Cargo.toml",
            &format!("{members}\n[workspace.package]{settings}"),
        );
        copy.take("capo-plugin");
        copy.take("plugins/examples");
        copy.change(
            "plugins/examples/surprise-cap/Cargo.toml",
            "[lib]\n",
            &format!("[lib]\nname = \"{name}\"\n"),
        )
    }

    /// Copies a folder of the workspace, without what was built in it.
    fn take(&self, folder: &str) {
        let source = artifacts::workspace().join(folder);
        // Old copies are removed, because a file that has moved would remain beside its successor.
        for old in std::fs::read_dir(self.root.join(folder))
            .into_iter()
            .flatten()
            .map(Result::unwrap)
        {
            if old.path().is_file() && !source.join(old.file_name()).exists() {
                std::fs::remove_file(old.path()).unwrap();
            }
        }
        for entry in std::fs::read_dir(source).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{folder}/{}", entry.file_name().to_str().unwrap());
            if entry.path().is_file() {
                self.write(&name, &std::fs::read_to_string(entry.path()).unwrap());
            } else if entry.file_name() != "target" {
                self.take(&name);
            }
        }
    }

    fn write(&self, name: &str, text: &str) {
        artifacts::put(&self.root.join(name), text);
    }

    fn change(self, file: &str, from: &str, to: &str) -> Self {
        let text = std::fs::read_to_string(self.root.join(file)).unwrap();
        assert!(text.contains(from), "`{file}` holds no `{from}`");
        self.write(file, &text.replacen(from, to, 1));
        self
    }

    /// Gives this version to the copy of `capo-plugin`.
    fn version(self, version: &str) -> Self {
        let (from, to) = ("version = \"1.0.0\"", format!("version = \"{version}\""));
        let locked = format!("name = \"capo-plugin\"\n{from}");
        let changed = format!("name = \"capo-plugin\"\n{to}");
        self.change("capo-plugin/Cargo.toml", from, &to).change(
            "plugins/examples/Cargo.lock",
            &locked,
            &changed,
        )
    }

    /// Builds the plugin against the copy.
    fn build(self) -> PathBuf {
        self.build_with(&[])
    }

    /// Builds the plugin against the copy, with more arguments for the compiler.
    fn build_with(self, rustc: &[&str]) -> PathBuf {
        // The build shares the example's target folder, because both have the same dependencies.
        let target = artifacts::target().join("examples");
        let folder = self.root.join("plugins/examples/surprise-cap");
        let args = |more: &[&'static str]| {
            [&["rustc", "--quiet", "--lib", "--locked"], more, &["--"]].concat()
        };
        let build = |more| artifacts::cargo_in(&folder, &target, &[&args(more), rustc].concat());
        build(&["--offline"])
            .or_else(|_| build(&[]))
            .expect("the changed copy builds");
        target.join("debug").join(format!("lib{}.so", self.name))
    }
}

/// The example plugin, built so that its panics abort. It panics if `max_nats` is 100 or more.
pub fn aborting() -> PathBuf {
    let (first, panic) = (
        "let mut largest = 0.0_f32;",
        "assert!(self.max_nats < 100.0, \"far too many\");",
    );
    let source = "plugins/examples/surprise-cap/src/lib.rs";
    let copy = Copy::new("aborting").change(source, first, &format!("{first} {panic}"));
    copy.build_with(&["-C", "panic=abort"])
}

/// The error of `host plugins` about a plugin, without the path. With `--verbose`, it lists the
/// differences.
fn refused(library: &Path) -> String {
    let folder = Folder::new();
    let library = library.display().to_string();
    let sentence = folder.refused(&format!("plugins --plugin {library}"));
    assert!(
        sentence.lines().count() == 1,
        "one sentence without `--verbose`: {sentence}"
    );
    let verbose = folder.refused(&format!("--verbose plugins --plugin {library}"));
    assert!(verbose.starts_with(&sentence), "{verbose}");
    assert!(
        verbose.lines().count() > 1 || !sentence.contains("--verbose"),
        "{verbose}"
    );
    sentence.replace(&library, "LIBRARY")
}

/// A later minor version may add a point, a method with a default, and an answer of every
/// component.
#[test]
#[ignore = "slow: it builds another capo-plugin; .ci/long runs it"]
fn a_later_minor_version_is_the_same_abi() {
    let point = "        RECIPES => ";
    let more = "        \"capo.later/1\" => ROption::RSome(Extension::of(&OWN_RECIPES)),\n";
    let method = "    /// State for a checkpoint;";
    let later = "    /// Later.\n    fn later(&self) {}\n\n";
    let answer = "        fn extension(&mut self, _id: RStr<'_>) -> ROption<Extension<'_>> {\n            ROption::RNone";
    let known = answer.replace(
        "ROption::RNone",
        "ROption::RSome(Extension::of(&self.answers.inputs))",
    );
    let library = Copy::new("later_minor")
        .version("1.9.3")
        .change(
            "capo-plugin/src/answers.rs",
            point,
            &format!("{more}{point}"),
        )
        .change(
            "capo-plugin/src/points/mask.rs",
            method,
            &format!("{later}{method}"),
        )
        .change("capo-plugin/src/points/shared.rs", answer, &known)
        .build();
    let folder = Folder::new();
    let train = |name: &str, library: &Path| {
        let mask = "mask=[{use=\"example.surprise-cap\",max_nats=0.5}]";
        folder.train(
            name,
            &format!("--plugin {} --set {mask} {ONE_STEP}", library.display()),
        )
    };
    train("later", &library).assert_same(&train("own", &artifacts::example("surprise-cap", "dev")));
}

#[test]
#[ignore = "slow: it builds other capo-plugins; .ci/long runs it"]
fn others_are_refused() {
    let library = Copy::new("other_major").version("2.0.0").build();
    assert_snapshot!(refused(&library), @"`LIBRARY` was built against capo-plugin 2.0.0, this host speaks 1.0.0 (rebuild it against `capo-plugin` 1.x; `--verbose` shows the differences)");
    let changed = |name, file, from, to| refused(&Copy::new(name).change(file, from, to).build());
    let (file, from, to) = (
        "capo-plugin/src/wire/image.rs",
        "ABI_VERSION: u32 = 1;",
        "ABI_VERSION: u32 = 2;",
    );
    assert_snapshot!(changed("other_root", file, from, to), @"`LIBRARY` speaks plugin ABI 2, this host speaks 1 (rebuild the plugin against `capo-plugin` 1.x)");
    // Each type counts behind the first id that holds it: a tensor is in every batch, a completion
    // in rollouts alone.
    let (file, from, to) = (
        "capo-plugin/src/tensor.rs",
        "pub lanes: u16,",
        "pub lanes: u32,",
    );
    assert_snapshot!(changed("other_layout", file, from, to), @"`LIBRARY` has another layout under extension `capo.advantage/1` (rebuild it against a released `capo-plugin`)");
    let (truncated, answer) = ("pub truncated: bool,", "pub answer: RStr<'a>,");
    let [from, to] =
        [(truncated, answer), (answer, truncated)].map(|(a, b)| format!("    {a}\n    {b}\n"));
    let file = "capo-plugin/src/wire/points.rs";
    assert_snapshot!(changed("other_rewards", file, &from, &to), @"`LIBRARY` has another layout under extension `capo.reward/1` (rebuild it against a released `capo-plugin`)");
    let field = "RVec<RecipeInfo>,";
    let copy = Copy::new("other_recipes").change(
        "capo-plugin/src/wire/image.rs",
        field,
        &format!("{field} pub more: u32,"),
    );
    let value = "recipes: described::recipes,";
    let library = copy.change(
        "capo-plugin/src/answers.rs",
        value,
        &format!("{value} more: 0,"),
    );
    assert_snapshot!(refused(&library.build()), @"`LIBRARY` has another layout under extension `capo.recipe/1` (rebuild it against a released `capo-plugin`)");
}
