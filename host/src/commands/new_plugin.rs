//! `host new-plugin`: makes a crate with one component that builds and passes its tests as it is.
//!
//! The files are copies of those in `templates/`, with `plugin-name` and a few similar words
//! replaced.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use capo_plugin::Point;
use capo_system::files;
use capo_system::folders::NewFolder;

use super::args::{NewPluginArgs, flag_name};
use super::vendor;
use crate::terminal::{say, word};

/// Names that cargo or rustc would refuse, or that would hide a dependency, with spaces between
/// them.
const TAKEN: &str = "as async await break const continue crate dyn else enum extern false fn for \
    gen if impl in let loop match mod move mut pub ref return self static struct super trait true \
    type unsafe use where while alloc core std test proc-macro capo-plugin serde insta";

/// Makes the crate, and prints the next steps.
pub(super) fn run(args: &NewPluginArgs) -> Result<()> {
    let point = Point::ALL
        .into_iter()
        .find(|point| flag_name(*point) == args.point)
        .unwrap_or(Point::Mask);
    let folder = create(args, point)?;
    let name = &args.name;
    let library = library(name);
    let setting = setting(name, point);
    let kind = point.name().replace('_', " ");
    let id = flag_name(point);
    say(&format!(
        "made `{}` with the {kind} `{name}.{id}`; next:",
        folder.display()
    ));
    say(&format!(
        "  cd {}\n  cargo test\n  cargo build --release",
        word(&folder)
    ));
    say(&format!(
        "  host train --plugin target/release/{library} {setting}"
    ));
    Ok(())
}

/// Writes the crate, whole or not at all, and returns its folder.
fn create(args: &NewPluginArgs, point: Point) -> Result<PathBuf> {
    let NewPluginArgs {
        name,
        dir,
        capo_plugin,
        ..
    } = args;
    check_name(name)?;
    let target = dir.join(name);
    // `calm` reads better than `./calm`.
    let target = target
        .strip_prefix(".")
        .map(Path::to_owned)
        .unwrap_or(target);
    ensure!(
        !target.exists(),
        "`{}` exists already (choose another name, or another `--dir`)",
        target.display()
    );
    let source = match capo_plugin {
        Some(given) => given_source(given)?,
        None => format!("path = \"{}\"", vendor::FOLDER),
    };
    let new = NewFolder::in_folder(dir)
        .with_context(|| format!("cannot make a folder in `{}`", dir.display()))?;
    let whole = new.path();
    fs::create_dir_all(whole.join("src/snapshots"))
        .with_context(|| format!("cannot make `{}`", whole.display()))?;
    for (file, template) in templates(point) {
        let [file, text] = [file, template].map(|text| fill(text, name, point, &source));
        files::write_atomic(&whole.join(file), text.as_bytes())?;
    }
    if capo_plugin.is_none() {
        vendor::write(&whole.join(vendor::FOLDER))?;
    }
    new.appear_as(Path::new(name))
        .with_context(|| format!("cannot make `{}`", target.display()))?;
    Ok(target)
}

/// Arguments of `host train` that use the component.
fn setting(name: &str, point: Point) -> String {
    let point_name = point.name();
    match point {
        Point::Weight | Point::StepControl => format!("--{0} {name}.{0}", flag_name(point)),
        Point::Reward | Point::Mask => {
            format!("--set '{point_name}=[{{use=\"{name}.{point_name}\"}}]'")
        }
        Point::Environment => {
            format!(
                "--set 'environment={{use=\"{name}.environment\"}}' --set \
                 'reward=[{{use=\"environment\"}}]'"
            )
        }
        Point::Advantage | Point::Objective => {
            format!("--set {point_name}.use={name}.{point_name}")
        }
    }
}

fn library(name: &str) -> String {
    format!("lib{}.so", name.replace('-', "_"))
}

/// A template's text; its name is that of the file in `templates/`.
macro_rules! template {
    ($($name:literal),+) => {
        include_str!(concat!("../../templates/", $($name),+))
    };
}

