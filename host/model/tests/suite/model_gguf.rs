//! GGUF files against Hugging Face transformers, which reads them too (files and numbers made by
//! `data/gguf-golden/make.py`).

use std::collections::HashMap;
use std::fs;
use std::io::Cursor;

use candle_core::Device;
use candle_core::quantized::gguf_file::{self, Value};
use host_data::Tokenizer;
use host_model::embedded::model_files;
use host_model::{Generation, ModelFiles, Policy, Wants};
use host_rng::stream;
use rand::RngExt;
use serde::Deserialize;

use crate::shared::{batch, data, json, sampling};

#[derive(Deserialize)]
struct Golden {
    name: String,
    weights: usize,
    texts: Vec<Text>,
    rows: Vec<Row>,
    greedy: Greedy,
    eos: u32,
}

#[derive(Deserialize)]
struct Text {
    text: String,
    ids: Vec<u32>,
    with_special: Vec<u32>,
    decoded: String,
}

#[derive(Deserialize)]
struct Row {
    prompt_ids: Vec<u32>,
    completion_ids: Vec<u32>,
    logps: Vec<f32>,
}

#[derive(Deserialize)]
struct Greedy {
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
    text: String,
}

fn golden() -> Vec<(Golden, ModelFiles)> {
    let rows: Vec<Golden> = json(&data("gguf-golden/golden.json"));
    let file = |name: &str| {
        data("gguf-golden")
            .join(format!("{name}.gguf"))
            .to_string_lossy()
            .into_owned()
    };
    let files = rows
        .iter()
        .map(|golden| model_files(&file(&golden.name)).unwrap())
        .collect::<Vec<_>>();
    rows.into_iter().zip(files).collect()
}

#[test]
fn tokenizers_match_transformers() {
    for (golden, files) in golden() {
        let tokenizer = Tokenizer::open(&files).unwrap();
        let prompts = tokenizer.clone().with_special_tokens(true).unwrap();
        for Text {
            text,
            ids,
            with_special,
            decoded,
        } in &golden.texts
        {
            assert_eq!(
                tokenizer.encode(text).unwrap(),
                *ids,
                "{}: {text:?}",
                golden.name
            );
            // A text that begins with the begin token does not get a second one.
            let begun = if ids.starts_with(prompts.begin()) {
                ids
            } else {
                with_special
            };
            assert_eq!(
                prompts.encode_prompt(text).unwrap(),
                *begun,
                "{}: {text:?}",
                golden.name
            );
            assert_eq!(
                tokenizer.decode(ids).unwrap(),
                *decoded,
                "{}: {text:?}",
                golden.name
            );
        }
        assert_eq!(tokenizer.eos_ids(), [golden.eos], "{}", golden.name);
    }
}

/// A text after a prompt has the same ids as in the whole text, because no tokenizer puts a space
/// between them. TRL's `SFTTrainer` relies on this.
#[test]
fn encodes_a_continued_text_as_part_of_the_whole() {
    for (golden, files) in golden() {
        let tokenizer = Tokenizer::open(&files).unwrap();
        let encode = |text: &str| tokenizer.encode(text).unwrap();
        for (before, text) in [
            ("1+2=", "3 is the number"),
            ("the number", "(number,"),
            ("is", " the 12 number"),
        ] {
            let whole = encode(&(before.to_owned() + text));
            let expected = whole.strip_prefix(&encode(before)[..]).unwrap();
            assert_eq!(
                tokenizer.encode_after(text).unwrap(),
                expected,
                "{}: {text:?}",
                golden.name
            );
        }
    }
}

#[test]
fn log_probabilities_match_transformers() {
    for (golden, files) in golden() {
        let policy = Policy::load(&files, &Device::Cpu).unwrap();
        assert_eq!(
            policy.params().element_count(),
            golden.weights,
            "{}",
            golden.name
        );
        let pairs: Vec<_> = golden
            .rows
            .iter()
            .map(|row| (&row.prompt_ids[..], &row.completion_ids[..]))
            .collect();
        let rows = batch(&pairs);
        let logps = policy
            .forward_detached(&rows, 1.0)
            .unwrap()
            .outputs(&Wants::default())
            .unwrap()
            .logps;
        let mut worst = 0.0_f32;
        for (row, logps) in golden.rows.iter().zip(logps.chunks(rows.completion_len)) {
            assert_eq!(row.logps.len(), row.completion_ids.len());
            worst = logps
                .iter()
                .zip(&row.logps)
                .map(|(a, b)| (a - b).abs())
                .fold(worst, f32::max);
        }
        println!("{}: {worst:.1e}", golden.name);
        assert!(worst < 1e-5, "{}: {worst:e}", golden.name);
    }
}

