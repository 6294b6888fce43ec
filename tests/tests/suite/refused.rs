//! Commands that are refused in a fresh folder, and their error messages: `tests/data/refused/TOPIC.txt` has arguments of `host`, one refusal on each line, and
//! `snapshots/suite__refused__TOPIC.snap` has the error message below each.
//!
//! `INSTA_UPDATE=always cargo test -p tests refused` writes the messages again; read the difference before committing it.

use std::path::Path;

use insta::assert_snapshot;
use tests::Folder;

/// The lines of a topic, below each its error message. Headings and comments, which begin with `#`, stay as they are.
fn answers(topic: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("data/refused/{topic}.txt"));
    let answer = |line: &str| {
        // A failed test shows the input that was not refused last.
        println!("{line}");
        let is_text = line.is_empty() || line.starts_with('#');
        if is_text { format!("{line}\n") } else { format!("{line}\n    {}\n", Folder::new().refused(line)) }
    };
    tests::text(&file).lines().map(answer).collect()
}

/// A test of each topic.
macro_rules! topics {
    ($($topic:ident),*) => {
        $(#[test]
        fn $topic() {
            assert_snapshot!(answers(stringify!($topic)));
        })*
    };
}
topics!(config, device, lora, models, new_plugin, plugins, recipes, rewards);
