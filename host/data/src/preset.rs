//! Converts rows of well-known datasets to a prompt, an answer and a solution.

use anyhow::{Context, Result, bail, ensure};
use math_answer::boxed;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::columns::{at, blank, shown, text_of};

/// Layout of a well-known dataset: names of its columns, and the place of its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// Columns `question` and `answer`; the latter is a solution with the final answer after
    /// `####`.
    Gsm8k,
    /// Columns `problem` or `question`, `solution`, and `answer` or `final_answer`, else the last
    /// `\boxed{}` of the solution.
    Math,
    /// Column `prompt`, the messages of a conversation, and the answer under
    /// `reward_model.ground_truth`, as in verl and DAPO.
    Verl,
    /// Columns `Question`, `Correct Answer` and three `Incorrect Answer N`, which become four
    /// choices; the answer is a letter.
    Gpqa,
}

const BOXED: &str =
    "{prompt}\nPlease reason step by step, and put your final answer within \\boxed{}.";

impl Preset {
    /// Template around a prompt if the settings give none.
    pub(super) fn template(self) -> Option<&'static str> {
        match self {
            Self::Gsm8k => Some(
                "{prompt} Let's think step by step and output the final answer after \"####\".",
            ),
            Self::Math => Some(BOXED),
            Self::Verl => None,
            Self::Gpqa => Some(
                "{prompt}\nPlease reason step by step, \
                 and put the letter of your choice within \\boxed{}.",
            ),
        }
    }

    /// The reward that reads answers as these prompts ask for them, for settings that name none.
    pub fn reward(self) -> &'static str {
        match self {
            Self::Gsm8k => "number",
            // verl's and DAPO's prompts ask for a last line `Answer: 5`, which it reads too.
            Self::Math | Self::Verl | Self::Gpqa => "math",
        }
    }

    /// Refuses the other presets of a run if the reward that this one brings does not read their
    /// answers.
    pub fn check_beside(self, others: impl IntoIterator<Item = Self>) -> Result<()> {
        for other in others {
            ensure!(
                other.reward() == self.reward(),
                "a table has the preset `{}`, whose answers the reward `{}` reads, \
                 but `data.preset` is `{}`, which brings the reward `{}` for all rows \
                 (name the rewards in `[[reward]]`)",
                other.name(),
                other.reward(),
                self.name(),
                self.reward()
            );
        }
        Ok(())
    }

    /// Name of the preset in settings.
    fn name(self) -> &'static str {
        match self {
            Self::Gsm8k => "gsm8k",
            Self::Math => "math",
            Self::Verl => "verl",
            Self::Gpqa => "gpqa",
        }
    }

    /// Adds the columns `prompt`, `answer` and `solution` to a row; its other columns stay.
    pub(super) fn apply(self, row: &mut Map<String, Value>) -> Result<()> {
        match self {
            Self::Gsm8k => gsm8k(row),
            Self::Math => math(row),
            Self::Verl => verl(row),
            Self::Gpqa => gpqa(row),
        }
    }
}

fn set(row: &mut Map<String, Value>, columns: [(&str, String); 2]) {
    row.extend(columns.map(|(column, text)| (column.to_owned(), Value::String(text))));
}

fn gsm8k(row: &mut Map<String, Value>) -> Result<()> {
    let prompt = need(row, &["question"])?;
    let solution = need(row, &["answer"])?;
    let (_, answer) = solution
        .rsplit_once("####")
        .context("column `answer` has no `####` before its answer")?;
    let answer = answer.trim().replace(',', "");
    row.remove("question");
    row.insert("solution".into(), Value::String(solution));
    set(row, [("prompt", prompt), ("answer", answer)]);
    Ok(())
}

