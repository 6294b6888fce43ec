//! Size of a model, compared with its files and the available memory before anything is allocated.

use anyhow::{Result, bail, ensure};
use candle_core::{DType, Device};
use capo_system::memory::{self, lacking};

use super::config::{CONFIG_FILE, Config};
use super::files::ModelFiles;
use super::ops::{BLOCK, STRIP, chunk_rows};
use super::shapes::shapes;

/// Upper limit of the weights' bytes on any machine: 64 TiB, half of a process's address space.
const MOST_BYTES: u128 = 1 << 46;
/// Bytes of one weight in memory.
pub(super) const BYTES: u128 = 4;
/// Fewest bytes of one weight in a file: bf16 and f16 take two.
const LEAST_BYTES: u128 = 2;

/// Numbers of weights of a model.
struct WeightCounts {
    all: u128,
    /// Number of weights in the largest matrix.
    largest: u128,
}

impl WeightCounts {
    fn of(config: &Config) -> Self {
        let mut counts = Self { all: 0, largest: 0 };
        for shape in shapes(config).into_values() {
            let count = shape.into_iter().map(|size| size as u128).product();
            counts.all += count;
            counts.largest = counts.largest.max(count);
        }
        counts
    }
}

/// Number and lengths of sequences.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Number of completions.
    pub rows: usize,
    /// Number of distinct prompts.
    pub prompts: usize,
    /// Length of the longest prompt, tokens.
    pub prompt: usize,
    /// Length of the longest completion, tokens.
    pub tokens: usize,
}

/// Numbers of tokens of a forward pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counts {
    /// Tokens that run through the model: each distinct prompt once, and all tokens of each
    /// completion but the last.
    pub(super) inputs: u128,
    /// Tokens whose log-probabilities are computed.
    pub(super) tokens: u128,
}

impl Shape {
    pub(super) fn counts(self) -> Counts {
        let prompts = self.prompts as u128 * self.prompt as u128;
        let rows = self.rows as u128;
        Counts {
            inputs: prompts + rows * self.tokens.saturating_sub(1) as u128,
            tokens: rows * self.tokens as u128,
        }
    }
}

/// Bytes of the activations that a forward pass stores for its backward pass.
pub(super) fn activations(
    config: &Config,
    counts: Counts,
    dtype: DType,
    checkpointing: bool,
) -> u128 {
    let hidden = config.hidden_size as u128;
    let Widths { queries, keys } = Widths::of(config);
    let unnormed = if config.norms_heads() {
        queries + keys
    } else {
        0
    };
    let all = 2 * (hidden + queries + keys) + unnormed + 2 * config.intermediate_size as u128;
    let layer = if checkpointing { hidden } else { all };
    let numbers = counts
        .inputs
        .saturating_mul(config.num_hidden_layers as u128 * layer)
        .saturating_add(counts.tokens * 2 * hidden);
    numbers
        .saturating_mul(dtype.size_in_bytes() as u128)
        .saturating_add((counts.inputs + counts.tokens) * BYTES)
}

/// Widths of all heads together.
struct Widths {
    queries: u128,
    /// Width of the keys, and of the values.
    keys: u128,
}

impl Widths {
    fn of(config: &Config) -> Self {
        let head = config.head_dim() as u128;
        Self {
            queries: config.num_attention_heads as u128 * head,
            keys: config.num_key_value_heads as u128 * head,
        }
    }
}

