//! A live component: the methods of every point, with Python's lock released during a call.

use capo_plugin::{
    AdvantageHandle, Completion, Inputs, MaskHandle, ObjectiveHandle, ParameterGroup, PluginError,
    ProposedStep, Purpose, RewardHandle, Rollout, Sink, StepControlHandle, Traits, WeightHandle,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::array;
use crate::batch::{Batch, input_names};
use crate::callback::{Callback, Measure};
use crate::collective::Collective;
use crate::dlpack::Lent;
use crate::error::broken;
use crate::lock::Lock;
use crate::numpy;
use crate::records::Records;

/// Declarations that a mask or a weight may make, by name.
const TRAITS: [(Traits, &str); 3] = [
    (Traits::TOKEN_WISE, "TOKEN_WISE"),
    (Traits::SUMS_RANKS, "SUMS_RANKS"),
    (Traits::NO_OPTIMIZER, "NO_OPTIMIZER"),
];

/// A component of any point.
pub(crate) enum Handle {
    Reward(RewardHandle),
    Advantage(AdvantageHandle),
    Objective(ObjectiveHandle),
    Mask(MaskHandle),
    Weight(WeightHandle),
    StepControl(StepControlHandle),
}

impl Handle {
    fn inputs(&self) -> Inputs {
        match self {
            Self::Reward(_) => Inputs::NONE,
            Self::Advantage(advantage) => advantage.inputs(),
            Self::Objective(objective) => objective.inputs(),
            Self::Mask(mask) => mask.inputs(),
            Self::Weight(weight) => weight.inputs(),
            Self::StepControl(control) => control.inputs(),
        }
    }

    fn traits(&self) -> Traits {
        match self {
            Self::Mask(mask) => mask.traits(),
            Self::Weight(weight) => weight.traits(),
            _ => Traits::NONE,
        }
    }
}

/// One call, written once for components of every point.
macro_rules! at_any_point {
    ($handle:expr, $component:ident => $call:expr) => {
        match $handle {
            Handle::Reward($component) => $call,
            Handle::Advantage($component) => $call,
            Handle::Objective($component) => $call,
            Handle::Mask($component) => $call,
            Handle::Weight($component) => $call,
            Handle::StepControl($component) => $call,
        }
    };
}

/// One component; users see the classes `capo_rl.Mask` and its siblings.
#[pyclass(frozen, module = "capo_rl._native")]
pub(crate) struct Component {
    id: String,
    inputs: Inputs,
    weighs: bool,
    /// True if the component's methods may read the batch's optimizer.
    reads_optimizer: bool,
    handle: Lock<Handle>,
}

/// A result array, and the reports.
type Answer<'py> = (Bound<'py, PyAny>, Bound<'py, PyDict>);

#[pymethods]
impl Component {
    /// Names of the optional inputs that the component asks for.
    #[getter]
    fn inputs(&self) -> Vec<&'static str> {
        input_names(self.inputs)
    }

    /// Names of the declarations of a mask or a weight.
    #[getter]
    fn traits(&self, py: Python<'_>) -> PyResult<Vec<&'static str>> {
        let declared = self.with(py, |handle| handle.traits())?;
        Ok(TRAITS
            .iter()
            .filter(|(one, _)| declared.contains(*one))
            .map(|(_, name)| *name)
            .collect())
    }

    /// Rule that reduces an objective's losses to one number; `None` for a rule that this revision
    /// cannot name, and at other points.
    #[getter]
    fn reduction(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        self.with(py, |handle| match handle {
            Handle::Objective(objective) => objective.reduction().name(),
            _ => None,
        })
    }

    /// True for a step control that restores the optimizer's moments when nothing of a step is
    /// applied.
    #[getter]
    fn restores_moments(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(
            py,
            |handle| matches!(handle, Handle::StepControl(control) if control.restores_moments()),
        )
    }

    /// `token_mask` after the mask, and the reports.
    fn mask<'py>(
        &self,
        py: Python<'py>,
        batch: &Batch,
        token_mask: Option<&Bound<'py, PyAny>>,
        collective: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Answer<'py>> {
        self.check(batch)?;
        let mut token_mask = self.left(batch, token_mask)?;
        let records = self.call_on_ranks(py, batch, collective, |handle, sink| match handle {
            Handle::Mask(mask) => mask.mask(sink, &batch.view(), &mut token_mask),
            _ => Ok(()),
        })?;
        Ok((numpy::array(py, &batch.extents(), &token_mask)?, records))
    }

    /// Weights of the tokens in `token_mask`, and the reports.
    fn weigh<'py>(
        &self,
        py: Python<'py>,
        batch: &Batch,
        token_mask: Option<&Bound<'py, PyAny>>,
        collective: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Answer<'py>> {
        self.check(batch)?;
        let token_mask = self.left(batch, token_mask)?;
        let mut weights = vec![0.0; token_mask.len()];
        let records = self.call_on_ranks(py, batch, collective, |handle, sink| match handle {
            Handle::Weight(weight) => weight.weigh(sink, &batch.view(), &token_mask, &mut weights),
            _ => Ok(()),
        })?;
        Ok((numpy::array(py, &batch.extents(), &weights)?, records))
    }

    /// Passes the final `token_mask` to a mask, or the product of all weights to a weight; returns
    /// the reports.
    fn step_end<'py>(
        &self,
        py: Python<'py>,
        batch: &Batch,
        values: &Bound<'py, PyAny>,
        taken: bool,
        collective: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.check(batch)?;
        if self.weighs {
            let weights = array::floats("weights", per_token("weights", batch, values)?)?;
            return self.call_on_ranks(py, batch, collective, |handle, sink| match handle {
                Handle::Weight(weight) => {
                    weight.step_end(sink, &batch.view(), weights.get(), taken)
                }
                _ => Ok(()),
            });
        }
        let token_mask = array::bits("token_mask", per_token("token_mask", batch, values)?)?;
        self.call_on_ranks(py, batch, collective, |handle, sink| match handle {
            Handle::Mask(mask) => mask.step_end(sink, &batch.view(), token_mask.get(), taken),
            _ => Ok(()),
        })
    }

    /// Scale of each group's part of a step, and the reports.
    fn control<'py>(
        &self,
        py: Python<'py>,
        batch: &Batch,
        weights: &Bound<'py, PyAny>,
        groups: Vec<(String, u64)>,
        measure: &Bound<'py, PyAny>,
    ) -> PyResult<(Vec<f64>, Bound<'py, PyDict>)> {
        self.check(batch)?;
        let weights = array::floats("weights", per_token("weights", batch, weights)?)?;
        let mut measure = &Measure::new(measure)?;
        let groups: Vec<_> = groups
            .iter()
            .map(|(name, parameters)| ParameterGroup::new(name, *parameters))
            .collect();
        let mut scales = Vec::new();
        let back = Some(&measure.0);
        let records = self.call_back(py, batch, None, back, |handle, sink| match handle {
            Handle::StepControl(control) => {
                let step = ProposedStep {
                    weights: weights.get(),
                    groups: &groups,
                    measurements: &mut measure,
                };
                scales = control.control(sink, &batch.view(), step)?;
                Ok(())
            }
            _ => Ok(()),
        })?;
        Ok((scales, records))
    }

    /// Advantages, and the reports.
    fn estimate<'py>(&self, py: Python<'py>, batch: &Batch) -> PyResult<Answer<'py>> {
        self.check(batch)?;
        let mut advantages = vec![0.0; batch.dims().len()];
        let records = self.call_on_ranks(py, batch, None, |handle, sink| match handle {
            Handle::Advantage(advantage) => {
                advantage.estimate(sink, &batch.view(), &mut advantages)
            }
            _ => Ok(()),
        })?;
        Ok((numpy::array(py, &batch.extents(), &advantages)?, records))
    }

    /// Losses, their derivatives, and the reports.
    fn evaluate<'py>(
        &self,
        py: Python<'py>,
        batch: &Batch,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyDict>)> {
        self.check(batch)?;
        let mut losses = vec![0.0; batch.dims().len()];
        let mut slopes = vec![0.0; batch.dims().len()];
        let records = self.call_on_ranks(py, batch, None, |handle, sink| match handle {
            Handle::Objective(objective) => {
                objective.evaluate(sink, &batch.view(), &mut losses, &mut slopes)
            }
            _ => Ok(()),
        })?;
        let shape = batch.extents();
        Ok((
            numpy::array(py, &shape, &losses)?,
            numpy::array(py, &shape, &slopes)?,
            records,
        ))
    }

    /// Rewards, and the reports.
    fn score<'py>(&self, py: Python<'py>, rollout: RolloutArguments) -> PyResult<Answer<'py>> {
        let mut rewards = vec![0.0; rollout.completions.len()];
        let mut records = Records::default();
        let outcome = self.with(py, |handle| match handle {
            Handle::Reward(reward) => reward.score(&mut records, &rollout.view(), &mut rewards),
            _ => Ok(()),
        })?;
        let shape = [rewards.len()];
        let records = records.to_dict(py, &shape)?;
        outcome.map_err(|error| broken(&error))?;
        Ok((numpy::array(py, &shape, &rewards)?, records))
    }

    /// State for a checkpoint.
    fn save<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let state = self
            .with(
                py,
                |handle| at_any_point!(handle, component => component.save()),
            )?
            .map_err(|error| broken(&error))?;
        Ok(PyBytes::new(py, &state))
    }

    /// Restores a saved state.
    fn load(&self, py: Python<'_>, state: &[u8]) -> PyResult<()> {
        self.with(
            py,
            |handle| at_any_point!(handle, component => component.load(state)),
        )?
        .map_err(|error| broken(&error))
    }
}

