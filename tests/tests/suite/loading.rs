//! Finding and opening plugins.

use std::process::Command;

use insta::assert_snapshot;
use tests::{Folder, artifacts};

use crate::ONE_STEP;

/// The error about a library, which every command that opens plugins must give.
fn about(folder: &Folder, library: &str) -> String {
    let listed = folder.refused(&format!("plugins --plugin {library}"));
    assert_eq!(folder.refused(&format!("check {library}")), listed);
    assert_eq!(folder.refused(&format!("train --plugin {library}")), listed);
    listed
}

/// The error about a file with these contents.
fn about_file(name: &str, contents: &[u8]) -> String {
    let folder = Folder::new();
    folder.write(name, contents);
    about(&folder, &format!("./{name}"))
}

#[test]
fn a_missing_plugin_lists_the_places_tried() {
    let folder = Folder::new().env("CAPO_PLUGIN_PATH", "/opt/first:/opt/second");
    assert_snapshot!(folder.refused("plugins --plugin libnone.so"), @"plugin `libnone.so` was not found; tried `./libnone.so`, `/opt/first/libnone.so`, `/opt/second/libnone.so`, `BUILD/libnone.so` (give its path, or name its folder in `CAPO_PLUGIN_PATH`)");
    assert_snapshot!(folder.refused("plugins --plugin no-ne"), @"plugin `no-ne` was not found; tried `./no-ne`, `/opt/first/no-ne`, `/opt/second/no-ne`, `BUILD/no-ne`, `./libno_ne.so`, `/opt/first/libno_ne.so`, `/opt/second/libno_ne.so`, `BUILD/libno_ne.so` (give its path, or name its folder in `CAPO_PLUGIN_PATH`)");
    assert_snapshot!(folder.refused("train --plugin sub/libnone.so"), @"plugin `sub/libnone.so` was not found; tried `sub/libnone.so` (give its path, or name its folder in `CAPO_PLUGIN_PATH`)");
}

/// Asserts that a folder's `host` finds the plugin of ReinCAPO at `at` by `name`.
pub fn finds(folder: &Folder, name: &str, at: &str) {
    let listed = folder.said(&format!("plugins --plugin {name}"));
    assert!(
        listed.contains(&format!("from reincapo 0.1.0, `FOLDER/{at}`")),
        "{listed}"
    );
}

#[test]
fn a_plugin_is_found_wherever_the_help_says() {
    let library = artifacts::file("libreincapo.so");
    // Each folder has the plugin in one place only, and an executable of its own, away from the
    // build folder.
    let with = |place: &str| {
        let folder = Folder::new();
        folder.write(place, std::fs::read(&library).unwrap());
        let program = folder.path().join("bin/host");
        std::fs::create_dir_all(folder.path().join("bin")).unwrap();
        std::fs::copy(artifacts::file("host"), &program).unwrap();
        folder.program(program)
    };
    finds(
        &with("sub/libreincapo.so"),
        "sub/libreincapo.so",
        "sub/libreincapo.so",
    );
    finds(
        &with("libreincapo.so"),
        "./libreincapo.so",
        "libreincapo.so",
    );
    finds(&with("libreincapo.so"), "libreincapo.so", "libreincapo.so");
    finds(
        &with("bin/libreincapo.so"),
        "libreincapo.so",
        "bin/libreincapo.so",
    );
    let listed = with("two/libreincapo.so");
    let path = format!("{0}/one:{0}/two", listed.path().display());
    finds(
        &listed.env("CAPO_PLUGIN_PATH", path),
        "libreincapo.so",
        "two/libreincapo.so",
    );
    let absolute = with("sub/libreincapo.so");
    let name = absolute
        .path()
        .join("sub/libreincapo.so")
        .display()
        .to_string();
    finds(&absolute, &name, "sub/libreincapo.so");
}

#[test]
fn the_working_folder_comes_before_the_path_and_the_path_before_the_executable() {
    let library = std::fs::read(artifacts::file("libreincapo.so")).unwrap();
    let folder = Folder::new();
    folder.write("listed/libcapo.so", &library);
    let listed = folder.path().join("listed");
    let folder = folder.env("CAPO_PLUGIN_PATH", listed);
    finds(&folder, "libcapo.so", "listed/libcapo.so");
    folder.write("libcapo.so", &library);
    finds(&folder, "libcapo.so", "libcapo.so");
}

