//! The reward `regex`: a fixed reward for completions that match a pattern, in time linear in their
//! length.

use capo_plugin::prelude::*;
use capo_plugin::wire::KeyDoc;
use capo_plugin::{Keys, Table};
use regex::Regex;

/// What a completion earns that matches a pattern.
#[component(Reward, id = "regex")]
struct Pattern {
    #[key(flatten)]
    pattern: CompiledPattern,
    /// Reward of a match.
    #[key(default = 1.0)]
    reward: f32,
    /// Reward of every other completion.
    #[key(default = 0.0)]
    otherwise: f32,
}

/// The keys of the pattern as they are written.
#[keys]
struct PatternKeys {
    /// A regular expression in the syntax of Rust's `regex`; `(?s)` lets `.` match line breaks.
    #[key]
    pattern: String,
    /// Match the whole completion, not a part of it.
    #[key(default = false)]
    full_match: bool,
}

struct CompiledPattern(Regex);

impl Keys for CompiledPattern {
    const ABOUT: &'static str = PatternKeys::ABOUT;

    fn keys() -> Vec<KeyDoc> {
        PatternKeys::keys()
    }

    fn from_table(table: &Table) -> Result<Self, PluginError> {
        let PatternKeys {
            pattern,
            full_match,
        } = PatternKeys::from_table(table)?;
        // The pattern is also compiled alone, so that an error message shows it as the user typed
        // it.
        let alone = compile(&pattern)
            .map_err(|reason| PluginError::config(format!("`pattern` is `{pattern}`: {reason}")))?;
        Ok(Self(if full_match { whole(&pattern)? } else { alone }))
    }
}

/// Compiles the pattern so that it matches whole texts only.
fn whole(pattern: &str) -> Result<Regex, PluginError> {
    compile(&format!(r"\A(?:{pattern})\z")).map_err(|_| {
        PluginError::config(format!(
            "`pattern` is `{pattern}`, which matches no text as a whole (does it end with a \
             comment?)"
        ))
    })
}

/// Compiles a pattern. The error is the reason alone; `regex` itself would draw the pattern and
/// mark the place in it.
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
            match self.pattern.0.is_match(completion.text) {
                true => self.reward,
                false => self.otherwise,
            }
        });
        Ok(())
    }
}

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
        insta::assert_snapshot!(refused("pattern = \"a\"\nreward = 1e39"), @"`reward` is 1e+39 (it must be finite)");
    }
}
