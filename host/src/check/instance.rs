//! A live component under test, the same whatever its point: here, in `input` and in `subject`, and only there, checks depend on
//! the points.

use capo_plugin::testing::{Fixture, Listener, Measured, Records, Seat};
use capo_plugin::{
    Advantage, Batch, ErrorKind, Inputs, Mask, ObjectiveFn, PluginError, RewardFn, StepControlFn, Weight,
};

use super::input::Input;
use crate::stages::backward::check_reduction;

/// A live component.
pub enum Instance {
    /// At the reward point.
    Reward(RewardFn),
    /// At the advantage point.
    Advantage(Advantage),
    /// At the objective point.
    Objective(ObjectiveFn),
    /// At the mask point.
    Mask(Mask),
    /// At the weight point.
    Weight(Weight),
    /// At the step-control point.
    StepControl(StepControlFn),
}

/// What a component answered to one input.
#[derive(Debug)]
pub struct Answer {
    /// Its outputs by name, one row per completion.
    pub outputs: Vec<(&'static str, Vec<f32>)>,
    /// What it recorded.
    pub records: Records,
    completions: usize,
    /// Which entries of a recorded array count: real tokens, all completions.
    mask: Vec<u8>,
}

impl Instance {
    /// What it asked for.
    #[must_use]
    pub fn inputs(&self) -> Inputs {
        match self {
            Self::Reward(_) => Inputs::NONE,
            Self::Advantage(component) => component.inputs(),
            Self::Objective(component) => component.inputs(),
            Self::Mask(component) => component.inputs(),
            Self::Weight(component) => component.inputs(),
            Self::StepControl(component) => component.inputs(),
        }
    }

    /// Refuses a reduction that this host does not know, where it asks for one.
    ///
    /// # Errors
    ///
    /// As in training.
    pub fn check_reduction(&self) -> anyhow::Result<()> {
        if let Self::Objective(component) = self { check_reduction(component) } else { Ok(()) }
    }

    /// Its state.
    ///
    /// # Errors
    ///
    /// The component's own sentence.
    pub fn save(&self) -> Result<Vec<u8>, PluginError> {
        match self {
            Self::Reward(component) => component.save(),
            Self::Advantage(component) => component.save(),
            Self::Objective(component) => component.save(),
            Self::Mask(component) => component.save(),
            Self::Weight(component) => component.save(),
            Self::StepControl(component) => component.save(),
        }
    }

    /// Takes up a state.
    ///
    /// # Errors
    ///
    /// The component's own sentence.
    pub fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
        match self {
            Self::Reward(component) => component.load(state),
            Self::Advantage(component) => component.load(state),
            Self::Objective(component) => component.load(state),
            Self::Mask(component) => component.load(state),
            Self::Weight(component) => component.load(state),
            Self::StepControl(component) => component.load(state),
        }
    }

    /// One whole step on `input`, with what the component asked for and no more.
    ///
    /// # Errors
    ///
    /// The component's own sentence, or the rule that it broke.
    pub fn step(&mut self, input: &Input) -> Result<Answer, PluginError> {
        self.step_with(input, self.inputs())
    }

    /// One whole step on `input` with the optional inputs `inputs`.
    ///
    /// # Errors
    ///
    /// The component's own sentence, or the rule that it broke.
    pub fn step_with(&mut self, input: &Input, inputs: Inputs) -> Result<Answer, PluginError> {
        match (self, input) {
            (Self::Reward(component), Input::Rollout(rollout)) => {
                let scored = rollout.score(component)?;
                let (completions, mask) = (scored.rewards.len(), vec![1; scored.rewards.len()]);
                Ok(Answer { outputs: vec![("reward", scored.rewards)], records: scored.records, completions, mask })
            }
            (component, Input::Batch(batch)) => component.step_on(batch, inputs),
            (_, Input::Rollout(_)) => Err(mismatch()),
        }
    }

