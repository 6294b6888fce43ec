//! The files that are accepted as plugins: pins, the files with which a run began, and files that
//! anybody may change.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use capo_system::files::sha256_hex;
use insta::assert_snapshot;
use serde_json::Value;
use tests::{Folder, artifacts};

use crate::ONE_STEP;

/// A fresh folder with `plugin` as `libmine.so`, and its SHA-256.
fn with(plugin: &str) -> (Folder, String) {
    let folder = Folder::new();
    let bytes = fs::read(artifacts::file(plugin)).unwrap();
    folder.write("libmine.so", &bytes);
    (folder, sha256_hex(&bytes))
}

/// Replaces `libmine.so` by a file that no host could load. Errors about a refusal before loading
/// do not mention this.
fn replace(folder: &Folder) -> String {
    let bytes = b"\x7fELF and no more";
    folder.write("libmine.so", bytes);
    sha256_hex(bytes)
}

/// The plugins in `provenance.json` of a run, paths by their names and hashes by `HASH`.
fn provenance(run: &Path) -> String {
    let mut whole: Value = tests::json(&run.join("provenance.json"));
    let mut value = whole["periods"].take();
    for period in value.as_array_mut().unwrap() {
        assert!(period.as_object_mut().unwrap().remove("settings").is_some());
    }
    for plugin in value
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .flat_map(|period| period["plugins"].as_array_mut().unwrap())
    {
        let path = Path::new(plugin["path"].as_str().unwrap());
        assert!(path.is_absolute(), "{plugin}");
        plugin["path"] = path.file_name().unwrap().to_str().unwrap().into();
        assert_eq!(plugin["sha256"].as_str().unwrap().len(), 64, "{plugin}");
        plugin["sha256"] = "HASH".into();
    }
    value.to_string()
}

#[test]
fn a_pin_accepts_its_file_and_no_other() {
    let (folder, hash) = with("libreincapo.so");
    let listed = folder.said(&format!("plugins --plugin libmine.so@sha256:{hash}"));
    assert!(listed.contains("reincapo.curvature"), "{listed}");
    let upper = hash.to_uppercase();
    folder.said(&format!("plugins --plugin libmine.so@sha256:{upper}"));
    let other = replace(&folder);
    let mut command = folder.command(&format!("plugins --plugin libmine.so@sha256:{hash}"));
    let raw = String::from_utf8(command.output().unwrap().stderr).unwrap();
    assert!(
        raw.contains(&format!("has SHA-256 {other} but is pinned to {hash} (")),
        "{raw}"
    );
    assert_snapshot!(folder.refused(&format!("train --plugin libmine.so@sha256:{hash}")), @"plugin `FOLDER/libmine.so` has SHA-256 HASH but is pinned to HASH (get the file that was pinned, or pin this one if you trust it)");
}

#[test]
fn refuses_bad_pins() {
    let folder = Folder::new();
    let refused = |pin: &str| folder.refused(&format!("plugins --plugin libcapo.so@sha256:{pin}"));
    assert_snapshot!(refused("12ab"), @"`--plugin libcapo.so@sha256:12ab` is not pinned to a SHA-256: `12ab` is not 64 hexadecimal digits (`host plugins --hash --plugin libcapo.so` prints them)");
    for pin in ["", &"g".repeat(64), &"0".repeat(63), &"é".repeat(32)] {
        assert!(refused(pin).contains("is not pinned to a SHA-256"), "{pin}");
    }
    let hash = "0".repeat(64);
    assert_snapshot!(folder.refused(&format!("plugins --plugin libnone.so@sha256:{hash}")), @"plugin `libnone.so` was not found; tried `./libnone.so`, `BUILD/libnone.so` (give its path, or name its folder in `CAPO_PLUGIN_PATH`)");
}

