//! Tests of every id: against the public implementation that it names, and on the batches that
//! every component should handle.

mod golden;
mod keys;
mod rates;
mod snapshots;
mod traits;

use capo_plugin::{Image, MaskHandle, WeightHandle};

/// The mask `id` with a table in JSON.
fn mask(id: &str, json: &str) -> MaskHandle {
    Image::own()
        .mask(id, json)
        .unwrap_or_else(|error| panic!("{id}: {error}"))
}

/// The weight `id` with a table in JSON.
fn weight(id: &str, json: &str) -> WeightHandle {
    Image::own()
        .weight(id, json)
        .unwrap_or_else(|error| panic!("{id}: {error}"))
}