    fn step_on(&mut self, batch: &Fixture, inputs: Inputs) -> Result<Answer, PluginError> {
        let context = batch.context();
        let mut batch = batch.batch().with_only(inputs);
        let (n, mut listener) = (batch.dims.len(), Listener::new(&context));
        let (mut first, mut second) = (vec![0.0; n], vec![0.0; n]);
        let zeros = vec![0.0; n];
        let outputs = match self {
            Self::Reward(_) => return Err(mismatch()),
            Self::Advantage(component) => {
                (batch.advantages, batch.losses, batch.dloss_dlogp) = (&zeros, None, None);
                component.estimate(&mut listener, &batch, &mut first)?;
                vec![("advantage", first)]
            }
            Self::Objective(component) => {
                (batch.losses, batch.dloss_dlogp) = (None, None);
                component.evaluate(&mut listener, &batch, &mut first, &mut second)?;
                vec![("loss", first), ("derivative", second)]
            }
            Self::Mask(_) | Self::Weight(_) => {
                let name = if matches!(self, Self::Mask(_)) { "keep" } else { "weight" };
                let decided = self.decide(&mut listener, &batch)?;
                self.end(&mut listener, &batch, &decided)?;
                vec![(name, decided)]
            }
            Self::StepControl(component) => {
                let ones: Vec<f32> = batch.completion_mask.iter().map(|&mask| f32::from(mask)).collect();
                let (mut update, mut scales) = (update_of(&batch), [1.0; Measured::GROUPS.len()]);
                component.control(&mut listener, &batch, &ones, &Measured::GROUPS, &mut update, &mut scales)?;
                // A number per group, in no completion: it stands for each of them, so that no order of groups changes it.
                let of_group =
                    |(name, scale): (&'static str, f64)| (name, vec![scale as f32; batch.dims.completions as usize]);
                ["scale of group 0", "scale of group 1", "scale of group 2"]
                    .into_iter()
                    .zip(scales)
                    .map(of_group)
                    .collect()
            }
        };
        let (completions, mask) = (batch.dims.completions as usize, batch.completion_mask.to_vec());
        Ok(Answer { outputs, records: listener.records, completions, mask })
    }

    /// What a mask or a weight gives the tokens of `batch`, `[B, T]`: what it keeps, as 0 and 1, or its weights.
    ///
    /// # Errors
    ///
    /// The component's own sentence, or the rule that it broke.
    pub fn decide(&mut self, listener: &mut Listener<'_>, batch: &Batch<'_>) -> Result<Vec<f32>, PluginError> {
        match self {
            Self::Mask(component) => {
                let mut keep = batch.completion_mask.to_vec();
                component.mask(listener, batch, &mut keep)?;
                Ok(keep.into_iter().map(f32::from).collect())
            }
            Self::Weight(component) => {
                let mut weights = vec![0.0; batch.dims.len()];
                component.weigh(listener, batch, batch.completion_mask, &mut weights)?;
                Ok(weights)
            }
            _ => Err(mismatch()),
        }
    }

    /// Ends the step of a mask or a weight with what was `decided`.
    ///
    /// # Errors
    ///
    /// The component's own sentence, or the rule that it broke.
    pub fn end(&mut self, listener: &mut Listener<'_>, batch: &Batch<'_>, decided: &[f32]) -> Result<(), PluginError> {
        let taken = decided.iter().any(|&value| value > 0.0);
        match self {
            Self::Mask(component) => {
                let keep: Vec<u8> = decided.iter().map(|&value| u8::from(value > 0.0)).collect();
                component.step_end(listener, batch, &keep, taken)
            }
            Self::Weight(component) => component.step_end(listener, batch, decided, taken),
            _ => Err(mismatch()),
        }
    }

    /// The same on one of several ranks, which has the completions of `batch`.
    ///
    /// # Errors
    ///
    /// The component's own sentence, or the rule that it broke.
    pub fn end_on(
        &mut self,
        seat: &Seat<'_>,
        batch: &Fixture,
        decided: &[f32],
        taken: bool,
    ) -> Result<(), PluginError> {
        match self {
            Self::Mask(component) => {
                let keep: Vec<u8> = decided.iter().map(|&value| u8::from(value > 0.0)).collect();
                batch.step_end_on(seat, component, &keep, taken).map(drop)
            }
            Self::Weight(component) => batch.weighed_step_end_on(seat, component, decided, taken).map(drop),
            _ => Err(mismatch()),
        }
    }
}

/// The update that a batch proposes: a longer one at every third step.
fn update_of(batch: &Batch<'_>) -> Measured {
    let factor = [0.1, 1.0, 10.0][batch.step as usize % 3];
    let Measured { norms, fisher, last_layer_kl, kl } = Measured::default();
    Measured {
        norms: norms.map(|norm| factor * norm),
        fisher: factor * factor * fisher,
        last_layer_kl: factor * factor * last_layer_kl,
        kl: factor * factor * kl,
    }
}

fn mismatch() -> PluginError {
    PluginError::unsupported("the point has no such call (a reward sees rollouts, the others see batches)")
}

impl Answer {
    /// Where the outputs differ by more than `tolerance`, relative to the larger one; 0 compares bits.
    #[must_use]
    pub fn difference(&self, other: &Self, tolerance: f32) -> Option<String> {
        for ((name, ours), (_, theirs)) in self.outputs.iter().zip(&other.outputs) {
            let differ = |(a, b): (&f32, &f32)| {
                a.to_bits() != b.to_bits() && (tolerance == 0.0 || (a - b).abs() > tolerance * a.abs().max(b.abs()))
            };
            if let Some(at) = ours.iter().zip(theirs).position(differ) {
                let width = (ours.len() / self.completions).max(1);
                let token = if *name == "reward" { String::new() } else { format!(", token {}", at % width) };
                return Some(format!(
                    "`{name}` is {} and {} at completion {}{token}",
                    ours[at],
                    theirs[at],
                    at / width
                ));
            }
        }
        None
    }

