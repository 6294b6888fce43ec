//! Prompts with known answers: the embedded arithmetic task, or any JSONL file.
//!
//! The order of training prompts is a pure function of the run's seed and of the cursor (prompts consumed so far), so a
//! checkpoint needs the cursor alone.

mod arithmetic;
mod jsonl;
mod tokenizer;

pub use arithmetic::Arithmetic;
pub use jsonl::{Columns, Jsonl, rows};
pub use tokenizer::{Tokenizer, TokenizerConfigs};

use std::path::Path;

use anyhow::{Result, bail, ensure};

/// One prompt and what is known about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// The model's input, as text.
    pub prompt: String,
    /// What a correct completion arrives at; never empty.
    pub answer: String,
    /// A worked completion, answer included, for supervised training.
    pub solution: Option<String>,
    /// Every column of the row but the prompt: a JSON object.
    pub columns: String,
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
    /// Three-digit addition, embedded and endless.
    Arithmetic(Arithmetic),
    /// Rows of JSONL files.
    Jsonl(Jsonl),
}

impl Dataset {
    /// Opens `embedded:arithmetic` or the JSONL file called `name`, its training order drawn from `seed`.
    ///
    /// `eval` is the JSONL file of held-out prompts; the embedded task brings its own and refuses one. Errors: a name
    /// that is neither, a file that cannot be read, holds no rows, or holds a row without the named `columns`.
    pub fn open(name: &str, eval: Option<&Path>, columns: &Columns, seed: u64) -> Result<Dataset> {
        if [Arithmetic::NAME, Arithmetic::NAME_WITH_SLIPS].contains(&name) {
            ensure!(eval.is_none(), "dataset `{name}` has its own held-out prompts (remove `eval_dataset_name`)");
            let task = if name == Arithmetic::NAME { Arithmetic::new(seed) } else { Arithmetic::with_slips(seed) };
            return Ok(Dataset::Arithmetic(task));
        }
        let path = Path::new(name);
        ensure!(
            path.exists(),
            "no dataset `{name}`: neither an embedded one nor a file (embedded: `{}`; a file must be JSONL)",
            Arithmetic::NAME
        );
        Ok(Dataset::Jsonl(Jsonl::open(path, eval, columns, seed)?))
    }

    /// The training prompt at `cursor`, the number of prompts consumed before it.
    pub fn train(&mut self, cursor: u64) -> Example {
        match self {
            Dataset::Arithmetic(task) => task.train(cursor),
            Dataset::Jsonl(files) => files.train(cursor),
        }
    }

    /// The first `count` held-out prompts, the same for every seed; the first of a longer list are those of a shorter one.
    ///
    /// More than there are, or none at all, is an error.
    pub fn held_out(&self, count: usize) -> Result<Vec<Example>> {
        match self {
            Dataset::Arithmetic(task) => task.held_out(count),
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

    #[test]
    fn names_that_are_no_dataset_say_what_is() {
        let error = Dataset::open("arithmetic", None, &Columns::default(), 0).unwrap_err().to_string();
        assert!(error.contains("`arithmetic`:") && error.contains("`embedded:arithmetic`"), "{error}");
    }

    #[test]
    fn the_embedded_task_refuses_an_eval_file() {
        let error = Dataset::open("embedded:arithmetic", Some(Path::new("eval.jsonl")), &Columns::default(), 0);
        assert!(error.unwrap_err().to_string().contains("its own held-out prompts"));
    }

    #[test]
    fn both_kinds_answer_the_same_questions() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows.jsonl");
        std::fs::write(&path, "{\"prompt\": \"2+2=\", \"answer\": 4}\n").unwrap();
        let mut rows = Dataset::open(path.to_str().unwrap(), Some(&path), &Columns::default(), 0).unwrap();
        let mut task = Dataset::open("embedded:arithmetic", None, &Columns::default(), 0).unwrap();
        assert_eq!(rows.train(5).target(), "4");
        assert_eq!(task.train(5).target(), task.train(5).solution.unwrap());
        assert_eq!(rows.held_out(1).unwrap().len(), 1);
        assert_eq!(task.held_out(3).unwrap().len(), 3);
    }
}
