//! Cargo features: parts of `host` that a build may leave out, because they take longer to compile than many runs need them.

#[cfg(not(all(feature = "datasets", feature = "download")))]
use anyhow::{Error, anyhow};

/// The error where `needed` was asked for, and `feature` was not built.
#[cfg(not(all(feature = "datasets", feature = "download")))]
pub(crate) fn missing(needed: &str, feature: &str) -> Error {
    anyhow!(
        "this host was built without {needed} (build it again with `cargo build --release --features {feature}`, or `full` for all)"
    )
}
