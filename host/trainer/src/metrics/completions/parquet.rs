//! Completions as Parquet, one file per step. A resume only removes the files of later steps.

use std::sync::Arc;

use anyhow::Result;
use arrow_array::builder::{ListBuilder, StringBuilder};
use arrow_array::types::{Float32Type, UInt32Type};
use arrow_array::{
    ArrayRef, BooleanArray, Float32Array, ListArray, RecordBatch, StringArray, UInt64Array,
};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

use super::table::{Column, Table};

/// The file for `table`. Equal tables give identical bytes.
pub fn bytes(table: &Table) -> Result<Vec<u8>> {
    let columns = table
        .columns
        .iter()
        .map(|(name, column)| (name, array(column, table.rows), true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns)?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
        .build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties))?;
    writer.write(&batch)?;
    writer.close()?;
    Ok(bytes)
}

fn array(column: &Column, rows: usize) -> ArrayRef {
    match column {
        Column::Step(step) => Arc::new(UInt64Array::from(vec![*step; rows])),
        Column::Text(values) => Arc::new(StringArray::from(values.clone())),
        Column::Number(values) => Arc::new(Float32Array::from(values.clone())),
        Column::Flag(values) => Arc::new(BooleanArray::from(values.clone())),
        Column::Wholes(lists) => Arc::new(ListArray::from_iter_primitive::<UInt32Type, _, _>(
            lists.iter().map(|list| some(list)),
        )),
        Column::Numbers(lists) => Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(
            lists.iter().map(|list| some(list)),
        )),
        Column::Texts(lists) => {
            let mut builder = ListBuilder::new(StringBuilder::new());
            for list in lists {
                list.iter()
                    .for_each(|text| builder.values().append_option(text.as_deref()));
                builder.append(true);
            }
            Arc::new(builder.finish())
        }
    }
}

fn some<T: Copy>(list: &[T]) -> Option<Vec<Option<T>>> {
    Some(list.iter().map(|value| Some(*value)).collect())
}

#[cfg(test)]
mod tests {
    use host_data::read_rows;

    use super::*;

    #[test]
    fn reads_what_was_written() {
        let columns = [
            ("step", Column::Step(3)),
            ("prompt", Column::Text(vec!["a\n".into(), "ü".into()])),
            ("reward", Column::Number(vec![0.1, -1.5])),
            ("truncated", Column::Flag(vec![true, false])),
            ("tokens/id", Column::Wholes(vec![vec![7, 0], vec![]])),
            (
                "tokens/text",
                Column::Texts(vec![vec![Some("x".into()), None], vec![]]),
            ),
            (
                "tokens/logp",
                Column::Numbers(vec![vec![-0.3, 1e-20], vec![]]),
            ),
        ];
        let table = Table {
            rows: 2,
            columns: columns
                .map(|(name, column)| (name.to_owned(), column))
                .into(),
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("step-000003.parquet");
        let written = bytes(&table).unwrap();
        assert_eq!(written, bytes(&table).unwrap());
        std::fs::write(&path, &written).unwrap();
        let parse = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
        let read = String::from_utf8(read_rows(&path).unwrap().bytes).unwrap();
        let expected: Vec<_> = table
            .lines()
            .unwrap()
            .iter()
            .map(|line| parse(line))
            .collect();
        assert_eq!(read.lines().map(parse).collect::<Vec<_>>(), expected);
        std::fs::write(&path, &written[..written.len() / 2]).unwrap();
        assert!(read_rows(&path).is_err());
    }
}
