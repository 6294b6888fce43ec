//! The reward `reward_model`: the score that a classifier model gives to prompt and completion
//! together.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use capo_plugin::prelude::*;
use capo_plugin::wire::KeyDoc;
use capo_plugin::{Keys, Table};
use host_data::Texts;
use host_model::device::{self, CPU};
use host_model::embedded::model_files;
use host_model::frozen::Classifier;

use super::seen::{Key, Seen};

/// Number of texts whose scores are remembered.
const REMEMBERED: usize = 1 << 14;

/// The keys of a [`RewardModel`].
#[keys]
struct RewardModelKeys {
    /// A directory with a sequence classification, or the id of one that the Hub's cache has.
    #[key]
    model_name_or_path: String,
    /// The output to take, by its name in `id2label`; a model with one needs none.
    #[key]
    label: Option<String>,
    /// Longer texts keep their first so many tokens; when absent the model's positions.
    #[key]
    max_length: Option<usize>,
    /// Largest number of texts of one forward pass.
    #[key(default = 8, at_least = 1)]
    batch_size: usize,
    /// Add the tokenizer's begin and end tokens to each text; when absent for encoders only.
    #[key]
    add_special_tokens: Option<bool>,
    /// The device on which the model computes; in a run `train.device` when absent.
    #[key(default = CPU.to_owned())]
    device: String,
}

/// Scores texts with a model that has its own tokenizer.
///
/// A repeated text keeps its first score, because the last bits of a score may depend on the other
/// texts of a forward pass. The scores are a part of the reward's state, so that a resumed run
/// gives the same ones.
pub struct RewardModel {
    model: Classifier,
    texts: Texts,
    batch_size: usize,
    seen: Seen,
}

impl Keys for RewardModel {
    const ABOUT: &'static str = "What a model that scores texts gives prompt and completion.";

    fn keys() -> Vec<KeyDoc> {
        RewardModelKeys::keys()
    }

    fn from_table(table: &Table) -> Result<Self, PluginError> {
        let keys = RewardModelKeys::from_table(table)?;
        Self::open(&keys).map_err(|error| PluginError::config(format!("{error:#}")))
    }
}

impl RewardModel {
    /// Id of the component in `use`.
    pub const ID: &str = "reward_model";

    fn open(keys: &RewardModelKeys) -> anyhow::Result<Self> {
        let RewardModelKeys {
            model_name_or_path,
            label,
            max_length,
            batch_size,
            add_special_tokens,
            device,
        } = keys;
        let device = device::open(device)?;
        let files = model_files(model_name_or_path)?;
        let model = Classifier::load(&files, label.as_deref(), &device)?;
        let positions = model.positions();
        let longest = max_length.unwrap_or(positions);
        ensure!(
            (1..=positions).contains(&longest),
            "`max_length` is {longest} (it must be at least 1 and at most the model's {positions} \
             positions)"
        );
        let texts = Texts::open(
            &files,
            longest,
            add_special_tokens.unwrap_or(model.is_encoder()),
        )?;
        Ok(Self {
            model,
            texts,
            batch_size: *batch_size,
            seen: Seen::new(REMEMBERED),
        })
    }

    /// The scores of texts that are not remembered, and the share of these texts that was cut.
    fn score_new(&self, new: &BTreeMap<Key, String>) -> anyhow::Result<(Vec<(Key, f32)>, f64)> {
        let mut cut = 0;
        let mut rows = Vec::with_capacity(new.len());
        for (key, text) in new {
            let (ids, is_cut) = self.texts.encode(text)?;
            ensure!(
                !ids.is_empty(),
                "a prompt with its completion encodes to no tokens (is it empty?)"
            );
            cut += usize::from(is_cut);
            rows.push((ids, *key));
        }
        // Texts of similar length share a forward pass.
        rows.sort_by(|(a, first), (b, second)| (a.len(), first).cmp(&(b.len(), second)));
        let mut scores = Vec::with_capacity(rows.len());
        for batch in rows.chunks(self.batch_size) {
            let (ids, keys): (Vec<Vec<u32>>, Vec<Key>) = batch.iter().cloned().unzip();
            scores.extend(
                keys.into_iter()
                    .zip(self.model.score(&ids, self.texts.pad_id())?),
            );
        }
        Ok((scores, cut as f64 / new.len().max(1) as f64))
    }

    /// Fills `rewards`. Returns the share of texts that were new, and the share of the new ones
    /// that was cut.
    fn fill(&mut self, rollout: &Rollout<'_>, rewards: &mut [f32]) -> anyhow::Result<(f64, f64)> {
        let keys: Vec<Key> = rollout
            .completions
            .iter()
            .map(|completion| Seen::key(completion.prompt, completion.text))
            .collect();
        let unknown = keys
            .iter()
            .zip(&rollout.completions)
            .filter(|(key, _)| self.seen.get(key).is_none());
        let new: BTreeMap<Key, String> = unknown
            .map(|(key, completion)| (*key, format!("{}{}", completion.prompt, completion.text)))
            .collect();
        let (scores, cut) = self
            .score_new(&new)
            .context("the reward model cannot score a completion")?;
        let scores: BTreeMap<Key, f32> = scores.into_iter().collect();
        for (reward, key) in rewards.iter_mut().zip(&keys) {
            *reward = scores
                .get(key)
                .copied()
                .or_else(|| self.seen.get(key))
                .unwrap_or(f32::NAN);
        }
        scores
            .into_iter()
            .filter(|(_, score)| score.is_finite())
            .for_each(|(key, score)| self.seen.insert(key, score));
        Ok((new.len() as f64 / keys.len().max(1) as f64, cut))
    }
}

impl Reward for RewardModel {
    fn score(
        &mut self,
        ctx: &mut Ctx<'_>,
        rollout: &Rollout<'_>,
        rewards: &mut [f32],
    ) -> Result<(), PluginError> {
        let (new, cut) = self
            .fill(rollout, rewards)
            .map_err(|error| PluginError::failed(format!("{error:#}")))?;
        ctx.record("new_texts", new);
        ctx.record("cut_texts", cut);
        Ok(())
    }

    fn save(&self) -> Result<Vec<u8>, PluginError> {
        Ok(self.seen.to_bytes())
    }

    fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
        let read = self.seen.read(state);
        self.seen = read.ok_or_else(|| {
            PluginError::state(format!("{} bytes are no list of scores", state.len()))
        })?;
        Ok(())
    }
}
