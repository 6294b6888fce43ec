//! docs/plugins.md works as written. Every shell block is run, in order. Every Rust block is in the
//! crate that they make, or in the file that it names (also those of capo-plugin/REFERENCE.md).
//! Every line of a text block is in the output of the shell block before it.

use std::path::{Path, PathBuf};
use std::process::Command;

use tests::artifacts;

/// A fenced block: the words behind the fence, and its text.
struct Block {
    info: String,
    text: String,
}

fn blocks(page: &str) -> Vec<Block> {
    let page = tests::text(&artifacts::workspace().join(page));
    let fenced = page.split("\n```").skip(1).step_by(2);
    let block = |text: &str| {
        let (info, text) = text.split_once('\n').expect("a fence ends its line");
        Block {
            info: info.to_owned(),
            text: text.to_owned() + "\n",
        }
    };
    fenced.map(block).collect()
}

/// A shell that runs block after block in one folder.
struct Shell {
    root: PathBuf,
    here: PathBuf,
    target: PathBuf,
}

impl Shell {
    /// Runs a block to its end and returns what it printed, on either stream.
    fn run(&mut self, text: &str) -> String {
        let path = format!(
            "{}:{}",
            artifacts::folder().display(),
            std::env::var("PATH").unwrap()
        );
        let place = self.root.join(".place");
        let mut command = Command::new("bash");
        artifacts::clean(&mut command, &self.target);
        // `target` is a link to the folder of all example plugins; the page means the crate's own.
        command
            .env_remove("CARGO_TARGET_DIR")
            .env("PATH", path)
            .env("CARGO_NET_OFFLINE", "true");
        // Tests end in the order of the page.
        command.env("RUST_TEST_THREADS", "1");
        command.args([
            "-euo",
            "pipefail",
            "-c",
            &format!("exec 2>&1\n{text}pwd > {}", place.display()),
        ]);
        let output = command.current_dir(&self.here).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}\n{said}");
        self.here = PathBuf::from(std::fs::read_to_string(place).unwrap().trim_end());
        self.adopt(&self.root.join("calm"));
        said
    }

    /// Gives a new crate the versions that this repository is tested with, and a target folder
    /// where they are built already.
    fn adopt(&self, plugin: &Path) {
        if plugin.exists() && !plugin.join("target").exists() {
            std::fs::copy(
                artifacts::workspace().join("Cargo.lock"),
                plugin.join("Cargo.lock"),
            )
            .unwrap();
            std::fs::create_dir_all(&self.target).unwrap();
            std::os::unix::fs::symlink(&self.target, plugin.join("target")).unwrap();
        }
    }
}

/// The lines of `text` must stand in `said`, in order.
fn assert_said(said: &str, text: &str) {
    let mut rest = said;
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let Some((_, after)) = rest.split_once(line) else {
            panic!("`{line}` is not in, or not after the others of:\n{said}")
        };
        rest = after;
    }
}

#[test]
#[ignore = "slow: it builds the plugins of a page; .ci/long runs it"]
fn every_block_of_the_page() {
    // The place is the same each time, so that cargo reuses what it built there before.
    let root = artifacts::target().join("tutorial");
    if root.exists() {
        std::fs::remove_dir_all(&root).unwrap();
    }
    std::fs::create_dir_all(&root).unwrap();
    let mut shell = Shell {
        here: root.clone(),
        target: artifacts::target().join("examples"),
        root,
    };
    let (mut said, mut count) = (String::new(), [0; 4]);
    for Block { info, text } in blocks("docs/plugins.md")
        .into_iter()
        .chain(blocks("capo-plugin/REFERENCE.md"))
    {
        match info.split(' ').collect::<Vec<_>>()[..] {
            ["sh"] => {
                said = shell.run(&text);
                count[0] += 1;
            }
            ["text"] => assert_said(&said, &text),
            ["rust", "in", file] => {
                let whole = std::fs::read_to_string(shell.root.join("calm").join(file)).unwrap();
                assert!(
                    whole.contains(&text),
                    "`{file}` does not hold:\n{text}\nit is:\n{whole}"
                );
                count[1] += 1;
            }
            ["rust", "of", file] => {
                let whole = tests::text(&artifacts::workspace().join(file));
                // An example on a page of documentation is compiled too.
                let lines = whole.lines().map(|line| {
                    line.strip_prefix("//!")
                        .map_or(line, |line| line.strip_prefix(' ').unwrap_or(line))
                });
                let lines: Vec<&str> = lines.map(str::trim).collect();
                let wanted: Vec<&str> = text.lines().map(str::trim).collect();
                assert!(
                    lines.windows(wanted.len()).any(|part| part == wanted),
                    "`{file}` does not hold:\n{text}"
                );
                count[3] += 1;
            }
            ["rust", file] => {
                std::fs::write(shell.root.join("calm").join(file), text).unwrap();
                count[2] += 1;
            }
            ["toml"] => assert!(text.parse::<toml::Table>().is_ok(), "{text}"),
            _ => panic!("a block of `{info}`, which nothing checks"),
        }
    }
    assert_eq!(count, [12, 3, 1, 5], "blocks of each kind");
}
