//! The environment `command`: a program in any language, over JSON lines.

mod line;
#[cfg(test)]
mod tests;
mod worker;

use std::thread;
use std::time::Duration;

use capo_plugin::prelude::*;
use capo_rewards::program::{MOST_PROCESSES, Program};

use worker::{Event, Worker};

/// Time between two looks at what the copies have written, while episodes begin.
const PAUSE: Duration = Duration::from_millis(1);

/// An external program that answers a model's turns, over JSON lines.
#[component(Environment, id = "command")]
struct External {
    /// The program and its arguments; a relative path is one from where the trainer was started.
    #[key]
    command: Vec<String>,
    /// Number of copies among which the episodes are divided.
    #[key(default = 1, at_least = 1, at_most = MOST_PROCESSES)]
    workers: usize,
    /// Seconds in which a copy that is asked must give an answer.
    #[key(default = 60.0, at_least = 0.001, at_most = 1e6)]
    timeout: f64,
    /// True promises that answers depend only on the lines of an episode so far.
    #[key(default = false)]
    deterministic: bool,
    /// With `deterministic`: how many copies that end or are late may be started anew, over the
    /// whole run.
    #[key(default = MAX_RESTARTS)]
    max_restarts: u64,
    restarts: u64,
    /// The running copies.
    copies: Vec<Worker>,
}

/// Default of `max_restarts`.
const MAX_RESTARTS: u64 = 3;

impl External {
    /// Starts the copies if they do not run.
    fn start(&mut self) -> Result<(), PluginError> {
        if !self.copies.is_empty() {
            return Ok(());
        }
        self.copies = (0..self.workers)
            .map(|_| Worker::start(&self.command))
            .collect::<Result<_, _>>()?;
        while self.copies.iter().any(|copy| copy.tools().is_none()) {
            self.events()?;
            thread::sleep(PAUSE);
        }
        if self
            .copies
            .iter()
            .any(|copy| copy.tools() != self.copies[0].tools())
        {
            let name = &self.command[0];
            return Err(PluginError::failed(format!(
                "two copies of `{name}` name different tools (name the same ones)"
            )));
        }
        Ok(())
    }

    /// Takes the lines that the copies have written. A copy that ends or is late is started anew,
    /// if that changes nothing.
    fn events(&mut self) -> Result<Vec<Event>, PluginError> {
        let mut events = Vec::new();
        for copy in &mut self.copies {
            while let Some(event) = copy.next(self.timeout) {
                let trouble = match event.map_err(PluginError::failed)? {
                    Event::Gone(trouble) => trouble,
                    event => {
                        events.push(event);
                        continue;
                    }
                };
                let name = self.command.first().map_or("", String::as_str);
                let hint = match (self.deterministic, self.restarts) {
                    (false, _) => {
                        "only a program with `deterministic = true` is started anew".to_owned()
                    }
                    (true, count) if count == self.max_restarts => {
                        format!("started anew {count} times; `max_restarts`")
                    }
                    (true, _) => {
                        self.restarts += 1;
                        copy.restart(&self.command)?;
                        continue;
                    }
                };
                return Err(PluginError::failed(format!("`{name}` {trouble} ({hint})")));
            }
        }
        Ok(events)
    }

    /// Runs `work`; after an error the copies are ended, so that no answer is read as one to a
    /// later question.
    fn guarded<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, PluginError>,
    ) -> Result<T, PluginError> {
        let outcome = work(self);
        if outcome.is_err() {
            self.copies.clear();
        }
        outcome
    }

    fn check_surplus(&self) -> Result<(), PluginError> {
        let surplus = self.copies.iter().find_map(Worker::surplus);
        surplus.map_or(Ok(()), |line| {
            let sentence = format!(
                "`{}` gave an answer too many, {line} (answer each line once)",
                self.command[0]
            );
            Err(PluginError::failed(sentence))
        })
    }
}

impl Environment for External {
    fn tools(&mut self) -> Result<Vec<String>, PluginError> {
        self.guarded(|own| {
            own.start()?;
            Ok(own.copies[0].tools().unwrap_or_default().to_vec())
        })
    }

    fn begin(
        &mut self,
        _: &mut Ctx<'_>,
        episodes: &Episodes<'_>,
    ) -> Result<Vec<String>, PluginError> {
        self.guarded(|own| {
            own.start()?;
            own.check_surplus()?;
            own.copies.iter_mut().for_each(Worker::forget);
            for episode in &episodes.episodes {
                let copy = (episode.number % own.workers as u64) as usize;
                own.copies[copy].ask(episode.number, None, line::begin(episodes, episode));
            }
            let mut openings = vec![None; episodes.episodes.len()];
            while openings.contains(&None) {
                for event in own.events()? {
                    if let Event::Begun(number, text) = event
                        && let Some(place) = episodes
                            .episodes
                            .iter()
                            .position(|episode| episode.number == number)
                    {
                        openings[place] = Some(text);
                    }
                }
                thread::sleep(PAUSE);
            }
            Ok(openings.into_iter().flatten().collect())
        })
    }

    fn respond(
        &mut self,
        _: &mut Ctx<'_>,
        turns: &[Turn<'_>],
    ) -> Result<Vec<Observation>, PluginError> {
        self.guarded(|own| {
            own.start()?;
            for turn in turns {
                let copy = (turn.episode % own.workers as u64) as usize;
                own.copies[copy].ask(turn.episode, Some(turn.number), line::respond(turn));
            }
            let mut observations = Vec::new();
            for event in own.events()? {
                if let Event::Observed(observation) = event {
                    observations.push(observation);
                }
            }
            Ok(observations)
        })
    }

    /// There is no state, but this is the last moment before a checkpoint at which surplus answers
    /// can be detected.
    fn save(&self) -> Result<Vec<u8>, PluginError> {
        self.check_surplus()?;
        Ok(Vec::new())
    }

    fn validate(&self) -> Result<(), PluginError> {
        if !self.deterministic && self.max_restarts != MAX_RESTARTS {
            let most = self.max_restarts;
            return Err(PluginError::config(format!(
                "`max_restarts` is {most}, but only a program with `deterministic = true` is \
                 started anew (set it, or remove `max_restarts`)"
            )));
        }
        Program::check(&self.command)
    }
}
