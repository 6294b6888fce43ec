//! Where a run stands, for whoever has to say how it ended and where it goes on.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Steps done and steps saved. Threads may look at it while the run goes on.
#[derive(Debug, Default)]
pub struct Place {
    /// The run's directory, once there is one.
    dir: OnceLock<PathBuf>,
    /// Steps done.
    step: AtomicU64,
    /// The step of the newest checkpoint; 0 where there is none.
    saved: AtomicU64,
}

impl Place {
    /// The run in `dir` exists.
    pub fn started(&self, dir: &Path) {
        // A run has one directory.
        let _ = self.dir.set(dir.to_owned());
    }

    /// `step` steps are done.
    pub fn at(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    /// The newest checkpoint is of `step`.
    pub fn saved(&self, step: u64) {
        self.saved.store(step, Ordering::Relaxed);
    }

    /// Whether a resume would go on exactly here: there is a checkpoint of this step, or none is needed at step 0.
    #[must_use]
    pub fn is_saved(&self) -> bool {
        self.saved.load(Ordering::Relaxed) == self.step.load(Ordering::Relaxed)
    }

    /// How the run ends here, and where a resume goes on; none before it has a directory.
    #[must_use]
    pub fn stopped(&self) -> Option<String> {
        let dir = self.dir.get()?.display();
        let (step, saved) = (self.step.load(Ordering::Relaxed), self.saved.load(Ordering::Relaxed));
        let resume = format!("`host train --resume {dir}`");
        Some(match saved {
            _ if self.is_saved() => format!("the run stopped after step {step} (go on with {resume})"),
            0 => format!("the run stopped after step {step}, without a checkpoint ({resume} begins again at step 1)"),
            _ => format!("the run stopped after step {step} ({resume} goes on from the checkpoint of step {saved})"),
        })
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
