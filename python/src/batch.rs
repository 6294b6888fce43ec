//! The batch of one optimizer step, as Python provides it.

use std::path::PathBuf;

use capo_loader::{batch_file, sound};
use capo_plugin::{
    AgedContext, Batch as View, BatchBuffer, CompletionContext, ContextData, Dims, Inputs,
    OptimizerInfo, OptimizerKind, PromptContext,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::dlpack::Place;
use crate::error::failed;
use crate::export::{floats, to_fields};
use crate::fields::{Arguments, Fields, NamedSlot};

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
    data: BatchBuffer,
    /// Where the arrays lie.
    arrays: Vec<NamedSlot>,
    knows_optimizer: bool,
}

#[pymethods]
impl Batch {
    #[new]
    fn new(fields: &Bound<'_, PyDict>) -> PyResult<Self> {
        Self::from_fields(fields, None)
    }

    /// B and T.
    #[getter]
    fn shape(&self) -> [u64; 2] {
        [self.dims().completions, self.dims().tokens]
    }

    /// Names of the optional inputs that the batch holds.
    #[getter]
    fn inputs(&self) -> Vec<&'static str> {
        input_names(self.view().held())
    }

    /// Name and address of every array, and the number of bytes that were copied to get it there.
    fn slots(&self) -> Vec<(&'static str, usize, usize)> {
        let arrays = self.arrays.iter();
        arrays
            .map(|array| (array.name, array.slot.address, array.slot.copied))
            .collect()
    }

    /// Reads a batch file; returns the batch's arguments by name, and the batch.
    #[staticmethod]
    fn read<'py>(py: Python<'py>, path: PathBuf) -> PyResult<(Self, Bound<'py, PyDict>)> {
        let read = py.detach(|| batch_file::read(&path));
        let recorded = read.map_err(|error| failed(&error))?;
        let fields = to_fields(py, &recorded.view())?;
        if let Some(context) = &recorded.context {
            let logps = context.data.lend(0).sampler_logps();
            fields.set_item("sampler_logps", floats(py, recorded.scalars.dims, logps)?)?;
            fields.set_item("age", context.age)?;
        }
        Ok((Self::from_fields(&fields, recorded.context)?, fields))
    }

    /// Writes a batch file.
    fn write(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.must_know_optimizer("a batch file")?;
        let mut large = self.arrays.iter().filter(|array| array.is_large);
        if let Some(array) = large.find(|array| array.slot.place != Place::Host) {
            return Err(PyValueError::new_err(format!(
                "`{}` lies on `{}`, and a batch file is written from host memory (give the batch \
                 arrays on the CPU)",
                array.name, array.slot.place
            )));
        }
        let context = self.data.context.as_ref();
        let context = context.map(|context| (&context.data, context.age));
        let written = py.detach(|| batch_file::write(&path, &self.view(), context));
        written.map_err(|error| failed(&error))
    }
}

impl Batch {
    fn from_fields(arguments: &Bound<'_, PyDict>, context: Option<AgedContext>) -> PyResult<Self> {
        let fields = Fields(arguments);
        let [b, t] = fields.extents("completion_ids")?;
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
        let optimizer = fields.optimizer("optimizer")?;
        let mut source = Arguments {
            stream: fields.number("stream", 0)?,
            fields,
            arrays: Vec::new(),
        };
        let mut data = BatchBuffer::read(dims, optimizer.unwrap_or(NO_OPTIMIZER), &mut source)?;
        data.context = match context {
            Some(context) => Some(context),
            None => sampled(&source.fields, dims)?,
        };
        let batch = Self {
            data,
            arrays: source.arrays,
            knows_optimizer: optimizer.is_some(),
        };
        batch.check()?;
        Ok(batch)
    }

    fn check(&self) -> PyResult<()> {
        let mut large = self.arrays.iter().filter(|array| array.is_large);
        if let Some(first) = large.next()
            && let Some(other) = large.find(|array| array.slot.place != first.slot.place)
        {
            return Err(PyValueError::new_err(format!(
                "`{}` lies on `{}` and `{}` on `{}` (a batch's large arrays lie on one device)",
                first.name, first.slot.place, other.name, other.slot.place
            )));
        }
        sound::check(&self.data).map_err(|error| PyValueError::new_err(format!("{error:#}")))
    }

    pub(crate) fn dims(&self) -> Dims {
        self.data.scalars.dims
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
        &self.data.completion_mask
    }

    /// The batch as components see it.
    pub(crate) fn view(&self) -> View<'_> {
        self.data.view()
    }

    /// Refuses a batch that lacks an input of component `id`.
    pub(crate) fn must_hold(&self, id: &str, inputs: Inputs) -> PyResult<()> {
        let held = self.view().held();
        let mut parts = Inputs::OF_BATCH.iter();
        let missing = parts.find(|one| inputs.contains(one.flag) && !held.contains(one.flag));
        let Some(missing) = missing else {
            return Ok(());
        };
        let argument = match missing.flag {
            Inputs::SAMPLER_TOP_K => {
                "`rollout_context` with `sampler_topk_ids` and `sampler_topk_logps`".to_owned()
            }
            _ => format!("`{}`", missing.field),
        };
        Err(PyValueError::new_err(format!(
            "component `{id}` asks for {}, which the batch does not hold (give {argument} to \
             `Batch`)",
            missing.name
        )))
    }

    /// Refuses a batch without an optimizer; `what` reads the optimizer.
    pub(crate) fn must_know_optimizer(&self, what: &str) -> PyResult<()> {
        if self.knows_optimizer {
            return Ok(());
        }
        Err(PyValueError::new_err(format!(
            "{what} needs to know the optimizer (give `optimizer=Optimizer(\"adamw\", \
             learning_rate=...)` to `Batch`)"
        )))
    }
}

/// The names of `inputs`.
pub(crate) fn input_names(inputs: Inputs) -> Vec<&'static str> {
    let mut names = Vec::new();
    for part in Inputs::OF_BATCH {
        if inputs.contains(part.flag) {
            names.push(part.name);
        }
    }
    // A property of the step, not of a batch: the step's measurements provide it.
    if inputs.contains(Inputs::ALIGNMENT) {
        names.push("ALIGNMENT");
    }
    names
}

/// A context with the sampler's log-probabilities only; prompts and texts are empty.
fn sampled(fields: &Fields<'_, '_>, dims: Dims) -> PyResult<Option<AgedContext>> {
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
    Ok(Some(AgedContext {
        data,
        age: fields.number("age", 0)?,
    }))
}
