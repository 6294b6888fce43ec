//! Finds rows that no run can use when data are opened. They are reported with file and line, or
//! left out.

use std::sync::{Arc, OnceLock};

use anyhow::{Context, Error, Result, anyhow, ensure};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::quote::quote;
use super::{Chat, Example, Messages, Row, Tokenizer};

/// Bytes of text that are checked before training begins; this takes a few seconds.
const AT_ONCE: usize = 16 << 20;

/// Treatment of a row that cannot be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnBadRow {
    /// The first bad row is an error.
    #[default]
    Error,
    /// Bad rows are left out, as if they did not exist.
    Skip,
}

/// Purpose of rows, on which the requirements depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Prompts are answered in training and in evaluations.
    Training,
    /// Supervised training: targets are learned as well.
    Teaching,
    /// Only held-out prompts are answered; no other row is checked.
    Measuring,
}

/// Requirements on rows.
#[derive(Clone, Copy, Debug)]
pub struct Demands<'a> {
    /// The tokenizer of the model.
    pub tokenizer: &'a Tokenizer,
    /// The chat template that formats conversations; `None` if prompts are plain text.
    pub chat: Option<&'a Chat>,
    /// Number of token ids that the model knows.
    pub vocab_size: usize,
    /// Longest prompt, in tokens.
    pub max_prompt_length: usize,
    /// Longest prompt with its target, in tokens: `max_position_embeddings`.
    pub positions: usize,
    /// True if rows with longer prompts are left out, regardless of `on_bad_row`.
    pub filter_overlong_prompts: bool,
    /// Treatment of a row that does not meet the requirements.
    pub on_bad_row: OnBadRow,
    /// Purpose of the rows.
    pub purpose: Purpose,
}

impl Example {
    /// Token ids of the prompt.
    pub fn prompt_ids(&self, tokenizer: &Tokenizer, limit: usize) -> Result<Vec<u32>> {
        self.placed(self.bounded_prompt(tokenizer, limit))
    }

    fn bounded_prompt(&self, tokenizer: &Tokenizer, limit: usize) -> Result<Vec<u32>> {
        let text = bounded(&self.prompt, limit, "`data.max_prompt_length`")?;
        let ids = tokenizer.encode_prompt(text)?;
        ensure!(
            ids.len() <= limit,
            "a prompt has {} tokens, `data.max_prompt_length` is {limit} \
             (raise it, or shorten the prompt `{}`)",
            ids.len(),
            quote(&self.prompt)
        );
        Ok(ids)
    }

    /// Formats the prompt as one message of the user.
    pub(super) fn in_chat(self, chat: Option<&Chat>) -> Result<Self> {
        match chat {
            Some(chat) => {
                let messages = Messages::user(&self.prompt);
                self.of_messages(chat, &messages)
            }
            None => Ok(self),
        }
    }

    /// Formats `messages` as the prompt, and the training target as their answer.
    pub(super) fn of_messages(mut self, chat: &Chat, messages: &Messages) -> Result<Self> {
        self.prompt = chat.prompt(messages)?;
        if chat.teaches() {
            self.reply = Some(chat.reply(messages, &self.prompt, self.target())?);
        }
        Ok(self)
    }

    /// Token ids of the target, which follow `prompt` tokens. An end token is last; a reply has the
    /// end that the chat template gives it.
    pub fn target_ids(
        &self,
        tokenizer: &Tokenizer,
        prompt: usize,
        positions: usize,
    ) -> Result<Vec<u32>> {
        self.placed(self.bounded_target(tokenizer, prompt, positions))
    }

    fn bounded_target(
        &self,
        tokenizer: &Tokenizer,
        prompt: usize,
        positions: usize,
    ) -> Result<Vec<u32>> {
        let text = self.reply.as_deref().unwrap_or(self.target());
        let mut ids = tokenizer.encode_after(bounded(text, positions, POSITIONS)?)?;
        if self.reply.is_none() {
            ids.push(tokenizer.eos_ids()[0]);
        }
        ensure!(
            prompt + ids.len() <= positions,
            "a prompt of {prompt} tokens and its solution of {} make {}, \
             the model has {positions} positions (shorten the solution)",
            ids.len(),
            prompt + ids.len()
        );
        Ok(ids)
    }