#[test]
fn the_printed_pin_is_accepted() {
    let (folder, hash) = with("libcapo.so");
    let args = "plugins --hash --plugin libmine.so --plugin libmisbehave.so";
    assert_snapshot!(folder.said(args), @"
    FOLDER/libmine.so@sha256:HASH  capo 0.1.0
    BUILD/libmisbehave.so@sha256:HASH  misbehave 0.1.0
    ");
    let raw = String::from_utf8(folder.command(args).output().unwrap().stdout).unwrap();
    let pins: Vec<&str> = raw
        .lines()
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    assert!(
        pins[0].ends_with(&format!("libmine.so@sha256:{hash}")),
        "{raw}"
    );
    let pinned = format!("plugins --plugin {} --plugin {}", pins[0], pins[1]);
    let listed = folder.said(&pinned);
    assert!(
        listed.contains("misbehave.mask") && listed.contains("capo.curvature"),
        "{listed}"
    );
    let none = folder.refused("plugins --hash");
    assert!(none.contains("--plugin <LIB>"), "{none}");
}

#[test]
fn a_run_records_what_made_it() {
    let (folder, hash) = with("libcapo.so");
    let args = "--plugin libmine.so --plugin libmisbehave.so --set recipe=capo";
    let run = folder.train("run", &format!("{args} {ONE_STEP}"));
    assert_snapshot!(provenance(run.path()), @r#"[{"from_step":0,"plugins":[{"components":["capo.advantage","capo.objective","capo.curvature","capo.curvature-weight"],"packages":["capo 0.1.0"],"path":"libmine.so","sha256":"HASH"},{"components":["misbehave.environment","misbehave.reward","misbehave.advantage","misbehave.objective","misbehave.mask","misbehave.weight","misbehave.control"],"packages":["misbehave 0.1.0"],"path":"libmisbehave.so","sha256":"HASH"}]}]"#);
    assert!(run.text("provenance.json").contains(&hash));
    assert_eq!(
        provenance(folder.train("bare", ONE_STEP).path()),
        r#"[{"from_step":0,"plugins":[]}]"#
    );
}

#[test]
fn a_resume_takes_only_the_same_file() {
    let (folder, _) = with("libcapo.so");
    let args = "--set train.max_steps=9 --set eval.num_prompts=0 --set train.save_steps=1";
    let run = folder.train("run", &format!("--plugin libmine.so {args} --stop-after 1"));
    let before = provenance(run.path());
    folder.said("train --resume run --stop-after 2");
    assert_eq!(provenance(run.path()), before);
    // The file may move. From then on it is looked for at its new place.
    fs::rename(
        folder.path().join("libmine.so"),
        folder.path().join("libmoved.so"),
    )
    .unwrap();
    assert_snapshot!(folder.refused("train --resume run"), @"plugin `FOLDER/libmine.so` was not found; tried `FOLDER/libmine.so` (give its path, or name its folder in `CAPO_PLUGIN_PATH`)");
    folder.said("train --resume run --plugin libmoved.so --stop-after 3");
    folder.said("train --resume run --stop-after 4");
    fs::rename(
        folder.path().join("libmoved.so"),
        folder.path().join("libmine.so"),
    )
    .unwrap();
    folder.said("train --resume run --plugin libmine.so --stop-after 5");
    let before = provenance(run.path());
    assert_snapshot!(before, @r#"[{"from_step":0,"plugins":[{"components":["capo.advantage","capo.objective","capo.curvature","capo.curvature-weight"],"packages":["capo 0.1.0"],"path":"libmine.so","sha256":"HASH"}]},{"from_step":2,"plugins":[{"components":["capo.advantage","capo.objective","capo.curvature","capo.curvature-weight"],"packages":["capo 0.1.0"],"path":"libmoved.so","sha256":"HASH"}]},{"from_step":4,"plugins":[{"components":["capo.advantage","capo.objective","capo.curvature","capo.curvature-weight"],"packages":["capo 0.1.0"],"path":"libmine.so","sha256":"HASH"}]}]"#);
    replace(&folder);
    assert_snapshot!(folder.refused("train --resume run"), @"plugin `FOLDER/libmine.so` has changed since the run used it: it was capo 0.1.0 with SHA-256 HASH and now has SHA-256 HASH (put the old file back; `--allow-changed-plugins` goes on with this file)");
    assert_snapshot!(folder.refused("train --resume run --plugin libdrcapo.so"), @"plugin `BUILD/libdrcapo.so` with SHA-256 HASH is none of those that the run used (give their files; `--allow-changed-plugins` goes on with this file)");
    assert_eq!(provenance(run.path()), before, "a refusal changes nothing");
    assert_eq!(run.metrics().len(), 5);
}

#[test]
fn resumes_with_a_changed_plugin_if_told_to() {
    let (folder, _) = with("libcapo.so");
    let two = "--set train.max_steps=2 --set eval.num_prompts=0 --set train.save_steps=1";
    let run = folder.train("run", &format!("--plugin libmine.so {two} --stop-after 1"));
    // Bytes after the mapped part make another file with the same behaviour.
    let mut bytes = fs::read(artifacts::file("libcapo.so")).unwrap();
    bytes.extend(b"built again");
    folder.write("libmine.so", &bytes);
    assert!(
        folder
            .refused("train --resume run")
            .contains("has changed since the run used it")
    );
    folder.said("train --resume run --allow-changed-plugins");
    assert_eq!(run.metrics().len(), 2);
    assert_snapshot!(provenance(run.path()), @r#"[{"from_step":0,"plugins":[{"components":["capo.advantage","capo.objective","capo.curvature","capo.curvature-weight"],"packages":["capo 0.1.0"],"path":"libmine.so","sha256":"HASH"}]},{"from_step":1,"plugins":[{"components":["capo.advantage","capo.objective","capo.curvature","capo.curvature-weight"],"packages":["capo 0.1.0"],"path":"libmine.so","sha256":"HASH"}]}]"#);
    // From now on the run has this file.
    folder.said("train --resume run");
    let refused = folder.refused("train --allow-changed-plugins");
    assert!(refused.contains("--resume <DIR>"), "{refused}");
}

#[test]
fn refuses_a_file_that_anybody_may_change() {
    let (folder, hash) = with("libcapo.so");
    let library = folder.path().join("libmine.so");
    fs::set_permissions(&library, Permissions::from_mode(0o757)).unwrap();
    assert_snapshot!(folder.refused("plugins --plugin libmine.so"), @"plugin `FOLDER/libmine.so` may be changed by any user: its mode is 757 (`chmod o-w` takes that right away; `--allow-unsafe-plugin-path` accepts it)");
    let pinned = folder.refused(&format!("plugins --plugin libmine.so@sha256:{hash}"));
    assert!(
        pinned.contains("may be changed by any user"),
        "a pin is no permission"
    );
    folder.said("plugins --plugin libmine.so --allow-unsafe-plugin-path");
    folder.train(
        "run",
        &format!("--plugin libmine.so --allow-unsafe-plugin-path {ONE_STEP}"),
    );
    assert!(
        folder
            .refused("train --resume run")
            .contains("may be changed by any user")
    );
    folder.said("train --resume run --allow-unsafe-plugin-path");
}

#[test]
fn refuses_folders_in_which_anybody_may_replace_it() {
    let (folder, _) = with("libcapo.so");
    fs::create_dir_all(folder.path().join("open/inner")).unwrap();
    fs::rename(
        folder.path().join("libmine.so"),
        folder.path().join("open/inner/libmine.so"),
    )
    .unwrap();
    let mode = |name: &str, mode: u32| {
        fs::set_permissions(folder.path().join(name), Permissions::from_mode(mode)).unwrap();
    };
    let list = "plugins --plugin open/inner/libmine.so";
    mode("open/inner", 0o777);
    assert_snapshot!(folder.refused(list), @"plugin `FOLDER/open/inner/libmine.so` may be replaced by any user: the mode of the folder `FOLDER/open/inner` is 777 (`chmod o-w` takes that right away; `--allow-unsafe-plugin-path` accepts it)");
    // A link from another folder does not help.
    std::os::unix::fs::symlink("open/inner/libmine.so", folder.path().join("liblink.so")).unwrap();
    assert!(
        folder
            .refused("plugins --plugin liblink.so")
            .contains("open/inner` is 777")
    );
    folder.said(&format!("{list} --allow-unsafe-plugin-path"));
    mode("open/inner", 0o1777);
    folder.said(list);
    // A folder above it must not be writable by everybody either.
    mode("open", 0o777);
    assert_snapshot!(folder.refused(list), @"plugin `FOLDER/open/inner/libmine.so` may be replaced by any user: the mode of the folder `FOLDER/open` is 777 (`chmod o-w` takes that right away; `--allow-unsafe-plugin-path` accepts it)");
}

#[test]
fn refuses_links_that_anybody_may_redirect() {
    let (folder, _) = with("libcapo.so");
    fs::create_dir(folder.path().join("open")).unwrap();
    std::os::unix::fs::symlink("../libmine.so", folder.path().join("open/liblink.so")).unwrap();
    std::os::unix::fs::symlink("open/liblink.so", folder.path().join("libchain.so")).unwrap();
    std::os::unix::fs::symlink(folder.path(), folder.path().join("open/folder")).unwrap();
    let mode = |mode: u32| {
        fs::set_permissions(folder.path().join("open"), Permissions::from_mode(mode)).unwrap()
    };
    for (name, link) in [
        ("open/liblink.so", "open/liblink.so"),
        ("libchain.so", "./libchain.so"),
        ("open/folder/libmine.so", "open/folder/libmine.so"),
    ] {
        mode(0o777);
        let expected = format!(
            "plugin `{link}` may be replaced by any user: the mode of the folder `FOLDER/open` is 777 (`chmod o-w` takes that right away; `--allow-unsafe-plugin-path` accepts it)"
        );
        assert_eq!(
            folder.refused(&format!("plugins --plugin {name}")),
            expected
        );
        folder.said(&format!(
            "plugins --plugin {name} --allow-unsafe-plugin-path"
        ));
        mode(0o755);
        folder.said(&format!("plugins --plugin {name}"));
        // In a folder like `/tmp`, only the owner can change a link.
        mode(0o1777);
        folder.said(&format!("plugins --plugin {name}"));
    }
    if is_root() {
        lchown(folder.path().join("open/liblink.so"), Some(4321), None).unwrap();
        assert_snapshot!(folder.refused("plugins --plugin libchain.so"), @"plugin `./libchain.so` may be replaced by user 4321: the link `FOLDER/open/liblink.so` is theirs (load a copy of your own; `--allow-unsafe-plugin-path` accepts it)");
    }
}

/// The file is a hole of a terabyte, which would take an hour to read.
#[test]
fn a_huge_file_is_refused_at_once() {
    let folder = Folder::new();
    let file = fs::File::create(folder.path().join("libhuge.so")).unwrap();
    file.set_len(1 << 40).unwrap();
    assert_snapshot!(folder.refused("plugins --plugin ./libhuge.so"), @r#"`FOLDER/libhuge.so` is not a shared library: it has no ELF header (a plugin is a crate with `crate-type = ["cdylib"]`; give the `.so` in its `target/release`)"#);
    std::os::unix::fs::FileExt::write_all_at(
        &file,
        &fs::read(artifacts::file("libcapo.so")).unwrap()[..64],
        0,
    )
    .unwrap();
    assert_snapshot!(folder.refused("plugins --plugin ./libhuge.so"), @"plugin `FOLDER/libhuge.so` takes 1.0 TiB, and a plugin has at most 4.0 GiB (build or copy it again)");
}

/// True if this process may give files away.
fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

#[test]
fn a_pin_holds_while_the_file_is_replaced() {
    let (folder, hash) = with("libcapo.so");
    let other = fs::read(artifacts::file("libreincapo.so")).unwrap();
    let pinned = folder.bytes("libmine.so");
    let done = AtomicBool::new(false);
    let (mut accepted, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for bytes in [&other, &pinned]
                .into_iter()
                .cycle()
                .take_while(|_| !done.load(Ordering::Relaxed))
            {
                folder.write("next.so", bytes);
                fs::rename(
                    folder.path().join("next.so"),
                    folder.path().join("libmine.so"),
                )
                .unwrap();
            }
        });
        for _ in 0..100 {
            let outcome = folder.host(&format!("plugins --plugin libmine.so@sha256:{hash}"));
            if outcome.code == Some(0) {
                assert!(
                    outcome.stdout.contains("  capo.curvature ")
                        && !outcome.stdout.contains("reincapo"),
                    "{outcome:#?}"
                );
                accepted += 1;
            } else {
                assert!(
                    outcome.refused().contains(" but is pinned to "),
                    "{outcome:#?}"
                );
                refused += 1;
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(accepted + refused, 100);
}

#[test]
fn refuses_the_plugins_of_somebody_elses_run() {
    let (folder, _) = with("libcapo.so");
    let two = "--set train.max_steps=2 --set eval.num_prompts=0 --set train.save_steps=1";
    let run = folder.train("run", &format!("--plugin libmine.so {two} --stop-after 1"));
    let open = |mode: u32| {
        fs::set_permissions(
            run.path().join("provenance.json"),
            Permissions::from_mode(mode),
        )
        .unwrap()
    };
    open(0o666);
    assert_snapshot!(folder.refused("train --resume run"), @"the run is not yours alone: `run/provenance.json` may be changed by any user, and `FOLDER/libmine.so`, which it names, would be loaded (give the plugins that you trust with `--plugin`, or take these with `--trust-run`)");
    folder.said("train --resume run --trust-run --stop-after 1");
    folder.said("train --resume run --plugin libmine.so --stop-after 1");
    open(0o644);
    folder.said("train --resume run --stop-after 1");
    let refused = folder.refused("train --trust-run");
    assert!(refused.contains("--resume <DIR>"), "{refused}");
    if is_root() {
        chown(run.path(), Some(4321), None).unwrap();
        assert_snapshot!(folder.refused("train --resume run"), @"the run is not yours alone: `run` may be changed by user 4321, and `FOLDER/libmine.so`, which it names, would be loaded (give the plugins that you trust with `--plugin`, or take these with `--trust-run`)");
        chown(run.path(), Some(0), None).unwrap();
        chown(run.path().join("config.toml"), Some(4321), None).unwrap();
        assert!(
            folder
                .refused("train --resume run")
                .contains("`run/config.toml` may be changed by user 4321")
        );
        // If the run names no plugin, nothing is loaded.
        let bare = folder.train("bare", &format!("{two} --stop-after 1"));
        chown(bare.path(), Some(4321), None).unwrap();
        folder.said("train --resume bare");
    }
}
