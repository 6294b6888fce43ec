//! Commands that are refused, and their error messages: `tests/data/refused/TOPIC.txt` has
//! arguments of `host`, one refusal on each line, and `snapshots/suite__refused__TOPIC.snap` has
//! the error message below each. Topics that are not listed below need folders with files, so other
//! tests use them.
//!
//! `INSTA_UPDATE=always cargo test -p tests refused` writes the messages again; read the difference
//! before committing it.

use std::path::Path;

use insta::assert_snapshot;
use tests::Folder;

/// Asserts what `host` says in `folder` to each line of a topic. Headings and comments, which begin
/// with `#`, stay as they are.
pub fn assert_refused(topic: &str, folder: &Folder) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("data/refused/{topic}.txt"));
    let answer = |line: &str| {
        // A failed test shows the input that was not refused last.
        println!("{line}");
        let is_text = line.is_empty() || line.starts_with('#');
        if is_text {
            format!("{line}\n")
        } else {
            format!("{line}\n    {}\n", folder.refused(line))
        }
    };
    assert_snapshot!(
        topic,
        tests::text(&file).lines().map(answer).collect::<String>()
    );
}

/// A test of each topic of a fresh folder.
macro_rules! topics {
    ($($topic:ident),*) => {
        $(#[test]
        fn $topic() {
            assert_refused(stringify!($topic), &Folder::new());
        })*
    };
}
topics!(
    check,
    config,
    device,
    misbehaviour,
    models,
    plugins,
    recipes,
    rewards
);
