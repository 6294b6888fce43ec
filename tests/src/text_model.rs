//! A small model that reads any text, one byte per token.

use serde_json::{Map, Value, json};

use crate::Folder;

/// Largest number of positions of the model.
const POSITIONS: usize = 1024;

/// Writes the files of a one-layer model into the folder `model`: settings, and a tokenizer with an
/// id for each byte. There are no weights, so use `--set model.fresh_weights=true`.
pub fn write(folder: &Folder) {
    let mut vocab: Map<String, Value> = [("<pad>", 0), ("<eos>", 1)]
        .into_iter()
        .map(|(token, id)| (token.to_owned(), id.into()))
        .collect();
    // The characters that byte-level tokenizers use for bytes.
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut others = 256_u32;
    for byte in 0..=u8::MAX {
        let code = if printable(byte) {
            u32::from(byte)
        } else {
            others
        };
        others += u32::from(!printable(byte));
        let character = char::from_u32(code).expect("a character");
        vocab.insert(character.to_string(), json!(vocab.len()));
    }
    let size = vocab.len();
    let special = |id: u32, content: &str| json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [special(0, "<pad>"), special(1, "<eos>")],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    let config = json!({
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": size,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": POSITIONS,
        "tie_word_embeddings": true,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "initializer_range": 0.08,
        "hidden_act": "silu",
        "eos_token_id": 1,
        "pad_token_id": 0,
    });
    folder.write("model/tokenizer.json", tokenizer.to_string());
    folder.write(
        "model/tokenizer_config.json",
        json!({"eos_token": "<eos>", "pad_token": "<pad>"}).to_string(),
    );
    folder.write("model/config.json", config.to_string());
    folder.write(
        "model/chat_template.jinja",
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{{ '[assistant] ' if add_generation_prompt }}",
    );
}

/// Settings that train the model.
pub const SETTINGS: &str = "--set model={model_name_or_path=\"model\",fresh_weights=true} --set rollout.max_completion_length=8 \
    --set data.max_prompt_length=400 --set rollout.num_generations=2 --set train.per_device_train_batch_size=4";
