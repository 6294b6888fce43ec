//! A component of any point, called as by a host. All code that depends on the point is here.

use std::time::{Duration, Instant};

use super::{Fixture, Measured, Records, RolloutFixture, Scored};
use crate::sink::contract;
use crate::{
    AdvantageHandle, Batch, EnvironmentHandle, Episode, Episodes, Inputs, MaskHandle,
    ObjectiveHandle, Observation, PluginError, Point, ProposedStep, RewardHandle, Sink,
    StepControlHandle, Turn, WeightHandle,
};

/// A component's input in one step.
#[derive(Debug, Clone)]
pub enum Input {
    /// Input of all points that see tokens.
    Batch(Box<Fixture>),
    /// Input of rewards; of environments too, which see each text as the turns of an episode.
    Rollout(RolloutFixture),
}

impl From<Fixture> for Input {
    /// A batch whose proposed update is longer at every third step.
    fn from(mut batch: Fixture) -> Self {
        let factor = [0.1, 1.0, 10.0][batch.step as usize % 3];
        let Measured {
            norms,
            fisher,
            last_layer_kl,
            kl,
            alignment,
            gradient_norm,
        } = Measured::default();
        batch.update = Measured {
            norms: norms.map(|norm| factor * norm),
            fisher: factor * factor * fisher,
            last_layer_kl: factor * factor * last_layer_kl,
            kl: factor * factor * kl,
            alignment: alignment / factor,
            gradient_norm,
        };
        Self::Batch(Box::new(batch))
    }
}

impl Input {
    /// The input with its groups in another order: group `g` of the result is group `order[g]`.
    pub fn regrouped(&self, order: &[usize]) -> Self {
        match self {
            Self::Batch(batch) => batch.regrouped(order).into(),
            Self::Rollout(rollout) => Self::Rollout(rollout.regrouped(order)),
        }
    }

    /// Shape of the input, for messages.
    pub fn shape(&self) -> String {
        match self {
            Self::Batch(batch) => {
                let dims = batch.dims;
                format!(
                    "B = {}, T = {}, G = {}",
                    dims.completions, dims.tokens, dims.group_size
                )
            }
            Self::Rollout(rollout) => {
                let rollout = rollout.rollout();
                format!(
                    "B = {}, G = {}",
                    rollout.completions.len(),
                    rollout.group_size
                )
            }
        }
    }
}

/// Values by name: one per completion, one per token, or a single value.
pub(super) type Outputs = Vec<(&'static str, Vec<f64>)>;

/// A component's answer to one input.
#[derive(Debug)]
pub struct Answer {
    /// Outputs by name.
    pub outputs: Vec<(&'static str, Vec<f64>)>,
    /// Recorded reports.
    pub records: Records,
    /// What an environment has said, a line for each observation.
    pub said: Vec<String>,
    pub(super) completions: usize,
    /// `[B, T]` or `[B]`: 1 for the entries of a recorded array that count, real tokens or all
    /// completions.
    pub(super) mask: Vec<u8>,
}

/// A live component of any point: [`RewardHandle`], [`AdvantageHandle`], [`ObjectiveHandle`],
/// [`MaskHandle`], [`WeightHandle`], [`StepControlHandle`].
///
/// An error is the component's own message, or the rule that it broke, as training would show it.
pub trait Observed {
    /// The component's point.
    fn point(&self) -> Point;

    /// Inputs that the component asked for.
    fn inputs(&self) -> Inputs;

    /// The component's state.
    fn save(&self) -> Result<Vec<u8>, PluginError>;

    /// Restores a state.
    fn load(&mut self, state: &[u8]) -> Result<(), PluginError>;

    /// Refuses a declared value that this version does not know.
    fn check_declared(&self) -> Result<(), PluginError> {
        Ok(())
    }

    /// Runs one whole step on `input`, with only the inputs that the component asked for. The step
    /// is taken if any token counts.
    fn step(&mut self, input: &Input) -> Result<Answer, PluginError> {
        step(self, input, None)
    }

    #[doc(hidden)]
    fn scored(
        &mut self,
        _rollout: &RolloutFixture,
        _said: &mut Vec<String>,
    ) -> Result<Scored, PluginError> {
        Err(mismatch())
    }

    #[doc(hidden)]
    fn run(&mut self, _sink: &mut dyn Sink, _on: &Fixture) -> Result<Outputs, PluginError> {
        Err(mismatch())
    }

    #[doc(hidden)]
    fn end(
        &mut self,
        _sink: &mut dyn Sink,
        _on: &Fixture,
        _decided: &[f64],
        _taken: bool,
    ) -> Result<(), PluginError> {
        Ok(())
    }
}

/// Runs one whole step; `None` for `taken` means that it is taken if any token counts.
pub(super) fn step<C: Observed + ?Sized>(
    component: &mut C,
    input: &Input,
    taken: Option<bool>,
) -> Result<Answer, PluginError> {
    match input {
        Input::Rollout(rollout) => {
            let mut said = Vec::new();
            let Scored { rewards, records } = component.scored(rollout, &mut said)?;
            let (completions, mask) = (rewards.len(), vec![1; rewards.len()]);
            Ok(Answer {
                outputs: vec![("reward", wide(rewards))],
                records,
                said,
                completions,
                mask,
            })
        }
        Input::Batch(batch) => {
            let mut records = Records::default();
            let outputs = component.run(&mut records, batch)?;
            let decided = &outputs[0].1;
            component.end(
                &mut records,
                batch,
                decided,
                taken.unwrap_or_else(|| counts(decided)),
            )?;
            let (completions, mask) = (batch.dims.completions as usize, batch.mask.clone());
            Ok(Answer {
                outputs,
                records,
                said: Vec::new(),
                completions,
                mask,
            })
        }
    }
}

/// True if any token counts.
pub(super) fn counts(decided: &[f64]) -> bool {
    decided.iter().any(|&value| value > 0.0)
}

fn mismatch() -> PluginError {
    PluginError::unsupported(
        "the point has no such call (environments and rewards see rollouts, the others see batches)",
    )
}

fn wide<T: Into<f64>>(values: Vec<T>) -> Vec<f64> {
    values.into_iter().map(Into::into).collect()
}

pub(super) fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&value| value as f32).collect()
}

