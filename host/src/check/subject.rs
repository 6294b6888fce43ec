//! Which component is under test: how it is built, and the inputs for its point.

use capo_plugin::testing::{Fixture, RolloutFixture, batches};
use capo_plugin::{Image, MaskTraits, OptimizerInfo, PluginError, Point, Purpose};
use serde_json::json;

use super::input::Input;
use super::instance::Instance;
use crate::data::Example;

/// Which component is under test.
pub struct Subject<'a> {
    /// The image that offers it.
    pub image: &'a Image,
    /// Its extension point.
    pub point: Point,
    /// Its id.
    pub id: &'a str,
    /// Its keys.
    pub keys: &'a [String],
    /// Its table.
    pub table: &'a serde_json::Map<String, serde_json::Value>,
    /// Rows of which a reward sees completions.
    pub rows: &'a [Example],
    /// Threads of this process before the library was loaded.
    pub threads: usize,
}

impl Subject<'_> {
    /// Builds it from its table.
    ///
    /// # Errors
    ///
    /// The component's own sentence.
    pub fn create(&self) -> Result<Instance, PluginError> {
        self.create_from(&self.json())
    }

    /// What it declares of its decisions.
    ///
    /// # Errors
    ///
    /// The component's own sentence.
    pub fn traits(&self) -> Result<MaskTraits, PluginError> {
        self.image.mask_traits(self.point, self.id, &self.json())
    }

    /// Its table as JSON text.
    fn json(&self) -> String {
        serde_json::Value::Object(self.table.clone()).to_string()
    }

    /// Its table with one entry more, or another value for one, as JSON text.
    #[must_use]
    pub fn table_with(&self, key: &str, value: serde_json::Value) -> String {
        let mut table = self.table.clone();
        table.insert(key.to_owned(), value);
        serde_json::Value::Object(table).to_string()
    }

    /// Builds it from JSON text.
    ///
    /// # Errors
    ///
    /// The component's own sentence.
    pub fn create_from(&self, json: &str) -> Result<Instance, PluginError> {
        match self.point {
            Point::Reward => self.image.reward(self.id, json).map(Instance::Reward),
            Point::Advantage => self.image.advantage(self.id, json).map(Instance::Advantage),
            Point::Objective => self.image.objective(self.id, json).map(Instance::Objective),
            Point::Mask => self.image.mask(self.id, json).map(Instance::Mask),
            Point::Weight => self.image.weight(self.id, json).map(Instance::Weight),
            Point::StepControl => self.image.step_control(self.id, json).map(Instance::StepControl),
        }
    }
}

/// The component's table with another value for one key, as text.
pub struct Guess {
    key: String,
    value: serde_json::Value,
    /// The table.
    pub json: String,
}

impl Guess {
    /// `key = value`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("`{} = {}`", self.key, self.value)
    }
}

impl Subject<'_> {
    /// Values that a person may try, for each key; most of them are refused.
    pub fn guesses(&self) -> impl Iterator<Item = Guess> {
        let values = [
            json!(false),
            json!(true),
            json!(0),
            json!(1),
            json!(-1),
            json!(0.5),
            json!(-0.5),
            json!(""),
            json!("group"),
            json!("authors"),
            json!("adam"),
        ];
        let guess = |key: &String, value: serde_json::Value| Guess {
            key: key.clone(),
            json: self.table_with(key, value.clone()),
            value,
        };
        self.keys.iter().flat_map(move |key| values.clone().into_iter().map(move |value| guess(key, value)))
    }
}