/// The files of a crate with a component at `point`.
fn templates(point: Point) -> [(&'static str, &'static str); 6] {
    macro_rules! of {
        ($point:literal) => {
            (
                template!($point, "/lib.rs"),
                template!($point, "/tests.rs"),
                template!($point, "/does_what_it_did.snap"),
            )
        };
    }
    let (component, tests, snapshot) = match point {
        Point::Environment => of!("environment"),
        Point::Reward => of!("reward"),
        Point::Advantage => of!("advantage"),
        Point::Objective => of!("objective"),
        Point::Mask => of!("mask"),
        Point::Weight => of!("weight"),
        Point::StepControl => of!("step_control"),
    };
    [
        (".gitignore", template!("gitignore")),
        ("Cargo.toml", template!("Cargo.toml.in")),
        ("README.md", template!("README.md")),
        ("src/lib.rs", component),
        ("src/tests.rs", tests),
        (
            "src/snapshots/plugin_name__tests__does_what_it_did.snap",
            snapshot,
        ),
    ]
}

fn fill(template: &str, name: &str, point: Point, source: &str) -> String {
    template
        .replace("plugin-source", source)
        .replace("plugin-setting", &setting(name, point))
        .replace("plugin-point", flag_name(point))
        .replace("plugin_name", &name.replace('-', "_"))
        .replace("plugin-name", name)
}

fn check_name(name: &str) -> Result<()> {
    let advice = "use lowercase letters, digits, `-` and `_`, a letter first";
    ensure!(!name.is_empty(), "the plugin's name is empty ({advice})");
    ensure!(
        name.len() <= 64,
        "the plugin's name has {} characters (at most 64)",
        name.chars().count()
    );
    let mut characters = name.chars();
    if let Some(other) =
        characters.find(|c| !(c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(*c)))
    {
        bail!("`{name}` cannot be the name of a crate: it has `{other}` ({advice})");
    }
    ensure!(
        name.starts_with(|c: char| c.is_ascii_lowercase()),
        "`{name}` cannot be the name of a crate: it does not start with a letter ({advice})"
    );
    let dashed = name.replace('_', "-");
    ensure!(
        TAKEN.split(' ').all(|taken| taken != dashed),
        "`{name}` is taken by Rust or by a dependency (choose another name)"
    );
    Ok(())
}

/// `text` as a dependency's source: a folder that contains `capo-plugin`, the URL of a repository
/// with it, else a version.
fn given_source(text: &str) -> Result<String> {
    if let Ok(path) = fs::canonicalize(text) {
        let manifest = fs::read_to_string(path.join("Cargo.toml")).unwrap_or_default();
        ensure!(
            manifest.contains("name = \"capo-plugin\""),
            "`--capo-plugin {text}` is not the folder of `capo-plugin` (give the one with its \
             Cargo.toml)"
        );
        return Ok(source("path", &path.to_string_lossy()));
    }
    if let Some(url) = git_url(text) {
        return Ok(source("git", &url));
    }
    let numbers = text
        .strip_prefix(['^', '~', '='])
        .unwrap_or(text)
        .split('.')
        .collect::<Vec<_>>();
    let is_number =
        |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    ensure!(
        numbers.len() <= 3 && numbers.iter().all(is_number),
        "`--capo-plugin {text}` is neither a folder nor a version nor a git URL (give a path to \
         `capo-plugin`, a version such as `1.0`, or a URL such as `https://...`)"
    );
    Ok(source("version", text))
}

/// The URL of a repository in cargo's form: `git@server:path` becomes an `ssh` URL. `None` if
/// `text` is not the URL of a repository.
fn git_url(text: &str) -> Option<String> {
    const SCHEMES: [&str; 5] = ["https://", "http://", "ssh://", "git://", "file://"];
    if SCHEMES.iter().any(|scheme| {
        text.strip_prefix(scheme)
            .is_some_and(|rest| !rest.is_empty())
    }) {
        return Some(text.to_owned());
    }
    let (server, path) = text.strip_prefix("git@")?.split_once(':')?;
    (!server.is_empty() && !path.is_empty())
        .then(|| format!("ssh://git@{server}/{}", path.trim_start_matches('/')))
}

/// `key = "value"`, quoted as TOML needs it.
fn source(key: &str, value: &str) -> String {
    format!("{key} = {}", toml::Value::String(value.to_owned()))
}
