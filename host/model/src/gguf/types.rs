//! Tensor types in GGUF files, and checks of the tensors' positions.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Error, Result, anyhow, ensure};
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::TensorInfo;

use crate::family::shown_text;

/// Supported types, for messages.
const READ: &str = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K";
/// Names of types by number, from `FIRST` on; "" where no file has the type. Source:
/// `enum ggml_type` of ggml.h.
const NAMES: [&str; 25] = [
    "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16",
    "I32", "I64", "F64", "IQ1_M", "BF16", "", "", "", "TQ1_0", "TQ2_0", "", "", "", "MXFP4",
    "NVFP4",
];
/// Number of the first type that has a name here.
const FIRST: usize = 16;
/// Beginning of candle's message about an unknown type, which is the only place that has its
/// number.
const UNKNOWN: &str = "unknown dtype for tensor ";

/// The message for a file that candle cannot read.
pub(super) fn unreadable(error: candle_core::Error) -> Error {
    let text = error.to_string();
    let Some(number) = text.split_once(UNKNOWN).map(|(_, rest)| rest) else {
        return anyhow!(
            "not a whole GGUF file, with a header of 16 MiB at most: {} (fetch the file again)",
            shown_text(text.lines().next().unwrap_or(""))
        );
    };
    let number = number
        .split(|c: char| !c.is_ascii_digit())
        .next()
        .unwrap_or_default();
    let place = number
        .parse()
        .ok()
        .and_then(|number: usize| number.checked_sub(FIRST));
    match place.and_then(|place| NAMES.get(place)) {
        None | Some(&"") => other(format!("number {number}")),
        Some(name) => other(format!("`{name}`")),
    }
}

/// The error for a tensor of an unsupported type.
fn other(name: String) -> Error {
    anyhow!(
        "it has a tensor of the type {name}, supported are {READ} \
         (use a file with one of these)"
    )
}

/// Refuses a tensor of an unsupported type, of a shape that does not fit its type, or beyond the
/// file's end.
pub(super) fn check(tensors: &HashMap<String, TensorInfo>, start: u64, size: u64) -> Result<()> {
    // Tensors are checked in the order of their names, so that among several errors the same one is
    // always reported.
    for (name, info) in tensors.iter().collect::<BTreeMap<_, _>>() {
        check_type(info.ggml_dtype)?;
        let shown = shown_text(name);
        let shape = info.shape.dims();
        let block = info.ggml_dtype.block_size();
        ensure!(
            shape.last().is_none_or(|width| width.is_multiple_of(block)),
            "tensor `{shown}` has shape {shape:?}, but numbers of its type come in blocks of \
             {block} (fetch the file again)"
        );
        let count = shape
            .iter()
            .try_fold(1_u64, |count, size| count.checked_mul(*size as u64));
        let bytes = count.and_then(|count| {
            (count / block as u64).checked_mul(info.ggml_dtype.type_size() as u64)
        });
        let end = bytes.and_then(|bytes| bytes.checked_add(info.offset)?.checked_add(start));
        end.filter(|end| *end <= size).with_context(|| {
            format!(
                "tensor `{shown}` of shape {shape:?} ends beyond the file's {size} bytes \
                 (fetch the file again)"
            )
        })?;
    }
    Ok(())
}

fn check_type(dtype: GgmlDType) -> Result<()> {
    let name = match dtype {
        GgmlDType::Q8_1 => "Q8_1",
        GgmlDType::Q2K => "Q2_K",
        GgmlDType::Q3K => "Q3_K",
        GgmlDType::Q8K => "Q8_K",
        _ => return Ok(()),
    };
    Err(other(format!("`{name}`")))
}
