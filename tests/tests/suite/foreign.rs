//! Files that are no plugins: one sentence, the same from `host check` and `host train`. And a plugin that misbehaves while it is
//! loaded.

use std::path::Path;

use insta::assert_snapshot;
use tests::Folder;

/// A file of this name in a fresh folder, for `host check` and `host train --plugin`; their one sentence.
fn foreign(make: impl Fn(&Path)) -> String {
    let folder = Folder::new();
    make(&folder.path().join("libforeign.so"));
    let checked = folder.host("check ./libforeign.so").refused();
    assert_eq!(folder.host("train --plugin ./libforeign.so").refused(), checked);
    assert!(!folder.path().join("runs").exists(), "nothing is written before all is open");
    checked
}

#[test]
fn files_that_are_no_plugins() {
    let write = |bytes: &'static [u8]| foreign(move |path| std::fs::write(path, bytes).unwrap());
    assert_snapshot!(write(b"just text, and not much of it\n"), @r#"`FOLDER/libforeign.so` is not a shared library: it has no ELF header (a plugin is a crate with `crate-type = ["cdylib"]`; give the `.so` in its `target/release`)"#);
    assert_snapshot!(write(b""), @"`FOLDER/libforeign.so` is empty (build or copy it again)");
    // The header of a 32-bit library, and nothing behind it.
    let mut header = [0_u8; 52];
    header[..7].copy_from_slice(b"\x7fELF\x01\x01\x01");
    (header[16], header[18], header[20], header[40]) = (3, 3, 1, 52);
    assert_snapshot!(foreign(|path| std::fs::write(path, header).unwrap()), @"`FOLDER/libforeign.so` is a 32-bit library, this host is a 64-bit program (build it for this machine)");
    assert_snapshot!(foreign(|path| std::fs::create_dir(path).unwrap()), @"plugin `./libforeign.so` is a folder (give the path of a library)");
}

#[test]
fn a_library_of_the_system() {
    let places = [
        "/lib/x86_64-linux-gnu/libm.so.6",
        "/lib/aarch64-linux-gnu/libm.so.6",
        "/lib64/libm.so.6",
        "/usr/lib/libm.so.6",
    ];
    let Some(libm) = places.into_iter().find(|path| Path::new(path).exists()) else {
        eprintln!("SKIPPED: no libm.so.6 in {places:?}");
        return;
    };
    assert_snapshot!(foreign(|path| std::os::unix::fs::symlink(libm, path).unwrap()).split_once("libm.so.6").unwrap().1, @r#"` is a shared library but not a plugin (build it against `capo-plugin` with `crate-type = ["cdylib"]`, and register a component)"#);
}

#[test]
fn a_library_that_misbehaves_while_it_is_loaded() {
    let with = |listed: &str| {
        let folder = Folder::new().env("MISBEHAVE_LISTED", listed);
        let outcome = folder.host("check libmisbehave.so --timeout 10 --only component-ids --only creation");
        (outcome.code, outcome.stdout)
    };
    let (code, report) = with("panic");
    assert_eq!(code, Some(1));
    assert_snapshot!(report, @"
    library BUILD/libmisbehave.so
      component-ids       success  well formed and unique

    reward misbehave.reward
      creation            skipped  it refuses its table: missing field `sin` (give its keys as `--set misbehave.reward.KEY=VALUE`)

    advantage misbehave.advantage
      creation            skipped  it refuses its table: missing field `sin` (give its keys as `--set misbehave.advantage.KEY=VALUE`)

    objective misbehave.objective
      creation            failed   panicked while it was created: the list panics

    mask misbehave.mask
      creation            skipped  it refuses its table: missing field `sin` (give its keys as `--set misbehave.mask.KEY=VALUE`)

    weight misbehave.weight
      creation            skipped  it refuses its table: missing field `sin` (give its keys as `--set misbehave.weight.KEY=VALUE`)

    step_control misbehave.control
      creation            skipped  it refuses its table: missing field `sin` (give its keys as `--set misbehave.control.KEY=VALUE`)

    not checked, for want of what the lines above ask for: misbehave.advantage, misbehave.control, misbehave.mask, misbehave.reward, misbehave.weight

    checks: 1 success, 5 skipped, 0 warning, 1 failed, 0 crashed
    ");
    assert_snapshot!(with("abort").1, @"
    library BUILD/libmisbehave.so
      entry-point         crashed  its process was ended by signal 6 (SIGABRT)

    checks: 0 success, 0 skipped, 0 warning, 0 failed, 1 crashed
    ");
    assert_snapshot!(with("hang").1, @"
    library BUILD/libmisbehave.so
      entry-point         failed   it did not come back within 10 s

    checks: 0 success, 0 skipped, 0 warning, 1 failed, 0 crashed
    ");
}
