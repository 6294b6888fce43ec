//! Results of the shipped components and the example on the canonical batches, through the library
//! that ships and linked into this executable.
//!
//! After an intended change, `INSTA_UPDATE=always cargo test -p tests snapshots` writes the files
//! in `snapshots/` again.

// Linked into this executable, so that their components are built in here.
use capo as _;
use drcapo as _;
use reincapo as _;

/// A cdylib cannot be linked; its one file can be compiled in.
#[path = "../../../plugins/examples/surprise-cap/src/lib.rs"]
mod surprise_cap;

use std::path::Path;

use capo_plugin::Image;
use capo_plugin::testing::{Snapshot, snapshot};
use insta::assert_snapshot;
use tests::artifacts;

/// The text that `render` makes from the library at `path`. It must equal the text from this
/// executable.
fn loaded_and_linked(path: &Path, render: impl Fn(&Image) -> String) -> String {
    let loaded = render(&capo_loader::open::load(path).unwrap());
    assert_eq!(
        loaded,
        render(&Image::own()),
        "`{}` is not what is linked in here",
        path.display()
    );
    loaded
}

/// The three components of a shipped plugin. The mask is shown with few digits and no other
/// records, because the order of its sums is not promised.
fn shipped(name: &str) -> String {
    loaded_and_linked(&artifacts::file(&format!("lib{name}.so")), |image| {
        let advantage = snapshot(&mut image.advantage(&format!("{name}.advantage"), "{}").unwrap());
        let objective = snapshot(&mut image.objective(&format!("{name}.objective"), "{}").unwrap());
        let curvature = Snapshot::default()
            .digits(3)
            .only(&["token_mask", "m_f", "m_h"]);
        let mask = curvature.of(&mut image.mask(&format!("{name}.curvature"), "{}").unwrap());
        format!("# advantage\n{advantage}\n# objective\n{objective}\n# mask\n{mask}")
    })
}

macro_rules! shipped {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            assert_snapshot!(shipped(stringify!($name)));
        })*
    };
}
shipped!(capo, drcapo, reincapo);

#[test]
fn example() {
    let render = |image: &Image| {
        snapshot(
            &mut image
                .mask("example.surprise-cap", "{\"max_nats\": 1.5}")
                .unwrap(),
        )
    };
    assert_snapshot!(loaded_and_linked(
        &artifacts::example("surprise-cap", "dev"),
        render
    ));
}

#[test]
fn built_in_reward() {
    let reward = Image::own().reward("exact_match", "{\"answer_separator\": \"=\"}");
    assert_snapshot!(snapshot(&mut reward.unwrap()));
}