#[test]
fn refuses_files_that_are_not_libraries() {
    assert_snapshot!(about_file("libtext.so", "GROUP(libcapo.so)\n".repeat(100).as_bytes()), @r#"`FOLDER/libtext.so` is not a shared library: it has no ELF header (a plugin is a crate with `crate-type = ["cdylib"]`; give the `.so` in its `target/release`)"#);
    assert_snapshot!(about_file("libempty.so", b""), @"`FOLDER/libempty.so` is empty (build or copy it again)");
    let whole = std::fs::read(artifacts::file("libcapo.so")).unwrap();
    assert_snapshot!(about_file("libhead.so", &whole[..40]), @"`FOLDER/libhead.so` cannot be opened as a shared library: file too short");
}

#[test]
fn refuses_files_of_another_kind() {
    assert_snapshot!(about_file("libcapo.rlib", b"!<arch>\nand more"), @r#"`FOLDER/libcapo.rlib` is not a shared library but an archive for the Rust or C compiler (set `crate-type = ["cdylib"]` in the plugin's Cargo.toml and build it again)"#);
    assert_snapshot!(about_file("capo.dll", b"MZ\x90\0"), @"`FOLDER/capo.dll` is not a shared library but a library or program for Windows (build it for this machine)");
    let mut other = std::fs::read(artifacts::file("libcapo.so")).unwrap();
    // This byte is the kind of CPU: RISC-V.
    other[18..20].copy_from_slice(&243_u16.to_le_bytes());
    let sentence = about_file("libother.so", &other);
    assert!(
        sentence.starts_with("`FOLDER/libother.so` was built for RISC-V, this host runs on "),
        "{sentence}"
    );
    // The header of a 32-bit library, and nothing behind it.
    let mut header = [0_u8; 52];
    header[..7].copy_from_slice(b"\x7fELF\x01\x01\x01");
    (header[16], header[18], header[20], header[40]) = (3, 3, 1, 52);
    assert_snapshot!(about_file("libsmall.so", &header), @"`FOLDER/libsmall.so` is a 32-bit library, this host is a 64-bit program (build it for this machine)");
    let folder = Folder::new();
    assert_snapshot!(folder.refused("plugins --plugin /dev/null"), @"plugin `/dev/null` is no regular file (give the path of a library)");
    folder.write("file", "");
    assert_snapshot!(folder.refused("plugins --plugin file/libcapo.so"), @"plugin `file/libcapo.so` was not found; tried `file/libcapo.so` (give its path, or name its folder in `CAPO_PLUGIN_PATH`)");
}

#[test]
fn refuses_a_plugin_without_components() {
    assert_snapshot!(about(&Folder::new(), "libidle.so"), @"`BUILD/libidle.so` is a plugin that offers nothing (call `register!` or `recipe!` in it)");
}

#[test]
fn reports_a_plugin_that_is_not_used() {
    let folder = Folder::new();
    let header = |args: &str| {
        let said = folder.said(&format!("train {args} {ONE_STEP}"));
        said.lines()
            .filter(|line| line.starts_with("plugin "))
            .collect::<Vec<_>>()
            .join("\n")
    };
    assert_snapshot!(header("--plugin libmisbehave.so"), @r#"plugin     libmisbehave.so: loaded, none of its components is used (add [[step_control]] use = "misbehave.control")"#);
    assert_snapshot!(header("--plugin librewarding.so"), @r#"plugin     librewarding.so: loaded, none of its components is used (add [[reward]] use = "rewarding.parity")"#);
    assert_snapshot!(header("--plugin libcapo.so --set recipe=grpo"), @r#"plugin     libcapo.so: loaded, none of its components is used (add recipe = "capo")"#);
    for used in [
        "--plugin libcapo.so",
        "--plugin libcapo.so --set recipe=grpo --mask capo.curvature",
        "--plugin librewarding.so --set reward.0.use=rewarding.parity",
        "--plugin libtuned.so --set recipe=plain",
    ] {
        assert_eq!(header(used), "", "{used}");
    }
}

#[test]
fn refuses_a_library_cut_off_anywhere() {
    let whole = std::fs::read(artifacts::file("libcapo.so")).unwrap();
    let folder = Folder::new();
    // Debug information, which is never mapped, makes up the end of the file.
    for bytes in [
        64,
        500,
        1000,
        whole.len() / 1000,
        whole.len() / 100,
        whole.len() / 30,
        whole.len() / 10,
    ] {
        folder.write("libtorn.so", &whole[..bytes]);
        let sentence = folder.refused("plugins --plugin ./libtorn.so");
        let known = ["cannot be opened as a shared library: ", "is cut short: "];
        assert!(
            known
                .iter()
                .any(|words| sentence.starts_with(&format!("`FOLDER/libtorn.so` {words}"))),
            "{sentence}"
        );
    }
}

#[test]
fn refuses_a_folder_in_place_of_a_plugin() {
    let folder = Folder::new();
    folder.write("libdir.so/file", "");
    assert_snapshot!(folder.refused("plugins --plugin ./libdir.so"), @"plugin `./libdir.so` is a folder (give the path of a library)");
}

/// The library with every `from` replaced by `to`.
fn patched(library: &str, from: &str, to: &str) -> Vec<u8> {
    let mut bytes = std::fs::read(artifacts::file(library)).unwrap();
    let is_there = |at: &usize| bytes[*at..].starts_with(from.as_bytes());
    let places: Vec<usize> = (0..bytes.len() - from.len()).filter(is_there).collect();
    assert!(
        !places.is_empty() && from.len() == to.len(),
        "`{from}` is in the library"
    );
    places
        .into_iter()
        .for_each(|at| bytes[at..at + to.len()].copy_from_slice(to.as_bytes()));
    bytes
}

#[test]
fn refuses_another_version_of_abi_stable() {
    let bytes = patched(
        "libcapo.so",
        "abi stable library for Rust",
        "Abi stable library for Rust",
    );
    assert_snapshot!(about_file("libother.so", &bytes), @"`FOLDER/libother.so` was built with an incompatible abi_stable (rebuild it against `capo-plugin` 1.x; `--verbose` shows the differences)");
}

#[test]
fn loads_the_same_plugin_once() {
    let folder = Folder::new();
    std::os::unix::fs::symlink(
        artifacts::file("libcapo.so"),
        folder.path().join("libother.so"),
    )
    .unwrap();
    let once = folder.said("plugins --plugin libcapo.so");
    for again in [
        "--plugin libcapo.so --plugin libcapo.so",
        "--plugin capo --plugin libother.so",
    ] {
        assert_eq!(
            folder.said(&format!("plugins {again}")),
            once,
            "one file is loaded once, by whatever name"
        );
    }
    // A copy is another library with the same ids.
    folder.write(
        "libcopy.so",
        std::fs::read(artifacts::file("libcapo.so")).unwrap(),
    );
    assert_snapshot!(folder.refused("plugins --plugin libcapo.so --plugin libcopy.so"), @"component `capo.advantage` is offered twice: `BUILD/libcapo.so` and `FOLDER/libcopy.so` (load only one of them)");
}

#[test]
fn loads_several_plugins_together() {
    let folder = Folder::new();
    let args = "--plugin libcapo.so --plugin libmisbehave.so --set recipe=capo --set mask=[]";
    let run = folder.train("run", &format!("{args} {ONE_STEP}"));
    let plugins = run.text("provenance.json");
    assert!(
        plugins.contains("libcapo.so") && plugins.contains("libmisbehave.so"),
        "{plugins}"
    );
}

/// `libbefore.so` is `libmisbehave.so` with a constructor in C, which runs while the library is
/// opened.
fn with_constructor(folder: &Folder, body: &str) {
    let source = format!(
        "#include <fenv.h>\n#include <stdlib.h>\n#include <xmmintrin.h>\n__attribute__((constructor)) static void before(void) {{ {body} }}\n"
    );
    folder.write("before.c", source);
    let mut compiler = Command::new("cc");
    compiler.args([
        "-shared",
        "-fPIC",
        "-o",
        "libbefore.so",
        "before.c",
        "-Wl,--no-as-needed",
    ]);
    let built = compiler
        .arg(artifacts::file("libmisbehave.so"))
        .arg("-lm")
        .current_dir(folder.path())
        .status();
    assert!(
        built.unwrap().success(),
        "the C compiler that links Rust builds it"
    );
}

#[test]
fn reports_a_library_that_exits_or_hangs_while_it_is_opened() {
    let opened = |body: &str| {
        let folder = Folder::new();
        with_constructor(&folder, body);
        let train = folder.host(&format!(
            "train --plugin ./libbefore.so --set train.component_timeout=1 {ONE_STEP}"
        ));
        assert!(
            !folder.path().join("runs").exists(),
            "nothing is written before all is open"
        );
        train
    };
    assert_snapshot!(opened("exit(0);").failed(), @"plugin `FOLDER/libbefore.so`: `open` ended the process with `exit` (return an error in its place)");
    assert_snapshot!(opened("for (;;) {}").failed(), @"plugin `FOLDER/libbefore.so`: `open` did not come back within 1 s (the limit is `train.component_timeout`; 0 waits without one)");
    for (body, words) in [
        ("abort();", "SIGABRT"),
        ("*(volatile int *)8 = 1;", "SIGSEGV"),
    ] {
        let outcome = opened(body);
        let expected = format!(
            "error: plugin `FOLDER/libbefore.so`: `open` was running when the process was ended by {words}"
        );
        assert!(
            outcome.code.is_none() && outcome.stderr.starts_with(&expected),
            "{outcome:#?}"
        );
    }
    // This happens while the library lists its components.
    let listed = Folder::new()
        .env("MISBEHAVE_LISTED", "abort")
        .host("plugins --plugin libmisbehave.so")
        .stderr;
    assert_snapshot!(listed.lines().last().unwrap(), @r#"error: plugin `BUILD/libmisbehave.so`: `open` was running when the process was ended by SIGABRT: an abort, as of a panic in a library that was built with `panic = "abort"`"#);
}

#[test]
fn restores_the_hosts_arithmetic_after_opening_a_library() {
    let folder = Folder::new();
    // A library that was built with `-ffast-math` changes the arithmetic of the whole process like
    // this.
    with_constructor(
        &folder,
        "fesetround(FE_UPWARD); _mm_setcsr(_mm_getcsr() | 0x8040);",
    );
    let plain = folder.train("plain", &format!("--set recipe=grpo {ONE_STEP}"));
    let before = folder.train(
        "before",
        &format!("--set recipe=grpo --plugin ./libbefore.so {ONE_STEP}"),
    );
    assert_eq!(before.weights(), plain.weights());
    assert_eq!(before.metric("loss"), plain.metric("loss"));
}

#[test]
fn names_and_descriptions_cannot_forge_lines() {
    let listed = |library: &str, from: &str, to: &str| {
        let folder = Folder::new();
        folder.write("libpatched.so", patched(library, from, to));
        folder.host("plugins --plugin ./libpatched.so")
    };
    assert_snapshot!(listed("libtwice.so", "twice.mask", "twice\nmask").refused(), @r#"`FOLDER/libpatched.so` offers "twice\nmask" as a component's name (it may have letters, digits, `.`, `-` and `_`, 100 at most: rename it in the plugin)"#);
    assert_snapshot!(listed("libtwice.so", "twice.mask", "a/../../ma").refused(), @r#"`FOLDER/libpatched.so` offers "a/../../ma" as a component's name (it may have letters, digits, `.`, `-` and `_`, 100 at most: rename it in the plugin)"#);
    let outcome = listed(
        "libmisbehave.so",
        "Keeps all, and commits a sin.",
        "keeps\n  capo.mask   and a sin",
    )
    .succeeded();
    let line = outcome
        .stdout
        .lines()
        .find(|line| line.contains("misbehave.mask"))
        .unwrap();
    assert_snapshot!(line, @"  misbehave.mask           keeps capo.mask and a sin");
}
