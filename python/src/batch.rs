//! The batch of one optimizer step, as Python provides it.

#![allow(unsafe_code, reason = "what is only read may be read by any thread")]

use std::path::PathBuf;

use capo_loader::batch_file;
use capo_loader::{RecordedContext, sound};
use capo_plugin::{
    Batch as View, CompletionContext, ContextData, Dims, Inputs, OptimizerInfo, OptimizerKind,
    OptimizerState, PromptContext, Reduction,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::array::{Array, Large, Slot};
use crate::dlpack::Place;
use crate::error::failed;
use crate::export::{floats, to_fields};
use crate::fields::{DENOMINATORS, Fields};
use crate::layer::Layer;

/// Optimizer of a batch without one. Components that read the optimizer are refused before.
const NO_OPTIMIZER: OptimizerInfo = OptimizerInfo {
    kind: OptimizerKind::SGD,
    learning_rate: 0.0,
    beta1: 0.0,
    beta2: 0.0,
    eps: 0.0,
    weight_decay: 0.0,
    max_grad_norm: 0.0,
    steps_taken: 0,
};

/// Arrays and scalars of a batch; users see the class `capo_rl.Batch`.
#[pyclass(frozen, module = "capo_rl._native")]
pub(crate) struct Batch {
    scalars: Unborrowed<View<'static>>,
    completion_ids: Array<u32>,
    completion_mask: Array<u8>,
    truncated: Array<u8>,
    rewards: Array<f32>,
    advantages: Array<f32>,
    logps: Array<f32>,
    losses: Option<[Array<f32>; 2]>,
    old_logps: Option<Array<f32>>,
    ref_logps: Option<Array<f32>>,
    entropy: Option<Array<f32>>,
    last_layer: Option<Layer>,
    /// The last layer's weight and both moments.
    optimizer_state: Option<[Large<f32>; 3]>,
    context: Option<RecordedContext>,
    knows_optimizer: bool,
}

/// A batch that borrows nothing: its arrays are empty, or owned and in host memory.
struct Unborrowed<T>(T);

// SAFETY: only the addresses of its tensors keep a batch from being shared, and this batch has
// none.
unsafe impl<T> Send for Unborrowed<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Unborrowed<T> {}

#[pymethods]
impl Batch {
    #[new]
    fn new(fields: &Bound<'_, PyDict>) -> PyResult<Self> {
        Self::from_fields(&Fields(fields), None)
    }

    /// B and T.
    #[getter]
    fn shape(&self) -> [u64; 2] {
        [self.scalars.0.dims.completions, self.scalars.0.dims.tokens]
    }

    /// Names of the optional inputs that the batch holds.
    #[getter]
    fn inputs(&self) -> Vec<&'static str> {
        input_names(self.held())
    }

    /// Name and address of every array, and the number of bytes that were copied to get it there.
    fn slots(&self) -> Vec<(&'static str, usize, usize)> {
        let arrays = [
            ("completion_mask", self.completion_mask.slot()),
            ("truncated", self.truncated.slot()),
            ("completion_ids", self.completion_ids.slot()),
            ("rewards", self.rewards.slot()),
            ("advantages", self.advantages.slot()),
            ("logps", self.logps.slot()),
        ];
        let optional = [
            ("old_logps", &self.old_logps),
            ("ref_logps", &self.ref_logps),
            ("entropy", &self.entropy),
        ]
        .into_iter();
        let optional = optional.filter_map(|(name, array)| Some((name, array.as_ref()?.slot())));
        let losses = self
            .losses
            .iter()
            .flat_map(|pair| ["losses", "dloss_dlogp"].into_iter().zip(pair));
        let losses = losses.map(|(name, array)| (name, array.slot()));
        let all = arrays
            .into_iter()
            .chain(optional)
            .chain(losses)
            .chain(self.large());
        all.map(|(name, slot)| (name, slot.address, slot.copied))
            .collect()
    }

    /// Reads a batch file; returns the batch's arguments by name, and the batch.
    #[staticmethod]
    fn read<'py>(py: Python<'py>, path: PathBuf) -> PyResult<(Self, Bound<'py, PyDict>)> {
        let read = py.detach(|| batch_file::read(&path).map(Unborrowed));
        let Unborrowed(recorded) = read.map_err(|error| failed(&error))?;
        let fields = to_fields(py, &recorded.view())?;
        if let Some(context) = &recorded.context {
            let dims = recorded.scalars.dims;
            fields.set_item(
                "sampler_logps",
                floats(py, dims, context.data.lend(0).sampler_logps())?,
            )?;
            fields.set_item("age", context.age)?;
        }
        Ok((
            Self::from_fields(&Fields(&fields), recorded.context)?,
            fields,
        ))
    }

    /// Writes a batch file.
    fn write(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.must_know_optimizer("a batch file")?;
        if let Some((name, Slot { place, .. })) =
            self.large().find(|(_, slot)| slot.place != Place::Host)
        {
            return Err(PyValueError::new_err(format!(
                "`{name}` lies on `{place}`, and a batch file is written from host memory (give the batch arrays on the CPU)"
            )));
        }
        let written = py.detach(|| {
            batch_file::write(
                &path,
                &self.view(),
                self.context
                    .as_ref()
                    .map(|context| (&context.data, context.age)),
            )
        });
        written.map_err(|error| failed(&error))
    }
}

