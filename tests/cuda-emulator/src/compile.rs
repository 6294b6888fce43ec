//! Compiles kernels and driver, once per content.

use std::ffi::OsStr;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;

const FLAGS: &str = "-O2 -g1 -std=c++17 -fPIC -fno-strict-aliasing -ffp-contract=off -fvisibility=hidden -Wall -Wextra \
    -Wno-unknown-pragmas -DCAPO_EMULATED";
/// The kernels' own: an index, an address or a number that is wrong calls a function of
/// `fault.cpp`; a stack that is too small meets its guard page.
const CHECKS: &str = "-fsanitize=alignment,bounds,shift,signed-integer-overflow,integer-divide-by-zero \
    -fsanitize=float-cast-overflow -fno-sanitize-recover=all -fstack-clash-protection";
/// Of the toolkit; all are the driver under other names.
const LIBRARIES: [&str; 6] = [
    "libcuda.so.1",
    "libnvrtc.so.13",
    "libcublas.so.13",
    "libcublasLt.so.13",
    "libcudart.so.13",
    "libcurand.so.10",
];
const LIBRARY: &str = "-shared -pthread -Wl,-z,defs";
const DRIVER: [&str; 12] = [
    "cublas",
    "driver",
    "driver_memory",
    "driver_streams",
    "fault",
    "fiber",
    "launch",
    "memory",
    "nvrtc",
    "queue",
    "trace",
    "worker",
];

/// The folder with the libraries.
pub fn library(kernels: &Path) -> Result<PathBuf, Failure> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("cpp");
    let compiler = Compiler::find()?;
    let kernels = kernels
        .canonicalize()
        .map_err(|error| broken(kernels, &error))?;
    let cache = cache()?;
    std::fs::create_dir_all(&cache).map_err(|error| broken(&cache, &error))?;
    // One test builds, in whatever process, and the others wait for it.
    let lock = cache.join("lock");
    let lock = File::create(&lock)
        .and_then(|file| file.lock().map(|()| file))
        .map_err(|error| broken(&lock, &error))?;
    let folder = cache.join(format!("{:016x}", hash(&compiler, &[&sources, &kernels])?));
    if !folder.exists() {
        // A build that is interrupted leaves no folder of this name.
        let unfinished = cache.join("unfinished");
        std::fs::remove_dir_all(&unfinished).ok();
        std::fs::create_dir(&unfinished).map_err(|error| broken(&unfinished, &error))?;
        compiler.build(&sources, &kernels, &unfinished)?;
        std::fs::rename(&unfinished, &folder).map_err(|error| broken(&folder, &error))?;
    }
    drop(lock);
    Ok(folder)
}

/// A stand-in for CUDA's toolchain in the folder `home`: `bin/nvcc`, and in `lib` all libraries
/// that a program on candle links to, with the kernels of the folders `kernels`. Gives the absolute
/// path. Does nothing where it is there and as new as its sources.
pub fn toolkit(home: &Path, kernels: &[PathBuf]) -> Result<PathBuf, Failure> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (sources, shipped, compiler) = (own.join("cpp"), own.join("toolkit"), Compiler::find()?);
    let [bin, include, lib] = ["bin", "include", "lib"].map(|name| home.join(name));
    let mut folders = vec![
        sources.clone(),
        shipped.join("bin"),
        shipped.join("include"),
    ];
    folders.extend_from_slice(kernels);
    let folders: Vec<&Path> = folders.iter().map(PathBuf::as_path).collect();
    let (stamp, content) = (
        home.join("stamp"),
        format!("{:016x}", hash(&compiler, &folders)?),
    );
    if std::fs::read_to_string(&stamp).is_ok_and(|known| known == content) {
        return home.canonicalize().map_err(|error| broken(home, &error));
    }
    std::fs::remove_dir_all(home).ok();
    for folder in [&bin, &include.join("cuda/std"), &lib] {
        std::fs::create_dir_all(folder).map_err(|error| broken(folder, &error))?;
    }
    compiler.driver(&sources, &lib, &LIBRARIES)?;
    for library in LIBRARIES {
        // For the linker, which looks for the name without a version; `libcuda.so` itself is there
        // already.
        let link = lib.join(library).with_extension("");
        if !link.exists() {
            std::fs::copy(lib.join(library), &link).map_err(|error| broken(&link, &error))?;
        }
    }
    for folder in kernels {
        compiler.kernels(&sources, folder, &lib)?;
    }
    let copy = |from: PathBuf, to: PathBuf| {
        std::fs::copy(&from, to).map_err(|error| broken(&from, &error))
    };
    for name in [
        "cuda_on_cpu.h",
        "device_functions.h",
        "matrix.h",
        "executor.h",
        "kernels.cpp",
    ] {
        copy(sources.join(name), include.join(name))?;
    }
    for name in [
        "cuda_bf16.h",
        "cuda_fp16.h",
        "cuda_fp8.h",
        "more_of_cuda.h",
        "cuda/std/limits",
    ] {
        copy(shipped.join("include").join(name), include.join(name))?;
    }
    copy(shipped.join("bin/nvcc"), bin.join("nvcc"))?;
    std::fs::write(&stamp, content).map_err(|error| broken(&stamp, &error))?;
    home.canonicalize().map_err(|error| broken(home, &error))
}

fn broken(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::Broken(format!("`{}`: {error}", path.display()))
}