fn math(row: &mut Map<String, Value>) -> Result<()> {
    let columns = ["problem", "question"];
    let prompt = need(row, &columns)?;
    let given = ["answer", "final_answer"]
        .iter()
        .find_map(|column| joined(row, column).transpose())
        .transpose()?;
    let solution = joined(row, "solution");
    let answer = match (given, &solution) {
        (Some(given), _) => given,
        (None, Err(_)) => return solution.map(drop),
        (None, Ok(solution)) => {
            let answer = solution.as_deref().and_then(boxed).context(
                "there is no answer: neither a column `answer` or `final_answer`, \
                 nor a `\\boxed{}` in a column `solution`",
            )?;
            answer.trim().to_owned()
        }
    };
    columns.iter().for_each(|column| drop(row.remove(*column)));
    // A solution that is a list is not text; one that cannot be read stays, and is an error where
    // it is learned.
    if let Ok(Some(solution)) = solution {
        row.insert("solution".into(), Value::String(solution));
    }
    set(row, [("prompt", prompt), ("answer", answer)]);
    Ok(())
}

fn verl(row: &mut Map<String, Value>) -> Result<()> {
    let path = "reward_model.ground_truth";
    let answer = at(row, path)
        .cloned()
        .with_context(|| format!("no column `{path}`"))?;
    row.insert("answer".into(), answer);
    // The column `solution` of this layout is not a worked solution.
    row.remove("solution");
    Ok(())
}

fn gpqa(row: &mut Map<String, Value>) -> Result<()> {
    let question = need(row, &["Question"])?;
    let columns = [
        "Correct Answer",
        "Incorrect Answer 1",
        "Incorrect Answer 2",
        "Incorrect Answer 3",
    ];
    let choices = columns
        .iter()
        .map(|column| need(row, &[column]))
        .collect::<Result<Vec<_>>>()?;
    // The order of the choices depends only on the question, so it is the same in every run.
    let hash = Sha256::digest(question.as_bytes());
    let index = hash.first_chunk().copied().map_or(0, u64::from_le_bytes);
    let order = host_rng::permutation(
        &mut host_rng::stream(0, "data.gpqa", &[index]),
        choices.len(),
    );
    let letters = ['A', 'B', 'C', 'D'];
    let shown = order
        .iter()
        .zip(letters)
        .map(|(choice, letter)| format!("\n{letter}) {}", choices[*choice].trim()));
    let prompt = format!("{}\n{}", question.trim(), shown.collect::<String>());
    let right = order
        .iter()
        .zip(letters)
        .find(|(choice, _)| **choice == 0)
        .map_or('A', |(_, letter)| letter);
    set(row, [("prompt", prompt), ("answer", right.to_string())]);
    Ok(())
}

/// Text of the first of `columns` that the row has; an error if it has none.
fn need(row: &Map<String, Value>, columns: &[&str]) -> Result<String> {
    let found = columns
        .iter()
        .find_map(|column| text_of(row, column).transpose())
        .transpose()?;
    if let Some(text) = found {
        return Ok(text);
    }
    if let Some(error) = columns.iter().find_map(|column| blank(row, column)) {
        return Err(error);
    }
    let names: Vec<String> = columns.iter().map(|column| format!("`{column}`")).collect();
    bail!("no column {}", names.join(" or "))
}

