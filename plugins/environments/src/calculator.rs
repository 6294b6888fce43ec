//! The environment `calculator`: a tool that computes.

use capo_plugin::ToolCall;
use capo_plugin::prelude::*;

/// The schema of the tool.
const TOOL: &str = concat!(
    r#"{"type": "function", "function": {"name": "calculator", "#,
    r#""description": "Computes the exact value of an expression of numbers.", "#,
    r#""parameters": {"type": "object", "properties": {"expression": {"type": "string", "#,
    r#""description": "The expression, for example (347 - 5) * 286."}}, "#,
    r#""required": ["expression"]}}}"#,
);

/// A tool that computes the exact value of an expression of numbers.
///
/// A turn without a call ends the episode.
#[component(Environment, id = "calculator")]
struct Calculator {
    /// True for a model without a chat template: a turn `347*286=` is a call, and `99242=` the
    /// answer.
    #[key(default = false)]
    plain: bool,
}

impl Environment for Calculator {
    fn tools(&mut self) -> Result<Vec<String>, PluginError> {
        Ok(if self.plain {
            Vec::new()
        } else {
            vec![TOOL.to_owned()]
        })
    }

    fn begin(
        &mut self,
        _: &mut Ctx<'_>,
        episodes: &Episodes<'_>,
    ) -> Result<Vec<String>, PluginError> {
        Ok(vec![String::new(); episodes.episodes.len()])
    }

    fn respond(
        &mut self,
        _: &mut Ctx<'_>,
        turns: &[Turn<'_>],
    ) -> Result<Vec<Observation>, PluginError> {
        Ok(turns
            .iter()
            .map(|turn| {
                if self.plain {
                    plain(turn)
                } else {
                    of_calls(turn)
                }
            })
            .collect())
    }
}

fn of_calls(turn: &Turn<'_>) -> Observation {
    let mut observation = Observation::of(turn);
    if turn.calls.is_empty() {
        return observation.end();
    }
    let mut failed = 0;
    for call in &turn.calls {
        let result = match math_answer::value(&expression(call)) {
            Ok(value) => value.to_string(),
            Err(_) => {
                failed += 1;
                "error: the expression has no exact value".to_owned()
            }
        };
        observation = observation.result(&call.name, result);
    }
    observation.metric("failed_calls", f64::from(failed))
}

/// The argument of a call; empty if it has none.
fn expression(call: &ToolCall) -> String {
    let arguments: serde_json::Value = serde_json::from_str(&call.arguments).unwrap_or_default();
    arguments["expression"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// The answer to a turn in plain text, in which `347*286=` is a call, and a space between two
/// numbers multiplies them.
fn plain(turn: &Turn<'_>) -> Observation {
    let Some(expression) = turn.text.trim().strip_suffix('=') else {
        return Observation::of(turn).metric("calls", 0.0).end();
    };
    let factors: Vec<&str> = expression.split_whitespace().collect();
    let are_numbers = factors
        .iter()
        .all(|factor| factor.bytes().all(|byte| byte.is_ascii_digit()));
    let expression = if are_numbers {
        factors.join("*")
    } else {
        expression.to_owned()
    };
    let observation = Observation::of(turn).metric("calls", 1.0);
    match math_answer::value(&expression) {
        Ok(value) => observation.metric("failures", 0.0).say(format!("{value}=")),
        Err(_) => observation.metric("failures", 1.0).end(),
    }
}

#[cfg(test)]
mod tests {
    use capo_plugin::testing::{self, Records};

    use super::*;

    #[test]
    fn calls_are_answered_and_other_turns_end_the_episode() {
        let answer = |table: &str, turn: Turn<'_>| {
            let mut calculator = testing::environment::<Calculator>(table).unwrap();
            calculator
                .respond(&mut Records::default(), &[turn])
                .unwrap()
                .remove(0)
        };
        for (text, said) in [
            ("347 286=", Some("99242=")),
            ("347*286=", Some("99242=")),
            (" 1+1/3=", Some("4/3=")),
            ("99242", None),
            ("=", None),
            ("12+=", None),
            ("2**3**2=", Some("512=")),
            ("17 % 5=", None),
        ] {
            let answer = answer("plain = true", Turn::new(0, text));
            assert_eq!(
                answer
                    .messages
                    .first()
                    .map(|message| message.content.as_str()),
                said,
                "{text}"
            );
            assert_eq!(answer.ended, said.is_none());
        }
        for (expression, said) in [
            ("(2+3)*4", "20"),
            ("x", "error: the expression has no exact value"),
        ] {
            let mut turn = Turn::new(0, "");
            let arguments = serde_json::json!({ "expression": expression }).to_string();
            turn.calls = vec![ToolCall {
                name: "calculator".into(),
                arguments,
            }];
            let answer = answer("", turn);
            assert_eq!(answer.messages[0].content, said);
            assert_eq!(
                answer.metrics,
                [(
                    "failed_calls".to_owned(),
                    f64::from(u8::from(said.starts_with("error")))
                )]
            );
        }
        assert!(answer("", Turn::new(0, "It is 20.")).ended);
    }
}
