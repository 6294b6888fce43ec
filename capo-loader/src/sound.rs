//! Checks that a batch is possible in a run: scalars within their ranges, ids of the vocabulary,
//! parts that fit together.

use anyhow::{Result, bail, ensure};
use capo_plugin::fields::{Extent, Value};
use capo_plugin::{AgedContext, Batch, BatchBuffer, DeviceKind, OptimizerInfo, Tensor};

use crate::context::{PROMPT_IDS, TOP_IDS};

/// Refuses values that no run has. Ids on a device are not checked.
///
/// # Errors
///
/// When a value is impossible; the message has the value and its limit.
pub fn check(batch: &BatchBuffer) -> Result<()> {
    let view = batch.view();
    ensure!(
        view.max_completion_length as u64 >= view.dims.tokens,
        "`max_completion_length` is {}, but completions have up to {} tokens",
        view.max_completion_length,
        view.dims.tokens
    );
    ensure!(
        view.losses.is_some() == view.dloss_dlogp.is_some(),
        "`losses` and `dloss_dlogp` belong together (give both, or neither)"
    );
    check_scalars(&view)?;
    check_optimizer(&view.optimizer)?;
    check_numbers(&view)?;
    check_vocabulary(batch)
}

/// Refuses scalars beyond the limits of the table of fields.
fn check_scalars(batch: &Batch<'_>) -> Result<()> {
    for (field, value) in batch.values() {
        let number = match value {
            Value::Single(number) => f64::from(number),
            Value::Double(number) => number,
            _ => continue,
        };
        if let Some(rule) = field.limit.broken_by(number) {
            bail!("`{}` is {number} (it must be {rule})", field.name);
        }
    }
    Ok(())
}

/// Refuses NaN at a token: every comparison with NaN is false, so masks would decide by it
/// unnoticed.
fn check_numbers(batch: &Batch<'_>) -> Result<()> {
    for (field, value) in batch.values() {
        let Value::Floats(values) = value else {
            continue;
        };
        if field.shape.contains(&Extent::T) {
            check_tokens(batch, field.name, values)?;
        } else if let Some(completion) = values.iter().position(|value| value.is_nan()) {
            let name = field.name;
            bail!("`{name}` is NaN at completion {completion} (it must be a number)");
        }
    }
    match &batch.rollout_context {
        Some(context) => check_tokens(batch, "sampler_logps", context.sampler_logps()),
        None => Ok(()),
    }
}

/// Refuses NaN in `values`, `[B, T]`, at a token of a completion.
fn check_tokens(batch: &Batch<'_>, name: &str, values: &[f32]) -> Result<()> {
    let mut entries = values.iter().zip(batch.completion_mask);
    let Some(i) = entries.position(|(value, mask)| *mask == 1 && value.is_nan()) else {
        return Ok(());
    };
    let tokens = batch.dims.tokens.max(1) as usize;
    bail!(
        "`{name}` is NaN at completion {}, token {} (it must be a number where `completion_mask` \
         is 1)",
        i / tokens,
        i % tokens
    );
}

/// Refuses ids outside the vocabulary, and tensors that do not fit its size.
fn check_vocabulary(batch: &BatchBuffer) -> Result<()> {
    let view = batch.view();
    let Some(last) = &view.last_layer else {
        return Ok(());
    };
    let vocab = last.vocab_size;
    let width = extent(&last.hidden);
    let k = extent(&last.topk_ids);
    ensure!(
        vocab > 0 && u32::try_from(vocab).is_ok(),
        "`vocab_size` is {vocab} (token ids have 32 bits)"
    );
    ensure!(
        k as u64 <= vocab as u64,
        "`topk_ids` has {k} ids per token, `vocab_size` is {vocab}"
    );
    check_ids("completion_ids", view.completion_ids, vocab)?;
    if last.topk_ids.device().0 == DeviceKind::CPU {
        check_ids("topk_ids", last.topk_ids.as_u32()?, vocab)?;
    }
    if let Some(AgedContext { data, .. }) = &batch.context {
        check_ids(PROMPT_IDS, &data.prompt_ids, vocab)?;
        check_ids(TOP_IDS, &data.top_ids, vocab)?;
    }
    if let Some(state) = &view.optimizer_state {
        let expected = [vocab as i64, width];
        let shape = state.weight.shape();
        ensure!(
            shape == expected,
            "`weight` has shape {shape:?}, expected {expected:?}"
        );
    }
    Ok(())
}

