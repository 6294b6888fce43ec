//! Within stage 1: what a model's turns meet.

use abi_stable::std_types::{ROption, RResult, RSlice, RStr, RString, RVec, Tuple2};

use crate::call::keeping_arithmetic;
use crate::guard::{Answers, Guarded};
use crate::sink::{Call, Names, Sink, contract};
use crate::wire::{
    EnvironmentBox, HostRef, WireEnvironment, WireEnvironment_TO, WireEpisode, WireEpisodes,
    WireError, WireMessage, WireObservation, WireToolCall, WireTurn,
};
use crate::{
    Ctx, Episode, Episodes, Extension, Inputs, Message, Observation, PluginError, ToolCall, Turn,
};

/// What the array of `record_tokens` counts here.
const COUNTED: &str = "episodes (at this point one per episode)";

/// Answers the turns of a model in episodes of several turns. Within stage 1 of 6: tokens of its
/// answers are in the batch, with `completion_mask` 0.
///
/// Training shows the environment's records as `environment/ID/NAME`. Calls bring all episodes that
/// wait, so that a slow environment may work on many at once. Episodes never outlive a rollout.
pub trait Environment: Send {
    /// Tools that the model may call: schemas of functions as JSON text, as in `tools` of
    /// transformers' `apply_chat_template`. The host asks once, at creation, tells the model of
    /// them in its chat template's format, and compares calls with them.
    fn tools(&mut self) -> Result<Vec<String>, PluginError> {
        Ok(Vec::new())
    }

    /// Begins episodes, and returns the text that follows the prompt of each, in its last message
    /// if it is a conversation.
    fn begin(
        &mut self,
        ctx: &mut Ctx<'_>,
        episodes: &Episodes<'_>,
    ) -> Result<Vec<String>, PluginError>;

    /// Takes turns, and returns observations of these or of earlier turns, in any order. An
    /// environment that works beside the model returns those that are ready. As long as an episode
    /// waits, the host asks again, every few milliseconds, also with no turn.
    fn respond(
        &mut self,
        ctx: &mut Ctx<'_>,
        turns: &[Turn<'_>],
    ) -> Result<Vec<Observation>, PluginError>;

    /// Refuses key values that are out of range or contradict each other, with the key, the value
    /// and the limit. Asked once, at creation, before all else; no run starts after an error.
    fn validate(&self) -> Result<(), PluginError> {
        Ok(())
    }

    /// State for a checkpoint, beyond episodes; a resumed run continues bit for bit.
    fn save(&self) -> Result<Vec<u8>, PluginError> {
        Ok(Vec::new())
    }

    /// Restores the state that [`save`](Self::save) wrote. After an error, because the state is
    /// another component's, the component is as it was.
    fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
        PluginError::of_stateless(state)
    }
}

point! {
    Environment, built by environment "an environment",
    as EnvironmentBox over WireEnvironment_TO,
    held as EnvironmentHandle,
    _component answers Answers::NONE
}

impl<T: Environment> WireEnvironment for Guarded<T> {
    fn tools(&mut self) -> RResult<RVec<RString>, WireError> {
        self.call("tools", |component| {
            Ok(component.tools()?.into_iter().map(RString::from).collect())
        })
    }

    fn begin(
        &mut self,
        host: &mut HostRef<'_>,
        episodes: &WireEpisodes<'_>,
    ) -> RResult<RVec<RString>, WireError> {
        self.call("begin", |component| {
            let openings = component.begin(&mut Ctx::new(host), &episodes.into())?;
            Ok(openings.into_iter().map(RString::from).collect())
        })
    }

    fn respond(
        &mut self,
        host: &mut HostRef<'_>,
        turns: RSlice<'_, WireTurn<'_>>,
    ) -> RResult<RVec<WireObservation>, WireError> {
        self.call("respond", |component| {
            let turns: Vec<Turn<'_>> = turns.iter().map(Turn::from).collect();
            let observations = component.respond(&mut Ctx::new(host), &turns)?;
            Ok(observations
                .into_iter()
                .map(WireObservation::from)
                .collect())
        })
    }

    guarded_methods!();
}

impl EnvironmentHandle {
    /// The schemas of the tools that a model may call.
    ///
    /// # Errors
    ///
    /// The component's own message.
    pub fn tools(&mut self) -> Result<Vec<String>, PluginError> {
        let tools = keeping_arithmetic(|| self.wire.tools().into_result());
        Ok(tools
            .map_err(|error| self.named(error.into()))?
            .into_iter()
            .map(String::from)
            .collect())
    }

    /// Calls `begin`.
    ///
    /// # Errors
    ///
    /// The component's own message, or the violated rule: an opening for each episode.
    pub fn begin(
        &mut self,
        sink: &mut dyn Sink,
        episodes: &Episodes<'_>,
    ) -> Result<Vec<String>, PluginError> {
        let own: Vec<WireEpisode<'_>> = episodes.episodes.iter().map(WireEpisode::from).collect();
        let seen = WireEpisodes {
            purpose: episodes.purpose,
            step: episodes.step,
            max_steps: episodes.max_steps,
            max_turns: episodes.max_turns as u64,
            episodes: RSlice::from_slice(&own),
        };
        let call = Call {
            component: &self.id,
            method: "begin",
            length: own.len(),
            counted: COUNTED,
        };
        let wire = &mut self.wire;
        let openings = call
            .heard_by(sink, |host| wire.begin(host, &seen).into_result())
            .map_err(|error| self.named(error))?;
        if openings.len() != own.len() {
            let sentence = format!(
                "{} openings of {} episodes (give one for each)",
                openings.len(),
                own.len()
            );
            return Err(self.named(contract(sentence)));
        }
        Ok(openings.into_iter().map(String::from).collect())
    }

