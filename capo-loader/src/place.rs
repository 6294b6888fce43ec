//! Progress of a run, for messages about how it ended and where a resume continues.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use capo_system::terminal::word;

/// Number of steps done and saved. Other threads may read it during the run.
#[derive(Debug, Default)]
pub struct Place {
    /// The run's directory as a word of a command, once it exists.
    dir: OnceLock<String>,
    /// Number of steps done.
    step: AtomicU64,
    /// Step of the newest checkpoint; 0 if there is none.
    saved: AtomicU64,
}

impl Place {
    /// Notes that the run's directory `dir` exists.
    pub fn started(&self, dir: &Path) {
        // A run has one directory, so a second call changes nothing.
        let _ = self.dir.set(word(dir));
    }

    /// Notes that `step` steps are done.
    pub fn at(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    /// Notes that the newest checkpoint is of step `step`.
    pub fn saved(&self, step: u64) {
        self.saved.store(step, Ordering::Relaxed);
    }

    /// True if a resume would continue exactly here: a checkpoint of this step exists, or the run
    /// is at step 0.
    pub fn is_saved(&self) -> bool {
        self.saved.load(Ordering::Relaxed) == self.step.load(Ordering::Relaxed)
    }

    /// Message about where the run ends and where a resume continues; `None` before the run has a
    /// directory.
    pub fn stopped(&self) -> Option<String> {
        let mut sentence = String::new();
        self.tell(&mut sentence).then_some(sentence)
    }

    /// Writes the message of [`Self::stopped`] to `words`; returns false before the run has a
    /// directory. A signal handler may call this.
    pub(crate) fn tell(&self, words: &mut impl Words) -> bool {
        let Some(dir) = self.dir.get() else {
            return false;
        };
        let (step, saved) = (
            self.step.load(Ordering::Relaxed),
            self.saved.load(Ordering::Relaxed),
        );
        words.text("the run stopped after step ");
        words.number(step);
        let (before, after) = match saved {
            _ if saved == step => (" (go on with `host train --resume ", "`)"),
            0 => (
                ", without a checkpoint (`host train --resume ",
                "` begins again at step 1)",
            ),
            _ => (
                " (`host train --resume ",
                "` goes on from the checkpoint of step ",
            ),
        };
        [before, dir, after]
            .into_iter()
            .for_each(|part| words.text(part));
        if saved != step && saved != 0 {
            words.number(saved);
            words.text(")");
        }
        true
    }
}

/// A writer for the parts of a message.
pub(crate) trait Words {
    fn text(&mut self, text: &str);

    /// Writes a number digit by digit, without allocating.
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
        place.started(Path::new("runs/a b"));
        place.at(30);
        let mut told = vec![place.stopped().unwrap()];
        for saved in [20, 30] {
            place.saved(saved);
            told.push(place.stopped().unwrap());
        }
        let expected = [
            "the run stopped after step 30, without a checkpoint (`host train --resume 'runs/a b'` begins again at step 1)",
            "the run stopped after step 30 (`host train --resume 'runs/a b'` goes on from the checkpoint of step 20)",
            "the run stopped after step 30 (go on with `host train --resume 'runs/a b'`)",
        ];
        assert_eq!(told, expected);
    }
}
