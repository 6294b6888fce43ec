//! The reward `regex`: a fixed reward for completions that match a pattern, in time linear in their
//! length.

use capo_plugin::prelude::*;
use regex::Regex;

/// The table of a [`Pattern`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    pattern: String,
    #[serde(default)]
    full_match: bool,
    #[serde(default = "one")]
    reward: f32,
    #[serde(default)]
    otherwise: f32,
}

fn one() -> f32 {
    1.0
}

/// A pattern and the rewards for a match and for a mismatch.
#[derive(Deserialize)]
#[serde(try_from = "Settings")]
struct Pattern {
    pattern: Regex,
    reward: f32,
    otherwise: f32,
}

impl TryFrom<Settings> for Pattern {
    type Error = String;

    fn try_from(settings: Settings) -> Result<Self, String> {
        let Settings {
            pattern,
            full_match,
            reward,
            otherwise,
        } = settings;
        for (key, value) in [("reward", reward), ("otherwise", otherwise)] {
            if !value.is_finite() {
                return Err(format!("`{key}` is {value} (it must be finite)"));
            }
        }
        // The pattern is also compiled alone, so that an error message shows it as the user typed
        // it.
        let alone =
            compile(&pattern).map_err(|error| format!("`pattern` is `{pattern}`: {error}"))?;
        let pattern = if full_match { whole(&pattern)? } else { alone };
        Ok(Self {
            pattern,
            reward,
            otherwise,
        })
    }
}

/// Compiles the pattern so that it matches whole texts only.
fn whole(pattern: &str) -> Result<Regex, String> {
    compile(&format!(r"\A(?:{pattern})\z")).map_err(|_| {
        format!(
            "`pattern` is `{pattern}`, which matches no text as a whole \
             (does it end with a comment?)"
        )
    })
}

/// Compiles a pattern. The error is the reason alone; `regex` itself would draw the pattern and mark
/// the place in it.
fn compile(pattern: &str) -> Result<Regex, String> {
    Regex::new(pattern).map_err(|error| match (error, regex_syntax::parse(pattern)) {
        (regex::Error::CompiledTooBig(limit), _) => {
            format!("Compiled regex exceeds size limit of {limit} bytes")
        }
        (_, Err(regex_syntax::Error::Parse(wrong))) => wrong.kind().to_string(),
        (_, Err(regex_syntax::Error::Translate(wrong))) => wrong.kind().to_string(),
        (error, _) => error.to_string(),
    })
}

impl Reward for Pattern {
    fn score(
        &mut self,
        _: &mut Ctx<'_>,
        rollout: &Rollout<'_>,
        rewards: &mut [f32],
    ) -> Result<(), PluginError> {
        crate::each(rollout, rewards, |completion| {
            match self.pattern.is_match(completion.text) {
                true => self.reward,
                false => self.otherwise,
            }
        });
        Ok(())
    }
}

register!(Reward, Pattern, "regex", "what a completion earns that matches a pattern", {
    pattern => "a regular expression in the syntax of Rust's `regex`; `(?s)` lets `.` match line breaks",
    full_match = false => "match the whole completion, not a part of it",
    reward = one() => "reward of a match",
    otherwise = 0.0 => "reward of every other completion",
});

#[cfg(test)]
mod tests {
    use capo_plugin::testing::{self, RolloutFixture};

    use super::*;

    fn rewards(table: &str) -> Vec<f32> {
        let fixture = RolloutFixture::new(&["<b>4</b>", "4", "<b>4</b>\n"]);
        fixture
            .score(&mut testing::reward::<Pattern>(table).unwrap())
            .unwrap()
            .rewards
    }

    #[test]
    fn matches_a_part_or_the_whole() {
        assert_eq!(rewards(r#"pattern = "<b>\\d</b>""#), [1.0, 0.0, 1.0]);
        assert_eq!(
            rewards("pattern = \"<b>\\\\d</b>\"\nfull_match = true"),
            [1.0, 0.0, 0.0]
        );
        assert_eq!(
            rewards("pattern = \"4|<b>4</b>\"\nfull_match = true"),
            [1.0, 1.0, 0.0]
        );
        assert_eq!(
            rewards("pattern = \"<\"\nreward = 0.25\notherwise = -1"),
            [0.25, -1.0, 0.25]
        );
    }

    #[test]
    fn takes_linear_time() {
        let text = "a".repeat(100_000) + "!";
        let fixture = RolloutFixture::new(&[&text]);
        let mut reward = testing::reward::<Pattern>("pattern = \"^(a|a)*(a*)*$\"").unwrap();
        assert_eq!(fixture.score(&mut reward).unwrap().rewards, [0.0]);
    }

    #[test]
    fn refuses_wrong_patterns() {
        let refused = |table: &str| testing::reward::<Pattern>(table).err().unwrap().to_string();
        insta::assert_snapshot!(refused("pattern = \"(a\""), @"`pattern` is `(a`: unclosed group");
        insta::assert_snapshot!(refused("pattern = \"a{100000}{100000}\""), @"`pattern` is `a{100000}{100000}`: Compiled regex exceeds size limit of 10485760 bytes");
        insta::assert_snapshot!(refused("pattern = \"(?x) a # b\"\nfull_match = true"), @"`pattern` is `(?x) a # b`, which matches no text as a whole (does it end with a comment?)");
        insta::assert_snapshot!(refused("pattern = \"a\"\nreward = 1e39"), @"`reward` is inf (it must be finite)");
    }
}
