//! The rollout's context in a batch file: tensors under `context/`, and names and age in the
//! metadata.
//!
//! The tensors are the arrays of [`ContextData`].

use std::ops::Range;

use anyhow::{Context, Result, ensure};
use capo_plugin::{AgedContext, ContextData, Dims};
use safetensors::tensor::TensorView;

use crate::arrays::{Array, Number, bytes, counts, ids};
use crate::tensor_file::TensorFile;

pub(crate) const PROMPT_IDS: &str = "context/prompt_ids";
const PROMPT_ENDS: &str = "context/prompt_ends";
const PROMPT_NUMBERS: &str = "context/prompt_numbers";
const LINES: &str = "context/lines";
const TEXTS: &str = "context/texts";
const TEXT_ENDS: &str = "context/text_ends";
const SPANS: &str = "context/spans";
const REWARDS: &str = "context/rewards";
const SAMPLER_LOGPS: &str = "context/sampler_logps";
pub(crate) const TOP_IDS: &str = "context/top_ids";
const TOP_LOGPS: &str = "context/top_logps";
const REWARD_NAMES: &str = "context/reward_names";
const AGE: &str = "context/age";

/// Returns the tensors of the context `data`, which belongs to a batch of `dims`.
pub(crate) fn arrays(data: &ContextData, dims: Dims) -> Vec<(&'static str, Array<'_>)> {
    let b = dims.completions as i64;
    let t = dims.tokens as i64;
    let rewards = data.reward_name_ends.len() as i64;
    let mut arrays = vec![
        (PROMPT_IDS, list(&data.prompt_ids)),
        (PROMPT_ENDS, list(&data.prompt_ends)),
        (PROMPT_NUMBERS, list(&data.prompt_numbers)),
        (LINES, list(&data.lines)),
        (TEXTS, list(&data.texts)),
        (TEXT_ENDS, Array::new(&data.text_ends, &[b])),
        (SPANS, Array::new(&data.spans, &[b, t, 2])),
        (REWARDS, Array::new(&data.rewards, &[rewards, b])),
        (SAMPLER_LOGPS, Array::new(&data.sampler_logps, &[b, t])),
    ];
    if data.top_k > 0 {
        let shape = [b, t, data.top_k as i64];
        arrays.push((TOP_IDS, Array::new(&data.top_ids, &shape)));
        arrays.push((TOP_LOGPS, Array::new(&data.top_logps, &shape)));
    }
    arrays
}

/// A list of any length, to write to a file.
fn list<T: Number>(values: &[T]) -> Array<'_> {
    Array::new(values, &[values.len() as i64])
}

/// Returns the metadata entries of these tensors: the names of the reward functions, and the age.
pub(crate) fn metadata(data: &ContextData, age: u64) -> Result<[(String, String); 2]> {
    let names = serde_json::to_string(&data.lend(age).reward_names().collect::<Vec<_>>())?;
    Ok([
        (REWARD_NAMES.to_owned(), names),
        (AGE.to_owned(), age.to_string()),
    ])
}

/// Reads the context of a batch of `dims` from `file`; `None` if the batch was recorded without
/// one.
///
/// # Errors
///
/// When a part is missing, differs from the batch in size or does not fit the other parts.
pub(crate) fn read(file: &TensorFile<'_>, dims: Dims) -> Result<Option<AgedContext>> {
    if !file.has(SAMPLER_LOGPS) {
        return Ok(None);
    }
    let b = dims.completions as usize;
    let t = dims.tokens as usize;
    let prompts = b / dims.group_size as usize;
    let names = serde_json::from_str::<Vec<String>>(file.text(REWARD_NAMES)?)
        .with_context(|| format!("`{REWARD_NAMES}` in its metadata is not a list of names"))?;
    let mut data = ContextData {
        group_size: dims.group_size,
        tokens: dims.tokens,
        prompt_ids: ids(PROMPT_IDS, &flat(file, PROMPT_IDS)?)?,
        prompt_ends: counted(file, PROMPT_ENDS, prompts)?,
        prompt_numbers: counted(file, PROMPT_NUMBERS, prompts)?,
        lines: counted(file, LINES, prompts)?,
        texts: bytes(TEXTS, &flat(file, TEXTS)?)?,
        text_ends: counted(file, TEXT_ENDS, b)?,
        spans: ids(SPANS, &file.shaped(SPANS, &[b, t, 2])?)?,
        sampler_logps: file.floats(SAMPLER_LOGPS, &[b, t])?,
        ..ContextData::default()
    };
    if file.has(TOP_IDS) {
        let k = file.shape(TOP_IDS)?.last().copied().unwrap_or(0);
        data.top_k = k as u64;
        data.top_ids = ids(TOP_IDS, &file.shaped(TOP_IDS, &[b, t, k])?)?;
        data.top_logps = file.floats(TOP_LOGPS, &[b, t, k])?;
    }
    let rewards = file.floats(REWARDS, &[names.len(), b])?;
    for (name, rewards) in names.iter().zip(rewards.chunks_exact(b)) {
        data.add_reward(name, rewards);
    }
    let age = file.scalar(AGE)?;
    check(&data)?;
    Ok(Some(AgedContext { data, age }))
}

