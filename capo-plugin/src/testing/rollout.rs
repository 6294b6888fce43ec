//! Completions as text, for tests of rewards.

use super::{Records, assert_permutation};
use crate::{Completion, PluginError, Purpose, RewardHandle, Rollout};

/// Owned completions in one group, with the answer `4` and an empty row.
///
/// ```
/// use capo_plugin::prelude::*;
/// use capo_plugin::testing::{self, RolloutFixture};
///
/// #[keys]
/// struct Ended {}
///
/// impl Reward for Ended {
///     fn score(&mut self, _ctx: &mut Ctx, rollout: &Rollout, rewards: &mut [f32]) -> Result<(), PluginError> {
///         for (reward, completion) in rewards.iter_mut().zip(&rollout.completions) {
///             *reward = f32::from(u8::from(!completion.truncated));
///         }
///         Ok(())
///     }
/// }
///
/// let fixture = RolloutFixture::new(&["4", "2 + 2 is"]).truncated(&[false, true]);
/// let mut reward = testing::reward::<Ended>("").unwrap();
/// assert_eq!(fixture.score(&mut reward).unwrap().rewards, [1.0, 0.0]);
/// ```
#[derive(Clone, Debug)]
pub struct RolloutFixture {
    purpose: Purpose,
    step: u64,
    group_size: usize,
    rows: Vec<OwnedCompletion>,
}

/// A row of a dataset; rewards see completions for it.
#[derive(Debug, Clone)]
pub struct Row {
    /// Text of the prompt.
    pub prompt: String,
    /// The correct answer.
    pub answer: String,
    /// A worked solution, or the bare answer where there is none.
    pub solution: String,
    /// All columns except the prompt: a JSON object.
    pub columns: String,
}

#[derive(Clone, Debug)]
struct OwnedCompletion {
    row: Row,
    text: String,
    ids: Vec<u32>,
    truncated: bool,
    /// Seed of the group's episodes; `None` for the group's number. It moves with the group, as a
    /// prompt's own random stream does.
    seed: Option<u64>,
}

impl OwnedCompletion {
    fn completion(&self) -> Completion<'_> {
        let mut completion = Completion::new(&self.row.prompt, &self.text);
        completion.ids = &self.ids;
        completion.truncated = self.truncated;
        completion.answer = &self.row.answer;
        completion.columns = &self.row.columns;
        completion
    }
}

/// Result of a reward on a fixture.
#[derive(Debug)]
pub struct Scored {
    /// `[B]`: reward of each completion.
    pub rewards: Vec<f32>,
    /// The reward's reports.
    pub records: Records,
}

impl RolloutFixture {
    /// Completions with these texts for the prompt `2+2=`; each byte of text is a token.
    pub fn new(texts: &[&str]) -> Self {
        let (prompt, answer, columns) = ("2+2=".to_owned(), "4".to_owned(), "{}".to_owned());
        let row = Row {
            prompt,
            solution: answer.clone(),
            answer,
            columns,
        };
        Self::of(
            texts.len(),
            texts.iter().map(|text| (&row, (*text).to_owned(), false)),
        )
    }

    /// Completions in groups of `group_size`: the dataset's row of each, its text, and if the
    /// length limit cut it off.
    pub(super) fn of<'r>(
        group_size: usize,
        completions: impl Iterator<Item = (&'r Row, String, bool)>,
    ) -> Self {
        let row = |(row, text, truncated): (&Row, String, bool)| {
            let ids = tokens(&text);
            OwnedCompletion {
                row: row.clone(),
                text,
                ids,
                truncated,
                seed: None,
            }
        };
        Self {
            purpose: Purpose::TRAINING,
            step: 0,
            group_size,
            rows: completions.map(row).collect(),
        }
    }

