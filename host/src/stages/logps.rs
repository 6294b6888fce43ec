//! Before the components: what the current policy says about the sampled tokens.

use std::ops::Range;

use anyhow::{Result, bail, ensure};
use capo_plugin::Inputs;

use crate::model::frozen::Reference;
use crate::model::{Config, Forward, HEAD, Policy, Sequences, TokenOutputs, Wants};
use crate::optim::{Optimizer, OptimizerName};
use crate::stages::batch::{BatchWithLogps, SampledBatch};
use crate::stages::lend::HeadState;

/// Inputs that the components of a run ask for.
#[derive(Debug, Clone, Copy)]
pub struct Needs {
    inputs: Inputs,
    last_layer_k: usize,
    /// True if the features are held, for what is measured of a step.
    hidden: bool,
}

/// How the work is split, and at which temperature.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// Completions of one forward pass.
    pub micro_batch: usize,
    /// Bytes of activations that the log-probability pass may store for the backward pass where there is more than one micro-batch.
    pub activation_budget: u64,
    /// Divisor of the logits.
    pub loss_temperature: f64,
}

impl Work {
    /// The micro-batches of so many completions.
    pub fn micro_batches(self, completions: usize) -> impl Iterator<Item = Range<usize>> {
        (0..completions).step_by(self.micro_batch).map(move |start| start..(start + self.micro_batch).min(completions))
    }
}

impl Needs {
    /// Everything that `asked` names, by component id.
    pub fn new(
        asked: &[(&str, Inputs)],
        model: &Config,
        optimizer: OptimizerName,
        last_layer_k: usize,
    ) -> Result<Self> {
        let mut inputs = Inputs::NONE;
        for (id, wanted) in asked {
            let unknown = wanted.0 & !Inputs::KNOWN.0;
            ensure!(
                unknown == 0,
                "component `{id}` asks for inputs {unknown:#x}, which this host does not know (use a newer host, or an older plugin)"
            );
            if wanted.contains(Inputs::OPTIMIZER_STATE) && optimizer == OptimizerName::Sgd {
                bail!(
                    "component `{id}` asks for the optimizer's state of the last layer, which is Adam's, but `train.optimizer` is `sgd` (set it to `adamw`, or use the component's own moments)"
                );
            }
            if wanted.contains(Inputs::OPTIMIZER_STATE) && model.tie_word_embeddings {
                bail!(
                    "component `{id}` asks for the optimizer's state of the last layer, but the model ties it to the embedding, whose state mixes both (use a model with `tie_word_embeddings = false`, or the component's own moments)"
                );
            }
            inputs = inputs | *wanted;
        }
        Ok(Self { inputs, last_layer_k, hidden: false })
    }

    /// These needs, and the inputs `more`.
    pub fn with(self, more: Inputs) -> Self {
        Self { inputs: self.inputs | more, ..self }
    }

    /// These needs, and the features of every token where `hidden`.
    pub fn with_hidden(self, hidden: bool) -> Self {
        Self { hidden, ..self }
    }

    /// Outputs to compute of every token besides its log-probability.
    pub fn wants(&self) -> Wants {
        let last_layer_k = self.inputs.contains(Inputs::LAST_LAYER).then_some(self.last_layer_k);
        Wants { entropy: true, hidden: self.hidden, last_layer_k }
    }

    /// True if what the rollout knows besides its batch is needed.
    pub fn context(&self) -> bool {
        self.inputs.contains(Inputs::ROLLOUT_CONTEXT) || self.sampler_top_k() > 0
    }

    /// How many of the sampler's most likely tokens are needed.
    pub fn sampler_top_k(&self) -> usize {
        if self.inputs.contains(Inputs::SAMPLER_TOP_K) { self.last_layer_k } else { 0 }
    }