#[test]
fn greedy_completions_match_transformers() {
    for (golden, files) in golden() {
        let policy = Policy::load(&files, &Device::Cpu).unwrap();
        let max_completion_length = golden.greedy.ids.len();
        let generation = Generation {
            max_completion_length,
            logps: false,
            ..sampling(0.0, 0, 1.0)
        };
        let prompts = [golden.greedy.prompt_ids];
        let completions = policy
            .generate(&prompts, &generation, &mut [stream(0, "test", &[])])
            .unwrap();
        assert_eq!(completions[0].ids, golden.greedy.ids, "{}", golden.name);
        let text = Tokenizer::open(&files)
            .unwrap()
            .decode(&completions[0].ids)
            .unwrap();
        assert_eq!(text, golden.greedy.text, "{}", golden.name);
    }
}

/// The error for a file of these bytes, after reading all that can be read.
fn refused(bytes: &[u8]) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    fs::write(&path, bytes).unwrap();
    let load = || -> anyhow::Result<()> {
        let files = model_files(&path.to_string_lossy())?;
        Policy::load(&files, &Device::Cpu)?;
        Tokenizer::open(&files).map(drop)
    };
    let error = load().err()?;
    Some(format!("{error:#}").replace(&path.to_string_lossy().into_owned(), "x.gguf"))
}

fn bytes(name: &str) -> Vec<u8> {
    fs::read(data("gguf-golden").join(name)).unwrap()
}

/// The error for a file with changed metadata.
fn changed(name: &str, change: impl FnOnce(&mut HashMap<String, Value>)) -> Option<String> {
    refused(&rewritten(name, change))
}

/// The file with changed metadata.
fn rewritten(name: &str, change: impl FnOnce(&mut HashMap<String, Value>)) -> Vec<u8> {
    let mut file = Cursor::new(bytes(name));
    let content = gguf_file::Content::read(&mut file).unwrap();
    let read = |name: &String| {
        (
            name.clone(),
            content.tensor(&mut file, name, &Device::Cpu).unwrap(),
        )
    };
    let tensors: Vec<_> = content.tensor_infos.keys().map(read).collect();
    let mut metadata = content.metadata;
    change(&mut metadata);
    let metadata: Vec<_> = metadata
        .iter()
        .map(|(key, value)| (key.as_str(), value))
        .collect();
    let tensors: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor))
        .collect();
    let mut out = Cursor::new(Vec::new());
    gguf_file::write(&mut out, &metadata, &tensors).unwrap();
    out.into_inner()
}

/// Many files, such as those of Llama 3, do not say whether texts begin with the begin token. They
/// are read as llama.cpp reads them.
#[test]
fn takes_the_begin_token_from_the_split_pattern_by_default() {
    let begin = |file: &[u8]| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.gguf");
        fs::write(&path, file).unwrap();
        let tokenizer = Tokenizer::open(&model_files(path.to_str().unwrap()).unwrap()).unwrap();
        tokenizer
            .with_special_tokens(true)
            .unwrap()
            .begin()
            .to_vec()
    };
    let silent = |pattern: &str| {
        begin(&rewritten("llama-f16.gguf", |metadata| {
            metadata.remove("tokenizer.ggml.add_bos_token");
            metadata.insert("tokenizer.ggml.pre".into(), Value::String(pattern.into()));
        }))
    };
    let said = begin(&bytes("llama-f16.gguf"));
    assert_eq!(said.len(), 1);
    assert_eq!(
        [silent("llama-bpe"), silent("tekken")],
        [said.clone(), said]
    );
    assert_eq!(
        [silent("smaug-bpe"), silent("qwen2")],
        [Vec::<u32>::new(), Vec::new()]
    );
}

