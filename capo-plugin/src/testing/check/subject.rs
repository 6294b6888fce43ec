//! The component under test: its construction, and inputs for its point.

use serde_json::{Map, Value, json};

use crate::testing::rollout::Row;
use crate::testing::{Fixture, Input, Observed, RolloutFixture, batches};
use crate::{ErrorKind, Image, PluginError, Point, Purpose, Traits};

/// A live component.
pub type Live = Box<dyn Observed>;

/// The component under test.
pub struct Subject<'a> {
    /// The image that offers the component.
    pub image: &'a Image,
    /// The component's extension point.
    pub point: Point,
    /// The component's id.
    pub id: &'a str,
    /// Names of the component's keys.
    pub keys: &'a [String],
    /// The component's table.
    pub table: &'a Map<String, Value>,
    /// Rows for which a reward or an environment sees completions; `None` for built-in rows.
    pub rows: Option<Vec<Row>>,
}

impl Subject<'_> {
    /// Builds the component from its table.
    ///
    /// # Errors
    ///
    /// The component's own message.
    pub fn create(&self) -> Result<Live, PluginError> {
        self.create_from(&self.json())
    }

    /// The component's declarations about its decisions.
    pub(super) fn traits(&self) -> Result<Traits, PluginError> {
        match self.point {
            Point::Mask => Ok(self.image.mask(self.id, &self.json())?.traits()),
            Point::Weight => Ok(self.image.weight(self.id, &self.json())?.traits()),
            _ => Ok(Traits::NONE),
        }
    }

    /// The component's table as JSON text.
    fn json(&self) -> String {
        Value::Object(self.table.clone()).to_string()
    }

    /// The component's table with `key` set to `value`, as JSON text.
    pub(super) fn table_with(&self, key: &str, value: Value) -> String {
        let mut table = self.table.clone();
        table.insert(key.to_owned(), value);
        Value::Object(table).to_string()
    }

    /// Builds the component from JSON text.
    pub(super) fn create_from(&self, json: &str) -> Result<Live, PluginError> {
        let live: Live = match self.point {
            Point::Environment => Box::new(self.image.environment(self.id, json)?),
            Point::Reward => Box::new(self.image.reward(self.id, json)?),
            Point::Advantage => Box::new(self.image.advantage(self.id, json)?),
            Point::Objective => Box::new(self.image.objective(self.id, json)?),
            Point::Mask => Box::new(self.image.mask(self.id, json)?),
            Point::Weight => Box::new(self.image.weight(self.id, json)?),
            Point::StepControl => Box::new(self.image.step_control(self.id, json)?),
        };
        Ok(live)
    }

    /// Message about a component that refuses the given table.
    pub(super) fn needs_keys(&self, error: &PluginError) -> String {
        format!(
            "it refuses its table: {error} (give its keys as `--set {}.KEY=VALUE`)",
            self.id
        )
    }

    /// Values that a user may try for each key; most of them are refused. Each item is
    /// `key = value` and the table with it.
    pub(super) fn guesses(&self) -> impl Iterator<Item = (String, String)> {
        let values = [
            json!(false),
            json!(true),
            json!(0),
            json!(1),
            json!(-1),
            json!(0.5),
            json!(-0.5),
        ];
        let words = ["", "group", "authors", "adam"].map(Value::from);
        let values: Vec<Value> = values.into_iter().chain(words).collect();
        let all = self
            .keys
            .iter()
            .flat_map(move |key| values.clone().into_iter().map(move |value| (key, value)));
        all.map(|(key, value)| (format!("`{key} = {value}`"), self.table_with(key, value)))
    }

    /// The message without the component's name.
    pub(super) fn unnamed(&self, sentence: &str) -> String {
        sentence.replacen(&format!("component `{}`: ", self.id), "", 1)
    }

    /// Reason why a check that needs a working instance cannot run: missing keys, or missing rows
    /// of the right kind.
    pub fn cannot_run(&self) -> Option<String> {
        let sentence = match self.create() {
            Err(error) => self.needs_keys(&error),
            Ok(mut reward) if self.point.sees_text() && self.rows.is_none() => {
                let error = reward.step(&self.stream(0)).err().filter(is_refusal)?;
                format!(
                    "it refuses rows that are made up: {error} (give a dataset of its kind as `--rows FILE`)"
                )
            }
            Ok(_) => return None,
        };
        Some(self.unnamed(&sentence))
    }
}

/// True if a call panicked and the guard contained the panic.
pub(super) fn is_panic(error: &PluginError) -> bool {
    error.kind() == ErrorKind::PANIC
}

/// True if an error is the component's own message, neither a panic nor a broken rule.
pub(super) fn is_refusal(error: &PluginError) -> bool {
    !matches!(error.kind(), ErrorKind::PANIC | ErrorKind::CONTRACT)
}

