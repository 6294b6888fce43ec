//! Runs a part of this test program as a process of its own, to see its stderr and to give it
//! settings.

use std::process::Command;

/// Runs [`part`] `name` with `settings`; what it wrote to stderr, with `[address]` for addresses.
pub fn run(name: &str, settings: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().expect("a test has a path"));
    command.args([
        "child::part",
        "--exact",
        "--include-ignored",
        "--nocapture",
        "--quiet",
    ]);
    // The gate's demand for an emulator is on this process, not on the child.
    command
        .env_remove("CAPO_REQUIRE_EMULATOR")
        .env("PART", name)
        .env("CUDA_EMULATOR_THREADS", "1")
        .env("CUDA_EMULATOR_LATE", "0");
    command.envs(settings.iter().copied());
    let output = command.output().expect("the test program runs");
    let stderr = String::from_utf8(output.stderr).expect("stderr is text");
    let folder = format!("{}/tests/kernels/", env!("CARGO_MANIFEST_DIR"));
    let stderr = stderr.replace(&folder, "");
    // Addresses differ from run to run. Masks have eight digits.
    let mut parts = stderr.split("0x");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_hexdigit());
        let number = &part[..part.len() - rest.len()];
        text += &if number.len() > 8 {
            "[address]".to_owned()
        } else {
            format!("0x{number}")
        };
        text += rest;
    }
    text.trim_end().to_owned()
}

#[test]
#[ignore = "other tests run it"]
fn part() {
    crate::sins::run(&std::env::var("PART").expect("another test says what to do"));
}
