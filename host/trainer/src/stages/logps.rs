//! Before the components run: log-probabilities and other outputs of the current policy for the
//! sampled tokens.

use std::ops::Range;

use anyhow::{Result, ensure};
use capo_loader::registry::Components;
use capo_plugin::{Inputs, StepControlHandle};
use host_model::frozen::Reference;
use host_model::optim::{Optimizer, OptimizerName};
use host_model::{Forward, HEAD, Policy, Sequences, TokenOutputs, Wants};

use crate::config::TrainConfig;
use crate::stages::batch::{BatchWithLogps, SampledBatch};

/// Inputs that the components of a run ask for.
#[derive(Debug, Clone, Copy)]
pub struct ComponentInputs {
    inputs: Inputs,
    last_layer_k: usize,
}

/// The ids of a run's components, each with the inputs that it asks for: advantage, objective,
/// masks, weights, step controls.
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
    /// Bytes of activations that the log-probability pass may store for the backward pass if there
    /// are several micro-batches.
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
    /// Collects all inputs that the components ask for, of which the top logits are `last_layer_k`.
    pub fn new(
        components: &Components,
        policy: &Policy,
        train: &TrainConfig,
        last_layer_k: usize,
    ) -> Result<Self> {
        let is_sgd = train.optimizer == OptimizerName::Sgd;
        let mut inputs = Inputs::NONE;
        for (id, wanted) in asked(components) {
            let unknown = wanted.0 & !Inputs::KNOWN.0;
            ensure!(
                unknown == 0,
                "component `{id}` asks for inputs {unknown:#x}, which this host does not know (use a newer host, or an older plugin)"
            );
            if wanted.contains(Inputs::OPTIMIZER_STATE) {
                let asks =
                    format!("component `{id}` asks for the optimizer's state of the last layer");
                ensure!(
                    policy.adapter().is_none(),
                    "{asks}, but an adapter is trained and the head stays as it is: there is none (use the component's own moments, or train all weights)"
                );
                ensure!(
                    !is_sgd,
                    "{asks}, which is Adam's, but `train.optimizer` is `sgd` (set it to `adamw`, or use the component's own moments)"
                );
                ensure!(
                    !policy.config().tie_word_embeddings,
                    "{asks}, but the model ties it to the embedding, whose state mixes both (use a model with `tie_word_embeddings = false`, or the component's own moments)"
                );
            }
            ensure!(
                !(is_sgd && train.sgd_momentum == 0.0 && wanted.contains(Inputs::ALIGNMENT)),
                "component `{id}` compares each step with the one before, which SGD without momentum does not remember (set `train.sgd_momentum`)"
            );
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

    /// Outputs of a step's forward passes for every token besides its log-probability. Step
    /// controls and a `measured` step need the features too.
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

    /// Number of the sampler's most likely tokens that are needed.
    pub fn sampler_top_k(&self) -> usize {
        if self.inputs.contains(Inputs::SAMPLER_TOP_K) {
            self.last_layer_k
        } else {
            0
        }
    }

    pub fn reference(&self) -> bool {
        self.inputs.contains(Inputs::REF_LOGPS)
    }
}

/// The batch with the current policy's log-probabilities and entropy, and all inputs that
/// components asked for.
///
/// If the sampler's own passes gave `outputs`, nothing is recomputed. Otherwise the forward passes
/// are returned for `backward`: always for a single micro-batch, and within the activation budget
/// for several. Micro-batches beyond the budget get `None`.
pub fn of_batch(
    policy: &Policy,
    reference: Option<&Reference>,
    optimizer: &Optimizer,
    (batch, outputs): (SampledBatch, Option<TokenOutputs>),
    (inputs, wants): (ComponentInputs, &Wants),
    work: Work,
) -> Result<(BatchWithLogps, Vec<Option<Forward>>)> {
    let (outputs, forwards) = match outputs {
        Some(outputs) => (
            outputs,
            work.micro_batches(batch.dims().completions as usize)
                .map(|_| None)
                .collect(),
        ),
        None => of_policy(policy, &batch, wants, work)?,
    };
    let mut batch = BatchWithLogps::new(batch, outputs)?;
    if let Some(reference) = reference {
        let forward =
            |rows: &Sequences| Ok((reference.forward(rows, work.loss_temperature)?, false));
        let (outputs, _) = in_parts(&batch.sampled, &Wants::default(), work, forward)?;
        batch.sampled.arrays.ref_logps = Some(outputs.logps.into());
    }
    if inputs.inputs.contains(Inputs::OPTIMIZER_STATE) {
        let (exp_avg, exp_avg_sq) = optimizer.moments(HEAD)?;
        let weight = policy.params().get(HEAD)?.as_tensor();
        batch.add_head_state([weight, exp_avg, exp_avg_sq])?;
    }
    Ok((batch, forwards))
}

/// Log-probabilities of the sampled tokens, `[B, T]`, nats, without stored activations.
pub fn detached(policy: &Policy, batch: &SampledBatch, work: Work) -> Result<Vec<f32>> {
    let forward =
        |rows: &Sequences| Ok((policy.forward_detached(rows, work.loss_temperature)?, false));
    Ok(in_parts(batch, &Wants::default(), work, forward)?.0.logps)
}

/// The outputs, and the forward passes that are stored for the backward pass.
fn of_policy(
    policy: &Policy,
    batch: &SampledBatch,
    wants: &Wants,
    work: Work,
) -> Result<(TokenOutputs, Vec<Option<Forward>>)> {
    let mut left = u128::from(work.activation_budget);
    in_parts(batch, wants, work, |rows| {
        let (bytes, only) = (
            policy.activation_bytes(rows),
            rows.rows() == batch.dims().completions as usize,
        );
        if only || bytes <= left {
            left -= bytes.min(left);
            return Ok((policy.forward(rows, work.loss_temperature)?, true));
        }
        Ok((policy.forward_detached(rows, work.loss_temperature)?, false))
    })
}

/// Runs `forward` on each part. It also says if its pass is stored. Returns the joined outputs and
/// the stored passes.
fn in_parts(
    batch: &SampledBatch,
    wants: &Wants,
    work: Work,
    mut forward: impl FnMut(&Sequences) -> Result<(Forward, bool)>,
) -> Result<(TokenOutputs, Vec<Option<Forward>>)> {
    let (mut outputs, mut forwards) = (Vec::new(), Vec::new());
    for rows in work.micro_batches(batch.dims().completions as usize) {
        let (forward, stays) = forward(&batch.sequences.slice(rows))?;
        outputs.push(forward.outputs(wants)?);
        forwards.push(stays.then_some(forward));
    }
    Ok((TokenOutputs::join(outputs)?, forwards))
}