impl Component {
    pub(crate) fn new(id: &str, handle: Handle) -> Self {
        let inputs = handle.inputs();
        let weighs = matches!(handle, Handle::Weight(_));
        let reads_optimizer = match handle {
            Handle::Mask(_) | Handle::Weight(_) => !handle.traits().contains(Traits::NO_OPTIMIZER),
            Handle::StepControl(_) => {
                inputs.contains(Inputs::LAST_LAYER) || inputs.contains(Inputs::OPTIMIZER_STATE)
            }
            _ => false,
        };
        Self {
            id: id.to_owned(),
            inputs,
            weighs,
            reads_optimizer,
            handle: Lock::new(handle),
        }
    }

    /// Result of `work` with the component, after the calls that run.
    pub(crate) fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Handle) -> R + Send,
    ) -> PyResult<R> {
        self.handle
            .with(py, &format!("component `{}`", self.id), work)
    }

    /// Result of `work` with several components, after the calls that run.
    pub(crate) fn with_all<R: Send>(
        py: Python<'_>,
        components: &[&Self],
        work: impl FnOnce(Vec<&mut Handle>) -> R + Send,
    ) -> PyResult<R> {
        let locks: Vec<_> = components
            .iter()
            .map(|component| (&component.handle, format!("component `{}`", component.id)))
            .collect();
        Lock::with_all(py, &locks, work)
    }

    /// Refuses a batch that lacks what the component reads.
    pub(crate) fn check(&self, batch: &Batch) -> PyResult<()> {
        batch.must_hold(&self.id, self.inputs)?;
        if self.reads_optimizer {
            batch.must_know_optimizer(&format!("component `{}`", self.id))
        } else {
            Ok(())
        }
    }

    /// Runs one call with the context of the batch's rollout; the object `collective` connects it
    /// to other ranks. Returns the reports.
    fn call_on_ranks<'py>(
        &self,
        py: Python<'py>,
        batch: &Batch,
        collective: Option<&Bound<'py, PyAny>>,
        call: impl FnOnce(&mut Handle, &mut dyn Sink) -> Result<(), PluginError> + Send,
    ) -> PyResult<Bound<'py, PyDict>> {
        let collective = collective.map(Collective::new).transpose()?;
        let back = collective.as_ref().map(|ranks| &ranks.callback);
        self.call_back(py, batch, collective.as_ref(), back, call)
    }

    /// Runs one call that may use the callback `back`, whose exceptions become the cause of its
    /// error. Returns the reports.
    fn call_back<'py>(
        &self,
        py: Python<'py>,
        batch: &Batch,
        collective: Option<&Collective>,
        back: Option<&Callback>,
        call: impl FnOnce(&mut Handle, &mut dyn Sink) -> Result<(), PluginError> + Send,
    ) -> PyResult<Bound<'py, PyDict>> {
        let mut records = Records::on(collective);
        let outcome = self.with(py, |handle| call(handle, &mut records))?;
        let records = records.to_dict(py, &batch.extents());
        outcome.map_err(|error| match back {
            None => broken(&error),
            Some(back) => back.caused(py, broken(&error)),
        })?;
        records
    }

    /// The remaining tokens: `token_mask`, or all tokens of the completions.
    fn left(&self, batch: &Batch, token_mask: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<u8>> {
        let Some(token_mask) = token_mask else {
            return Ok(batch.completion_mask().to_vec());
        };
        let token_mask = array::bits("token_mask", per_token("token_mask", batch, token_mask)?)?;
        let outside = token_mask
            .get()
            .iter()
            .zip(batch.completion_mask())
            .position(|(keep, mask)| keep > mask);
        if let Some(at) = outside {
            let tokens = batch.dims().tokens as usize;
            return Err(PyValueError::new_err(format!(
                "`token_mask` is 1 at completion {}, token {}, which is padding (leave padding \
                 at 0)",
                at / tokens,
                at % tokens
            )));
        }
        Ok(token_mask.get().to_vec())
    }
}

