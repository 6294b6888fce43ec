//! The reward `format`: checks that a completion's thoughts and answer are between the usual tags.
//!
//! TRL, `think_format_reward`; open-r1, `format_reward` and `tag_count_reward`.

use capo_plugin::prelude::*;

/// Style of the tags.
#[derive(Deserialize, serde::Serialize, Clone, Copy, Default)]
#[serde(rename_all = "snake_case")]
enum Style {
    #[default]
    Think,
    ThinkAnswer,
    TagCount,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Format {
    #[serde(default)]
    style: Style,
}

impl Style {
    fn reward(self, text: &str) -> f32 {
        match self {
            Self::Think => f32::from(u8::from(is_think(text))),
            Self::ThinkAnswer => f32::from(u8::from(is_think_answer(text))),
            Self::TagCount => tag_count(text),
        }
    }
}

/// True if the text begins with `<think>`, does not repeat it, and has `</think>` after it.
fn is_think(text: &str) -> bool {
    text.strip_prefix("<think>").is_some_and(|rest| !rest.contains("<think>") && rest.contains("</think>"))
}

/// True if thoughts and then an answer follow, with each tag on a line of its own; other lines may follow.
fn is_think_answer(text: &str) -> bool {
    let thoughts = text.strip_prefix("<think>\n");
    let answer = thoughts.and_then(|text| text.split_once("\n</think>\n<answer>\n"));
    answer.is_some_and(|(_, answer)| {
        let mut ends = answer.match_indices("\n</answer>").map(|(at, end)| &answer[at + end.len()..]);
        ends.any(|rest| rest.is_empty() || rest.starts_with('\n'))
    })
}

/// A quarter for each tag that occurs exactly once.
fn tag_count(text: &str) -> f32 {
    let tags = ["<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>"];
    tags.iter().filter(|tag| text.matches(*tag).count() == 1).count() as f32 / 4.0
}

impl Reward for Format {
    fn score(&mut self, _: &mut Ctx<'_>, rollout: &Rollout<'_>, rewards: &mut [f32]) -> Result<(), PluginError> {
        crate::each(rollout, rewards, |completion| self.style.reward(completion.text));
        Ok(())
    }
}

register!(Reward, Format, "format", "1 where a completion has its thoughts and its answer between tags", {
    style = Style::Think => "`think`: `<think>`, then `</think>`; `think_answer`: then also `<answer>` and `</answer>`, each on a line of its own; `tag_count`: a quarter for each of these four",
});
