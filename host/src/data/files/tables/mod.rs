//! Converts rows of tables, Parquet or Arrow, to lines of JSON.

mod arrow;
mod lines;
mod parquet;

pub(super) use arrow::lines as arrow;
pub(super) use parquet::lines as parquet;
