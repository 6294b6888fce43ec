//! Rows of tables, parquet or arrow, as lines of JSON.

mod arrow;
mod lines;
mod parquet;

pub(super) use arrow::lines as arrow;
pub(super) use parquet::lines as parquet;