    /// Prefixes an error with the row's file and line.
    fn placed<T>(&self, result: Result<T>) -> Result<T> {
        match &self.row {
            Some(row) => result.with_context(|| row.is_bad()),
            None => result,
        }
    }

    pub(super) fn check(&self, demands: &Demands<'_>, target: bool) -> Result<()> {
        let mut ids = self.prompt_ids(demands.tokenizer, demands.max_prompt_length)?;
        if target {
            ids.extend(self.target_ids(demands.tokenizer, ids.len(), demands.positions)?);
        }
        let outside = ids.iter().find(|id| **id as usize >= demands.vocab_size);
        let Some(id) = outside else {
            return Ok(());
        };
        self.placed(Err(anyhow!(
            "token id {id} is outside the model's vocabulary of {} (use the model's tokenizer)",
            demands.vocab_size
        )))
    }
}

/// Error message about a bad row that was found while training went on.
pub(super) type Finding = Arc<OnceLock<String>>;

#[derive(Debug, Default)]
pub(super) struct Checked {
    /// Rows that were left out because they cannot be used.
    pub bad: Vec<Row>,
    /// Number of rows that were left out because their prompts are too long.
    pub long: usize,
    /// Receives the error of rows that are still being checked; `None` if all are checked.
    pub finding: Option<Finding>,
}

/// Refuses or leaves out the `rows` that do not meet the demands; with `target`, their targets must
/// meet them too. If there are many rows, a thread checks the later ones and stores its finding.
pub(super) fn check(
    rows: &mut Arc<Vec<Example>>,
    demands: &Demands<'_>,
    target: bool,
) -> Result<Checked> {
    // Rows that are left out shift the others, so all must be known before the first row is used.
    if demands.on_bad_row == OnBadRow::Skip || demands.filter_overlong_prompts {
        return leave_out(rows, demands, target);
    }
    let now = first(rows, AT_ONCE);
    rows[..now]
        .par_iter()
        .find_map_first(|row| row.check(demands, target).err())
        .map_or(Ok(()), Err)?;
    let finding = (now < rows.len()).then(|| in_background(rows, now, demands, target));
    Ok(Checked {
        finding,
        ..Checked::default()
    })
}

/// Number of rows that have `bytes` of text, at least one.
fn first(rows: &[Example], bytes: usize) -> usize {
    let mut sum = 0;
    for (number, row) in rows.iter().enumerate() {
        if sum >= bytes {
            return number;
        }
        sum += row.prompt.len() + row.target().len();
    }
    rows.len()
}

/// Name of the limit on solutions, for a message.
const POSITIONS: &str = "the model has positions";

/// Refuses a text that is far too long for `limit` tokens before it is encoded, for the tokenizer
/// takes hundreds of bytes of memory for each byte; `name` describes the limit.
fn bounded<'a>(text: &'a str, limit: usize, name: &str) -> Result<&'a str> {
    ensure!(
        !is_far_too_long(text, limit),
        "a text of {} bytes has more tokens than {name}, {limit} (shorten `{}`)",
        text.len(),
        quote(text)
    );
    Ok(text)
}

/// True if `limit` tokens cannot hold this text at the average token length of any vocabulary.
fn is_far_too_long(text: &str, limit: usize) -> bool {
    const MOST_BYTES_OF_A_TOKEN: usize = 64;
    text.len() > limit.saturating_mul(MOST_BYTES_OF_A_TOKEN)
}

enum Verdict {
    Good,
    Long,
    Bad(Error),
}

fn judge(row: &Example, demands: &Demands<'_>, target: bool) -> Verdict {
    match row.check(demands, target) {
        Ok(()) => Verdict::Good,
        Err(_) if demands.filter_overlong_prompts && is_long(row, demands) => Verdict::Long,
        Err(error) => Verdict::Bad(error),
    }
}