/// Methods with the same name on all handles.
macro_rules! basics {
    ($point:ident) => {
        fn point(&self) -> Point {
            Point::$point
        }

        fn inputs(&self) -> Inputs {
            self.inputs()
        }

        fn save(&self) -> Result<Vec<u8>, PluginError> {
            self.save()
        }

        fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
            self.load(state)
        }
    };
}

impl Observed for EnvironmentHandle {
    basics!(Environment);

    /// Each text is the turn of an episode, again and again, until the environment ends it.
    fn scored(
        &mut self,
        rollout: &RolloutFixture,
        said: &mut Vec<String>,
    ) -> Result<Scored, PluginError> {
        const TURNS: usize = 3;
        const PATIENCE: Duration = Duration::from_secs(30);
        let (mut records, seeds, rollout) =
            (Records::default(), rollout.seeds(), rollout.rollout());
        let mut episodes = Episodes::new(Vec::new());
        for (number, completion) in rollout.completions.iter().enumerate() {
            let mut episode = Episode::new(number as u64, completion.prompt);
            (episode.answer, episode.columns) = (completion.answer, completion.columns);
            (episode.group, episode.place) = (
                (number / rollout.group_size) as u64,
                (number % rollout.group_size) as u64,
            );
            episode.seed = seeds[number];
            episodes.episodes.push(episode);
        }
        (episodes.purpose, episodes.step, episodes.max_turns) =
            (rollout.purpose, rollout.step, TURNS);
        said.extend(self.begin(&mut records, &episodes)?.iter().cloned());
        let (mut rewards, mut on) = (
            vec![0.0; rollout.completions.len()],
            (0..rollout.completions.len()).collect::<Vec<_>>(),
        );
        for number in 0..TURNS {
            let turn = |episode: &usize| {
                let mut turn = Turn::new(*episode as u64, rollout.completions[*episode].text);
                (turn.number, turn.is_last) = (number, number + 1 == TURNS);
                turn
            };
            let turns: Vec<Turn<'_>> = on.iter().map(turn).collect();
            let mut answers: Vec<Observation> = self.respond(&mut records, &turns)?;
            let begun = Instant::now();
            while answers.len() < turns.len() {
                if begun.elapsed() > PATIENCE {
                    let sentence = format!(
                        "{} of {} turns have no observation after {PATIENCE:?}",
                        turns.len() - answers.len(),
                        turns.len()
                    );
                    return Err(contract(sentence));
                }
                answers.extend(self.respond(&mut records, &[])?);
            }
            answers.sort_by_key(|answer| answer.episode);
            if let Some((answer, episode)) = answers
                .iter()
                .zip(&on)
                .find(|(answer, on)| answer.episode != **on as u64)
            {
                let sentence = format!(
                    "an observation of episode {}, where {episode} waits for one",
                    answer.episode
                );
                return Err(contract(sentence));
            }
            answers
                .iter()
                .for_each(|answer| rewards[answer.episode as usize] += answer.reward);
            said.extend(answers.iter().map(|answer| format!("{answer:?}")));
            on = answers
                .iter()
                .filter(|answer| !answer.ended)
                .map(|answer| answer.episode as usize)
                .collect();
        }
        Ok(Scored { rewards, records })
    }
}