impl Batch {
    fn from_fields(fields: &Fields<'_, '_>, context: Option<RecordedContext>) -> PyResult<Self> {
        let shape @ [b, t] = fields.extents("completion_ids")?;
        let dims = Dims {
            completions: b as u64,
            tokens: t as u64,
            group_size: fields.number("group_size", 1)?,
        };
        if dims.group_size == 0 || !dims.completions.is_multiple_of(dims.group_size) {
            let group_size = dims.group_size;
            return Err(PyValueError::new_err(format!(
                "`group_size` {group_size} does not divide the {b} completions"
            )));
        }
        let stream = fields.number("stream", 0)?;
        let must = |name: &str| {
            PyValueError::new_err(format!(
                "`{name}` is missing (it is an array of shape [{b}, {t}])"
            ))
        };
        let zeros = |len: i64| Array::Own(vec![0.0; len as usize]);
        let completion_mask = fields
            .bits("completion_mask", &shape)?
            .ok_or_else(|| must("completion_mask"))?;
        let optimizer = fields.optimizer("optimizer")?;
        let losses = fields
            .floats("losses", &shape)?
            .zip(fields.floats("dloss_dlogp", &shape)?);
        if losses.is_none() && (fields.has("losses")? || fields.has("dloss_dlogp")?) {
            return Err(PyValueError::new_err(
                "`losses` and `dloss_dlogp` belong together (give both, or neither)",
            ));
        }
        let matrix = |name: &str| fields.large(name, &[-1, -1], stream);
        let batch = Self {
            scalars: Unborrowed(scalars(fields, dims, optimizer.unwrap_or(NO_OPTIMIZER))?),
            completion_ids: fields
                .ids("completion_ids", &shape)?
                .ok_or_else(|| must("completion_ids"))?,
            truncated: fields
                .bits("truncated", &[b])?
                .unwrap_or_else(|| Array::Own(vec![0; b as usize])),
            rewards: fields.floats("rewards", &[b])?.unwrap_or_else(|| zeros(b)),
            advantages: fields
                .spread("advantages", shape, completion_mask.get())?
                .unwrap_or_else(|| zeros(b * t)),
            completion_mask,
            logps: fields
                .floats("logps", &shape)?
                .ok_or_else(|| must("logps"))?,
            losses: losses.map(<[_; 2]>::from),
            old_logps: fields.floats("old_logps", &shape)?,
            ref_logps: fields.floats("ref_logps", &shape)?,
            entropy: fields.floats("entropy", &shape)?,
            last_layer: fields
                .has("hidden")?
                .then(|| Layer::read(fields, shape, stream))
                .transpose()?,
            optimizer_state: match fields.has("exp_avg")? {
                true => Some([matrix("weight")?, matrix("exp_avg")?, matrix("exp_avg_sq")?]),
                false => None,
            },
            context: match context {
                Some(context) => Some(context),
                None => sampled(fields, dims)?,
            },
            knows_optimizer: optimizer.is_some(),
        };
        batch.check()?;
        Ok(batch)
    }