/// The last extent of a tensor.
fn extent(tensor: &Tensor<'_>) -> i64 {
    tensor.shape().last().copied().unwrap_or_default()
}

fn check_ids(name: &str, ids: &[u32], vocab: usize) -> Result<()> {
    match ids.iter().find(|id| **id as usize >= vocab) {
        Some(id) => bail!("`{name}` holds {id}, `vocab_size` is {vocab}"),
        None => Ok(()),
    }
}

fn check_optimizer(optimizer: &OptimizerInfo) -> Result<()> {
    let from_zero = [
        ("learning_rate", optimizer.learning_rate, f64::MAX),
        ("beta1", optimizer.beta1, 1.0 - f64::EPSILON),
        ("beta2", optimizer.beta2, 1.0 - f64::EPSILON),
        ("eps", optimizer.eps, f64::MAX),
        ("weight_decay", optimizer.weight_decay, f64::MAX),
        ("max_grad_norm", optimizer.max_grad_norm, f64::MAX),
    ];
    for (name, value, high) in from_zero {
        let limit = if high < 1.0 { "less than 1" } else { "finite" };
        ensure!(
            value >= 0.0 && value <= high,
            "`{name}` of its optimizer is {value} (it must be 0 or more and {limit})"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use capo_plugin::LayerBuffer;
    use capo_plugin::testing::Fixture;

    use super::*;
    use crate::batch_file;

    /// One completion of one token, as it comes from a file.
    fn batch() -> BatchBuffer {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("batch.safetensors");
        let fixture = Fixture::new(1, 1);
        let context = fixture.context();
        batch_file::write(&path, &fixture.batch_with(&context), Some((&context, 0))).unwrap();
        batch_file::read(&path).unwrap()
    }

    fn refused(change: impl FnOnce(&mut BatchBuffer)) -> String {
        let mut batch = batch();
        check(&batch).expect("it is sound without the change");
        change(&mut batch);
        check(&batch).unwrap_err().to_string()
    }

    /// The last layer of a batch, which must have one.
    fn last(batch: &mut BatchBuffer) -> &mut LayerBuffer {
        batch.last_layer.as_mut().unwrap()
    }

    #[test]
    fn refuses_what_no_run_records() {
        let said = [
            refused(|batch| batch.scalars.max_completion_length = 0),
            refused(|batch| batch.scalars.sampling_temperature = f32::NAN),
            refused(|batch| batch.scalars.loss_temperature = 0.0),
            refused(|batch| batch.scalars.sampling_top_p = 1.5),
            refused(|batch| batch.scalars.optimizer.beta2 = 1.0),
            refused(|batch| batch.scalars.optimizer.learning_rate = f64::INFINITY),
            refused(|batch| batch.logps[0] = f32::NAN),
            refused(|batch| batch.old_logps = Some(vec![f32::NAN].into())),
            refused(|batch| batch.context.as_mut().unwrap().data.sampler_logps[0] = f32::NAN),
            refused(|batch| batch.rewards[0] = f32::NAN),
            refused(|batch| last(batch).vocab_size = 0),
            refused(|batch| last(batch).vocab_size = 1 << 40),
            refused(|batch| last(batch).vocab_size = 3),
            refused(|batch| last(batch).topk_ids.ids_mut().unwrap()[0] = 16),
            refused(|batch| batch.completion_ids[0] = u32::MAX),
            refused(|batch| batch.optimizer_state.as_mut().unwrap().weight.shape = vec![8, 16]),
        ];
        assert_eq!(
            include_str!("sound_refused.txt")
                .lines()
                .collect::<Vec<_>>(),
            said
        );
    }
}
