//! One copy of an external program, and the episodes that it has.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use capo_plugin::{Observation, PluginError, Turn};
use capo_rewards::program::{Program, Silence};

use super::line;

/// An event of a copy: an answer, or its end.
pub(super) enum Event {
    /// Number of an episode, and the text that it begins with.
    Begun(u64, String),
    Observed(Observation),
    /// The copy has ended or is late; the text is what it did.
    Gone(String),
}

pub(super) struct Worker {
    program: Option<Program>,
    name: String,
    tools: Option<Vec<String>>,
    awaits_tools: bool,
    episodes: BTreeMap<u64, History>,
    /// Time of the last answer, or of the first question that waits for one.
    since: Instant,
    /// Number of answers since the copy was started.
    answers: usize,
}

/// An episode so far.
#[derive(Default)]
struct History {
    /// Lines that the copy has read, and the numbers of the turns in them; the first line begins
    /// the episode.
    asked: Vec<(Option<usize>, Vec<u8>)>,
    /// Answers that the trainer has.
    known: Vec<String>,
    /// Answers of the present process, which gives the known ones again after a restart.
    given: usize,
}

impl Worker {
    pub(super) fn start(command: &[String]) -> Result<Self, PluginError> {
        let name = command.first().cloned().unwrap_or_default();
        let mut worker = Self {
            program: None,
            name,
            tools: None,
            awaits_tools: true,
            episodes: BTreeMap::new(),
            since: Instant::now(),
            answers: 0,
        };
        worker.restart(command)?;
        Ok(worker)
    }

    /// Starts the program anew; it gets the lines of its episodes again, one after another as it
    /// answers.
    pub(super) fn restart(&mut self, command: &[String]) -> Result<(), PluginError> {
        let program = Program::start(command)?;
        program.send(line::TOOLS.into());
        self.awaits_tools = true;
        self.since = Instant::now();
        self.answers = 0;
        for history in self.episodes.values_mut() {
            history.given = 0;
            program.send(history.asked[0].1.clone());
        }
        self.program = Some(program);
        Ok(())
    }

    pub(super) fn tools(&self) -> Option<&[String]> {
        self.tools.as_deref()
    }

    /// Forgets the episodes of the last rollout.
    pub(super) fn forget(&mut self) {
        self.episodes.clear();
    }

    /// Sends a line about an episode.
    pub(super) fn ask(&mut self, episode: u64, turn: Option<usize>, line: Vec<u8>) {
        if !self.is_asked() {
            self.since = Instant::now();
        }
        let history = self.episodes.entry(episode).or_default();
        // While an episode is played again, its lines follow one another.
        if let Some(program) = self
            .program
            .as_ref()
            .filter(|_| history.given == history.asked.len())
        {
            program.send(line.clone());
        }
        history.asked.push((turn, line));
    }

    fn is_asked(&self) -> bool {
        self.awaits_tools
            || self
                .episodes
                .values()
                .any(|history| history.given < history.asked.len())
    }

    /// An answer that nobody asked for.
    pub(super) fn surplus(&self) -> Option<String> {
        let program = self.program.as_ref().filter(|_| !self.is_asked())?;
        program
            .unasked(Instant::now())
            .map(|text| line::shown(&text))
    }

    /// The next event of the copy; `None` if there is none so far. An error says what is wrong with
    /// its answer.
    pub(super) fn next(&mut self, timeout: f64) -> Option<Result<Event, String>> {
        loop {
            let program = self.program.take()?;
            let silence = match program.answer(Instant::now()) {
                Ok(text) => {
                    self.program = Some(program);
                    self.since = Instant::now();
                    self.answers += 1;
                    match self.take(&text) {
                        Ok(None) => continue,
                        Ok(Some(event)) => return Some(Ok(event)),
                        Err(error) => {
                            return Some(Err(format!(
                                "`{}`: its answer {} {error}",
                                self.name, self.answers
                            )));
                        }
                    }
                }
                Err(Silence::Late)
                    if !self.is_asked()
                        || self.since.elapsed() < Duration::from_secs_f64(timeout) =>
                {
                    self.program = Some(program);
                    return None;
                }
                Err(silence) => silence,
            };
            let trouble = program.end(&silence, &format!("{} answers", self.answers), timeout);
            return Some(Ok(Event::Gone(trouble)));
        }
    }

    /// Takes an answer; `None` if it was known.
    fn take(&mut self, text: &str) -> Result<Option<Event>, String> {
        if std::mem::take(&mut self.awaits_tools) {
            let tools = line::tools(text)?;
            if self.tools.as_ref().is_some_and(|known| *known != tools) {
                return Err("names other tools than before it was started anew".into());
            }
            self.tools = Some(tools);
            return Ok(None);
        }
        let answer = line::answer(text)?;
        let number = answer.episode;
        let asked = self
            .episodes
            .get_mut(&number)
            .filter(|history| history.given < history.asked.len());
        let Some(history) = asked else {
            return Err(format!(
                "is about episode {number}, which waits for none (answer each line once)"
            ));
        };
        let (turn, _) = history.asked[history.given];
        if turn.is_none() != answer.message.is_some() {
            let is = if turn.is_none() {
                "begins, so it has a"
            } else {
                "has begun, so it has no"
            };
            return Err(format!(
                "is {}: episode {number} {is} `message`",
                line::shown(text)
            ));
        }
        if let Some(wrong) = answer.turn.filter(|wrong| Some(*wrong) != turn) {
            return Err(format!(
                "is about turn {wrong} of episode {number}, which does not wait for one"
            ));
        }
        history.given += 1;
        let is_known = history.given <= history.known.len();
        if is_known && history.known[history.given - 1] != text {
            return Err(format!(
                "is {} where it was {} before the program was started anew \
                 (a program with `deterministic = true` answers alike)",
                line::shown(text),
                line::shown(&history.known[history.given - 1])
            ));
        }
        if let (true, Some((_, next)), Some(program)) =
            (is_known, history.asked.get(history.given), &self.program)
        {
            program.send(next.clone());
        }
        if is_known {
            return Ok(None);
        }
        history.known.push(text.to_owned());
        Ok(Some(match (turn, answer.message.clone()) {
            (None, message) => Event::Begun(number, message.unwrap_or_default()),
            (Some(_), _) => Event::Observed(answer.observed(&Turn::new(number, ""))),
        }))
    }
}