/// Text of a column that holds one text or a list of texts.
fn joined(row: &Map<String, Value>, column: &str) -> Result<Option<String>> {
    let Some(Value::Array(list)) = row.get(column) else {
        return text_of(row, column);
    };
    let texts = list.iter().map(|value| match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(shown(number)),
        _ => bail!("column `{column}` is a list of other things than texts"),
    });
    Ok(Some(texts.collect::<Result<Vec<_>>>()?.join(", ")).filter(|text| !text.trim().is_empty()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn applied(preset: Preset, row: Value) -> Result<Value> {
        let Value::Object(mut row) = row else {
            bail!("no row")
        };
        preset.apply(&mut row)?;
        Ok(Value::Object(row))
    }

    fn error(preset: Preset, row: Value) -> String {
        applied(preset, row).unwrap_err().to_string()
    }

    #[test]
    fn gsm8k_answers_follow_the_marks() {
        let row = json!({"question": "How many?", "answer": "1200 + 34 = <<1200+34=1234>>1234\n#### 1,234"});
        let expected = json!({
            "prompt": "How many?",
            "answer": "1234",
            "solution": "1200 + 34 = <<1200+34=1234>>1234\n#### 1,234",
        });
        assert_eq!(applied(Preset::Gsm8k, row).unwrap(), expected);
        let unmarked = json!({"question": "?", "answer": "5"});
        assert_eq!(
            error(Preset::Gsm8k, unmarked),
            "column `answer` has no `####` before its answer"
        );
        assert_eq!(
            error(Preset::Gsm8k, json!({"problem": "?", "answer": "5"})),
            "no column `question`"
        );
        let empty = json!({"question": " ", "answer": "#### 5"});
        assert_eq!(
            error(Preset::Gsm8k, empty),
            "column `question` is empty (remove the row or fill it in)"
        );
    }

    #[test]
    fn math_answers_are_in_a_column_or_a_box() {
        let row = json!({"problem": "p", "solution": "so \\boxed{1} and $\\boxed{\\frac{1}{2}}$.", "level": "Level 3"});
        let made = applied(Preset::Math, row).unwrap();
        assert_eq!(
            (&made["answer"], &made["level"]),
            (&json!("1, \\frac{1}{2}"), &json!("Level 3"))
        );
        let given = |row| applied(Preset::Math, row).unwrap()["answer"].clone();
        for (number, text) in [
            (json!(27.0), "27.0"),
            (json!(27), "27"),
            (json!(0.0000025), "2.5e-06"),
        ] {
            assert_eq!(
                given(json!({"question": "q", "answer": number})),
                json!(text)
            );
            assert_eq!(
                given(json!({"question": "q", "answer": [number]})),
                json!(text)
            );
        }
        assert_eq!(
            given(json!({"question": "q", "final_answer": ["$2$", "$3$"], "solution": ["s"]})),
            json!("$2$, $3$")
        );
        assert_eq!(
            given(json!({"problem": "", "question": "q", "answer": "", "solution": "\\boxed{2}"})),
            json!("2")
        );
        // Only `host sft` reads the solution of a row that has an answer.
        assert_eq!(
            given(json!({"problem": "p", "answer": "2", "solution": {"a": 1}})),
            json!("2")
        );
        for solution in [json!("none"), json!("")] {
            assert!(
                error(Preset::Math, json!({"problem": "p", "solution": solution}))
                    .starts_with("there is no answer")
            );
        }
        assert!(
            error(Preset::Math, json!({"problem": "p", "solution": true}))
                .starts_with("column `solution` is a boolean")
        );
    }

    #[test]
    fn verl_answers_are_in_a_nested_column() {
        let row = json!({"prompt": [{"role": "user", "content": "p"}], "reward_model": {"ground_truth": "34", "style": "rule"}});
        assert_eq!(applied(Preset::Verl, row).unwrap()["answer"], json!("34"));
        assert_eq!(
            error(Preset::Verl, json!({"prompt": []})),
            "no column `reward_model.ground_truth`"
        );
    }

    #[test]
    fn gpqa_answers_are_letters_of_four_choices() {
        let row = |question: &str| json!({"Question": question, "Correct Answer": "right", "Incorrect Answer 1": "w1", "Incorrect Answer 2": "w2", "Incorrect Answer 3": "w3"});
        let mut letters = std::collections::BTreeSet::new();
        for question in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"] {
            let made = applied(Preset::Gpqa, row(question)).unwrap();
            let letter = made["answer"].as_str().unwrap().to_owned();
            assert!(
                made["prompt"]
                    .as_str()
                    .unwrap()
                    .contains(&format!("\n{letter}) right")),
                "{made}"
            );
            assert_eq!(made, applied(Preset::Gpqa, row(question)).unwrap());
            letters.insert(letter);
        }
        assert_eq!(letters.len(), 4, "the right choice stands in every place");
    }
}