/// True if the prompt of a row is too long.
fn is_long(row: &Example, demands: &Demands<'_>) -> bool {
    let limit = demands.max_prompt_length;
    is_far_too_long(&row.prompt, limit)
        || demands
            .tokenizer
            .encode_prompt(&row.prompt)
            .is_ok_and(|ids| ids.len() > limit)
}

fn leave_out(rows: &mut Arc<Vec<Example>>, demands: &Demands<'_>, target: bool) -> Result<Checked> {
    let verdicts: Vec<Verdict> = rows
        .par_iter()
        .map(|row| judge(row, demands, target))
        .collect();
    let mut checked = Checked::default();
    let mut good = Vec::with_capacity(rows.len());
    for (row, verdict) in rows.iter().zip(verdicts) {
        good.push(matches!(verdict, Verdict::Good));
        match verdict {
            Verdict::Bad(error) if demands.on_bad_row == OnBadRow::Error => return Err(error),
            Verdict::Bad(_) => checked.bad.extend(row.row.clone()),
            Verdict::Long => checked.long += 1,
            Verdict::Good => {}
        }
    }
    let mut good = good.into_iter();
    Arc::make_mut(rows).retain(|_| good.next().unwrap_or(true));
    Ok(checked)
}

fn in_background(
    rows: &Arc<Vec<Example>>,
    from: usize,
    demands: &Demands<'_>,
    target: bool,
) -> Finding {
    let finding = Finding::default();
    let rows = Arc::clone(rows);
    let tokenizer = demands.tokenizer.clone();
    let told = Arc::clone(&finding);
    let Demands {
        vocab_size,
        max_prompt_length,
        positions,
        filter_overlong_prompts,
        on_bad_row,
        purpose,
        ..
    } = *demands;
    std::thread::spawn(move || {
        let demands = Demands {
            tokenizer: &tokenizer,
            // Conversations have been formatted as text by now.
            chat: None,
            vocab_size,
            max_prompt_length,
            positions,
            filter_overlong_prompts,
            on_bad_row,
            purpose,
        };
        // Rows are checked one after another, because the other threads are for training.
        if let Some(error) = rows[from..]
            .iter()
            .find_map(|row| row.check(&demands, target).err())
        {
            let _ = told.set(format!("{error:#}"));
        }
    });
    finding
}

#[cfg(test)]
mod tests {
    use super::super::files::Unit;
    use super::super::tests;
    use super::*;

    fn row(line: usize, prompt: &str) -> Example {
        let row = Some(Row {
            file: "rows.jsonl".into(),
            unit: Unit::Line,
            number: line,
        });
        Example {
            prompt: prompt.into(),
            answer: "1".into(),
            solution: None,
            reply: None,
            columns: "{}".into(),
            row,
        }
    }