impl Observed for RewardHandle {
    basics!(Reward);

    fn scored(
        &mut self,
        rollout: &RolloutFixture,
        _said: &mut Vec<String>,
    ) -> Result<Scored, PluginError> {
        rollout.score(self)
    }
}

impl Observed for AdvantageHandle {
    basics!(Advantage);

    fn run(&mut self, sink: &mut dyn Sink, on: &Fixture) -> Result<Outputs, PluginError> {
        let (zeros, mut advantages) = (vec![0.0; on.dims.len()], vec![0.0; on.dims.len()]);
        let context = on.context();
        let batch = Batch {
            advantages: &zeros,
            losses: None,
            dloss_dlogp: None,
            ..on.batch_with(&context)
        };
        self.estimate(sink, &batch, &mut advantages)?;
        Ok(vec![("advantage", wide(advantages))])
    }
}

impl Observed for ObjectiveHandle {
    basics!(Objective);

    fn check_declared(&self) -> Result<(), PluginError> {
        self.reduction().check_known(self.id())
    }

    fn run(&mut self, sink: &mut dyn Sink, on: &Fixture) -> Result<Outputs, PluginError> {
        let (mut loss, mut slope) = (vec![0.0; on.dims.len()], vec![0.0; on.dims.len()]);
        let context = on.context();
        let batch = Batch {
            losses: None,
            dloss_dlogp: None,
            ..on.batch_with(&context)
        };
        self.evaluate(sink, &batch, &mut loss, &mut slope)?;
        Ok(vec![("loss", wide(loss)), ("dloss_dlogp", wide(slope))])
    }
}

impl Observed for MaskHandle {
    basics!(Mask);

    fn run(&mut self, sink: &mut dyn Sink, on: &Fixture) -> Result<Outputs, PluginError> {
        let mut token_mask = on.kept();
        self.mask(sink, &on.batch_with(&on.context()), &mut token_mask)?;
        Ok(vec![("token_mask", wide(token_mask))])
    }

    fn end(
        &mut self,
        sink: &mut dyn Sink,
        on: &Fixture,
        decided: &[f64],
        taken: bool,
    ) -> Result<(), PluginError> {
        let token_mask: Vec<u8> = decided.iter().map(|&value| u8::from(value > 0.0)).collect();
        self.step_end(sink, &on.batch_with(&on.context()), &token_mask, taken)
    }
}

impl Observed for WeightHandle {
    basics!(Weight);

    fn run(&mut self, sink: &mut dyn Sink, on: &Fixture) -> Result<Outputs, PluginError> {
        let mut weights = vec![0.0; on.dims.len()];
        self.weigh(
            sink,
            &on.batch_with(&on.context()),
            &on.kept(),
            &mut weights,
        )?;
        Ok(vec![("weight", wide(weights))])
    }

    fn end(
        &mut self,
        sink: &mut dyn Sink,
        on: &Fixture,
        decided: &[f64],
        taken: bool,
    ) -> Result<(), PluginError> {
        self.step_end(sink, &on.batch_with(&on.context()), &narrow(decided), taken)
    }
}

impl Observed for StepControlHandle {
    basics!(StepControl);

    /// Uses weight 1 for all kept tokens.
    fn run(&mut self, sink: &mut dyn Sink, on: &Fixture) -> Result<Outputs, PluginError> {
        let weights: Vec<f32> = on.kept().into_iter().map(f32::from).collect();
        let mut update = on.update;
        let step = ProposedStep {
            weights: &weights,
            groups: &Measured::GROUPS,
            measurements: &mut update,
        };
        let scales = self.control(sink, &on.batch_with(&on.context()), step)?;
        let names = [
            "scale of embedding",
            "scale of block.0",
            "scale of last_layer",
        ];
        Ok(names
            .into_iter()
            .zip(scales.into_iter().map(|scale| vec![scale]))
            .collect())
    }
}

