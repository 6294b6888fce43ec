//! The tensors of a GGUF file, presented as a safetensors file of 32-bit floats. At most one tensor
//! is in memory at a time.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use anyhow::{Result, ensure};
use candle_core::Device;
use candle_core::quantized::gguf_file::TensorInfo;
use serde_json::{Map, json};

use super::config::PermutedHeads;

/// Names of tensors outside layers, in GGUF and in transformers.
const NAMES: [(&str, &str); 3] = [
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output.weight", "lm_head.weight"),
];
/// Names of a layer's tensors, in GGUF and in transformers.
const PARTS: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// Positions of the tensors in the GGUF file and in the safetensors file.
#[derive(Debug)]
pub(super) struct Weights {
    /// The header of the safetensors file, preceded by its length.
    head: Vec<u8>,
    tensors: Vec<Placed>,
    /// Offset of the first tensor in the GGUF file, bytes.
    start: u64,
}

/// A tensor of the GGUF file, and its place in the safetensors file.
#[derive(Debug)]
struct Placed {
    info: TensorInfo,
    /// Number of heads whose rows must be reordered; `None` if the rows are in order.
    heads: Option<usize>,
    /// End of the tensor, counted in bytes from the end of the header.
    end: u64,
}

impl Weights {
    /// The tensors of a file whose data begin at offset `start`. `permuted` are the heads whose
    /// rows the file stores in another order.
    pub(super) fn new(
        tensors: HashMap<String, TensorInfo>,
        start: u64,
        permuted: Option<PermutedHeads>,
    ) -> Result<Self> {
        let mut header = Map::new();
        let mut placed = Vec::new();
        let mut end = 0;
        for (name, info) in tensors.into_iter().collect::<BTreeMap<_, _>>() {
            let heads = permuted.and_then(|heads| match name.split('.').nth(2) {
                Some("attn_q") => Some(heads.queries),
                Some("attn_k") => Some(heads.keys),
                _ => None,
            });
            let shape = info.shape.dims();
            let rows = shape.first().copied().unwrap_or(0);
            ensure!(
                heads.is_none_or(|heads| rows > 0
                    && heads > 0
                    && rows.is_multiple_of(heads.saturating_mul(2))),
                "tensor `{name}` has shape {shape:?}, whose rows are not those of {} heads \
                 (fetch the file again)",
                heads.unwrap_or_default()
            );
            let begin = end;
            end += 4 * info.shape.elem_count() as u64;
            header.insert(
                renamed(&name),
                json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}),
            );
            placed.push(Placed { info, heads, end });
        }
        let header = serde_json::to_vec(&header)?;
        let head = [&(header.len() as u64).to_le_bytes()[..], &header].concat();
        Ok(Self {
            head,
            tensors: placed,
            start,
        })
    }

    /// Bytes of the safetensors file.
    pub(super) fn size(&self) -> u64 {
        self.head.len() as u64 + self.tensors.last().map_or(0, |tensor| tensor.end)
    }

    /// A reader of the safetensors file's bytes, which are computed from the GGUF `file`.
    pub(super) fn reader(&self, file: File) -> Reader<'_> {
        Reader {
            weights: self,
            file,
            position: 0,
            held: None,
        }
    }
}

/// A tensor's name in transformers. An unknown tensor keeps its name, and is refused later if it is
/// not expected.
fn renamed(name: &str) -> String {
    if let Some((_, new)) = NAMES.iter().find(|(old, _)| *old == name) {
        return (*new).to_owned();
    }
    let parts: Vec<&str> = name.split('.').collect();
    if let ["blk", layer, part, kind] = parts[..]
        && let Some((_, new)) = PARTS.iter().find(|(old, _)| *old == part)
    {
        return format!("model.layers.{layer}.{new}.{kind}");
    }
    name.to_owned()
}

/// The numbers of a tensor; the file's tensor data begin at offset `start`.
pub(super) fn values(info: &TensorInfo, start: u64, file: &mut File) -> Result<Vec<f32>> {
    let tensor = info
        .read(file, start, &Device::Cpu)?
        .dequantize(&Device::Cpu)?;
    Ok(tensor.flatten_all()?.to_vec1()?)
}

/// Reorders rows as in transformers: the two halves of each head's rotation follow one another,
/// while the file interleaves them. Source: `LlamaTensorProcessor` of transformers.
fn in_order(values: &[f32], rows: usize, heads: usize) -> Vec<f32> {
    let half = rows / heads / 2;
    let width = values.len() / rows;
    let mut ordered = Vec::with_capacity(values.len());
    for row in 0..rows {
        let head = row / (2 * half);
        let part = row / half % 2;
        let place = row % half;
        let source = head * 2 * half + 2 * place + part;
        ordered.extend_from_slice(&values[source * width..][..width]);
    }
    ordered
}

/// A safetensors file that is computed while it is read.
pub(crate) struct Reader<'a> {
    weights: &'a Weights,
    file: File,
    position: u64,
    /// The tensor that is being read.
    held: Option<Held>,
}

/// A tensor in memory.
struct Held {
    index: usize,
    values: Vec<f32>,
}

impl Reader<'_> {
    /// Reads the tensor with the index `index`.
    fn hold(&mut self, index: usize) -> Result<Held> {
        let Placed { info, heads, .. } = &self.weights.tensors[index];
        let values = values(info, self.weights.start, &mut self.file)?;
        let values = match heads {
            Some(heads) => in_order(&values, info.shape.dims()[0], *heads),
            None => values,
        };
        Ok(Held { index, values })
    }
}

impl Read for Reader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let head = self.weights.head.len() as u64;
        let count = if let Some(mut rest) = self.weights.head.get(self.position as usize..)
            && !rest.is_empty()
        {
            rest.read(into)?
        } else {
            let at = self.position - head;
            let index = self
                .weights
                .tensors
                .partition_point(|tensor| tensor.end <= at);
            let Some(tensor) = self.weights.tensors.get(index) else {
                return Ok(0);
            };
            let held = match self.held.take().filter(|held| held.index == index) {
                Some(held) => held,
                None => self.hold(index).map_err(io::Error::other)?,
            };
            let held = self.held.insert(held);
            let bytes: &[u8] = bytemuck::cast_slice(&held.values);
            let mut rest = &bytes[bytes.len() - (tensor.end - at) as usize..];
            let count = rest.read(into)?;
            if rest.is_empty() {
                self.held = None;
            }
            count
        };
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for Reader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let place = match to {
            SeekFrom::Start(place) => Some(place),
            SeekFrom::End(change) => self.weights.size().checked_add_signed(change),
            SeekFrom::Current(change) => self.position.checked_add_signed(change),
        };
        self.position = place.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