/// Inputs for the component's point.
impl Subject<'_> {
    /// Step `step` of a stream whose lengths, order and rewards (for a reward: rows and texts)
    /// change from step to step.
    pub fn stream(&self, step: u64) -> Input {
        self.input([step as usize, 2, 4], step, || {
            let mut lengths = [6, 3, 1, 5, 2, 6, 4, 1];
            lengths.rotate_left(step as usize % 8);
            let rewards: Vec<f32> = (0..8)
                .map(|b| ((b * (step + 3)) % 5) as f32 / 4.0)
                .collect();
            let order = [step as usize % 2, 1 - step as usize % 2];
            let mut batch = Fixture::new(8, 6)
                .groups_of(4)
                .rewards(&rewards)
                .lengths(&lengths)
                .regrouped(&order);
            batch.optimizer.steps_taken = step;
            batch
        })
    }

    /// Step `step` of the same stream, sampled on held-out prompts; for rewards.
    pub(super) fn held_out(&self, step: u64) -> Input {
        Input::Rollout(
            self.rows_from([step as usize + 1, 3, 1])
                .step(step)
                .purpose(Purpose::EVALUATION),
        )
    }

    /// Ordinary inputs of many shapes.
    pub fn ordinary(&self) -> Vec<Input> {
        let mut inputs: Vec<Input> = (0..4).map(|step| self.stream(step)).collect();
        if self.point.sees_text() {
            inputs.extend([
                self.groups_of_one(),
                self.one_completion(),
                self.held_out(4),
            ]);
        } else {
            inputs.extend(batches().into_iter().map(|(_, batch)| batch.into()));
            let turns = Fixture::new(4, 6)
                .groups_of(2)
                .lengths(&[6, 5, 6, 4])
                .written_by_others(2..4);
            inputs.push(turns.step(5).into());
        }
        inputs
    }

    /// Four completions, each a group of one.
    pub(super) fn groups_of_one(&self) -> Input {
        self.input([0, 4, 1], 0, || {
            Fixture::new(4, 5).groups_of(1).lengths(&[5, 3, 4, 1])
        })
    }

    pub(super) fn one_completion(&self) -> Input {
        self.input([0, 1, 1], 0, || Fixture::new(1, 7).lengths(&[5]))
    }

    /// Three groups of three, with different rewards and lengths (for a reward: rows and texts) at
    /// every step.
    pub(super) fn three_groups(&self, step: u64) -> Input {
        let (mut rewards, mut lengths) = (
            [1.0, 0.0, 0.25, 0.0, 1.0, 1.0, 0.0, 0.5, 0.75],
            [6, 3, 1, 5, 2, 6, 4, 1, 5],
        );
        rewards.rotate_left(2 * step as usize % 9);
        lengths.rotate_left(step as usize % 9);
        let batch = || {
            Fixture::new(9, 6)
                .groups_of(3)
                .rewards(&rewards)
                .lengths(&lengths)
        };
        self.input([step as usize, 3, 3], step, batch)
    }

    /// Sixteen completions, of 32 tokens each for points that see tokens.
    pub fn usual(&self, step: u64) -> Input {
        self.input([0, 4, 4], step, || Fixture::new(16, 32).groups_of(4))
    }

    pub(super) fn random(&self, seed: u64) -> Input {
        if self.point.sees_text() {
            return Input::Rollout(RolloutFixture::random(seed));
        }
        Fixture::random(seed).into()
    }

    /// Step `step` on `batch`, or on rows `rows` for a reward.
    fn input(&self, rows: [usize; 3], step: u64, batch: impl FnOnce() -> Fixture) -> Input {
        match self.point {
            point if point.sees_text() => Input::Rollout(self.rows_from(rows).step(step)),
            _ => batch().step(step).into(),
        }
    }

    /// Groups of completions for the rows from row `first` on.
    fn rows_from(&self, [first, groups, group]: [usize; 3]) -> RolloutFixture {
        let all = self.rows.clone().unwrap_or_else(made_up_rows);
        let rows = all
            .iter()
            .cycle()
            .skip(first)
            .take(groups)
            .flat_map(|row| std::iter::repeat_n(row, group));
        let completions = rows
            .zip(first..)
            .map(|(row, number)| (row, completion(row, number), number % 5 == 3));
        RolloutFixture::of(group, completions)
    }
}

/// Completion `number` for `row`: correct, wrong, empty or the whole solution.
fn completion(row: &Row, number: usize) -> String {
    match number % 5 {
        0 => format!("1+1={}", row.answer),
        1 => "I do not know".into(),
        2 => row.solution.clone(),
        3 => format!("{}{}", row.prompt, &row.answer),
        _ => String::new(),
    }
}

/// Built-in rows for rewards, where no others are given.
fn made_up_rows() -> Vec<Row> {
    let row = |(a, b, level): (u32, u32, &str)| Row {
        prompt: format!("{a}+{b}="),
        answer: (a + b).to_string(),
        solution: (a + b).to_string(),
        columns: format!("{{\"answer\": {}, \"level\": \"{level}\"}}", a + b),
    };
    [
        (2, 2, "easy"),
        (5, 7, "easy"),
        (480, 77, "hard"),
        (999, 1, "hard"),
        (0, 0, "easy"),
    ]
    .map(row)
    .into()
}
