//! Where a run stands, for whoever has to say how it ended and where it goes on.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Steps done and steps saved. Threads may look at it while the run goes on.
#[derive(Debug, Default)]
pub struct Place {
    /// The run's directory, once there is one, as it is shown.
    dir: OnceLock<String>,
    /// Steps done.
    step: AtomicU64,
    /// The step of the newest checkpoint; 0 where there is none.
    saved: AtomicU64,
}

impl Place {
    /// The run in `dir` exists.
    pub fn started(&self, dir: &Path) {
        // A run has one directory.
        let _ = self.dir.set(dir.display().to_string());
    }

    /// `step` steps are done.
    pub fn at(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    /// The newest checkpoint is of `step`.
    pub fn saved(&self, step: u64) {
        self.saved.store(step, Ordering::Relaxed);
    }

    /// True if a resume would go on exactly here: there is a checkpoint of this step, or none is needed at step 0.
    #[must_use]
    pub fn is_saved(&self) -> bool {
        self.saved.load(Ordering::Relaxed) == self.step.load(Ordering::Relaxed)
    }

    /// How the run ends here, and where a resume goes on; none before it has a directory.
    #[must_use]
    pub fn stopped(&self) -> Option<String> {
        let mut sentence = String::new();
        self.tell(&mut sentence).then_some(sentence)
    }

    /// Writes the sentence of [`Self::stopped`] to `words`; false before there is a directory. A signal's handler may
    /// call it.
    pub(crate) fn tell(&self, words: &mut impl Words) -> bool {
        let Some(dir) = self.dir.get() else { return false };
        let (step, saved) = (self.step.load(Ordering::Relaxed), self.saved.load(Ordering::Relaxed));
        words.text("the run stopped after step ");
        words.number(step);
        let (before, after) = match saved {
            _ if saved == step => (" (go on with `host train --resume ", "`)"),
            0 => (", without a checkpoint (`host train --resume ", "` begins again at step 1)"),
            _ => (" (`host train --resume ", "` goes on from the checkpoint of step "),
        };
        [before, dir, after].into_iter().for_each(|part| words.text(part));
        if saved != step && saved != 0 {
            words.number(saved);
            words.text(")");
        }
        true
    }
}

/// Where a sentence is put together.
pub(crate) trait Words {
    fn text(&mut self, text: &str);

    /// Digit by digit, so that nothing is allocated.
    fn number(&mut self, number: u64) {
        if number > 9 {
            self.number(number / 10);
        }
        let digit = (number % 10) as usize;
        self.text(&"0123456789"[digit..=digit]);
    }
}

impl Words for String {
    fn text(&mut self, text: &str) {
        self.push_str(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_names_the_step_at_which_a_resume_goes_on() {
        let place = Place::default();
        assert_eq!(place.stopped(), None);
        place.started(Path::new("runs/x"));
        place.at(30);
        let mut told = vec![place.stopped().unwrap()];
        for saved in [20, 30] {
            place.saved(saved);
            told.push(place.stopped().unwrap());
        }
        let expected = [
            "the run stopped after step 30, without a checkpoint (`host train --resume runs/x` begins again at step 1)",
            "the run stopped after step 30 (`host train --resume runs/x` goes on from the checkpoint of step 20)",
            "the run stopped after step 30 (go on with `host train --resume runs/x`)",
        ];
        assert_eq!(told, expected);
    }
}
