//! Packs the files of `capo-plugin` into the executable, for `host new-plugin`: those that
//! `cargo package` would, but for tests and benches, which a crate that depends on it does not
//! build.

use std::path::{Path, PathBuf};

fn main() {
    let variable = |name: &str| PathBuf::from(std::env::var_os(name).expect("cargo sets it"));
    let root = variable("CARGO_MANIFEST_DIR")
        .join("../capo-plugin")
        .canonicalize()
        .expect("`capo-plugin` lies beside `host`");
    println!("cargo::rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    collect(&root, &mut files);
    files.sort();
    let entry = |path: &PathBuf| {
        let name = path
            .strip_prefix(&root)
            .expect("it lies in the folder")
            .to_str()
            .expect("names are UTF-8");
        format!(
            "    ({name:?}, include_str!({:?})),\n",
            path.to_str().expect("names are UTF-8")
        )
    };
    let list = format!("&[\n{}]\n", files.iter().map(entry).collect::<String>());
    std::fs::write(variable("OUT_DIR").join("capo_plugin.rs"), list)
        .expect("the build folder can be written");
}

/// All files in `folder` and below that are carried along.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder can be read") {
        let path = entry.expect("an entry can be read").path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default()
            .to_owned();
        if path.is_dir() && !["tests", "benches", "examples", "target"].contains(&name.as_str()) {
            collect(&path, files);
        } else if path.is_file() && !name.starts_with('.') {
            files.push(path);
        }
    }
}