    /// Calls `respond`. Hosts check that an observation's episode waits for one.
    ///
    /// # Errors
    ///
    /// The component's own message, or the violated rule: rewards and metrics are finite, and the
    /// metrics' names are within the limits of records.
    pub fn respond(
        &mut self,
        sink: &mut dyn Sink,
        turns: &[Turn<'_>],
    ) -> Result<Vec<Observation>, PluginError> {
        let calls: Vec<Vec<WireToolCall<'_>>> = turns
            .iter()
            .map(|turn| turn.calls.iter().map(WireToolCall::from).collect())
            .collect();
        let seen: Vec<WireTurn<'_>> = turns
            .iter()
            .zip(&calls)
            .map(|(turn, calls)| turn.to_wire(calls))
            .collect();
        let call = Call {
            component: &self.id,
            method: "respond",
            length: turns.len(),
            counted: COUNTED,
        };
        let wire = &mut self.wire;
        let observations = call
            .heard_by(sink, |host| {
                wire.respond(host, RSlice::from_slice(&seen)).into_result()
            })
            .map_err(|error| self.named(error))?;
        let observations: Vec<Observation> =
            observations.into_iter().map(Observation::from).collect();
        let mut names = Names::default();
        for Observation {
            episode,
            reward,
            metrics,
            ..
        } in &observations
        {
            let taken = metrics.iter().try_for_each(|(name, _)| names.take(name));
            taken.map_err(|sentence| self.named(contract(sentence)))?;
            let numbers = metrics.iter().map(|(name, value)| (name.as_str(), *value));
            for (name, value) in numbers.chain([("reward", f64::from(*reward))]) {
                if !value.is_finite() {
                    let sentence =
                        format!("`{name}` of episode {episode} is {value} (it must be finite)");
                    return Err(self.named(contract(sentence)));
                }
            }
        }
        Ok(observations)
    }
}

impl<'a> From<&Episode<'a>> for WireEpisode<'a> {
    fn from(episode: &Episode<'a>) -> Self {
        Self {
            number: episode.number,
            prompt: RStr::from_str(episode.prompt),
            answer: RStr::from_str(episode.answer),
            columns: RStr::from_str(episode.columns),
            group: episode.group,
            place: episode.place,
            seed: episode.seed,
        }
    }
}

impl<'a> From<&WireEpisode<'a>> for Episode<'a> {
    fn from(wire: &WireEpisode<'a>) -> Self {
        Self {
            number: wire.number,
            prompt: wire.prompt.as_str(),
            answer: wire.answer.as_str(),
            columns: wire.columns.as_str(),
            group: wire.group,
            place: wire.place,
            seed: wire.seed,
        }
    }
}

impl<'a> From<&WireEpisodes<'a>> for Episodes<'a> {
    fn from(wire: &WireEpisodes<'a>) -> Self {
        Self {
            purpose: wire.purpose,
            step: wire.step,
            max_steps: wire.max_steps,
            max_turns: wire.max_turns as usize,
            episodes: wire.episodes.iter().map(Episode::from).collect(),
        }
    }
}

impl<'a> From<&'a ToolCall> for WireToolCall<'a> {
    fn from(ToolCall { name, arguments }: &'a ToolCall) -> Self {
        Self {
            name: RStr::from_str(name),
            arguments: RStr::from_str(arguments),
        }
    }
}

impl From<&WireToolCall<'_>> for ToolCall {
    fn from(call: &WireToolCall<'_>) -> Self {
        Self {
            name: call.name.into(),
            arguments: call.arguments.into(),
        }
    }
}

impl Turn<'_> {
    /// The turn on the wire; `calls` holds the borrowed data.
    fn to_wire<'w>(&'w self, calls: &'w [WireToolCall<'w>]) -> WireTurn<'w> {
        WireTurn {
            episode: self.episode,
            number: self.number as u64,
            text: RStr::from_str(self.text),
            calls: RSlice::from_slice(calls),
            is_last: self.is_last,
        }
    }
}

impl<'a> From<&WireTurn<'a>> for Turn<'a> {
    fn from(wire: &WireTurn<'a>) -> Self {
        Self {
            episode: wire.episode,
            number: wire.number as usize,
            text: wire.text.as_str(),
            calls: wire.calls.iter().map(ToolCall::from).collect(),
            is_last: wire.is_last,
        }
    }
}

impl From<Message> for WireMessage {
    fn from(message: Message) -> Self {
        Self {
            role: message.role.into(),
            name: message.name.into(),
            content: message.content.into(),
        }
    }
}

impl From<WireMessage> for Message {
    fn from(message: WireMessage) -> Self {
        Self {
            role: message.role.into(),
            name: message.name.into(),
            content: message.content.into(),
        }
    }
}

impl From<Observation> for WireObservation {
    fn from(observation: Observation) -> Self {
        Self {
            episode: observation.episode,
            messages: observation
                .messages
                .into_iter()
                .map(WireMessage::from)
                .collect(),
            ended: observation.ended,
            reward: observation.reward,
            metrics: observation
                .metrics
                .into_iter()
                .map(|(name, value)| Tuple2(RString::from(name), value))
                .collect(),
        }
    }
}

impl From<WireObservation> for Observation {
    fn from(wire: WireObservation) -> Self {
        Self {
            episode: wire.episode,
            messages: wire.messages.into_iter().map(Message::from).collect(),
            ended: wire.ended,
            reward: wire.reward,
            metrics: wire
                .metrics
                .into_iter()
                .map(|Tuple2(name, value)| (name.into(), value))
                .collect(),
        }
    }
}