/// A tensor of one dimension and any length.
fn flat<'a>(file: &TensorFile<'a>, name: &str) -> Result<TensorView<'a>> {
    let length = file.shape(name)?.iter().product();
    file.shaped(name, &[length])
}

/// A list of `length` counts.
fn counted(file: &TensorFile<'_>, name: &str, length: usize) -> Result<Vec<u64>> {
    counts(name, &file.shaped(name, &[length])?)
}

/// Refuses lists whose ends do not cut them into parts, and spans outside their completion's text.
fn check(data: &ContextData) -> Result<()> {
    let prompts = Cut {
        name: PROMPT_ENDS,
        ends: &data.prompt_ends,
        list: PROMPT_IDS,
        length: data.prompt_ids.len(),
    };
    prompts.parts()?;
    let texts = Cut {
        name: TEXT_ENDS,
        ends: &data.text_ends,
        list: TEXTS,
        length: data.texts.len(),
    };
    let mut of_completions = Vec::with_capacity(data.text_ends.len());
    for (b, part) in texts.parts()?.into_iter().enumerate() {
        let text = std::str::from_utf8(&data.texts[part]);
        let text = text
            .ok()
            .with_context(|| format!("`{TEXTS}` of completion {b} is not UTF-8"))?;
        of_completions.push(text);
    }
    for (i, span) in data.spans.chunks_exact(2).enumerate() {
        let b = i / data.tokens as usize;
        let [start, end] = [span[0] as usize, span[1] as usize];
        ensure!(
            of_completions[b].get(start..end).is_some(),
            "`{SPANS}` of completion {b}, token {} is {start}..{end}, which is no part of its text \
             of {} bytes",
            i % data.tokens as usize,
            of_completions[b].len()
        );
    }
    Ok(())
}

/// A list that is cut into parts, and the ends of its parts.
struct Cut<'a> {
    /// Name of the ends.
    name: &'static str,
    ends: &'a [u64],
    /// Name of the list.
    list: &'static str,
    /// Entries of the list.
    length: usize,
}

