//! Rows that no run could use: found when data are opened, and told with file and line, or left out.

use std::sync::{Arc, OnceLock};

use anyhow::{Context, Error, Result, anyhow, ensure};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::quote::quote;
use super::{Chat, Example, Messages, Row, Tokenizer};

/// Bytes of text that are checked before anything else happens: a matter of seconds.
const AT_ONCE: usize = 16 << 20;

/// Treatment of a row that cannot be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnBadRow {
    /// The first one is an error.
    #[default]
    Error,
    /// Rows are used as if it was not there.
    Skip,
}

/// Use of rows, on which the requirements depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Prompts are answered, in training and in evaluations.
    Training,
    /// Targets are taught as well.
    Teaching,
    /// Held-out prompts are answered; no other row is looked at.
    Measuring,
}

/// Requirements on rows.
#[derive(Clone, Copy, Debug)]
pub struct Demands<'a> {
    /// Text to ids.
    pub tokenizer: &'a Tokenizer,
    /// The chat template that writes conversations; none where prompts are plain text.
    pub chat: Option<&'a Chat>,
    /// Number of ids that the model knows.
    pub vocab_size: usize,
    /// Longest prompt, tokens.
    pub max_prompt_length: usize,
    /// Longest prompt with its target, tokens: `max_position_embeddings`.
    pub positions: usize,
    /// True if rows with longer prompts are left out, whatever is done about others.
    pub filter_overlong_prompts: bool,
    /// Treatment of a row that does not meet the requirements.
    pub on_bad_row: OnBadRow,
    /// Use of the rows.
    pub purpose: Purpose,
}

impl Example {
    /// The ids of the prompt.
    pub fn prompt_ids(&self, tokenizer: &Tokenizer, limit: usize) -> Result<Vec<u32>> {
        self.placed(encode(tokenizer, &self.prompt, limit, "`data.max_prompt_length`").and_then(|ids| {
            ensure!(
                ids.len() <= limit,
                "a prompt has {} tokens, `data.max_prompt_length` is {limit} (raise it, or shorten the prompt `{}`)",
                ids.len(),
                quote(&self.prompt)
            );
            Ok(ids)
        }))
    }

    /// Writes the prompt as one message of the user.
    pub(super) fn in_chat(self, chat: Option<&Chat>) -> Result<Self> {
        match chat {
            Some(chat) => {
                let messages = Messages::user(&self.prompt);
                self.of_messages(chat, &messages)
            }
            None => Ok(self),
        }
    }

    /// Writes `messages` in place of the prompt, and what is to be taught as their answer.
    pub(super) fn of_messages(mut self, chat: &Chat, messages: &Messages) -> Result<Self> {
        self.prompt = chat.prompt(messages)?;
        if chat.teaches() {
            self.reply = Some(chat.reply(messages, &self.prompt, self.target())?);
        }
        Ok(self)
    }

    /// The ids of the target, an end token last; of a reply, the end that the chat template gives it. They follow `prompt` tokens.
    pub fn target_ids(&self, tokenizer: &Tokenizer, prompt: usize, positions: usize) -> Result<Vec<u32>> {
        let ids = match &self.reply {
            Some(reply) => encode(tokenizer, reply, positions, POSITIONS),
            None => encode(tokenizer, self.target(), positions, POSITIONS).map(|mut ids| {
                ids.push(tokenizer.eos_ids()[0]);
                ids
            }),
        };
        self.placed(ids.and_then(|ids| {
            ensure!(
                prompt + ids.len() <= positions,
                "a prompt of {prompt} tokens and its solution of {} make {}, the model has {positions} positions (shorten the solution)",
                ids.len(),
                prompt + ids.len()
            );
            Ok(ids)
        }))
    }

    /// An error with the row's file and line before it.
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
        self.placed(outside.map_or(Ok(()), |id| {
            let size = demands.vocab_size;
            Err(anyhow!("token id {id} is outside the model's vocabulary of {size} (use the model's tokenizer)"))
        }))
    }

    fn text_len(&self) -> usize {
        self.prompt.len() + self.target().len()
    }
}

/// The sentence about a bad row that was found while training went on.
pub(super) type Finding = Arc<OnceLock<String>>;

/// The result of a check.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// Rows that were left out because they cannot be used.
    pub bad: Vec<Row>,
    /// How many were left out because their prompts are too long.
    pub long: usize,
    /// Where rows are still being checked.
    pub finding: Option<Finding>,
}