impl Answer {
    /// The first output that differs by more than `tolerance`, relative to the larger value; 0
    /// compares bits.
    pub fn difference(&self, other: &Self, tolerance: f32) -> Option<String> {
        for ((name, ours), (_, theirs)) in self.outputs.iter().zip(&other.outputs) {
            let (ours, theirs) = (narrow(ours), narrow(theirs));
            let differ = |(a, b): (&f32, &f32)| {
                a.to_bits() != b.to_bits()
                    && (tolerance == 0.0 || (a - b).abs() > tolerance * a.abs().max(b.abs()))
            };
            if let Some(at) = ours.iter().zip(&theirs).position(differ) {
                let width = (ours.len() / self.completions).max(1);
                let token = if *name == "reward" {
                    String::new()
                } else {
                    format!(", token {}", at % width)
                };
                let (ours, theirs, completion) = (ours[at], theirs[at], at / width);
                return Some(format!(
                    "`{name}` is {ours} and {theirs} at completion {completion}{token}"
                ));
            }
        }
        None
    }

    /// The first output, record or observation that differs by a bit.
    pub fn any_difference(&self, other: &Self) -> Option<String> {
        let said = || {
            self.said
                .iter()
                .zip(&other.said)
                .find(|(ours, theirs)| ours != theirs)
        };
        let said = || said().map(|(ours, theirs)| format!("{ours} and {theirs}"));
        self.difference(other, 0.0)
            .or_else(|| self.record_difference(other))
            .or_else(said)
    }

    /// The first name under which the two answers recorded different bits. Of numbers per token,
    /// only real tokens are compared.
    pub fn record_difference(&self, other: &Self) -> Option<String> {
        let (ours, theirs) = (self.recorded(), other.recorded());
        if ours.len() != theirs.len() {
            return Some(format!("{} and {} records", ours.len(), theirs.len()));
        }
        let different = ours.iter().zip(&theirs).find(|(a, b)| a != b);
        different.map(|((name, _), _)| format!("the record `{name}`"))
    }

    /// Bits of all recorded numbers that count, by name.
    fn recorded(&self) -> Vec<(&str, Vec<u64>)> {
        let numbers = self
            .records
            .numbers
            .iter()
            .map(|(name, value)| (name.as_str(), vec![value.to_bits()]));
        let tokens = self.records.tokens.iter().map(|(name, values)| {
            let real = values
                .iter()
                .zip(&self.mask)
                .filter(|(_, mask)| **mask == 1);
            (
                name.as_str(),
                real.map(|(value, _)| u64::from(value.to_bits())).collect(),
            )
        });
        numbers.chain(tokens).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Observed, Scored};
    use crate::prelude::*;
    use crate::testing::{self, RolloutFixture};

    /// Pays each episode its seed.
    #[keys]
    struct Seeded {
        seeds: Vec<u64>,
    }

    impl Environment for Seeded {
        fn begin(&mut self, _: &mut Ctx, episodes: &Episodes) -> Result<Vec<String>, PluginError> {
            self.seeds = episodes
                .episodes
                .iter()
                .map(|episode| episode.seed)
                .collect();
            Ok(vec![String::new(); self.seeds.len()])
        }

        fn respond(
            &mut self,
            _: &mut Ctx,
            turns: &[Turn],
        ) -> Result<Vec<Observation>, PluginError> {
            let pay = |turn: &Turn| {
                Observation::of(turn)
                    .reward(self.seeds[turn.episode as usize] as f32)
                    .end()
            };
            Ok(turns.iter().map(pay).collect())
        }
    }

    #[test]
    fn the_seed_of_an_episode_moves_with_its_group() {
        let paid = |rollout: &RolloutFixture| {
            let Scored { rewards, .. } = testing::environment::<Seeded>("")
                .unwrap()
                .scored(rollout, &mut Vec::new())
                .unwrap();
            rewards
        };
        let rollout = RolloutFixture::new(&["a", "b", "c", "d", "e", "f"]).groups_of(2);
        assert_eq!(paid(&rollout), [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]);
        let moved = rollout.regrouped(&[2, 0, 1]);
        assert_eq!(paid(&moved), [2.0, 2.0, 0.0, 0.0, 1.0, 1.0]);
        assert_eq!(paid(&moved.regrouped(&[1, 2, 0])), paid(&rollout));
    }
}
