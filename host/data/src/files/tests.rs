use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::*;

/// Folder of sample files that `datasets` and pyarrow wrote (`scripts/dataset_samples.py`).
fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/datasets")
}

fn expected(name: &str) -> Vec<Value> {
    let expected: Value =
        serde_json::from_slice(&fs::read(samples().join("expected.json")).unwrap()).unwrap();
    expected[name].as_array().unwrap().clone()
}

fn rows(path: &Path) -> Vec<Value> {
    let text = read(path).unwrap();
    assert_eq!(text.unit, Unit::Row);
    let lines = text
        .bytes
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}

fn error(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, bytes).unwrap();
    format!("{:#}", read(&path).unwrap_err()).replace(&path.display().to_string(), "FILE")
}

fn wanted<'a>(config: Option<&'a str>, split: Option<&'a str>) -> Wanted<'a> {
    Wanted {
        config,
        split,
        default_split: "train",
        config_key: "`data.dataset_config`",
    }
}

/// The files found at `path` below the samples, as paths relative to it.
fn found(path: &str, config: Option<&str>, split: Option<&str>) -> Result<Vec<String>, String> {
    let root = samples().join(path);
    let shown = |file: PathBuf| {
        file.strip_prefix(&root)
            .unwrap()
            .to_string_lossy()
            .into_owned()
    };
    let found =
        find(&root, wanted(config, split)).map(|files| files.into_iter().map(shown).collect());
    found.map_err(|error| format!("{error:#}").replace(&root.display().to_string(), "FOLDER"))
}

#[test]
fn reads_tables_of_every_compression() {
    for name in [
        "none.parquet",
        "snappy.parquet",
        "gzip.parquet",
        "lz4.parquet",
        "zstd.parquet",
    ] {
        assert_eq!(
            rows(&samples().join(format!("math-{name}"))),
            expected("math"),
            "{name}"
        );
    }
    for name in ["stream.arrow", "file.arrow", "lz4.arrow", "zstd.arrow"] {
        assert_eq!(
            rows(&samples().join(format!("math-{name}"))),
            expected("math"),
            "{name}"
        );
    }
    assert_eq!(
        rows(&samples().join("verl.parquet")),
        expected("verl"),
        "columns in columns, and what is null"
    );
    let text = String::from_utf8(read(&samples().join("times.parquet")).unwrap().bytes).unwrap();
    let expected = "{\"prompt\":\"1+1=\",\"answer\":100000000000000000000000000007}\n{\"prompt\":\"2+2=\",\"answer\":4}\n";
    assert_eq!(text, expected, "a column that cannot be read is left out");
}

#[test]
fn reads_the_shards_and_splits_that_were_saved() {
    let shards = [
        "data-00000-of-00003.arrow",
        "data-00001-of-00003.arrow",
        "data-00002-of-00003.arrow",
    ];
    assert_eq!(found("sharded", None, None).unwrap(), shards);
    let all = shards
        .iter()
        .flat_map(|shard| rows(&samples().join("sharded").join(shard)))
        .collect::<Vec<_>>();
    assert_eq!(all, expected("train"));
    assert_eq!(
        found("saved", None, None).unwrap(),
        ["train/data-00000-of-00001.arrow"]
    );
    assert_eq!(
        found("saved", None, Some("test")).unwrap(),
        ["test/data-00000-of-00001.arrow"]
    );
    let dict = found("saved", Some("main"), None).unwrap_err();
    assert!(
        dict.starts_with(
            "`FOLDER` is a folder of `save_to_disk`, which has no configuration `main`"
        ),
        "{dict}"
    );
}