/// Refuses or leaves out the `rows` that do not meet the demands; with `target` their targets too must. Where there are too many rows to wait
/// for, the rest of them is checked by a thread, which leaves its finding behind.
pub(super) fn check(rows: &mut Arc<Vec<Example>>, demands: &Demands<'_>, target: bool) -> Result<Checked> {
    // Rows that are left out shift the others, so that all must be known before the first one is used.
    if demands.on_bad_row == OnBadRow::Skip || demands.filter_overlong_prompts {
        return leave_out(rows, demands, target);
    }
    let now = first(rows, AT_ONCE);
    find(&rows[..now], demands, target).map_or(Ok(()), Err)?;
    let finding = (now < rows.len()).then(|| in_background(rows, now, demands, target));
    Ok(Checked { finding, ..Checked::default() })
}

/// How many rows have `bytes` of text, one at least.
fn first(rows: &[Example], bytes: usize) -> usize {
    let mut sum = 0_usize;
    let beyond = |row: &Example| {
        let before = sum;
        sum += row.text_len();
        before >= bytes
    };
    rows.iter().position(beyond).unwrap_or(rows.len())
}

/// The error about the first bad row, if there is one.
fn find(rows: &[Example], demands: &Demands<'_>, target: bool) -> Option<Error> {
    rows.par_iter().find_map_first(|row| row.check(demands, target).err())
}

/// The limit of solutions, for a sentence.
const POSITIONS: &str = "the model has positions";

/// The ids of a text that is to have at most `limit` tokens, by the limit's `name`. One that is far too long is refused unread: the tokenizer takes hundreds of bytes of
/// memory for each of its own.
fn encode(tokenizer: &Tokenizer, text: &str, limit: usize, name: &str) -> Result<Vec<u32>> {
    ensure!(
        !is_far_too_long(text, limit),
        "a text of {} bytes has more tokens than {name}, {limit} (shorten `{}`)",
        text.len(),
        quote(text)
    );
    tokenizer.encode(text)
}

/// True where `limit` tokens cannot hold this text, on any vocabulary's average.
fn is_far_too_long(text: &str, limit: usize) -> bool {
    const MOST_BYTES_OF_A_TOKEN: usize = 64;
    text.len() > limit.saturating_mul(MOST_BYTES_OF_A_TOKEN)
}

/// The decision about a row.
enum Verdict {
    Good,
    Long,
    Bad(Error),
}

fn judge(row: &Example, demands: &Demands<'_>, target: bool) -> Verdict {
    let is_long = || {
        let (prompt, limit) = (&row.prompt, demands.max_prompt_length);
        let beyond = || demands.tokenizer.encode(prompt).is_ok_and(|ids| ids.len() > limit);
        demands.filter_overlong_prompts && (is_far_too_long(prompt, limit) || beyond())
    };
    match row.check(demands, target) {
        Ok(()) => Verdict::Good,
        Err(_) if is_long() => Verdict::Long,
        Err(error) => Verdict::Bad(error),
    }
}