/// Beside the test executable, so that it goes with the build.
fn cache() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()
        .map_err(|error| Failure::Broken(format!("this process has no path: {error}")))?;
    Ok(own.with_file_name("cuda-emulator"))
}

/// The name of the one `.cu` file in `kernels`.
fn unit_of(kernels: &Path) -> Result<String, Failure> {
    let entries = std::fs::read_dir(kernels).map_err(|error| broken(kernels, &error))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    match &names
        .filter(|name| name.ends_with(".cu"))
        .collect::<Vec<_>>()[..]
    {
        [unit] => Ok(unit.clone()),
        units => Err(Failure::Broken(format!(
            "`{}` has {} `.cu` files, expected one, which includes the rest",
            kernels.display(),
            units.len()
        ))),
    }
}

/// Of all that the libraries are made from.
fn hash(compiler: &Compiler, folders: &[&Path]) -> Result<u64, Failure> {
    let mut hasher = DefaultHasher::new();
    (&compiler.0, FLAGS, CHECKS, folders).hash(&mut hasher);
    for folder in folders {
        let entries = std::fs::read_dir(folder).map_err(|error| broken(folder, &error))?;
        let mut files: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.is_file())
            .collect();
        files.sort();
        for file in files {
            let content = std::fs::read(&file).map_err(|error| broken(&file, &error))?;
            (file, content).hash(&mut hasher);
        }
    }
    Ok(hasher.finish())
}

/// A program and its first arguments.
struct Compiler(Vec<String>);

impl Compiler {
    fn find() -> Result<Self, Failure> {
        let words = |command: &str| Self(command.split_whitespace().map(str::to_owned).collect());
        if let Some(named) = std::env::var("CXX")
            .ok()
            .filter(|name| !name.trim().is_empty())
        {
            let error = || {
                Failure::NoCompiler(format!(
                    "the C++ compiler `{named}` does not run (it is `$CXX`)"
                ))
            };
            return Some(words(&named)).filter(Self::runs).ok_or_else(error);
        }
        let error = "the CUDA emulator needs a C++ compiler: `c++`, `g++` and `clang++` do not run (install one, or name it in `$CXX`)";
        ["c++", "g++", "clang++"]
            .map(words)
            .into_iter()
            .find(Self::runs)
            .ok_or_else(|| Failure::NoCompiler(error.to_owned()))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.0[0]);
        command.args(&self.0[1..]);
        command
    }

    fn runs(&self) -> bool {
        self.command()
            .arg("--version")
            .output()
            .is_ok_and(|output| output.status.success())
    }

    /// Compiles or links with `arguments`. The compiler's warnings go to stderr.
    fn run(&self, arguments: &[&[&OsStr]]) -> Result<(), Failure> {
        let failure = |text: &str| Failure::Broken(format!("`{}`: {text}", self.0.join(" ")));
        let output = self
            .command()
            .args(arguments.concat())
            .output()
            .map_err(|error| failure(&error.to_string()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(failure(&format!("the kernels do not compile:\n{said}")));
        }
        eprint!("{said}");
        Ok(())
    }

    fn build(&self, sources: &Path, kernels: &Path, folder: &Path) -> Result<(), Failure> {
        self.driver(sources, folder, &["libcuda.so.1", "libnvrtc.so"])?;
        self.kernels(sources, kernels, folder)
    }

    /// `libcuda.so`, and empty libraries of other names that bring it along, since a library has
    /// one name of its own.
    fn driver(&self, sources: &Path, folder: &Path, aliases: &[&str]) -> Result<(), Failure> {
        let driver = folder.join("libcuda.so");
        let units = DRIVER.map(|name| sources.join(name).with_extension("cpp"));
        let units: Vec<&OsStr> = units.iter().map(|unit| unit.as_os_str()).collect();
        let out = ["-Wl,-soname,libcuda.so", "-ldl", "-o"].map(OsStr::new);
        self.run(&[
            &words(FLAGS),
            &words(LIBRARY),
            &units,
            &out,
            &[driver.as_os_str()],
        ])?;
        for alias in aliases {
            let name = format!("-Wl,-soname,{alias}");
            let along = ["-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed", &name, "-o"].map(OsStr::new);
            let out = folder.join(alias);
            self.run(&[
                &words(LIBRARY),
                &along,
                &[out.as_os_str(), driver.as_os_str()],
            ])?;
        }
        Ok(())
    }

    /// The library with the kernels of a folder; the driver opens all that lie beside it.
    fn kernels(&self, sources: &Path, kernels: &Path, folder: &Path) -> Result<(), Failure> {
        let unit = unit_of(kernels)?;
        let library = folder.join(&unit).with_extension("kernels.so");
        let unit = format!("-DCAPO_UNIT=\"{unit}\"");
        let own = [
            "-I".as_ref(),
            kernels.as_os_str(),
            unit.as_ref(),
            "-o".as_ref(),
            library.as_os_str(),
        ];
        let (source, driver) = (sources.join("kernels.cpp"), folder.join("libcuda.so"));
        let from = [source.as_os_str(), driver.as_os_str()];
        self.run(&[&words(FLAGS), &words(CHECKS), &words(LIBRARY), &from, &own])
    }
}

fn words(text: &str) -> Vec<&OsStr> {
    text.split_whitespace().map(OsStr::new).collect()
}