    fn demands(tokenizer: &Tokenizer, on_bad_row: OnBadRow) -> Demands<'_> {
        Demands {
            vocab_size: 15,
            max_prompt_length: 4,
            positions: 8,
            on_bad_row,
            ..tests::demands(tokenizer)
        }
    }

    #[test]
    fn errors_name_the_place_of_the_first_bad_row() {
        let tokenizer = Tokenizer::tiny_arithmetic().unwrap();
        let error = |rows: Vec<Example>, change: fn(&mut Demands<'_>), target| {
            let mut demands = demands(&tokenizer, OnBadRow::Error);
            change(&mut demands);
            format!(
                "{:#}",
                check(&mut Arc::new(rows), &demands, target).unwrap_err()
            )
        };
        let bad = vec![row(1, "1+1="), row(3, "1+é="), row(4, "11111")];
        assert_eq!(
            error(bad, |_| (), false),
            "bad row at line 3 of `rows.jsonl` (mend it, or set `data.on_bad_row` to `skip`): cannot encode `1+é=`: the tokenizer has no id for `é`"
        );
        assert!(error(vec![row(4, "11111")], |_| (), false).contains("a prompt has 5 tokens"));
        assert!(
            error(vec![row(4, "1")], |demands| demands.vocab_size = 3, false)
                .contains("token id 3 is outside")
        );
        let target = Example {
            solution: Some("x".into()),
            ..row(7, "1")
        };
        assert!(error(vec![target.clone()], |_| (), true).contains("line 7 of `rows.jsonl`"));
        // A prompt of three tokens, a solution of five, and an end token.
        let long = Example {
            solution: Some("1+1=2".into()),
            ..row(7, "11=")
        };
        let said = error(vec![long.clone()], |_| (), true);
        assert!(said.contains("line 7 of `rows.jsonl`"), "{said}");
        let sum = "a prompt of 3 tokens and its solution of 6 make 9, the model has 8 positions (shorten the solution)";
        assert!(said.ends_with(sum), "{said}");
        let demands = demands(&tokenizer, OnBadRow::Error);
        assert!(
            check(
                &mut Arc::new(vec![long]),
                &Demands {
                    positions: 9,
                    ..demands
                },
                true
            )
            .is_ok()
        );
        assert!(
            check(&mut Arc::new(vec![target]), &demands, false).is_ok(),
            "nobody reads the target"
        );
        let long = error(vec![row(1, &"x".repeat(1000))], |_| (), false);
        assert!(
            long.contains(&format!("`{}…`", "x".repeat(60))) && long.len() < 300,
            "{long}"
        );
    }

    #[test]
    fn leaves_bad_rows_out() {
        let tokenizer = Tokenizer::tiny_arithmetic().unwrap();
        let mut rows = Arc::new(vec![row(1, "1"), row(2, "x"), row(3, "2"), row(9, "11111")]);
        let checked = check(&mut rows, &demands(&tokenizer, OnBadRow::Skip), false).unwrap();
        let lines: Vec<usize> = checked.bad.iter().map(|row| row.number).collect();
        assert_eq!(
            (lines, checked.long, checked.finding.is_none()),
            (vec![2, 9], 0, true)
        );
        assert_eq!(
            rows.iter()
                .map(|row| row.prompt.as_str())
                .collect::<Vec<_>>(),
            ["1", "2"]
        );
    }

    #[test]
    fn leaves_long_prompts_out() {
        let tokenizer = Tokenizer::tiny_arithmetic().unwrap();
        let long = |on_bad_row| Demands {
            filter_overlong_prompts: true,
            ..demands(&tokenizer, on_bad_row)
        };
        let mut rows = Arc::new(vec![row(1, "1"), row(2, "11111"), row(3, "x")]);
        assert!(
            format!(
                "{:#}",
                check(&mut rows, &long(OnBadRow::Error), false).unwrap_err()
            )
            .contains("line 3")
        );
        let checked = check(&mut rows, &long(OnBadRow::Skip), false).unwrap();
        assert_eq!((checked.bad.len(), checked.long, rows.len()), (1, 1, 1));
        let mut rows = Arc::new(vec![row(1, "1"), row(2, "11111")]);
        assert_eq!(
            check(&mut rows, &long(OnBadRow::Error), false)
                .unwrap()
                .long,
            1
        );
    }

    #[test]
    fn checks_later_rows_in_the_background() {
        let rows = [row(1, "1"), row(2, "1"), row(3, "1")];
        assert_eq!(
            [
                first(&rows, 1),
                first(&rows, 3),
                first(&rows, 4),
                first(&rows, 100)
            ],
            [1, 2, 2, 3]
        );
        let tokenizer = Tokenizer::tiny_arithmetic().unwrap();
        let rows = Arc::new(vec![row(1, "x"), row(2, "1"), row(3, "x")]);
        let finding = in_background(&rows, 1, &demands(&tokenizer, OnBadRow::Error), false);
        assert!(
            finding.wait().contains("line 3 of `rows.jsonl`"),
            "{finding:?}"
        );
    }
}