    /// Bytes that a token's data of the last layer take where the policy computes and on the way to components; 0 where nobody asks.
    pub fn last_layer_bytes(&self, model: &Config) -> u128 {
        let k = self.last_layer_k.min(model.vocab_size);
        if self.inputs.contains(Inputs::LAST_LAYER) { 2 * 4 * (model.hidden_size + 2 * k + 3) as u128 } else { 0 }
    }

    /// True if a reference model is needed.
    pub fn reference(&self) -> bool {
        self.inputs.contains(Inputs::REF_LOGPS)
    }
}

/// The batch with the current policy's log-probabilities and entropy, and whatever the components asked for.
///
/// Where the sampler's own passes gave `outputs`, nothing is computed again. Else the forward passes come back with their activations, for
/// `backward`: that of an only micro-batch always, those of several as far as the budget goes, and nothing in place of the others.
pub fn of_batch(
    policy: &Policy,
    reference: Option<&Reference>,
    optimizer: &Optimizer,
    (batch, outputs): (SampledBatch, Option<TokenOutputs>),
    needs: &Needs,
    work: Work,
) -> Result<(BatchWithLogps, Vec<Option<Forward>>)> {
    let (outputs, forwards) = match outputs {
        Some(outputs) => (outputs, work.micro_batches(batch.dims.completions as usize).map(|_| None).collect()),
        None => of_policy(policy, &batch, &needs.wants(), work)?,
    };
    let mut batch = BatchWithLogps::new(batch, outputs)?;
    if let Some(reference) = reference {
        let forward = |rows: &Sequences| Ok((reference.forward(rows, work.loss_temperature)?, false));
        batch.ref_logps = Some(in_parts(&batch, &Wants::default(), work, forward)?.0.logps);
    }
    if needs.inputs.contains(Inputs::OPTIMIZER_STATE) {
        batch.head_state = Some(head_state(policy, optimizer)?);
    }
    Ok((batch, forwards))
}

/// Log-probabilities of the sampled tokens, `[B, T]`, nats, without a graph.
pub fn detached(policy: &Policy, batch: &SampledBatch, work: Work) -> Result<Vec<f32>> {
    let forward = |rows: &Sequences| Ok((policy.forward_detached(rows, work.loss_temperature)?, false));
    Ok(in_parts(batch, &Wants::default(), work, forward)?.0.logps)
}

/// The outputs, and the forward passes that stay.
fn of_policy(
    policy: &Policy,
    batch: &SampledBatch,
    wants: &Wants,
    work: Work,
) -> Result<(TokenOutputs, Vec<Option<Forward>>)> {
    let mut left = u128::from(work.activation_budget);
    in_parts(batch, wants, work, |rows| {
        let (bytes, only) = (policy.activation_bytes(rows), rows.rows() == batch.dims.completions as usize);
        if only || bytes <= left {
            left -= bytes.min(left);
            return Ok((policy.forward(rows, work.loss_temperature)?, true));
        }
        Ok((policy.forward_detached(rows, work.loss_temperature)?, false))
    })
}

/// The outputs by `forward`, which says of each pass whether it is to stay, and those that do.
fn in_parts(
    batch: &SampledBatch,
    wants: &Wants,
    work: Work,
    mut forward: impl FnMut(&Sequences) -> Result<(Forward, bool)>,
) -> Result<(TokenOutputs, Vec<Option<Forward>>)> {
    let (mut outputs, mut forwards) = (Vec::new(), Vec::new());
    for rows in work.micro_batches(batch.dims.completions as usize) {
        let (forward, stays) = forward(&batch.sequences.slice(rows))?;
        outputs.push(forward.outputs(wants)?);
        forwards.push(stays.then_some(forward));
    }
    Ok((TokenOutputs::join(outputs)?, forwards))
}

fn head_state(policy: &Policy, optimizer: &Optimizer) -> Result<HeadState> {
    let (exp_avg, exp_avg_sq) = optimizer.moments(HEAD)?;
    HeadState::new(policy.params().get(HEAD)?.as_tensor(), exp_avg, exp_avg_sq)
}
