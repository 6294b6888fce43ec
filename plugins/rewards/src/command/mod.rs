//! The reward `command`: an external program's number for each completion, over JSON lines.

mod line;

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use capo_plugin::Completion;
use capo_plugin::prelude::*;

use crate::program::{MOST_PROCESSES, Program};

/// What an external program says of each completion, over JSON lines.
#[component(Reward, id = "command")]
struct External {
    /// The program and its arguments; a relative path is one from where the trainer was started.
    #[key]
    command: Vec<String>,
    /// Seconds that the program may take for one rollout.
    #[key(default = 60.0, at_least = 0.001, at_most = 1e6)]
    timeout: f64,
    /// Number of processes among which a rollout is divided.
    #[key(default = 1, at_least = 1, at_most = MOST_PROCESSES)]
    concurrency: usize,
    /// How many processes that end or are late may be started anew, over the whole run.
    #[key(default = 3)]
    max_restarts: u64,
    restarts: u64,
    /// Processes by index; `None` for a process that has not started or has ended.
    programs: Vec<Option<Program>>,
}

/// Smallest and largest time to wait for surplus answers after a process's last answer.
const QUIET: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(5));

/// Time to read the lines that a process wrote while those of the process before it were read.
const HANDOVER: Duration = Duration::from_millis(200);

/// Consecutive completions of a rollout that one process scores.
struct Share<'s, 'a> {
    first: usize,
    completions: &'s [Completion<'a>],
    rewards: &'s mut [f32],
}

impl External {
    fn name(&self) -> &str {
        self.command.first().map_or("", String::as_str)
    }

    /// Sends each process its share, so that all of them work at the same time.
    fn ask(
        &mut self,
        rollout: &Rollout<'_>,
        number: usize,
        share: &Share<'_, '_>,
    ) -> Result<(), PluginError> {
        if self.programs.len() <= number {
            self.programs.resize_with(number + 1, || None);
        }
        if self.programs[number].is_none() {
            self.programs[number] = Some(Program::start(&self.command)?);
        }
        if let Some(program) = &self.programs[number] {
            program.send(line::questions(rollout, share.first, share.completions));
        }
        Ok(())
    }

    /// Refuses surplus answers that arrive by `deadline`: they would be read as answers about other
    /// completions.
    fn check_surplus(&self, deadline: Instant) -> Result<(), PluginError> {
        for program in self.programs.iter().flatten() {
            if let Some(line) = program.unasked(deadline) {
                let sentence = format!(
                    "`{}` gave an answer too many, `{line}` (write one line for each line)",
                    self.name()
                );
                return Err(PluginError::failed(sentence));
            }
        }
        Ok(())
    }

    /// Reads the answers of process `number` up to `deadline`. If the process ends or is late, a
    /// new process gets the whole share once more. Returns the longest time between two answers.
    fn hear(
        &mut self,
        rollout: &Rollout<'_>,
        number: usize,
        share: &mut Share<'_, '_>,
        mut deadline: Instant,
    ) -> Result<Duration, PluginError> {
        loop {
            let mut longest = Duration::ZERO;
            let Some(trouble) = self.take(number, share, deadline, &mut longest)? else {
                return Ok(longest);
            };
            if self.restarts == self.max_restarts {
                let sentence = format!(
                    "`{}` {trouble} (started anew {} times; `max_restarts`)",
                    self.name(),
                    self.restarts
                );
                return Err(PluginError::failed(sentence));
            }
            self.restarts += 1;
            self.ask(rollout, number, share)?;
            deadline = Instant::now() + self.patience();
        }
    }

    /// Has each process judge its share, and writes the rewards.
    fn judge(
        &mut self,
        rollout: &Rollout<'_>,
        shares: &mut [Share<'_, '_>],
    ) -> Result<(), PluginError> {
        self.check_surplus(Instant::now())?;
        for (number, share) in shares.iter().enumerate() {
            self.ask(rollout, number, share)?;
        }
        // The processes work at the same time, so they share one deadline.
        let deadline = Instant::now() + self.patience();
        let mut longest = Duration::ZERO;
        for (number, share) in shares.iter_mut().enumerate() {
            let turn = if number == 0 {
                deadline
            } else {
                deadline.max(Instant::now() + HANDOVER)
            };
            longest = longest.max(self.hear(rollout, number, share, turn)?);
        }
        // A program that answers each line twice is only halfway through. Its next answer takes
        // about as long as an earlier one.
        self.check_surplus(Instant::now() + (2 * longest).clamp(QUIET.0, QUIET.1))
    }

    fn patience(&self) -> Duration {
        Duration::from_secs_f64(self.timeout)
    }

    /// Writes the rewards of a share. If an answer is missing, ends the process and returns a
    /// description.
    fn take(
        &mut self,
        number: usize,
        share: &mut Share<'_, '_>,
        deadline: Instant,
        longest: &mut Duration,
    ) -> Result<Option<String>, PluginError> {
        let count = share.completions.len();
        let mut answered = vec![false; count];
        let mut last = None;
        for next in 0..count {
            let Some(program) = self.programs[number].take() else {
                return Ok(Some("is not running".into()));
            };
            match program.answer(deadline) {
                Ok(line) => {
                    self.programs[number] = Some(program);
                    let (id, reward) = line::answer(&line, share.first + next)
                        .map_err(|error| self.wrong(next, &error))?;
                    let place = id
                        .checked_sub(share.first)
                        .filter(|place| *place < count && !answered[*place]);
                    let Some(place) = place else {
                        return Err(self.wrong(
                            next,
                            &format!(
                                "has the `id` {id} (use those that were asked for, each once)"
                            ),
                        ));
                    };
                    share.rewards[place] = reward;
                    answered[place] = true;
                    let now = Instant::now();
                    *longest = (*longest).max(now - last.replace(now).unwrap_or(now));
                }
                Err(silence) => {
                    return Ok(Some(program.end(
                        &silence,
                        &format!("{next} of {count} answers"),
                        self.timeout,
                    )));
                }
            }
        }
        // Answers that came before the program read the last line are not about that line.
        if self.programs[number]
            .as_ref()
            .is_some_and(Program::has_unread)
        {
            let sentence = format!(
                "`{}` gave {count} answers before it had read {count} lines (write one for each)",
                self.name()
            );
            return Err(PluginError::failed(sentence));
        }
        Ok(None)
    }

    fn wrong(&self, next: usize, error: &str) -> PluginError {
        PluginError::failed(format!(
            "`{}`: its answer {} {error}",
            self.name(),
            next + 1
        ))
    }
}

impl Reward for External {
    fn score(
        &mut self,
        _: &mut Ctx<'_>,
        rollout: &Rollout<'_>,
        rewards: &mut [f32],
    ) -> Result<(), PluginError> {
        let size = rollout.completions.len().div_ceil(self.concurrency).max(1);
        let mut shares = Vec::new();
        let parts = rollout.completions.chunks(size);
        for (completions, rewards) in parts.zip(rewards.chunks_mut(size)) {
            shares.push(Share {
                first: shares.len() * size,
                completions,
                rewards,
            });
        }
        let outcome = self.judge(rollout, &mut shares);
        if outcome.is_err() {
            // Answers about this rollout must not be read as answers about the next.
            self.programs.clear();
        }
        outcome
    }

    /// There is no state, but this is the last moment before a checkpoint at which surplus answers
    /// can be detected.
    fn save(&self) -> Result<Vec<u8>, PluginError> {
        self.check_surplus(Instant::now())?;
        Ok(Vec::new())
    }

    fn validate(&self) -> Result<(), PluginError> {
        Program::check(&self.command)
    }
}
