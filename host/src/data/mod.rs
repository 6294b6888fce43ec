//! Prompts with known answers: the embedded arithmetic task, or any JSONL file.
//!
//! The order of training prompts is a pure function of the run's seed and of the cursor (prompts consumed so far), so a
//! checkpoint needs the cursor alone.

mod arithmetic;
mod chat;
pub(crate) mod contain;
mod jsonl;
mod pairs;
mod quote;
mod row;
mod row_check;
mod texts;
mod tokenizer;
mod tokenizer_json;

pub use arithmetic::Arithmetic;
pub use chat::{Chat, ChatOptions, Date, Messages, TEMPLATE_FILE};
pub use jsonl::{Jsonl, rows};
pub use pairs::{Pair, Pairs};
pub use row::Columns;
pub use row_check::{Demands, OnBadRow, Purpose};
pub use texts::{Texts, vocabulary};
pub use tokenizer::{Tokenizer, TokenizerConfigs};

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};

/// One prompt and what is known about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// The model's input, as text; of a conversation, what the chat template makes of it.
    pub prompt: String,
    /// What a correct completion arrives at; never empty.
    pub answer: String,
    /// A worked completion, answer included, for supervised training.
    pub solution: Option<String>,
    /// What is to be taught after the prompt, end included, as a chat template writes it; none where no template does.
    pub reply: Option<String>,
    /// Every column of the row but the prompt: a JSON object.
    pub columns: String,
    /// Where it was read; none where it was made.
    pub row: Option<Row>,
}

/// A row of a JSONL file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The file, as it was named.
    pub file: Arc<str>,
    /// Its line, from 1.
    pub line: usize,
}

impl Row {
    /// What stands before the sentence about what is wrong with it.
    fn is_bad(&self) -> String {
        let Self { file, line } = self;
        format!("bad row at line {line} of `{file}` (mend it, or set `data.on_bad_row` to `skip`)")
    }
}

impl Example {
    /// The completion that supervised training should teach: the worked solution, or the bare answer where there is none.
    pub fn target(&self) -> &str {
        self.solution.as_deref().unwrap_or(&self.answer)
    }
}

/// A source of training prompts and of held-out prompts.
#[derive(Clone, Debug)]
pub enum Dataset {
    /// Three-digit addition, embedded and endless, and what makes conversations of its prompts.
    Arithmetic(Arithmetic, Option<Chat>),
    /// Rows of JSONL files.
    Jsonl(Jsonl),
}

impl Dataset {
    /// Opens `embedded:arithmetic` or the JSONL file called `name`, its training order drawn from `seed`.
    ///
    /// `eval` is the JSONL file of held-out prompts; the embedded task brings its own and refuses one. Errors: a name
    /// that is neither, a file that cannot be read or holds no rows that can be used, and a row without the named `columns` or that does
    /// not meet the `demands`, unless these leave it out.
    pub fn open(
        name: &str,
        eval: Option<&Path>,
        columns: &Columns,
        seed: u64,
        demands: &Demands<'_>,
    ) -> Result<Dataset> {
        if Arithmetic::NAMES.contains(&name) {
            ensure!(eval.is_none(), "dataset `{name}` has its own held-out prompts (remove `eval_dataset_name`)");
            let task = if name == Arithmetic::NAME { Arithmetic::new(seed) } else { Arithmetic::with_slips(seed) };
            task.check(demands)?;
            return Ok(Dataset::Arithmetic(task, demands.chat.cloned()));
        }
        let path = Path::new(name);
        ensure!(
            path.exists(),
            "no dataset `{name}`: neither an embedded one nor a file (embedded: `{}`; a file must be JSONL)",
            Arithmetic::NAME
        );
        Ok(Dataset::Jsonl(Jsonl::open(path, eval, columns, seed, demands)?))
    }

    /// The training prompt at `cursor`, the number of prompts consumed before it.
    ///
    /// # Errors
    ///
    /// A bad row anywhere, where it was not found when the files were opened.
    pub fn train(&mut self, cursor: u64) -> Result<Example> {
        match self {
            Dataset::Arithmetic(task, chat) => task.train(cursor).in_chat(chat.as_ref()),
            Dataset::Jsonl(files) => files.train(cursor),
        }
    }

    /// Its name, with numbers of rows where it is in files.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Dataset::Arithmetic(task, _) => task.name().to_owned(),
            Dataset::Jsonl(files) => files.describe(),
        }
    }

    /// The first `count` held-out prompts, the same for every seed; the first of a longer list are those of a shorter one.
    ///
    /// More than there are, or none at all, is an error.
    pub fn held_out(&self, count: usize) -> Result<Vec<Example>> {
        match self {
            Dataset::Arithmetic(task, chat) => {
                task.held_out(count)?.into_iter().map(|example| example.in_chat(chat.as_ref())).collect()
            }
            Dataset::Jsonl(files) => files.held_out(count),
        }
    }
}

/// Refuses to hand out fewer held-out prompts than asked for.
fn ensure_available(source: &str, available: usize, count: usize) -> Result<()> {
    if count > available {
        bail!(
            "{source} has {available} held-out prompts, {count} were asked for (set `num_prompts` of `[eval]` to at most {available})"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Demands that what the embedded tokenizer can read meets.
    pub(super) fn demands(tokenizer: &Tokenizer) -> Demands<'_> {
        let (vocab_size, max_prompt_length) = (tokenizer.vocab_size(), 16);
        let (on_bad_row, purpose) = (OnBadRow::Error, Purpose::Training);
        Demands { tokenizer, chat: None, vocab_size, max_prompt_length, on_bad_row, purpose }
    }

    fn open(name: &str, eval: Option<&Path>) -> Result<Dataset> {
        let tokenizer = Tokenizer::tiny_arithmetic().unwrap();
        Dataset::open(name, eval, &Columns::default(), 0, &demands(&tokenizer))
    }

    #[test]
    fn names_that_are_no_dataset_say_what_is() {
        let error = open("arithmetic", None).unwrap_err().to_string();
        assert!(error.contains("`arithmetic`:") && error.contains("`embedded:arithmetic`"), "{error}");
    }

    #[test]
    fn the_embedded_task_refuses_an_eval_file() {
        let error = open("embedded:arithmetic", Some(Path::new("eval.jsonl"))).unwrap_err().to_string();
        assert!(error.contains("its own held-out prompts"), "{error}");
    }

    #[test]
    fn the_embedded_task_meets_demands_as_well() {
        let tokenizer = Tokenizer::tiny_arithmetic().unwrap();
        let demands = Demands { max_prompt_length: 7, ..demands(&tokenizer) };
        let error = Dataset::open("embedded:arithmetic", None, &Columns::default(), 0, &demands).unwrap_err();
        assert!(error.to_string().starts_with("a prompt has 8 tokens, `data.max_prompt_length` is 7"), "{error}");
    }

    #[test]
    fn both_kinds_answer_the_same_questions() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows.jsonl");
        std::fs::write(&path, "{\"prompt\": \"2+2=\", \"answer\": 4}\n").unwrap();
        let mut rows = open(path.to_str().unwrap(), Some(&path)).unwrap();
        let mut task = open("embedded:arithmetic", None).unwrap();
        assert_eq!(rows.train(5).unwrap().target(), "4");
        assert_eq!(task.train(5).unwrap().target(), task.train(5).unwrap().solution.unwrap());
        assert_eq!(rows.held_out(1).unwrap().len(), 1);
        assert_eq!(task.held_out(3).unwrap().len(), 3);
        assert_eq!(task.describe(), "embedded:arithmetic");
    }
}