/// The array `values` of Python, `[B, T]`, in host memory.
pub(crate) fn per_token(name: &str, batch: &Batch, values: &Bound<'_, PyAny>) -> PyResult<Lent> {
    let lent = Lent::on_host(name, values)?;
    let dims = batch.dims();
    let expected = [dims.completions as i64, dims.tokens as i64];
    if lent.shape() != expected {
        let shape = lent.shape();
        return Err(PyValueError::new_err(format!(
            "`{name}` has shape {shape:?} (it must be {expected:?}, as the batch is)"
        )));
    }
    Ok(lent)
}

/// Completions for a reward; the fields have the names of `capo_rl.Reward`'s arguments.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct RolloutArguments {
    prompts: Vec<String>,
    completions: Vec<String>,
    answers: Vec<String>,
    /// One JSON object per completion.
    columns: Vec<String>,
    completion_ids: Vec<Vec<u32>>,
    truncated: Vec<bool>,
    group_size: usize,
    evaluation: bool,
    step: u64,
    max_steps: u64,
    seed: u64,
    max_completion_length: usize,
}

impl RolloutArguments {
    fn view(&self) -> Rollout<'_> {
        let completions = (0..self.completions.len()).map(|b| {
            let mut completion = Completion::new(&self.prompts[b], &self.completions[b]);
            completion.ids = &self.completion_ids[b];
            completion.truncated = self.truncated[b];
            completion.answer = &self.answers[b];
            completion.columns = &self.columns[b];
            completion
        });
        let mut rollout = Rollout::new(completions.collect());
        rollout.purpose = if self.evaluation {
            Purpose::EVALUATION
        } else {
            Purpose::TRAINING
        };
        rollout.step = self.step;
        rollout.max_steps = self.max_steps;
        rollout.seed = self.seed;
        rollout.group_size = self.group_size;
        rollout.max_completion_length = self.max_completion_length;
        rollout
    }
}
