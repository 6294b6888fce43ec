//! Checks of saved state.

use super::instance::{Subject, is_panic, stream};
use super::outcome::{Outcome, Verdict};

/// Saves in mid-stream, loads in a fresh instance, and goes on.
pub fn save_load(subject: &Subject<'_>) -> Verdict {
    let mut first = subject.create()?;
    for step in 0..3 {
        first.step(&stream(step))?;
    }
    let state = first.save()?;
    if first.save()? != state {
        return Ok(Outcome::failed("two saves in a row differ"));
    }
    let mut second = subject.create()?;
    second.load(&state)?;
    if second.save()? != state {
        return Ok(Outcome::failed("a state that was loaded and saved again is another state"));
    }
    for step in 3..6 {
        let batch = stream(step);
        let (one, two) = (first.step(&batch)?, second.step(&batch)?);
        let place = one.difference(&two, 0.0).or_else(|| one.record_difference(&two, batch.batch().completion_mask));
        if let Some(place) = place {
            return Ok(Outcome::failed(format!(
                "after a load in mid-stream step {step} differs: {place} (save all that later steps depend on)"
            )));
        }
    }
    if first.save()? != second.save()? {
        return Ok(Outcome::failed("after a load in mid-stream the state at the end differs"));
    }
    Ok(Outcome::success(format!("a resumed instance goes on with the same bits ({} bytes of state)", state.len())))
}

/// States that it did not write.
pub fn foreign_state(subject: &Subject<'_>) -> Verdict {
    let mut taken = None;
    for foreign in foreign_states(subject)? {
        let mut instance = subject.create()?;
        instance.step(&stream(0))?;
        let before = instance.save()?;
        let length = foreign.len();
        match instance.load(&foreign) {
            Ok(()) => taken = Some(length),
            Err(error) if is_panic(&error) => {
                return Ok(Outcome::failed(format!("on {length} foreign bytes {error} (return an error)")));
            }
            Err(_) if instance.save()? != before => {
                return Ok(Outcome::failed(format!("{length} foreign bytes are refused, but its state has changed")));
            }
            Err(_) => {}
        }
    }
    Ok(match taken {
        Some(length) => {
            Outcome::warning(format!("{length} foreign bytes are taken for its state (write what tells them apart)"))
        }
        None => Outcome::success("foreign bytes are refused, and change nothing"),
    })
}

/// Bytes that are no state of this component, or a state cut short or with more behind it.
fn foreign_states(subject: &Subject<'_>) -> Result<Vec<Vec<u8>>, capo_plugin::PluginError> {
    let mut instance = subject.create()?;
    for step in 0..2 {
        instance.step(&stream(step))?;
    }
    let own = instance.save()?;
    let mut states = vec![vec![0], vec![0xff; 64], b"another component's state".to_vec(), (0..=255).collect()];
    if !own.is_empty() {
        states.extend([Vec::new(), own[..own.len() / 2].to_vec(), [&own[..], &[0; 7]].concat()]);
    }
    states.retain(|state| *state != own);
    Ok(states)
}

/// The size of the state over a longer stream.
pub fn state_growth(subject: &Subject<'_>) -> Verdict {
    let mut instance = subject.create()?;
    let mut sizes = Vec::new();
    for step in 0..64 {
        instance.step(&stream(step))?;
        if [16, 32, 64].contains(&(step + 1)) {
            sizes.push(instance.save()?.len());
        }
    }
    let (early, late) = (sizes[1].saturating_sub(sizes[0]), sizes[2].saturating_sub(sizes[1]));
    let sentence = format!("{}, {} and {} bytes after 16, 32 and 64 steps", sizes[0], sizes[1], sizes[2]);
    // A step that adds as much as the one before it adds twice as much in twice the steps.
    Ok(if early > 0 && 2 * late > 3 * early {
        Outcome::warning(format!("its state grows with every step: {sentence}"))
    } else {
        Outcome::success(sentence)
    })
}
