//! Compiles kernels and driver, once per content.

use std::ffi::OsStr;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;

const FLAGS: &str = "-O2 -g1 -std=c++17 -fPIC -ffp-contract=off -fvisibility=hidden -Wall -Wextra -Wno-unknown-pragmas \
    -DCAPO_EMULATED";
/// The kernels' own: an index, an address or a number that is wrong calls a function of `fault.cpp`; a stack that is too small meets its
/// guard page.
const CHECKS: &str = "-fsanitize=alignment,bounds,shift,signed-integer-overflow,integer-divide-by-zero \
    -fsanitize=float-cast-overflow -fno-sanitize-recover=all -fstack-clash-protection";
const DRIVER: [&str; 10] =
    ["driver", "driver_memory", "driver_streams", "fault", "fiber", "launch", "memory", "nvrtc", "queue", "worker"];

/// The folder with the libraries.
pub fn library(kernels: &Path) -> Result<PathBuf, Failure> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("cpp");
    let compiler = Compiler::find()?;
    let kernels = kernels.canonicalize().map_err(|error| broken(kernels, &error))?;
    let cache = cache()?;
    std::fs::create_dir_all(&cache).map_err(|error| broken(&cache, &error))?;
    // One test builds, in whatever process, and the others wait for it.
    let lock = cache.join("lock");
    let lock =
        File::create(&lock).and_then(|file| file.lock().map(|()| file)).map_err(|error| broken(&lock, &error))?;
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

fn broken(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::Broken(format!("`{}`: {error}", path.display()))
}

/// Beside the test executable, so that it goes with the build.
fn cache() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().map_err(|error| Failure::Broken(format!("this process has no path: {error}")))?;
    Ok(own.with_file_name("cuda-emulator"))
}

/// The name of the one `.cu` file in `kernels`.
fn unit_of(kernels: &Path) -> Result<String, Failure> {
    let entries = std::fs::read_dir(kernels).map_err(|error| broken(kernels, &error))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    match &names.filter(|name| name.ends_with(".cu")).collect::<Vec<_>>()[..] {
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

/// A program and its first arguments.
struct Compiler(Vec<String>);

impl Compiler {
    fn find() -> Result<Self, Failure> {
        let words = |command: &str| Self(command.split_whitespace().map(str::to_owned).collect());
        if let Some(named) = std::env::var("CXX").ok().filter(|name| !name.trim().is_empty()) {
            let error = || Failure::NoCompiler(format!("the C++ compiler `{named}` does not run (it is `$CXX`)"));
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
        self.command().arg("--version").output().is_ok_and(|output| output.status.success())
    }

    /// Compiles or links with `arguments`. The compiler's warnings go to stderr.
    fn run(&self, arguments: &[&[&OsStr]]) -> Result<(), Failure> {
        let failure = |text: &str| Failure::Broken(format!("`{}`: {text}", self.0.join(" ")));
        let output = self.command().args(arguments.concat()).output().map_err(|error| failure(&error.to_string()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(failure(&format!("the kernels do not compile:\n{said}")));
        }
        eprint!("{said}");
        Ok(())
    }

    fn build(&self, sources: &Path, kernels: &Path, folder: &Path) -> Result<(), Failure> {
        let [flags, checks] = [FLAGS, CHECKS].map(|flags| flags.split_whitespace().map(OsStr::new).collect::<Vec<_>>());
        let o = OsStr::new("-o");
        let object = folder.join("kernels.o");
        let unit = sources.join("kernels.cpp");
        let own = format!("-DCAPO_UNIT=\"{}\"", unit_of(kernels)?);
        let folder_of_own = ["-I".as_ref(), kernels.as_os_str(), own.as_ref()];
        let compile = [&folder_of_own[..], &["-c".as_ref(), unit.as_os_str(), o, object.as_os_str()]].concat();
        self.run(&[&flags, &checks, &compile])?;
        let driver = folder.join("libcuda.so");
        let units = DRIVER.map(|name| sources.join(name).with_extension("cpp"));
        let units: Vec<&OsStr> = units.iter().map(|unit| unit.as_os_str()).collect();
        let link = ["-shared", "-pthread", "-Wl,-z,defs"].map(OsStr::new);
        let name = "-Wl,-soname,libcuda.so".as_ref();
        self.run(&[&flags, &link, &units, &[name, object.as_os_str(), o, driver.as_os_str()]])?;
        for alias in ["libcuda.so.1", "libnvrtc.so"] {
            // An empty library that brings the first one along: a library has one name of its own.
            let name = format!("-Wl,-soname,{alias}");
            let along =
                [name.as_ref(), "-Wl,-rpath,$ORIGIN".as_ref(), "-Wl,--no-as-needed".as_ref(), driver.as_os_str()];
            self.run(&[&link, &along, &[o, folder.join(alias).as_os_str()]])?;
        }
        std::fs::remove_file(&object).map_err(|error| broken(&object, &error))
    }
}
