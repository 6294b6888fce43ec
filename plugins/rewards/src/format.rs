//! The reward `format`: checks that a completion's thoughts and answer are between the usual tags.
//! The first tag may stand at the prompt's end.
//!
//! TRL, `think_format_reward`; open-r1, `format_reward` and `tag_count_reward`.

use capo_plugin::Completion;
use capo_plugin::prelude::*;

/// `think`: `<think>`, then `</think>`; `think_answer`: then also `<answer>` and `</answer>`, each
/// on a line of its own; `tag_count`: a quarter for each of these four.
#[derive(Choice, Clone, Copy)]
enum Style {
    Think,
    ThinkAnswer,
    TagCount,
}

/// 1 where a completion has its thoughts and its answer between tags.
#[component(Reward, id = "format")]
struct Format {
    #[key(default = Style::Think)]
    style: Style,
}

/// The tag that opens the thoughts.
const OPEN: &str = "<think>";

impl Style {
    /// The reward of a completion. If the prompt ends with `<think>`, as some chat templates write
    /// it, the completion is read behind that tag.
    fn reward(self, completion: &Completion<'_>) -> f32 {
        let opened = opened(completion.prompt);
        let text = &(opened.to_owned() + completion.text);
        let is_opened_again = !opened.is_empty() && completion.text.contains(OPEN);
        match self {
            Self::Think => f32::from(u8::from(is_think(text))),
            Self::ThinkAnswer => f32::from(u8::from(is_think_answer(text) && !is_opened_again)),
            Self::TagCount => tag_count(text),
        }
    }
}

/// The end of a prompt from its `<think>` on, if only space follows; else nothing.
fn opened(prompt: &str) -> &str {
    let at = prompt
        .rfind(OPEN)
        .filter(|at| prompt[at + OPEN.len()..].trim().is_empty());
    at.map_or("", |at| &prompt[at..])
}

/// True if the text begins with `<think>`, does not repeat it, and has `</think>` after it.
fn is_think(text: &str) -> bool {
    text.strip_prefix(OPEN)
        .is_some_and(|rest| !rest.contains(OPEN) && rest.contains("</think>"))
}

/// True if thoughts and then an answer follow, with each tag on a line of its own; other lines may
/// follow.
fn is_think_answer(text: &str) -> bool {
    let thoughts = text.strip_prefix("<think>\n");
    let answer = thoughts.and_then(|text| text.split_once("\n</think>\n<answer>\n"));
    answer.is_some_and(|(_, answer)| {
        let mut ends = answer
            .match_indices("\n</answer>")
            .map(|(at, end)| &answer[at + end.len()..]);
        ends.any(|rest| rest.is_empty() || rest.starts_with('\n'))
    })
}

/// A quarter for each tag that occurs exactly once.
fn tag_count(text: &str) -> f32 {
    let tags = ["<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>"];
    tags.iter()
        .filter(|tag| text.matches(*tag).count() == 1)
        .count() as f32
        / 4.0
}

impl Reward for Format {
    fn score(
        &mut self,
        _: &mut Ctx<'_>,
        rollout: &Rollout<'_>,
        rewards: &mut [f32],
    ) -> Result<(), PluginError> {
        crate::each(rollout, rewards, |completion| self.style.reward(completion));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use capo_plugin::testing::{self, RolloutFixture};

    use super::*;

    #[test]
    fn a_prompt_may_open_the_thoughts() {
        let rewards = |style: &str, prompt: &str, texts: [&str; 2]| {
            let mut reward = testing::reward::<Format>(&format!("style = \"{style}\"")).unwrap();
            RolloutFixture::new(&texts)
                .prompts(&[prompt; 2])
                .score(&mut reward)
                .unwrap()
                .rewards
        };
        let think = [
            "We add.\n</think>\nIt is 4.",
            "<think>\nWe add.\n</think>\nIt is 4.",
        ];
        for (prompt, expected) in [
            ("user: 2+2\nassistant: <think>\n", [1.0, 0.0]),
            ("user: 2+2\nassistant: <think>", [1.0, 0.0]),
            ("user: 2+2\nassistant: ", [0.0, 1.0]),
            // Thoughts that the prompt closes are not the completion's.
            ("user: 2+2\nassistant: <think>\n\n</think>\n\n", [0.0, 1.0]),
            ("user: what is <think>?\nassistant: ", [0.0, 1.0]),
        ] {
            assert_eq!(rewards("think", prompt, think), expected, "{prompt:?}");
        }
        let answer = [
            "We add.\n</think>\n<answer>\n4\n</answer>",
            "<think>\nWe add.\n</think>\n<answer>\n4\n</answer>",
        ];
        assert_eq!(rewards("think_answer", "<think>\n", answer), [1.0, 0.0]);
        assert_eq!(rewards("tag_count", "<think>\n", answer), [1.0, 0.75]);
        assert_eq!(rewards("tag_count", "", answer), [0.75, 1.0]);
    }
}