/// Inputs for the component's point.
impl Subject<'_> {
    /// Step `step` of a stream whose lengths, order and rewards (for a reward: rows and texts) change from step to step.
    #[must_use]
    pub fn stream(&self, step: u64) -> Input {
        if self.point == Point::Reward {
            return self.rows_from(step as usize, 2, 4, step);
        }
        let mut lengths = [6, 3, 1, 5, 2, 6, 4, 1];
        lengths.rotate_left(step as usize % 8);
        let rewards: Vec<f32> = (0..8).map(|b| ((b * (step + 3)) % 5) as f32 / 4.0).collect();
        let order = [step as usize % 2, 1 - step as usize % 2];
        let batch = Fixture::new(8, 6).groups_of(4).rewards(&rewards).lengths(&lengths).regrouped(&order).step(step);
        let optimizer = OptimizerInfo { steps_taken: step, ..batch.batch().optimizer };
        batch.optimizer(optimizer).into()
    }

    /// Step `step` of the same stream, sampled on held-out prompts: for rewards.
    #[must_use]
    pub fn held_out(&self, step: u64) -> Input {
        match self.rows_from(step as usize + 1, 3, 1, step) {
            Input::Rollout(rollout) => Input::Rollout(rollout.purpose(Purpose::EVALUATION)),
            batch @ Input::Batch(_) => batch,
        }
    }

    /// Ordinary inputs of many shapes.
    #[must_use]
    pub fn ordinary(&self) -> Vec<Input> {
        let mut inputs: Vec<Input> = (0..4).map(|step| self.stream(step)).collect();
        if self.point == Point::Reward {
            inputs.extend([self.groups_of_one(), self.one_completion(), self.held_out(4)]);
        } else {
            inputs.extend(batches().into_iter().map(|(_, batch)| batch.into()));
        }
        inputs
    }

    /// Four completions, each a group.
    #[must_use]
    pub fn groups_of_one(&self) -> Input {
        if self.point == Point::Reward {
            return self.rows_from(0, 4, 1, 0);
        }
        Fixture::new(4, 5).groups_of(1).lengths(&[5, 3, 4, 1]).into()
    }

    /// One completion.
    #[must_use]
    pub fn one_completion(&self) -> Input {
        if self.point == Point::Reward {
            return self.rows_from(0, 1, 1, 0);
        }
        Fixture::new(1, 7).lengths(&[5]).into()
    }

    /// Three groups of three, with other rewards and lengths (for a reward: rows and texts) at every step.
    #[must_use]
    pub fn three_groups(&self, step: u64) -> Input {
        if self.point == Point::Reward {
            return self.rows_from(step as usize, 3, 3, step);
        }
        let (mut rewards, mut lengths) = ([1.0, 0.0, 0.25, 0.0, 1.0, 1.0, 0.0, 0.5, 0.75], [6, 3, 1, 5, 2, 6, 4, 1, 5]);
        rewards.rotate_left(2 * step as usize % 9);
        lengths.rotate_left(step as usize % 9);
        Fixture::new(9, 6).groups_of(3).rewards(&rewards).lengths(&lengths).step(step).into()
    }

    /// Sixteen completions, of 32 tokens each where tokens are seen.
    #[must_use]
    pub fn usual(&self, step: u64) -> Input {
        if self.point == Point::Reward {
            return self.rows_from(0, 4, 4, step);
        }
        Fixture::new(16, 32).groups_of(4).step(step).into()
    }

    /// One drawn from `seed`.
    #[must_use]
    pub fn random(&self, seed: u64) -> Input {
        if self.point == Point::Reward {
            return Input::Rollout(RolloutFixture::random(seed));
        }
        Fixture::random(seed).into()
    }

    /// Groups of completions of the rows from row `first` on, at step `step`.
    fn rows_from(&self, first: usize, groups: usize, group: usize, step: u64) -> Input {
        let rows: Vec<&Example> = self.rows.iter().cycle().skip(first).take(groups).collect();
        let rows: Vec<&Example> = rows.into_iter().flat_map(|row| std::iter::repeat_n(row, group)).collect();
        let texts: Vec<String> = rows.iter().zip(first..).map(|(row, number)| completion(row, number)).collect();
        let each = |pick: fn(&Example) -> &str| rows.iter().map(|row| pick(row)).collect::<Vec<_>>();
        let rollout = RolloutFixture::new(&texts.iter().map(String::as_str).collect::<Vec<_>>())
            .groups_of(group)
            .prompts(&each(|row| &row.prompt))
            .answers(&each(|row| &row.answer))
            .columns(&each(|row| &row.columns))
            .truncated(&(0..rows.len()).map(|b| (b + first) % 5 == 3).collect::<Vec<_>>());
        Input::Rollout(rollout.step(step))
    }
}

/// A completion of `row`: right, wrong, empty or the whole solution, by its number.
fn completion(row: &Example, number: usize) -> String {
    match number % 5 {
        0 => format!("1+1={}", row.answer),
        1 => "I do not know".into(),
        2 => row.target().to_owned(),
        3 => format!("{}{}", row.prompt, &row.answer),
        _ => String::new(),
    }
}

/// The rows of which rewards see completions, where no others are given.
#[must_use]
pub fn made_up_rows() -> Vec<Example> {
    let row = |(a, b, level): (u32, u32, &str)| Example {
        prompt: format!("{a}+{b}="),
        answer: (a + b).to_string(),
        solution: None,
        reply: None,
        columns: format!("{{\"answer\": {}, \"level\": \"{level}\"}}", a + b),
        row: None,
    };
    [(2, 2, "easy"), (5, 7, "easy"), (480, 77, "hard"), (999, 1, "hard"), (0, 0, "easy")].map(row).into()
}
