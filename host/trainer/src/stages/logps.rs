//! The policy's log-probabilities of the sampled tokens, and other outputs of a step's forward
//! passes for which components ask. They are computed before the components run.

use std::ops::Range;

use anyhow::{Result, ensure};
use capo_loader::registry::Components;
use capo_plugin::{Inputs, StepControlHandle};
use host_model::frozen::Reference;
use host_model::optim::OptimizerName;
use host_model::{Forward, Policy, Sequences, TokenOutputs, Wants};

use crate::config::TrainConfig;
use crate::stages::batch::SampledBatch;

/// Inputs for which the components of a run ask.
#[derive(Debug, Clone, Copy)]
pub struct ComponentInputs {
    inputs: Inputs,
    last_layer_k: usize,
}

/// The components of a run as pairs of id and inputs for which the component asks. Their order is
/// advantage, objective, masks, weights, step controls.
pub fn asked(components: &Components) -> impl Iterator<Item = (&str, Inputs)> {
    let Components {
        advantage,
        objective,
        deciders,
        step_controls,
    } = components;
    let masks = deciders.masks.iter().map(|mask| (mask.id(), mask.inputs()));
    let weights = deciders
        .weights
        .iter()
        .map(|weight| (weight.id(), weight.inputs()));
    let controls = step_controls
        .iter()
        .map(|control| (control.id(), control.inputs()));
    let one_each = [
        (advantage.id(), advantage.inputs()),
        (objective.id(), objective.inputs()),
    ];
    one_each
        .into_iter()
        .chain(masks)
        .chain(weights)
        .chain(controls)
}

/// Split of the work into micro-batches, and the temperature of the loss.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// Number of completions in one forward pass.
    pub micro_batch: usize,
    /// Most bytes of activations that the forward pass may store for the backward pass if there are
    /// several micro-batches.
    pub activation_budget: u64,
    /// Divisor of the logits.
    pub loss_temperature: f64,
}

impl Work {
    /// The micro-batches of `completions` completions, as ranges of rows.
    pub fn micro_batches(self, completions: usize) -> impl Iterator<Item = Range<usize>> {
        (0..completions)
            .step_by(self.micro_batch)
            .map(move |start| start..(start + self.micro_batch).min(completions))
    }
}

impl ComponentInputs {
    /// Collects all inputs for which the components ask. `last_layer_k` is the number of most
    /// likely tokens in the last layer's data.
    pub fn new(
        components: &Components,
        policy: &Policy,
        train: &TrainConfig,
        last_layer_k: usize,
    ) -> Result<Self> {
        let mut inputs = Inputs::NONE;
        for (id, wanted) in asked(components) {
            check(id, wanted, policy, train)?;
            inputs = inputs | wanted;
        }
        Ok(Self {
            inputs,
            last_layer_k,
        })
    }

    /// These inputs and those in `more`.
    pub fn with(self, more: Inputs) -> Self {
        Self {
            inputs: self.inputs | more,
            ..self
        }
    }

    /// Outputs of a step's forward passes for each token, besides its log-probability. Step
    /// controls and a `measured` step also need the features.
    pub fn outputs(&self, controls: &[StepControlHandle], measured: bool) -> Wants {
        let last_layer_k =
            (measured || self.inputs.contains(Inputs::LAST_LAYER)).then_some(self.last_layer_k);
        Wants {
            entropy: true,
            hidden: measured || !controls.is_empty(),
            last_layer_k,
        }
    }

    /// True if rollout data outside the batch are needed.
    pub fn context(&self) -> bool {
        self.inputs.contains(Inputs::ROLLOUT_CONTEXT) || self.sampler_top_k() > 0
    }

    /// Number of the sampler's most likely tokens that are needed for each token; 0 without need.
    pub fn sampler_top_k(&self) -> usize {
        if self.inputs.contains(Inputs::SAMPLER_TOP_K) {
            self.last_layer_k
        } else {
            0
        }
    }

    /// True if the reference model's log-probabilities are needed.
    pub fn reference(&self) -> bool {
        self.inputs.contains(Inputs::REF_LOGPS)
    }

    /// True if the last layer's weight and its moments in the optimizer are needed.
    pub fn optimizer_state(&self) -> bool {
        self.inputs.contains(Inputs::OPTIMIZER_STATE)
    }
}