impl Cut<'_> {
    fn parts(&self) -> Result<Vec<Range<usize>>> {
        let is_ascending = self.ends.windows(2).all(|pair| pair[0] <= pair[1]);
        let length = self.length;
        ensure!(
            is_ascending && self.ends.last() == Some(&(length as u64)),
            "`{}` does not cut the {length} entries of `{}` into parts (its numbers ascend, and \
             the last is {length})",
            self.name,
            self.list
        );
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let parts = starts.zip(self.ends);
        Ok(parts
            .map(|(start, &end)| start as usize..end as usize)
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use capo_plugin::testing::{Fixture, odd_context};
    use capo_plugin::{CompletionContext, PromptContext};
    use safetensors::{Dtype, SafeTensors, tensor::TensorView};

    use super::*;
    use crate::batch_file;

    fn written(data: &ContextData, age: u64) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("batch.safetensors");
        let fixture = Fixture::new(4, 3).groups_of(2);
        batch_file::write(&path, &fixture.batch(), Some((data, age))).unwrap();
        (folder, path)
    }

    #[test]
    fn what_is_written_is_read() {
        let (_folder, path) = written(&odd_context(), 5);
        let read = batch_file::read(&path).unwrap();
        assert_eq!(
            read.context,
            Some(AgedContext {
                data: odd_context(),
                age: 5
            })
        );
        // A batch without a context writes no part of one.
        batch_file::write(&path, &read.view(), None).unwrap();
        assert!(batch_file::read(&path).unwrap().context.is_none());
        assert!(
            !std::fs::read(&path)
                .unwrap()
                .windows(8)
                .any(|bytes| bytes == b"context/")
        );
    }

    #[test]
    fn completions_without_any_text_or_reward() {
        let nothing = CompletionContext {
            text: "",
            spans: &[],
            sampler_logps: &[],
        };
        let prompts = std::iter::repeat_n(
            PromptContext {
                ids: &[],
                number: 0,
                line: None,
            },
            2,
        );
        let data = ContextData::new(3, prompts, std::iter::repeat_n(nothing, 4));
        let (_folder, path) = written(&data, 0);
        assert_eq!(
            batch_file::read(&path).unwrap().context,
            Some(AgedContext { data, age: 0 })
        );
    }

    /// An owned tensor of a file that a test changes: dtype, shape and bytes.
    type Loose = (Dtype, Vec<usize>, Vec<u8>);

    type Metadata = std::collections::HashMap<String, String>;

    /// Error message for the file after `damage` has changed it.
    fn said(damage: impl FnOnce(&mut BTreeMap<String, Loose>, &mut Metadata)) -> String {
        let (_folder, path) = written(&odd_context(), 5);
        let bytes = std::fs::read(&path).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let mut metadata = header.metadata().clone().unwrap();
        // Without a checksum the reader gets to the other errors.
        metadata.retain(|name, _| !["checksum", "sha256"].contains(&name.as_str()));
        let loose =
            |view: TensorView<'_>| (view.dtype(), view.shape().to_vec(), view.data().to_vec());
        let mut tensors: BTreeMap<String, Loose> = SafeTensors::deserialize(&bytes)
            .unwrap()
            .tensors()
            .into_iter()
            .map(|(n, v)| (n, loose(v)))
            .collect();
        damage(&mut tensors, &mut metadata);
        let view = |(dtype, shape, data)| TensorView::new(dtype, shape, data).unwrap();
        let views = tensors
            .iter()
            .map(|(name, (dtype, shape, data))| (name, view((*dtype, shape.clone(), data))));
        std::fs::write(
            &path,
            safetensors::serialize(views, Some(metadata)).unwrap(),
        )
        .unwrap();
        let error = format!("{:#}", batch_file::read(&path).unwrap_err());
        error
            .split_once("is not a batch file: ")
            .unwrap()
            .1
            .to_owned()
    }

    /// Error message for the file after its numbers `name` are replaced by `values`.
    fn with<T: crate::arrays::Number>(name: &str, values: &[T]) -> String {
        said(|tensors, _| {
            let tensor = tensors.get_mut(name).unwrap();
            (tensor.0, tensor.2) = (T::DTYPE, bytemuck::cast_slice(values).to_vec());
            if tensor.1.len() == 1 {
                tensor.1 = vec![values.len()];
            }
        })
    }

    #[test]
    fn parts_that_do_not_fit() {
        let text = |name: &str, text: &str| {
            said(|_, metadata| drop(metadata.insert(name.into(), text.into())))
        };
        let span = |at: usize, span: [u32; 2]| {
            let mut spans = vec![0_u32; 24];
            spans[2 * at..2 * at + 2].copy_from_slice(&span);
            with(SPANS, &spans)
        };
        let said = [
            said(|tensors, _| drop(tensors.remove(SPANS))),
            said(|_, metadata| drop(metadata.remove(AGE))),
            text(AGE, "old"),
            text(REWARD_NAMES, "{}"),
            text(REWARD_NAMES, "[\"one\"]"),
            with(SAMPLER_LOGPS, &[0_u32; 12]),
            with(PROMPT_ENDS, &[3_u64]),
            with(LINES, &[u64::MAX, 0]),
            with(PROMPT_ENDS, &[2_u64, 4]),
            with(PROMPT_ENDS, &[3_u64, 2]),
            with(PROMPT_ENDS, &[5_u64, 3]),
            with(PROMPT_ENDS, &[1_u64 << 62, 3]),
            with(TEXT_ENDS, &[2_u64, 2, 4, 9]),
            with(TEXT_ENDS, &[2_u64, 3, 4, 7]),
            with(TEXTS, &[255_u8; 7]),
            with(TOP_IDS, &[16_u32; 24]),
            said(|tensors, _| drop(tensors.remove(TOP_LOGPS))),
            said(|tensors, _| tensors.get_mut(TOP_IDS).unwrap().1 = vec![4, 6, 1]),
            with(PROMPT_IDS, &[1_u32, 2, 16]),
            span(0, [0, 3]),
            span(1, [2, 1]),
            span(8, [0, 1]),
            span(11, [u32::MAX, u32::MAX]),
        ];
        assert_eq!(
            include_str!("context_refused.txt")
                .lines()
                .collect::<Vec<_>>(),
            said
        );
    }
}
