//! Prompts with known answers, from the embedded arithmetic task or from files.
//!
//! The order of training prompts is a pure function of the run's seed and of the cursor (prompts
//! consumed so far), so a checkpoint needs only the cursor.

mod added_tokens;
mod arithmetic;
mod chat;
mod columns;
mod continuation;
mod exact;
mod example;
pub mod features;
mod files;
mod filter;
pub mod lenient;
mod mixture;
mod pairs;
mod preset;
mod quote;
mod row;
mod row_check;
mod rows;
mod set;
mod special;
mod texts;
mod tokenizer;
mod tokenizer_configs;
mod tokenizer_json;

pub use arithmetic::Arithmetic;
pub use chat::{
    Call, CallFormat, Chat, ChatOptions, Date, Messages, Reply, TEMPLATE_FILE, TOOL_USE_FILE, Tool,
    Turns, Unmade, serve as apply_chat_template,
};
pub use columns::Columns;
pub use example::{Example, Row, fingerprint};
pub use files::read as read_rows;
pub use files::{Wanted, find};
pub use filter::Filter;
pub use pairs::{Limits, Pair, Pairs};
pub use preset::Preset;
pub use row::{PROMPT, Reading};
pub use row_check::{Demands, OnBadRow, Purpose};
pub use rows::{Order, Rows};
pub use set::{Source, examples, rows};
pub use texts::{Texts, same_tokens};
pub use tokenizer::{Tokenizer, with_eos_token};
pub use tokenizer_configs::TokenizerConfigs;

use anyhow::Result;

/// Training prompts and held-out prompts.
#[derive(Clone, Debug)]
pub enum Dataset {
    /// Three-digit addition, embedded and endless. The chat template, if any, formats its prompts
    /// as conversations.
    Arithmetic(Arithmetic, Option<Chat>),
    /// Rows from files.
    Rows(Rows),
}

impl Dataset {
    /// The embedded task called `name`, with its training order drawn from `seed`; `None` if there
    /// is no such task.
    pub fn embedded(name: &str, seed: u64, demands: &Demands<'_>) -> Result<Option<Self>> {
        let Some(task) = Arithmetic::named(name, seed) else {
            return Ok(None);
        };
        task.check(demands)?;
        Ok(Some(Dataset::Arithmetic(task, demands.chat.cloned())))
    }

    /// The training prompt at `cursor`, the number of prompts consumed before it.
    pub fn train(&mut self, cursor: u64) -> Result<Example> {
        match self {
            Dataset::Arithmetic(task, chat) => task.train(cursor).in_chat(chat.as_ref()),
            Dataset::Rows(rows) => rows.train(cursor),
        }
    }

    /// Description of the dataset: its name, with numbers of rows if it is in files.
    pub fn describe(&self) -> String {
        match self {
            Dataset::Arithmetic(task, _) => task.name().to_owned(),
            Dataset::Rows(rows) => rows.describe(),
        }
    }

    /// Hash of the training rows that are used, with their formatted prompts; `None` for generated
    /// prompts.
    pub fn fingerprint(&self) -> Option<&str> {
        match self {
            Dataset::Arithmetic(..) => None,
            Dataset::Rows(rows) => Some(rows.fingerprint()),
        }
    }

    /// The first `count` held-out prompts, equal for every seed; a longer list begins with a
    /// shorter one.
    ///
    /// It is an error if fewer exist, or none.
    pub fn held_out(&self, count: usize) -> Result<Vec<Example>> {
        match self {
            Dataset::Arithmetic(task, chat) => task
                .held_out(count)?
                .into_iter()
                .map(|example| example.in_chat(chat.as_ref()))
                .collect(),
            Dataset::Rows(rows) => rows.held_out(count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Demands that any text within the embedded tokenizer's vocabulary meets.
    pub(super) fn demands(tokenizer: &Tokenizer) -> Demands<'_> {
        Demands {
            tokenizer,
            chat: None,
            vocab_size: tokenizer.vocab_size(),
            max_prompt_length: 16,
            positions: 64,
            filter_overlong_prompts: false,
            on_bad_row: OnBadRow::Error,
            purpose: Purpose::Training,
        }
    }

    #[test]
    fn names_of_embedded_tasks_are_known() {
        let tokenizer = Tokenizer::tiny_arithmetic().unwrap();
        let open = |name: &str| Dataset::embedded(name, 0, &demands(&tokenizer)).unwrap();
        assert!(open("arithmetic").is_none());
        for name in Arithmetic::NAMES {
            let mut task = open(name).unwrap();
            assert_eq!(task.describe(), name);
            assert_eq!(
                task.train(5).unwrap().target(),
                task.train(5).unwrap().solution.unwrap()
            );
            assert_eq!(
                (task.held_out(3).unwrap().len(), task.fingerprint()),
                (3, None)
            );
        }
    }

    #[test]
    fn the_embedded_task_meets_demands_as_well() {
        let tokenizer = Tokenizer::tiny_arithmetic().unwrap();
        let demands = Demands {
            max_prompt_length: 7,
            ..demands(&tokenizer)
        };
        let error = Dataset::embedded("embedded:arithmetic", 0, &demands).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("a prompt has 8 tokens, `data.max_prompt_length` is 7"),
            "{error}"
        );
    }
}