    fn check(&self) -> PyResult<()> {
        let mut places = self.large().map(|(name, slot)| (name, slot.place));
        if let Some((first, at)) = places.next()
            && let Some((other, elsewhere)) = places.find(|(_, place)| *place != at)
        {
            return Err(PyValueError::new_err(format!(
                "`{first}` lies on `{at}` and `{other}` on `{elsewhere}` (a batch's large arrays lie on one device)"
            )));
        }
        if let Some([weight, moments @ ..]) = &self.optimizer_state {
            for (name, moment) in STATE[1..].iter().zip(moments) {
                if moment.shape() != weight.shape() {
                    let (have, want) = (moment.shape(), weight.shape());
                    return Err(PyValueError::new_err(format!(
                        "`{name}` has shape {have:?} (it must be {want:?}, as `weight` is)"
                    )));
                }
            }
        }
        sound::check(&self.view(), &[]).map_err(|error| PyValueError::new_err(format!("{error:#}")))
    }

    /// Names of the large arrays that are present, with their places and addresses.
    fn large(&self) -> impl Iterator<Item = (&'static str, Slot)> {
        let layer = self.last_layer.iter().flat_map(Layer::slots);
        let state = self
            .optimizer_state
            .iter()
            .flat_map(|state| STATE.into_iter().zip(state));
        layer.chain(state.map(|(name, values)| (name, values.slot())))
    }

    pub(crate) fn dims(&self) -> Dims {
        self.scalars.0.dims
    }

    /// B and T: the shape of an array with a number per token.
    pub(crate) fn extents(&self) -> [usize; 2] {
        [
            self.dims().completions as usize,
            self.dims().tokens as usize,
        ]
    }

    /// `[B, T]`: 1 for tokens, 0 for padding.
    pub(crate) fn completion_mask(&self) -> &[u8] {
        self.completion_mask.get()
    }

    /// The batch as components see it.
    pub(crate) fn view(&self) -> View<'_> {
        let mut view: View<'_> = self.scalars.0;
        view.completion_ids = self.completion_ids.get();
        view.completion_mask = self.completion_mask.get();
        view.truncated = self.truncated.get();
        view.rewards = self.rewards.get();
        view.advantages = self.advantages.get();
        view.logps = self.logps.get();
        view.losses = self.losses.as_ref().map(|[losses, _]| losses.get());
        view.dloss_dlogp = self.losses.as_ref().map(|[_, slopes]| slopes.get());
        view.old_logps = self.old_logps.as_ref().map(Array::get);
        view.ref_logps = self.ref_logps.as_ref().map(Array::get);
        view.entropy = self.entropy.as_ref().map(Array::get);
        view.last_layer = self.last_layer.as_ref().map(Layer::view);
        view.optimizer_state = self
            .optimizer_state
            .as_ref()
            .map(|[weight, first, second]| {
                OptimizerState::new(weight.tensor(), first.tensor(), second.tensor())
            });
        view.rollout_context = self
            .context
            .as_ref()
            .map(|context| context.data.lend(context.age));
        view.sampler_top_k = self
            .context
            .as_ref()
            .and_then(|context| context.data.top_k());
        view
    }

    fn held(&self) -> Inputs {
        let there = [
            (Inputs::OLD_LOGPS, self.old_logps.is_some()),
            (Inputs::REF_LOGPS, self.ref_logps.is_some()),
            (Inputs::ENTROPY, self.entropy.is_some()),
            (Inputs::LAST_LAYER, self.last_layer.is_some()),
            (Inputs::OPTIMIZER_STATE, self.optimizer_state.is_some()),
            (Inputs::ROLLOUT_CONTEXT, self.context.is_some()),
            (
                Inputs::SAMPLER_TOP_K,
                self.context
                    .as_ref()
                    .is_some_and(|context| context.data.top_k > 0),
            ),
        ];
        there
            .into_iter()
            .filter(|(_, there)| *there)
            .fold(Inputs::NONE, |held, (input, _)| held | input)
    }

    /// Refuses a batch that lacks an input of component `id`.
    pub(crate) fn must_hold(&self, id: &str, inputs: Inputs) -> PyResult<()> {
        let held = self.held() | Inputs::ALIGNMENT;
        let missing = INPUTS
            .iter()
            .find(|(input, ..)| inputs.contains(*input) && !held.contains(*input));
        match missing {
            None => Ok(()),
            Some((_, name, arguments)) => Err(PyValueError::new_err(format!(
                "component `{id}` asks for {name}, which the batch does not hold (give {arguments} to `Batch`)"
            ))),
        }
    }

    /// Refuses a batch without an optimizer; `what` reads the optimizer.
    pub(crate) fn must_know_optimizer(&self, what: &str) -> PyResult<()> {
        if self.knows_optimizer {
            return Ok(());
        }
        Err(PyValueError::new_err(format!(
            "{what} needs to know the optimizer (give `optimizer=Optimizer(\"adamw\", learning_rate=...)` to `Batch`)"
        )))
    }
}

