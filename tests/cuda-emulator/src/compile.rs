//! Compiles kernels and driver, once per content.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;

const FLAGS: [&str; 10] = [
    "-O2",
    "-g1",
    "-std=c++17",
    "-fPIC",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wno-unknown-pragmas",
    "-DCAPO_EMULATED",
];
/// The kernels' own: an index or an address that is wrong calls a function of `fault.cpp`.
const CHECKS: [&str; 2] = ["-fsanitize=alignment,bounds", "-fno-sanitize-recover=all"];
const DRIVER: [&str; 7] =
    ["driver.cpp", "driver_memory.cpp", "fault.cpp", "fiber.cpp", "launch.cpp", "memory.cpp", "worker.cpp"];

/// The folder with the libraries.
pub fn library(kernels: &Path) -> Result<PathBuf, Failure> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("cpp");
    let compiler = find_compiler()?;
    let kernels = kernels.canonicalize().map_err(|error| broken(kernels, &error))?;
    let hash = hash(&compiler, &[&sources, &kernels])?;
    let cache = cache()?;
    let folder = cache.join(format!("{hash:016x}"));
    if folder.exists() {
        return Ok(folder);
    }
    // Other processes may do the same at this moment: each has a folder of its own until it is whole.
    let unfinished = cache.join(format!("{hash:016x}-{}-{:?}", std::process::id(), std::thread::current().id()));
    std::fs::create_dir_all(&unfinished).map_err(|error| broken(&unfinished, &error))?;
    let built = build(&compiler, &sources, &kernels, &unfinished);
    let renamed = built.map(|()| std::fs::rename(&unfinished, &folder));
    if !matches!(renamed, Ok(Ok(()))) {
        std::fs::remove_dir_all(&unfinished).ok();
    }
    match renamed? {
        Err(error) if !folder.exists() => Err(broken(&folder, &error)),
        _ => Ok(folder),
    }
}

fn broken(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::Broken(format!("`{}`: {error}", path.display()))
}

/// Beside the test executable, so that it goes with the build.
fn cache() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().map_err(|error| Failure::Broken(format!("this process has no path: {error}")))?;
    Ok(own.with_file_name("cuda-emulator"))
}

fn find_compiler() -> Result<OsString, Failure> {
    let runs =
        |name: &OsString| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    if let Some(named) = std::env::var_os("CXX").filter(|name| !name.is_empty()) {
        let error =
            || Failure::NoCompiler(format!("the C++ compiler `{}` does not run (it is `$CXX`)", named.display()));
        return if runs(&named) { Ok(named) } else { Err(error()) };
    }
    let error = "the CUDA emulator needs a C++ compiler: `c++`, `g++` and `clang++` do not run (install one, or name it in `$CXX`)";
    ["c++", "g++", "clang++"]
        .map(OsString::from)
        .into_iter()
        .find(runs)
        .ok_or_else(|| Failure::NoCompiler(error.to_owned()))
}

/// Of all that the libraries are made from.
fn hash(compiler: &OsString, folders: &[&Path]) -> Result<u64, Failure> {
    let mut hasher = DefaultHasher::new();
    (compiler, FLAGS, CHECKS, folders).hash(&mut hasher);
    for folder in folders {
        let entries = std::fs::read_dir(folder).map_err(|error| broken(folder, &error))?;
        let mut files: Vec<PathBuf> =
            entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_file()).collect();
        files.sort();
        for file in files {
            let content = std::fs::read(&file).map_err(|error| broken(&file, &error))?;
            (file, content).hash(&mut hasher);
        }
    }
    Ok(hasher.finish())
}

fn build(compiler: &OsString, sources: &Path, kernels: &Path, folder: &Path) -> Result<(), Failure> {
    let run = |command: &mut Command| {
        let output = command.output().map_err(|error| Failure::Broken(format!("`{}`: {error}", compiler.display())))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            Ok(())
        } else {
            Err(Failure::Broken(format!("the kernels do not compile:\n{said}")))
        }
    };
    let object = folder.join("kernels.o");
    let unit = sources.join("kernels.cpp");
    run(Command::new(compiler)
        .args(FLAGS)
        .args(CHECKS)
        .arg("-I")
        .arg(kernels)
        .arg("-c")
        .arg(unit)
        .arg("-o")
        .arg(&object))?;
    let driver = folder.join("libcuda.so");
    let shared = ["-shared", "-pthread", "-Wl,-z,defs"];
    let units = DRIVER.map(|name| sources.join(name));
    run(Command::new(compiler)
        .args(FLAGS)
        .args(shared)
        .arg("-Wl,-soname,libcuda.so")
        .args(units)
        .arg(&object)
        .arg("-o")
        .arg(&driver))?;
    // The driver's other name: an empty library that brings the first one along.
    let by_version = ["-Wl,-soname,libcuda.so.1", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed"];
    run(Command::new(compiler).args(shared).args(by_version).arg(&driver).arg("-o").arg(folder.join("libcuda.so.1")))?;
    std::fs::remove_file(&object).map_err(|error| broken(&object, &error))
}
