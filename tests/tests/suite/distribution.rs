//! Folders of installed plugins, and the output of `host plugins` for programs.

use std::fmt::Write as _;

use insta::assert_snapshot;
use serde_json::{Value, json};
use tests::{Folder, artifacts};

use crate::loading::finds;

/// All plugins that come with `host`.
const ALL: &str = "--plugin libcapo.so --plugin libdrcapo.so --plugin libreincapo.so --plugin libgovernor.so \
                   --plugin libmasks.so";

/// A home folder with ReinCAPO's plugin in `place`.
fn home(place: &str) -> Folder {
    let folder = Folder::new();
    folder.write(
        place,
        std::fs::read(artifacts::file("libreincapo.so")).unwrap(),
    );
    let home = folder.path().to_owned();
    folder.env("HOME", home)
}

/// Output of `host plugins --json ARGS`.
fn listing(folder: &Folder, args: &str) -> Value {
    let said = folder
        .command(&format!("plugins --json {args}"))
        .output()
        .unwrap();
    assert!(said.status.success(), "{said:?}");
    serde_json::from_slice(&said.stdout).unwrap()
}

fn list<'a>(value: &'a Value, field: &str) -> &'a Vec<Value> {
    value[field]
        .as_array()
        .unwrap_or_else(|| panic!("`{field}` is no list: {value}"))
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field]
        .as_str()
        .unwrap_or_else(|| panic!("`{field}` is no text: {value}"))
}

#[test]
fn an_installed_plugin_is_found_by_its_name() {
    finds(
        &home(".local/share/capo/plugins/libmine.so"),
        "libmine.so",
        ".local/share/capo/plugins/libmine.so",
    );
    let moved = home("data/capo/plugins/libmine.so");
    let data = moved.path().join("data");
    finds(
        &moved.env("XDG_DATA_HOME", data),
        "libmine.so",
        "data/capo/plugins/libmine.so",
    );
    let none = home("libother.so");
    assert_snapshot!(none.refused("plugins --plugin libmine.so"), @"plugin `libmine.so` was not found; tried `./libmine.so`, `BUILD/libmine.so`, `FOLDER/.local/share/capo/plugins/libmine.so` (give its path, or name its folder in `CAPO_PLUGIN_PATH`)");
}

#[test]
fn an_installed_plugin_replaces_no_other() {
    let folder = home(".local/share/capo/plugins/libcapo.so");
    let comes_from = |folder: &Folder, place: &str| {
        let listed = folder.said("plugins --plugin libcapo.so");
        assert!(
            listed.contains(&format!("0.1.0, `{place}`")),
            "{place}: {listed}"
        );
    };
    comes_from(&folder, "BUILD/libcapo.so");
    let path = folder.path().join(".local/share/capo/plugins");
    comes_from(
        &folder.env("CAPO_PLUGIN_PATH", path),
        "FOLDER/.local/share/capo/plugins/libcapo.so",
    );
}

#[test]
fn lists_installed_plugins_without_opening_them() {
    let folder = Folder::new();
    for file in [
        "data/capo/plugins/libb.so",
        "data/capo/plugins/README.md",
        "listed/libb.so",
        "listed/liba.so",
    ] {
        folder.write(file, "no library");
    }
    let (data, listed) = (folder.path().join("data"), folder.path().join("listed"));
    let folder = folder
        .env("XDG_DATA_HOME", data)
        .env("CAPO_PLUGIN_PATH", &listed);
    let at = |name: &str, place: &str| json!({ "name": name, "path": folder.path().join(place) });
    let expected = json!([
        at("liba.so", "listed/liba.so"),
        at("libb.so", "listed/libb.so"),
        at("libb.so", "data/capo/plugins/libb.so")
    ]);
    assert_eq!(listing(&folder, "")["installed"], expected);
}