/// Names of the arrays in the optimizer's state.
const STATE: [&str; 3] = ["weight", "exp_avg", "exp_avg_sq"];

/// The optional inputs: flag, name, and the arguments that provide them.
const INPUTS: [(Inputs, &str, &str); 8] = [
    (Inputs::OLD_LOGPS, "OLD_LOGPS", "`old_logps`"),
    (Inputs::REF_LOGPS, "REF_LOGPS", "`ref_logps`"),
    (Inputs::ENTROPY, "ENTROPY", "`entropy`"),
    (Inputs::LAST_LAYER, "LAST_LAYER", "`last_layer`"),
    (
        Inputs::OPTIMIZER_STATE,
        "OPTIMIZER_STATE",
        "`optimizer_state`",
    ),
    (
        Inputs::ROLLOUT_CONTEXT,
        "ROLLOUT_CONTEXT",
        "`rollout_context`",
    ),
    (
        Inputs::SAMPLER_TOP_K,
        "SAMPLER_TOP_K",
        "`rollout_context` with `sampler_topk_ids` and `sampler_topk_logps`",
    ),
    // A property of the step, not of a batch: the step's measurements provide it.
    (Inputs::ALIGNMENT, "ALIGNMENT", ""),
];

/// The names of `inputs`.
pub(crate) fn input_names(inputs: Inputs) -> Vec<&'static str> {
    INPUTS
        .iter()
        .filter(|(input, ..)| inputs.contains(*input))
        .map(|(_, name, _)| *name)
        .collect()
}

fn scalars(
    fields: &Fields<'_, '_>,
    dims: Dims,
    optimizer: OptimizerInfo,
) -> PyResult<View<'static>> {
    let mut view = View::new(dims, optimizer);
    view.step = fields.number("step", view.step)?;
    view.max_steps = fields.number("max_steps", view.max_steps)?;
    view.iteration = fields.number("iteration", view.iteration)?;
    view.seed = fields.number("seed", view.seed)?;
    view.sampling_temperature = fields.number("sampling_temperature", view.sampling_temperature)?;
    view.sampling_top_k = fields.number("sampling_top_k", view.sampling_top_k)?;
    view.sampling_top_p = fields.number("sampling_top_p", view.sampling_top_p)?;
    view.step_learning_rate = fields.step_learning_rate("optimizer")?;
    view.loss_temperature = fields.number("loss_temperature", view.loss_temperature)?;
    view.reduction = fields.named("reduction", &Reduction::NAMED, view.reduction)?;
    view.denominator = fields.named("denominator", &DENOMINATORS, view.denominator)?;
    view.max_completion_length =
        fields.number("max_completion_length", view.max_completion_length)?;
    Ok(view)
}

/// A context with the sampler's log-probabilities only; prompts and texts are empty.
fn sampled(fields: &Fields<'_, '_>, dims: Dims) -> PyResult<Option<RecordedContext>> {
    let shape = [dims.completions as i64, dims.tokens as i64];
    let Some(logps) = fields.floats("sampler_logps", &shape)? else {
        return Ok(None);
    };
    let prompts = dims.groups().enumerate().map(|(number, _)| PromptContext {
        ids: &[],
        number: number as u64,
        line: None,
    });
    let completions = (0..dims.completions as usize).map(|b| CompletionContext {
        text: "",
        spans: &[],
        sampler_logps: &logps.get()[dims.row(b)],
    });
    let mut data = ContextData::new(dims.tokens as usize, prompts, completions);
    if let Some(ids) = fields.ids("sampler_topk_ids", &[shape[0], shape[1], -1])? {
        let k = ids.get().len() / dims.len();
        let Some(logps) = fields.floats("sampler_topk_logps", &[shape[0], shape[1], k as i64])?
        else {
            return Err(PyValueError::new_err(
                "`sampler_topk_ids` is there without `sampler_topk_logps` (give both)",
            ));
        };
        data.set_top_k(k, ids.get().to_vec(), logps.get().to_vec());
    }
    Ok(Some(RecordedContext {
        data,
        age: fields.number("age", 0)?,
    }))
}
