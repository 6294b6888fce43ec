//! Event files, decoded here as TensorFlow describes them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tests::{Folder, RunDir, names};

use crate::ONE_STEP;

/// The checksum of records, bit by bit.
fn checksum(bytes: &[u8]) -> u32 {
    let mut sum = !0_u32;
    for byte in bytes {
        sum ^= u32::from(*byte);
        (0..8).for_each(|_| sum = (sum >> 1) ^ (0x82f6_3b78 * (sum & 1)));
    }
    let sum = !sum;
    sum.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The data of each record of a file.
fn records(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at(12);
        let length = u64::from_le_bytes(head[..8].try_into().unwrap()) as usize;
        assert_eq!(
            checksum(&head[..8]),
            u32::from_le_bytes(head[8..].try_into().unwrap())
        );
        let (data, rest) = rest.split_at(length);
        let (sum, rest) = rest.split_at(4);
        assert_eq!(checksum(data), u32::from_le_bytes(sum.try_into().unwrap()));
        records.push(data.to_vec());
        bytes = rest;
    }
    records
}

/// The fields of a message: number and bytes of each. The bytes of a whole number are in
/// little-endian order.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let length = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
        let (number, rest) = bytes.split_at(length);
        *bytes = rest;
        number
            .iter()
            .rev()
            .fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let length = match key & 7 {
            0 => {
                fields.push((key >> 3, varint(&mut bytes).to_le_bytes().to_vec()));
                continue;
            }
            1 => 8,
            2 => varint(&mut bytes) as usize,
            5 => 4,
            other => panic!("wire type {other}"),
        };
        let (content, rest) = bytes.split_at(length);
        fields.push((key >> 3, content.to_vec()));
        bytes = rest;
    }
    fields
}

fn bytes(fields: &[(u64, Vec<u8>)], number: u64) -> Option<&[u8]> {
    fields
        .iter()
        .find(|(found, _)| *found == number)
        .map(|(_, bytes)| &bytes[..])
}

fn number(fields: &[(u64, Vec<u8>)], number: u64) -> u64 {
    bytes(fields, number).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
}

fn event_files(run: &Path) -> Vec<PathBuf> {
    names(run)
        .iter()
        .filter(|name| name.contains("tfevents"))
        .map(|name| run.join(name))
        .collect()
}

/// Values by step and name, as TensorBoard reads the files: the start of a session removes its
/// steps from earlier files.
fn scalars(run: &RunDir) -> BTreeMap<(u64, String), f32> {
    let mut scalars = BTreeMap::new();
    for file in event_files(run.path()) {
        for (at, record) in records(&std::fs::read(file).unwrap()).iter().enumerate() {
            let event = fields(record);
            let step = number(&event, 2);
            if at == 0 {
                assert_eq!(bytes(&event, 3).unwrap(), b"brain.Event:2");
            }
            if let Some(session) = bytes(&event, 7) {
                assert_eq!(number(&fields(session), 1), 1, "it starts");
                scalars.retain(|(found, _), _| *found < step);
            }
            for (_, value) in bytes(&event, 5).map(fields).unwrap_or_default() {
                let value = fields(&value);
                let name = String::from_utf8(bytes(&value, 1).unwrap().to_vec()).unwrap();
                let scalar = f32::from_le_bytes(bytes(&value, 2).unwrap().try_into().unwrap());
                assert_eq!(scalars.insert((step, name), scalar), None, "each step once");
            }
        }
    }
    scalars
}

/// Scalars of `metrics.jsonl` by step and name.
fn metrics(run: &RunDir) -> BTreeMap<(u64, String), f32> {
    let text = run.text("metrics.jsonl");
    let line = |line: &str| {
        let values: BTreeMap<String, Value> = serde_json::from_str(line).unwrap();
        let step = values["step"].as_u64().unwrap();
        let numbers = values.into_iter().filter(|(name, _)| name != "step");
        numbers
            .filter_map(|(name, value)| Some(((step, name), value.as_f64()? as f32)))
            .collect::<Vec<_>>()
    };
    text.lines().flat_map(line).collect()
}

#[test]
fn event_files_hold_the_metrics() {
    let folder = Folder::new();
    let args = "--plugin libcapo.so --set logging.report_to=[\"tensorboard\"] --set train.max_steps=6 --set train.save_steps=2 \
        --set eval.num_prompts=8 --set eval.eval_steps=2";
    let run = folder.train("run", args);
    assert_eq!(event_files(run.path()).len(), 1);
    let told = |run: &RunDir| {
        let main = ["rejection_rate", "m_f/mean", "kl/mean"];
        let is_told = |name: &str| {
            name.strip_prefix("capo.curvature/")
                .is_none_or(|name| main.contains(&name))
        };
        metrics(run)
            .into_iter()
            .filter(|((_, name), _)| is_told(name))
            .collect::<BTreeMap<_, _>>()
    };
    assert_eq!(scalars(&run), told(&run));
    // The run looks as if it had been killed after its checkpoint of step 4, once while it wrote.
    std::fs::remove_dir_all(run.last_checkpoint()).unwrap();
    let run = folder.resume("run");
    assert_eq!(event_files(run.path()).len(), 2);
    assert_eq!(scalars(&run), told(&run));
    assert!(
        metrics(&run).len() > told(&run).len() + 6 * 20,
        "a mask records much"
    );
}

#[test]
fn a_setting_chooses_the_trackers() {
    let folder = Folder::new();
    for none in ["\"none\"", "[]"] {
        let run = folder.train(
            &format!("run{}", none.len()),
            &format!("{ONE_STEP} --set logging.report_to={none}"),
        );
        assert!(event_files(run.path()).is_empty());
        assert!(run.text("config.toml").contains("report_to = []"));
    }
    let all = "--plugin libcapo.so --set logging.component_metrics=all";
    let run = folder.train(
        "told",
        &format!("{ONE_STEP} --set logging.report_to=tensorboard {all}"),
    );
    assert_eq!(event_files(run.path()).len(), 1);
    assert_eq!(scalars(&run), metrics(&run));
}