fn leave_out(rows: &mut Arc<Vec<Example>>, demands: &Demands<'_>, target: bool) -> Result<Checked> {
    let verdicts: Vec<Verdict> = rows.par_iter().map(|row| judge(row, demands, target)).collect();
    let (mut checked, mut good) = (Checked::default(), Vec::with_capacity(rows.len()));
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

fn in_background(rows: &Arc<Vec<Example>>, from: usize, demands: &Demands<'_>, target: bool) -> Finding {
    let finding = Finding::default();
    let (rows, tokenizer, told) = (Arc::clone(rows), demands.tokenizer.clone(), Arc::clone(&finding));
    let Demands { vocab_size, max_prompt_length, positions, filter_overlong_prompts, on_bad_row, purpose, .. } =
        *demands;
    std::thread::spawn(move || {
        // Conversations are texts by now.
        let (tokenizer, chat) = (&tokenizer, None);
        let demands = Demands {
            tokenizer,
            chat,
            vocab_size,
            max_prompt_length,
            positions,
            filter_overlong_prompts,
            on_bad_row,
            purpose,
        };
        // One after the other: the threads are for those who train.
        if let Some(error) = rows[from..].iter().find_map(|row| row.check(&demands, target).err()) {
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
        let row = Some(Row { file: "rows.jsonl".into(), unit: Unit::Line, number: line });
        Example { prompt: prompt.into(), answer: "1".into(), solution: None, reply: None, columns: "{}".into(), row }
    }

    fn demands(tokenizer: &Tokenizer, on_bad_row: OnBadRow) -> Demands<'_> {
        Demands { vocab_size: 15, max_prompt_length: 4, positions: 8, on_bad_row, ..tests::demands(tokenizer) }
    }

    #[test]
    fn the_first_bad_row_is_told_with_its_place() {
        let tokenizer = Tokenizer::tiny_arithmetic().unwrap();
        let error = |rows: Vec<Example>, change: fn(&mut Demands<'_>), target| {
            let mut demands = demands(&tokenizer, OnBadRow::Error);
            change(&mut demands);
            format!("{:#}", check(&mut Arc::new(rows), &demands, target).unwrap_err())
        };
        let bad = vec![row(1, "1+1="), row(3, "1+é="), row(4, "11111")];
        assert_eq!(
            error(bad, |_| (), false),
            "bad row at line 3 of `rows.jsonl` (mend it, or set `data.on_bad_row` to `skip`): cannot encode `1+é=`: the tokenizer has no id for `é`"
        );
        assert!(error(vec![row(4, "11111")], |_| (), false).contains("a prompt has 5 tokens"));
        assert!(error(vec![row(4, "1")], |demands| demands.vocab_size = 3, false).contains("token id 3 is outside"));
        let target = Example { solution: Some("x".into()), ..row(7, "1") };
        assert!(error(vec![target.clone()], |_| (), true).contains("line 7 of `rows.jsonl`"));
        // A prompt of three tokens, a solution of five, and its end.
        let long = Example { solution: Some("1+1=2".into()), ..row(7, "11=") };
        let said = error(vec![long.clone()], |_| (), true);
        assert!(said.contains("line 7 of `rows.jsonl`"), "{said}");
        let sum = "a prompt of 3 tokens and its solution of 6 make 9, the model has 8 positions (shorten the solution)";
        assert!(said.ends_with(sum), "{said}");
        let demands = demands(&tokenizer, OnBadRow::Error);
        assert!(check(&mut Arc::new(vec![long]), &Demands { positions: 9, ..demands }, true).is_ok());
        assert!(check(&mut Arc::new(vec![target]), &demands, false).is_ok(), "nobody reads the target");
        let long = error(vec![row(1, &"x".repeat(1000))], |_| (), false);
        assert!(long.contains(&format!("`{}…`", "x".repeat(60))) && long.len() < 300, "{long}");
    }

    #[test]
    fn bad_rows_are_left_out() {
        let tokenizer = Tokenizer::tiny_arithmetic().unwrap();
        let mut rows = Arc::new(vec![row(1, "1"), row(2, "x"), row(3, "2"), row(9, "11111")]);
        let checked = check(&mut rows, &demands(&tokenizer, OnBadRow::Skip), false).unwrap();
        let lines: Vec<usize> = checked.bad.iter().map(|row| row.number).collect();
        assert_eq!((lines, checked.long, checked.finding.is_none()), (vec![2, 9], 0, true));
        assert_eq!(rows.iter().map(|row| row.prompt.as_str()).collect::<Vec<_>>(), ["1", "2"]);
    }

    #[test]
    fn prompts_that_are_too_long_are_left_out_by_themselves() {
        let tokenizer = Tokenizer::tiny_arithmetic().unwrap();
        let long = |on_bad_row| Demands { filter_overlong_prompts: true, ..demands(&tokenizer, on_bad_row) };
        let mut rows = Arc::new(vec![row(1, "1"), row(2, "11111"), row(3, "x")]);
        assert!(format!("{:#}", check(&mut rows, &long(OnBadRow::Error), false).unwrap_err()).contains("line 3"));
        let checked = check(&mut rows, &long(OnBadRow::Skip), false).unwrap();
        assert_eq!((checked.bad.len(), checked.long, rows.len()), (1, 1, 1));
        let mut rows = Arc::new(vec![row(1, "1"), row(2, "11111")]);
        assert_eq!(check(&mut rows, &long(OnBadRow::Error), false).unwrap().long, 1);
    }

    #[test]
    fn what_is_too_much_to_wait_for_is_checked_beside_the_training() {
        let rows = [row(1, "1"), row(2, "1"), row(3, "1")];
        assert_eq!([first(&rows, 1), first(&rows, 3), first(&rows, 4), first(&rows, 100)], [1, 2, 2, 3]);
        let tokenizer = Tokenizer::tiny_arithmetic().unwrap();
        let rows = Arc::new(vec![row(1, "x"), row(2, "1"), row(3, "x")]);
        let finding = in_background(&rows, 1, &demands(&tokenizer, OnBadRow::Error), false);
        assert!(finding.wait().contains("line 3 of `rows.jsonl`"), "{finding:?}");
    }
}