#[test]
fn names_unsupported_settings() {
    let set = |key: &'static str, value: Value| {
        changed("qwen2-q4_0.gguf", |metadata| {
            drop(metadata.insert(key.to_owned(), value))
        })
        .unwrap_or_default()
    };
    let text = |text: &str| Value::String(text.to_owned());
    let cases = [
        (
            set("general.architecture", text("gemma3")),
            "`general.architecture` is `gemma3`, supported are `llama`, `qwen2`, `qwen3`",
        ),
        (
            set("general.type", text("adapter")),
            "`general.type` is `adapter`, only `model` is supported",
        ),
        (
            set("split.count", Value::U16(3)),
            "it is one of 3 files that hold a model together",
        ),
        (
            set("qwen2.embedding_length", text("x")),
            "invalid type: string \"x\", expected usize",
        ),
        (
            set("qwen2.rope.dimension_count", Value::U32(4)),
            "`qwen2.rope.dimension_count` is `4`, which is an unknown setting",
        ),
        (
            set("qwen2.logit_scale", Value::F32(0.5)),
            "`qwen2.logit_scale` is `0.5`, which is an unknown setting of a `qwen2` model",
        ),
        (
            set("qwen2.rope.scaling.type", text("longrope")),
            "`rope_type` of `rope_scaling` is `longrope`, supported are",
        ),
        (
            set("tokenizer.ggml.model", text("t5")),
            "`tokenizer.ggml.model` is `t5`, supported are `gpt2` and `llama`",
        ),
        (
            set("tokenizer.ggml.pre", text("chameleon")),
            "`tokenizer.ggml.pre` is `chameleon`, supported are `gpt-2`, ",
        ),
        (
            set("tokenizer.ggml.eos_token_id", Value::U32(999)),
            "`tokenizer.ggml.eos_token_id` is 999, but there are 344 tokens",
        ),
        (
            set("tokenizer.ggml.tokens", Value::U32(9)),
            "`tokenizer.ggml.tokens` is `9`, expected a list of texts",
        ),
        (
            set("tokenizer.ggml.merges", Value::Array(vec![text("ab")])),
            "`tokenizer.ggml.merges` has `ab`, expected two parts",
        ),
        (
            set("tokenizer.ggml.token_type", Value::Array(vec![])),
            "`tokenizer.ggml.token_type` has 0 values for 344 tokens",
        ),
        (
            set("qwen2.attention.head_count", Value::U32(0)),
            "`num_attention_heads` is 0, expected at least 1",
        ),
        (
            set("qwen2.attention.key_length", Value::U32(16)),
            "`qwen2.attention.value_length` is `8`, which is an unknown setting",
        ),
    ];
    for (sentence, expected) in &cases {
        assert!(
            sentence.starts_with("cannot use ") && sentence.contains(expected),
            "{sentence}\n{expected}"
        );
    }
    let missing = |key: &'static str| {
        changed("llama-pieces.gguf", |metadata| drop(metadata.remove(key))).unwrap()
    };
    for key in [
        "general.architecture",
        "llama.block_count",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.scores",
    ] {
        assert_eq!(
            missing(key),
            format!("cannot use `x.gguf`: `{key}` is missing (fetch the file again)")
        );
    }
}

/// The place of a tensor's type in the file, which follows the tensor's name and two sizes.
fn type_of(file: &[u8], name: &str) -> usize {
    file.windows(name.len())
        .position(|window| window == name.as_bytes())
        .unwrap()
        + name.len()
        + 4
        + 16
}

#[test]
fn names_unsupported_tensor_types() {
    let with_type = |number: u32| {
        let mut file = bytes("llama-q8_0.gguf");
        let place = type_of(&file, "token_embd.weight");
        file[place..place + 4].copy_from_slice(&number.to_le_bytes());
        refused(&file).unwrap()
    };
    for (number, name) in [
        (20, "`IQ4_NL`"),
        (10, "`Q2_K`"),
        (39, "`MXFP4`"),
        (777, "number 777"),
    ] {
        let expected = format!(
            "cannot use `x.gguf`: it has a tensor of the type {name}, supported are F32, F16, BF16, Q8_0,"
        );
        assert!(
            with_type(number).starts_with(&expected),
            "{}",
            with_type(number)
        );
    }
    let sentence = with_type(12);
    assert!(
        sentence.contains(
            "`token_embd.weight` has shape [344, 32], but numbers of its type come in blocks of 256"
        ),
        "{sentence}"
    );
}

#[test]
fn explains_damaged_files() {
    let whole = bytes("llama-q8_0.gguf");
    for length in (0..whole.len()).step_by(61) {
        let sentence = refused(&whole[..length]).unwrap();
        assert!(
            sentence.starts_with("cannot use `x.gguf`: "),
            "{length}: {sentence}"
        );
    }
    let patched = |place: usize, number: u64| {
        let mut file = whole.clone();
        file[place..place + 8].copy_from_slice(&number.to_le_bytes());
        refused(&file).unwrap()
    };
    let dims = type_of(&whole, "token_embd.weight") - 16;
    for number in [1 << 20, 1 << 40, 1 << 62, u64::MAX] {
        // The numbers of tensors and of metadata, both sizes of a matrix, and its offset.
        for place in [8, 16, dims, dims + 8, dims + 20] {
            let sentence = patched(place, number);
            assert!(
                sentence.starts_with("cannot use `x.gguf`: "),
                "{place}: {number}: {sentence}"
            );
        }
    }
    assert!(
        patched(dims + 20, 1 << 40)
            .contains("`token_embd.weight` of shape [344, 32] ends beyond the file's")
    );
    let aligned = changed("llama-q8_0.gguf", |metadata| {
        drop(metadata.insert("general.alignment".to_owned(), Value::U32(0)))
    });
    assert!(
        aligned
            .unwrap()
            .contains("it is damaged, or of a kind that is not supported")
    );
}

#[test]
fn never_panics_on_a_changed_byte() {
    for name in ["llama-q8_0.gguf", "llama-pieces.gguf"] {
        let whole = bytes(name);
        let header = type_of(&whole, "blk.1.ffn_down.weight");
        let mut rng = stream(7, "test", &[]);
        for _ in 0..400 {
            let mut file = whole.clone();
            for _ in 0..rng.random_range(1..4) {
                let place = rng.random_range(0..header);
                file[place] = rng.random();
            }
            let _ = refused(&file);
        }
    }
}
