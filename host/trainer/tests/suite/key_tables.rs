//! Tables of the keys of built-in components in the documentation.

use std::path::Path;

use capo_plugin::testing::key_tables;

#[test]
fn pages_have_the_keys_of_built_in_components() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for page in [
        "plugins/baselines/README.md",
        "plugins/rewards/README.md",
        "docs/environments.md",
    ] {
        key_tables(root.join(page)).unwrap();
    }
}