/// Bytes that sampling takes, by purpose; `copy` is the number of bytes of copied weights.
pub(super) fn sampling(
    config: &Config,
    shape: Shape,
    dtype: DType,
    copy: u128,
) -> [(&'static str, u128); 3] {
    let Shape {
        rows,
        prompts,
        prompt,
        tokens,
    } = shape;
    let Widths { queries, keys } = Widths::of(config);
    let cache = 2 * config.num_hidden_layers as u128 * keys * (rows * (prompt + tokens)) as u128;
    // Either all prompts are in one layer at once, or all newest tokens are in the head.
    let layer = (prompts * prompt) as u128
        * (4 * config.hidden_size as u128 + queries + 3 * config.intermediate_size as u128);
    let logits = 3 * (rows * config.vocab_size) as u128;
    [
        ("keys and values", cache * dtype.size_in_bytes() as u128),
        ("a copy of the weights to sample with", copy),
        ("a layer and its logits at work", layer.max(logits) * BYTES),
    ]
}

/// Peak bytes of temporary tensors in a training pass with `parts` in parallel: one layer's
/// gradients, or logits and the head's gradients.
pub(super) fn at_work(
    config: &Config,
    shape: Shape,
    trains_head: bool,
    parts: usize,
    device: &Device,
) -> u128 {
    let Counts { inputs, tokens } = shape.counts();
    let hidden = config.hidden_size as u128;
    let inner = config.intermediate_size as u128;
    let vocab = config.vocab_size as u128;
    let Widths { queries, keys } = Widths::of(config);
    let layer = inputs * (4 * inner + 4 * hidden + 2 * queries + 2 * keys);
    // Attention probabilities of a block of queries for each head; in the backward pass, also their
    // gradients.
    let longest = shape.prompt.saturating_add(shape.tokens);
    let scores = [config.num_attention_heads, BLOCK.min(longest), longest];
    let attention = scores.iter().fold(4_u128, |product, size| {
        product.saturating_mul(*size as u128)
    });
    let chunk = (chunk_rows(config.vocab_size, device) as u128 * parts as u128).min(tokens) * vocab;
    let strip = if device.is_cpu() {
        vocab.min(STRIP as u128)
    } else {
        vocab
    };
    let head = if trains_head {
        (vocab + strip) * hidden
    } else {
        0
    };
    layer
        .saturating_add(attention)
        .max(3 * chunk + head)
        .saturating_mul(BYTES)
}

/// Refuses a configuration with more weights than the files `names` can hold.
pub(super) fn fits_files(config: &Config, files: &ModelFiles, names: &[String]) -> Result<()> {
    let mut bytes = 0_u128;
    for name in names {
        bytes += u128::from(files.size(name)?);
    }
    let count = WeightCounts::of(config).all;
    let place = if names.len() == 1 {
        files.describe(&names[0])
    } else {
        format!("the {} files of weights", names.len())
    };
    ensure!(
        count.saturating_mul(LEAST_BYTES) <= bytes,
        "{} describes a model of {count} weights, which need {} or more, but {place} has {} \
         (fetch it again; weights and `config.json` must be of one model)",
        files.describe(CONFIG_FILE),
        memory::text(count.saturating_mul(LEAST_BYTES)),
        memory::text(bytes)
    );
    Ok(())
}

/// Refuses weights that do not fit into the available memory, together with a second copy of the
/// largest matrix, needed for conversion. On a GPU, only that copy takes host memory.
pub(super) fn fits_memory(config: &Config, device: &Device) -> Result<()> {
    let counts = WeightCounts::of(config);
    let count = counts.all;
    let needed = BYTES.saturating_mul(if device.is_cpu() {
        count + counts.largest
    } else {
        counts.largest
    });
    if let Some([needed, free]) = lacking(needed) {
        bail!(
            "a model of {count} weights takes {needed} of memory, and {free} are free \
             (use a smaller model, or a larger machine)"
        );
    }
    // GPU memory is not checked here.
    fits_any_machine(config)
}

/// Refuses more weights than any machine has memory for.
pub(super) fn fits_any_machine(config: &Config) -> Result<()> {
    let count = WeightCounts::of(config).all;
    let bytes = count.saturating_mul(BYTES);
    ensure!(
        bytes <= MOST_BYTES,
        "a model of {count} weights fits no machine (correct the sizes in `config.json`)"
    );
    Ok(())
}

/// Refuses `rows` completions of `tokens` tokens whose keys and values exceed the available host
/// memory. GPU memory is not checked.
pub(super) fn fits_cache(
    config: &Config,
    rows: usize,
    tokens: usize,
    dtype: DType,
    device: &Device,
) -> Result<()> {
    let sizes = [
        config.num_hidden_layers,
        config.num_key_value_heads,
        config.head_dim(),
        tokens,
        dtype.size_in_bytes(),
    ];
    let needed = sizes.iter().fold(2 * rows as u128, |product, size| {
        product.saturating_mul(*size as u128)
    });
    if device.is_cpu()
        && let Some([needed, free]) = lacking(needed)
    {
        bail!(
            "keys and values of {rows} completions of {tokens} tokens take {needed} of memory, \
             and {free} are free (lower one of the numbers, or use a larger machine)"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::config::LARGEST;
    use super::*;

    #[test]
    fn refuses_sizes_that_no_machine_has() {
        let config = |vocab: usize, hidden: usize| {
            let json = format!(
                r#"{{"model_type": "qwen2", "vocab_size": {vocab}, "hidden_size": {hidden}, "intermediate_size": 24, "head_dim": 2,
                "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}}"#
            );
            Config::from_json(json.as_bytes()).unwrap()
        };
        let fits =
            |rows, tokens| fits_cache(&config(15, 8), rows, tokens, DType::F32, &Device::Cpu);
        fits(8, 64).unwrap();
        let error = fits(1 << 20, 1 << 24).unwrap_err().to_string();
        assert!(
            error.starts_with("keys and values of 1048576 completions of 16777216 tokens take "),
            "{error}"
        );
        let error = fits_memory(&config(LARGEST, LARGEST), &Device::Cpu)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("a model of ") && error.contains(" takes "),
            "{error}"
        );
    }
}
