//! Cargo features: optional parts of `host`, which a build may omit to compile faster.

/// The error for a use of `needed` in a build without the Cargo feature `feature`.
pub fn missing(needed: &str, feature: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "this host was built without {needed} (build it again with \
         `cargo build --release --features {feature}`, or `full` for all)"
    )
}