    /// Where outputs or records differ by a bit.
    #[must_use]
    pub fn any_difference(&self, other: &Self) -> Option<String> {
        self.difference(other, 0.0).or_else(|| self.record_difference(other))
    }

    /// The first name under which the two recorded different bits; of numbers per token, those of real tokens count.
    #[must_use]
    pub fn record_difference(&self, other: &Self) -> Option<String> {
        let numbers = |answer: &Self| {
            answer.records.numbers.iter().map(|(name, value)| (name.clone(), vec![value.to_bits()])).collect::<Vec<_>>()
        };
        let tokens = |answer: &Self| {
            let real = |values: &[f32]| {
                let real = values.iter().zip(&self.mask).filter(|(_, mask)| **mask == 1);
                real.map(|(value, _)| u64::from(value.to_bits())).collect::<Vec<_>>()
            };
            answer.records.tokens.iter().map(|(name, values)| (name.clone(), real(values))).collect::<Vec<_>>()
        };
        let ours = [numbers(self), tokens(self)].concat();
        let theirs = [numbers(other), tokens(other)].concat();
        if ours.len() != theirs.len() {
            return Some(format!("{} and {} records", ours.len(), theirs.len()));
        }
        let different = ours.iter().zip(&theirs).find(|(a, b)| a != b);
        different.map(|((name, _), _)| format!("the record `{name}`"))
    }
}

/// Whether a call panicked, contained by the guard.
#[must_use]
pub fn is_panic(error: &PluginError) -> bool {
    error.kind() == ErrorKind::PANIC
}

/// Whether an error is the component's own sentence, neither a panic nor a broken rule.
#[must_use]
pub fn is_refusal(error: &PluginError) -> bool {
    !matches!(error.kind(), ErrorKind::PANIC | ErrorKind::CONTRACT)
}