/// Refuses `wanted` inputs of the component `id` that this host or this run cannot provide.
fn check(id: &str, wanted: Inputs, policy: &Policy, train: &TrainConfig) -> Result<()> {
    let is_sgd = train.optimizer == OptimizerName::Sgd;
    let unknown = wanted.0 & !Inputs::KNOWN.0;
    ensure!(
        unknown == 0,
        "component `{id}` asks for inputs {unknown:#x}, which this host does not know \
         (use a newer host, or an older plugin)"
    );
    if wanted.contains(Inputs::OPTIMIZER_STATE) {
        let asks = format!("component `{id}` asks for the optimizer's state of the last layer");
        ensure!(
            policy.adapter().is_none(),
            "{asks}, but an adapter is trained and the head stays as it is: there is none \
             (use the component's own moments, or train all weights)"
        );
        ensure!(
            !is_sgd,
            "{asks}, which is Adam's, but `train.optimizer` is `sgd` \
             (set it to `adamw`, or use the component's own moments)"
        );
        ensure!(
            !policy.config().tie_word_embeddings,
            "{asks}, but the model ties it to the embedding, whose state mixes both \
             (use a model with `tie_word_embeddings = false`, or the component's own moments)"
        );
    }
    Ok(())
}

/// The forward pass of a step, from which its backward pass goes on.
pub struct Pass {
    /// The policy of the pass, with all copies of its weights that passes need.
    pub policy: Policy,
    /// For each micro-batch, its forward pass with the stored activations. `None` if they are not
    /// stored: the backward pass then runs the forward pass again.
    pub forwards: Vec<Option<Forward>>,
}

impl Pass {
    /// A pass of `policy` that stores no activations.
    pub fn without_activations(policy: Policy, batch: &SampledBatch, work: Work) -> Self {
        let count = work
            .micro_batches(batch.dims().completions as usize)
            .count();
        Self {
            policy,
            forwards: std::iter::repeat_with(|| None).take(count).collect(),
        }
    }

    /// Runs the forward pass of `policy`, and returns its outputs. A single micro-batch always
    /// stores its activations. Several store theirs as far as the activation budget reaches.
    pub fn run(
        policy: Policy,
        batch: &SampledBatch,
        wants: &Wants,
        work: Work,
    ) -> Result<(Self, TokenOutputs)> {
        let completions = batch.dims().completions as usize;
        let mut left = u128::from(work.activation_budget);
        let mut outputs = Vec::new();
        let mut forwards = Vec::new();
        for rows in work.micro_batches(completions) {
            let rows = batch.sequences.slice(rows);
            let bytes = policy.activation_bytes(&rows);
            let is_stored = rows.rows() == completions || bytes <= left;
            let forward = if is_stored {
                left -= bytes.min(left);
                policy.forward(&rows, work.loss_temperature)?
            } else {
                policy.forward_detached(&rows, work.loss_temperature)?
            };
            outputs.push(forward.outputs(wants)?);
            forwards.push(is_stored.then_some(forward));
        }
        let outputs = TokenOutputs::join(outputs)?;
        Ok((Self { policy, forwards }, outputs))
    }
}

/// Log-probabilities of the sampled tokens under `policy`, `[B, T]`, nats. No activations are
/// stored.
pub fn detached(policy: &Policy, batch: &SampledBatch, work: Work) -> Result<Vec<f32>> {
    in_micro_batches(batch, work, |rows| {
        policy.forward_detached(rows, work.loss_temperature)
    })
}

/// Log-probabilities of the sampled tokens under the reference model, `[B, T]`, nats.
pub fn of_reference(reference: &Reference, batch: &SampledBatch, work: Work) -> Result<Vec<f32>> {
    in_micro_batches(batch, work, |rows| {
        reference.forward(rows, work.loss_temperature)
    })
}

/// Runs `forward` on each micro-batch, and joins the log-probabilities.
fn in_micro_batches(
    batch: &SampledBatch,
    work: Work,
    forward: impl Fn(&Sequences) -> Result<Forward>,
) -> Result<Vec<f32>> {
    let mut outputs = Vec::new();
    for rows in work.micro_batches(batch.dims().completions as usize) {
        let forward = forward(&batch.sequences.slice(rows))?;
        outputs.push(forward.outputs(&Wants::default())?);
    }
    Ok(TokenOutputs::join(outputs)?.logps)
}