/// The text of `host plugins`, put together from the JSON.
fn as_text(listing: &Value) -> String {
    let origin = |of: &Value| {
        of["origin"]
            .as_object()
            .map_or("built in".to_owned(), |it| {
                format!("`{}`", it["path"].as_str().unwrap())
            })
    };
    let (mut out, mut point) = (String::new(), "");
    for one in list(listing, "components") {
        if text(one, "point") != point {
            let gap = if point.is_empty() { "" } else { "\n" };
            point = text(one, "point");
            writeln!(out, "{gap}{point}").unwrap();
        }
        let keys: Vec<_> = list(one, "keys")
            .iter()
            .map(|key| text(key, "name"))
            .collect();
        let keys = if keys.is_empty() {
            "no keys".to_owned()
        } else {
            format!("keys: {}", keys.join(", "))
        };
        writeln!(out, "  {:<24} {}", text(one, "id"), text(one, "about")).unwrap();
        writeln!(out, "{:27}{keys}", "").unwrap();
        writeln!(
            out,
            "{:27}from {} {}, {}",
            "",
            text(one, "package"),
            text(one, "version"),
            origin(one)
        )
        .unwrap();
    }
    writeln!(out, "\nrecipe").unwrap();
    for one in list(listing, "recipes") {
        writeln!(
            out,
            "  {:<24} {} ({})",
            text(one, "name"),
            text(one, "about"),
            origin(one)
        )
        .unwrap();
    }
    out
}

#[test]
fn json_agrees_with_the_lines() {
    let folder = Folder::new();
    for args in ["", ALL, "--plugin libmisbehave.so"] {
        let said = folder.command(&format!("plugins {args}")).output().unwrap();
        assert_eq!(
            as_text(&listing(&folder, args)),
            String::from_utf8(said.stdout).unwrap(),
            "{args}"
        );
    }
}

#[test]
fn json_describes_keys_inputs_and_files() {
    let folder = Folder::new();
    let all = listing(&folder, ALL);
    let verbose = folder.said(&format!("--verbose plugins {ALL}"));
    for one in list(&all, "components") {
        if let Some(inputs) = one["inputs"].as_array().filter(|inputs| !inputs.is_empty()) {
            let names: Vec<_> = inputs.iter().map(|name| name.as_str().unwrap()).collect();
            assert!(
                verbose.contains(&format!("asks for {}\n", names.join(", "))),
                "{one}"
            );
        }
        for key in list(one, "keys") {
            if key["required"].as_bool() == Some(true) {
                let known = [
                    "command",
                    "model_name_or_path",
                    "pattern",
                    "soft_punish_cache",
                ];
                assert!(known.contains(&text(key, "name")), "{key}");
                continue;
            }
            let search = &key["search"];
            let about = format!("  # {}", text(key, "about"));
            let range = match search["low"].as_f64().zip(search["high"].as_f64()) {
                Some((low, high)) => format!("search {low:?}..{high:?}]"),
                None => String::new(),
            };
            let line = |line: &&str| {
                line.trim_start()
                    .starts_with(&format!("{} ", text(key, "name")))
                    && line.contains(&about)
                    && line.ends_with(&range)
            };
            let defaults = verbose
                .lines()
                .filter(line)
                .map(|line| match line.split_once(" = ") {
                    Some((_, rest)) => {
                        serde_json::from_str(rest.split("  # ").next().unwrap()).unwrap()
                    }
                    None => Value::Null,
                });
            assert!(
                defaults
                    .into_iter()
                    .any(|default: Value| default == key["default"]),
                "{key}"
            );
        }
    }
    let searched = |one: &Value| {
        list(one, "keys")
            .iter()
            .any(|key| key["search"]["whole"] == false)
    };
    assert!(
        list(&all, "components").iter().any(searched),
        "no key says where to search"
    );
    let hashes = folder
        .command(&format!("plugins --hash {ALL}"))
        .output()
        .unwrap();
    let pins: String = list(&all, "plugins")
        .iter()
        .fold(String::new(), |out, plugin| {
            out + &format!(
                "{}@sha256:{}  {}\n",
                text(plugin, "path"),
                text(plugin, "sha256"),
                plugin["packages"][0].as_str().unwrap()
            )
        });
    assert_eq!(pins, String::from_utf8(hashes.stdout).unwrap());
    let capo = list(&all, "recipes")
        .iter()
        .find(|recipe| recipe["name"] == "capo-soft")
        .unwrap();
    assert_eq!(
        text(capo, "toml"),
        tests::text(&artifacts::workspace().join("plugins/capo/soft.toml"))
    );
    assert_eq!(capo["origin"]["sha256"], all["plugins"][0]["sha256"]);
    assert_eq!(
        folder.host(&format!("plugins --json --hash {ALL}")).code,
        Some(2)
    );
}
