//! Checks that a batch is possible in a run: scalars within their ranges, ids of the vocabulary,
//! parts that fit together.

use anyhow::{Result, bail, ensure};
use capo_plugin::{Batch, DeviceKind, Tensor};

/// Refuses values that no run has. `context` holds token ids of the rollout's context, each list
/// with its name. Ids on a device are not checked.
///
/// # Errors
///
/// When a value is impossible; the message has the value and its limit.
pub fn check(batch: &Batch<'_>, context: &[(&str, &[u32])]) -> Result<()> {
    let &Batch {
        dims,
        max_completion_length,
        ..
    } = batch;
    ensure!(
        max_completion_length as u64 >= dims.tokens,
        "`max_completion_length` is {max_completion_length}, but completions have up to {} tokens",
        dims.tokens
    );
    check_scalars(batch)?;
    check_numbers(batch)?;
    let Some(last) = &batch.last_layer else {
        return Ok(());
    };
    let vocab = last.vocab_size;
    let extent = |tensor: &Tensor<'_>| tensor.shape().last().copied().unwrap_or_default();
    let (width, k) = (extent(&last.hidden), extent(&last.topk_ids));
    ensure!(
        vocab > 0 && u32::try_from(vocab).is_ok(),
        "`vocab_size` is {vocab} (token ids have 32 bits)"
    );
    ensure!(
        k as u64 <= vocab as u64,
        "`topk_ids` has {k} ids per token, `vocab_size` is {vocab}"
    );
    let on_host = last.topk_ids.device().0 == DeviceKind::CPU;
    let topk_ids = if on_host {
        last.topk_ids.as_u32()?
    } else {
        &[]
    };
    let own = [
        ("completion_ids", batch.completion_ids),
        ("topk_ids", topk_ids),
    ];
    for (name, ids) in own.iter().chain(context) {
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
            bail!("`{name}` holds {id}, `vocab_size` is {vocab}");
        }
    }
    if let Some(state) = &batch.optimizer_state {
        let expected = [vocab as i64, width];
        let shape = state.weight.shape();
        ensure!(
            shape == expected,
            "`weight` has shape {shape:?}, expected {expected:?}"
        );
    }
    Ok(())
}

/// Refuses NaN at a token: every comparison with NaN is false, so masks would decide by it
/// unnoticed.
fn check_numbers(batch: &Batch<'_>) -> Result<()> {
    let tokens = batch.dims.tokens.max(1) as usize;
    let sampled = batch
        .rollout_context
        .as_ref()
        .map(|context| ("sampler_logps", context.sampler_logps()));
    for (name, values) in batch.per_token().chain(sampled) {
        if let Some(i) = values
            .iter()
            .zip(batch.completion_mask)
            .position(|(value, mask)| *mask == 1 && value.is_nan())
        {
            let (completion, token) = (i / tokens, i % tokens);
            bail!(
                "`{name}` is NaN at completion {completion}, token {token} (it must be a number where `completion_mask` is 1)"
            );
        }
    }
    if let Some(completion) = batch.rewards.iter().position(|reward| reward.is_nan()) {
        bail!("`rewards` is NaN at completion {completion} (it must be a number)");
    }
    Ok(())
}

fn check_scalars(batch: &Batch<'_>) -> Result<()> {
    let positive = [
        (
            "sampling_temperature",
            f64::from(batch.sampling_temperature),
            f64::MAX,
        ),
        (
            "loss_temperature",
            f64::from(batch.loss_temperature),
            f64::MAX,
        ),
        ("sampling_top_p", f64::from(batch.sampling_top_p), 1.0),
    ];
    for (name, value, high) in positive {
        let limit = if high == 1.0 { "at most 1" } else { "finite" };
        ensure!(
            value > 0.0 && value <= high,
            "`{name}` is {value} (it must be above 0 and {limit})"
        );
    }
    if let Some(rate) = batch.step_learning_rate {
        ensure!(
            rate >= 0.0 && rate.is_finite(),
            "`step_learning_rate` is {rate} (it must be 0 or more and finite)"
        );
    }
    let optimizer = &batch.optimizer;
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