#[test]
fn a_dataset_saved_alone_has_the_split_that_it_was_loaded_as() {
    let folder = tempfile::tempdir().unwrap();
    let find = |own: &str, config: Option<&str>, split: &str| {
        let state = format!(r#"{{"_data_files": [{{"filename": "a.arrow"}}], "_split": {own}}}"#);
        fs::write(folder.path().join("state.json"), state).unwrap();
        let found =
            super::find(folder.path(), wanted(config, Some(split))).map(|found| found.len());
        found.map_err(|error| {
            error
                .to_string()
                .replace(&folder.path().display().to_string(), "FOLDER")
        })
    };
    assert_eq!(find("\"train\"", None, "train"), Ok(1));
    assert_eq!(find("\"train[:3]\"", None, "train"), Ok(1));
    let refused = |what: &str| {
        Err(format!(
            "`FOLDER` is {what} (name a folder that has it, or remove it)"
        ))
    };
    let other = "one saved dataset, of the split `train`, which has no split `test`";
    assert_eq!(find("\"train\"", None, "test"), refused(other));
    assert_eq!(
        find("null", None, "test"),
        refused("one saved dataset, which has no split `test`")
    );
    let configuration = "a folder of `save_to_disk`, which has no configuration `main`";
    assert_eq!(find("null", Some("main"), "train"), refused(configuration));
}

#[test]
fn a_snapshot_has_configurations_and_splits() {
    let snapshot = "hub/datasets--made-up--gsm8k/snapshots/0123456789abcdef";
    assert_eq!(
        found(snapshot, Some("main"), None).unwrap(),
        ["main/train-00000-of-00001.parquet"]
    );
    assert_eq!(
        found(snapshot, Some("socratic"), Some("test")).unwrap(),
        ["socratic/test-00000-of-00001.parquet"]
    );
    assert_eq!(
        found(snapshot, Some("other"), None).unwrap_err(),
        "`FOLDER` has no configuration `other` (it has `main`, `socratic`)"
    );
    assert_eq!(
        found(snapshot, Some("main"), Some("validation")).unwrap_err(),
        "`FOLDER` has no split `validation` (it has `test`, `train`)"
    );
    let file = found("verl.parquet", None, Some("test")).unwrap_err();
    assert_eq!(
        file,
        "`FOLDER` is a file, which has no split `test` (name a folder that has it, or remove it)"
    );
}

#[test]
fn recognizes_splits_by_the_names_that_datasets_knows() {
    let folder = tempfile::tempdir().unwrap();
    let files = |names: &[&str], split: &str| {
        let folder = tempfile::tempdir_in(folder.path()).unwrap();
        for name in names {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let found =
            find(folder.path(), wanted(None, Some(split))).map_err(|error| error.to_string())?;
        Ok::<_, String>(
            found
                .iter()
                .map(|f| f.strip_prefix(folder.path()).unwrap().display().to_string())
                .collect(),
        )
    };
    let found = |names: &[&str], split: &str| -> Vec<String> { files(names, split).unwrap() };
    // Covers the cache of `datasets`, the Hub's usual layout, plain files and folders, and shards
    // in order.
    assert_eq!(
        found(
            &["gsm8k-train.arrow", "gsm8k-test.arrow", "dataset_info.json"],
            "train"
        ),
        ["gsm8k-train.arrow"]
    );
    assert_eq!(
        found(
            &[
                "data/train-00001-of-00002.parquet",
                "data/train-00000-of-00002.parquet",
                "README.md"
            ],
            "train"
        ),
        [
            "data/train-00000-of-00002.parquet",
            "data/train-00001-of-00002.parquet"
        ]
    );
    assert_eq!(
        found(&["training.jsonl", "dev.jsonl"], "validation"),
        ["dev.jsonl"]
    );
    assert_eq!(
        found(&["test/a.jsonl", "train/b.jsonl"], "test"),
        ["test/a.jsonl"]
    );
    assert_eq!(
        found(
            &["part1.jsonl", "part2.json", "dataset_infos.json"],
            "train"
        ),
        ["part1.jsonl", "part2.json"]
    );
    assert_eq!(found(&["train.json", "test.json"], "test"), ["test.json"]);
    assert_eq!(
        found(&["rows.parquet", "notes.json"], "train"),
        ["rows.parquet"]
    );
    assert_eq!(
        found(
            &[
                "train_sft-00000-of-00001.parquet",
                "test_sft-00000-of-00001.parquet"
            ],
            "train_sft"
        )
        .len(),
        1
    );
    assert_eq!(
        found(&["rows.jsonl"], "train"),
        ["rows.jsonl"],
        "files that name no split are all of the first"
    );
    assert!(
        files(&["rows.jsonl"], "test")
            .unwrap_err()
            .ends_with("has no split `test` (it has `train`)")
    );
    assert!(
        files(&["notes.txt", "config.json"], "train")
            .unwrap_err()
            .contains("has no files of rows")
    );
    // Files in a hidden folder are not data.
    assert_eq!(
        found(&[".hidden/train.jsonl", "train.jsonl"], "train"),
        ["train.jsonl"]
    );
}

#[test]
fn refuses_a_state_that_names_files_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let error = |state: &str| {
        fs::write(folder.path().join("state.json"), state).unwrap();
        let error = find(folder.path(), wanted(None, None)).unwrap_err();
        format!("{error:#}").replace(&folder.path().display().to_string(), "FOLDER")
    };
    assert!(error("{").starts_with("`FOLDER/state.json` is not as `save_to_disk` writes it"));
    let outside = error(r#"{"_data_files": [{"filename": "../secret.arrow"}]}"#);
    assert!(
        outside.contains("`../secret.arrow`, which is not beside it"),
        "{outside}"
    );
    let indices = error(
        r#"{"_data_files": [{"filename": "a"}], "_indices_data_files": [{"filename": "b"}]}"#,
    );
    assert!(indices.contains("flatten_indices"), "{indices}");
}

#[test]
fn refuses_damaged_files() {
    assert_eq!(
        error(b"PAR1"),
        "cannot read `FILE`: it ends too early (fetch it again)"
    );
    assert!(
        error(b"PAR1\xff\xff\xff\xffPAR1").contains("its footer is said to have 4294967295 bytes")
    );
    assert_eq!(error(b"\x1f\x8b\x08\x00"), "`FILE` is packed (unpack it)");
    for wide in [b"\xff\xfe{\0\"\0", b"\xfe\xff\0{\0\"", b"{\0\"\0}\0"] {
        assert_eq!(error(wide), "`FILE` is text in UTF-16 (write it in UTF-8)");
    }
    for (table, between) in [
        ("prompt,answer\n1,2\n", "commas"),
        ("prompt;answer\n1;2\n", "semicolons"),
    ] {
        let told = format!(
            "it is a table with {between} between its columns, which is not read (write it as "
        );
        assert!(
            error(table.as_bytes()).contains(&told),
            "{}",
            error(table.as_bytes())
        );
    }
    let whole = fs::read(samples().join("math-stream.arrow")).unwrap();
    for end in [4, 7, 100, whole.len() / 2] {
        assert_eq!(
            error(&whole[..end]),
            "cannot read `FILE`: it ends too early (fetch it again)",
            "{end} bytes"
        );
    }
    let whole = fs::read(samples().join("math-zstd.parquet")).unwrap();
    assert!(error(&whole[..whole.len() / 2]).starts_with("cannot read `FILE`: "));
}

#[test]
fn a_column_of_impossible_length_takes_no_memory() {
    let mut bytes = fs::read(samples().join("math-lz4.arrow")).unwrap();
    // LZ4 frames begin with these bytes, after the length.
    let frame = bytes
        .windows(4)
        .position(|four| four == [0x04, 0x22, 0x4d, 0x18])
        .unwrap();
    bytes[frame - 8..frame].copy_from_slice(&(1_i64 << 60).to_le_bytes());
    assert!(
        error(&bytes).contains("bytes unpacked (at most "),
        "{}",
        error(&bytes)
    );
}

#[test]
fn deeply_nested_columns_do_not_overflow_the_stack() {
    // A handmade footer of nearly the largest length: two million groups, each of which contains
    // the next.
    let element = [0x35, 0x00, 0x18, 0x01, b'a', 0x15, 0x02, 0x00];
    let count = 2_000_000_u32;
    let mut footer = vec![0x15, 0x02, 0x19, 0xfc];
    let mut rest = count;
    while rest >= 0x80 {
        footer.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    footer.push(rest as u8);
    footer.extend(element.repeat(count as usize));
    footer.extend([0x16, 0x00, 0x19, 0x0c, 0x00]);
    let bytes = [
        b"PAR1",
        &footer[..],
        &(footer.len() as u32).to_le_bytes(),
        b"PAR1",
    ]
    .concat();
    assert!(error(&bytes).starts_with("cannot read `FILE`: "));
}

/// Whichever byte is changed, in its lowest, its highest or all bits by turns, a file is read or
/// refused.
#[test]
fn changed_bytes_are_read_or_refused() {
    for name in [
        "math-lz4.arrow",
        "math-stream.arrow",
        "math-snappy.parquet",
        "verl.parquet",
    ] {
        let whole = fs::read(samples().join(name)).unwrap();
        for place in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[place] ^= [0x01, 0x80, 0xff][place % 3];
            let read = match bytes.starts_with(b"PAR1") {
                true => tables::parquet(bytes),
                false => tables::arrow(&bytes),
            };
            if let Ok(lines) = read {
                assert!(
                    lines.len() < 1 << 24,
                    "byte {place} of `{name}` makes {} bytes",
                    lines.len()
                );
            }
        }
    }
}