    /// Splits the completions into groups of `size`.
    ///
    /// # Panics
    ///
    /// When `size` does not divide B.
    #[must_use]
    pub fn groups_of(mut self, size: usize) -> Self {
        assert!(
            size > 0 && self.rows.len().is_multiple_of(size),
            "the group size divides B"
        );
        self.group_size = size;
        self
    }

    /// Sets the completions' texts, `[B]`; each byte of text is a token.
    #[must_use]
    pub fn texts(self, texts: &[&str]) -> Self {
        self.each(texts, |row, text| {
            (row.text, row.ids) = ((*text).into(), tokens(text))
        })
    }

    /// Sets the prompts, `[B]`.
    #[must_use]
    pub fn prompts(self, prompts: &[&str]) -> Self {
        self.each(prompts, |one, prompt| one.row.prompt = (*prompt).into())
    }

    /// Sets the dataset's answers, `[B]`.
    #[must_use]
    pub fn answers(self, answers: &[&str]) -> Self {
        self.each(answers, |one, answer| one.row.answer = (*answer).into())
    }

    /// Sets the rows' columns, `[B]`, each a JSON object as text.
    #[must_use]
    pub fn columns(self, columns: &[&str]) -> Self {
        self.each(columns, |one, columns| one.row.columns = (*columns).into())
    }

    /// Sets `truncated`, `[B]`: true where the length limit cut a completion off.
    #[must_use]
    pub fn truncated(self, truncated: &[bool]) -> Self {
        self.each(truncated, |row, truncated| row.truncated = *truncated)
    }

    /// Sets the purpose of the completions.
    #[must_use]
    pub fn purpose(mut self, purpose: Purpose) -> Self {
        self.purpose = purpose;
        self
    }

    /// Sets the step.
    #[must_use]
    pub fn step(mut self, step: u64) -> Self {
        self.step = step;
        self
    }

    /// The completions with their groups in another order: group `g` of the result is group
    /// `order[g]`.
    ///
    /// # Panics
    ///
    /// When `order` is not a permutation of the groups.
    pub fn regrouped(&self, order: &[usize]) -> Self {
        let groups: Vec<&[OwnedCompletion]> = self.rows.chunks(self.group_size).collect();
        assert_permutation(order, groups.len());
        let seeds = self.seeds();
        let mut rows = Vec::with_capacity(self.rows.len());
        for &group in order {
            let seed = Some(seeds[group * self.group_size]);
            rows.extend(groups[group].iter().map(|row| OwnedCompletion {
                seed,
                ..row.clone()
            }));
        }
        Self {
            rows,
            ..self.clone()
        }
    }

    /// `[B]`: seed of each completion's episode, the same for all of a group.
    pub(super) fn seeds(&self) -> Vec<u64> {
        let seed = |(place, row): (usize, &OwnedCompletion)| {
            row.seed.unwrap_or((place / self.group_size) as u64)
        };
        self.rows.iter().enumerate().map(seed).collect()
    }

    fn each<T>(mut self, values: &[T], set: impl Fn(&mut OwnedCompletion, &T)) -> Self {
        assert_eq!(values.len(), self.rows.len(), "one value per completion");
        for (row, value) in self.rows.iter_mut().zip(values) {
            set(row, value);
        }
        self
    }

    /// The rollout.
    pub fn rollout(&self) -> Rollout<'_> {
        let mut rollout = Rollout::new(self.rows.iter().map(OwnedCompletion::completion).collect());
        rollout.purpose = self.purpose;
        rollout.step = self.step;
        rollout.group_size = self.group_size;
        rollout
    }

    /// Runs a reward.
    ///
    /// # Errors
    ///
    /// The message that a host would show.
    pub fn score(&self, component: &mut RewardHandle) -> Result<Scored, PluginError> {
        let (mut rewards, mut records) = (vec![0.0; self.rows.len()], Records::default());
        component.score(&mut records, &self.rollout(), &mut rewards)?;
        Ok(Scored { rewards, records })
    }
}

fn tokens(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}
