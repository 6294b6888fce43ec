//! Prompts from files, and the order of their rows.

use anyhow::{Result, bail};
use sha2::{Digest, Sha256};

use super::example::{Example, ensure_available, hex};
use super::mixture::Mixture;
use super::row_check::{Demands, Purpose};
use super::set::{Set, Source};

/// Settings for the order of training rows.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// Seed of the order, and of the choice of rows.
    pub seed: u64,
    /// True if each epoch has its own random order; otherwise rows have the order of their files.
    pub shuffle: bool,
    /// Largest number of rows of each dataset, drawn by the seed; 0 is all.
    pub max_train_samples: usize,
}

/// The rows of training data and of an optional dataset of held-out prompts, in memory.
#[derive(Clone, Debug)]
pub struct Rows {
    train: Vec<Set>,
    eval: Option<Set>,
    order: Order,
    /// Draws among weighted datasets; without weights, datasets follow one another.
    mixture: Option<Mixture>,
    /// The newest epoch and its order of rows: one entry per weighted dataset, or one for all
    /// datasets together.
    orders: Vec<(u64, Vec<usize>)>,
    fingerprint: String,
}

impl Rows {
    /// Reads all files whole. Rows are checked now, or, if that would take long, while training
    /// goes on.
    ///
    /// Errors name the file, the row and the column.
    pub fn open(
        train: &[Source],
        eval: Option<&Source>,
        order: Order,
        demands: &Demands<'_>,
    ) -> Result<Self> {
        let weights: Option<Vec<f64>> = train.iter().map(|source| source.weight).collect();
        let mixture = weights
            .map(|weights| Mixture::new(&weights, order.seed))
            .transpose()?;
        let mut sets = train
            .iter()
            .map(|source| Set::read(source, demands))
            .collect::<Result<Vec<_>>>()?;
        for (index, set) in sets.iter_mut().enumerate() {
            if demands.purpose != Purpose::Measuring {
                set.check(demands, demands.purpose == Purpose::Teaching)?;
            }
            set.sample(order.max_train_samples, order.seed, index);
        }
        let mut eval = eval.map(|source| Set::read(source, demands)).transpose()?;
        if let Some(eval) = &mut eval {
            eval.check(demands, false)?;
        }
        let mut hash = Sha256::new();
        sets.iter().for_each(|set| set.digest(&mut hash));
        // A run that began without these tokens must not continue with them unnoticed.
        demands
            .tokenizer
            .begin()
            .iter()
            .for_each(|id| hash.update(id.to_le_bytes()));
        let fingerprint = hex(hash);
        let mut rows = Rows {
            train: sets,
            eval,
            order,
            mixture,
            orders: Vec::new(),
            fingerprint,
        };
        let orders = if rows.mixture.is_some() {
            rows.train.len()
        } else {
            1
        };
        rows.orders = (0..orders).map(|index| (0, rows.epoch(index, 0))).collect();
        Ok(rows)
    }

    /// The prompt at `cursor`: each epoch visits all rows once, in its own random order. It depends
    /// only on the seed and the usable rows, not on other rows of the files.
    pub fn train(&mut self, cursor: u64) -> Result<Example> {
        self.train.iter().try_for_each(Set::check_finding)?;
        let (index, cursor) = self
            .mixture
            .as_mut()
            .map_or((0, cursor), |mixture| mixture.at(cursor));
        let count = self.count(index) as u64;
        let epoch = cursor / count;
        if self.orders[index].0 != epoch {
            self.orders[index] = (epoch, self.epoch(index, epoch));
        }
        let row = self.orders[index].1[(cursor % count) as usize];
        Ok(self.row(index, row).clone())
    }

    /// Number of rows that share one order: those of a weighted dataset, or all rows.
    fn count(&self, index: usize) -> usize {
        match self.mixture {
            Some(_) => self.train[index].rows.len(),
            None => self.train.iter().map(|set| set.rows.len()).sum(),
        }
    }

    fn row(&self, index: usize, mut row: usize) -> &Example {
        if self.mixture.is_some() {
            return &self.train[index].rows[row];
        }
        let mut sets = self.train.iter();
        loop {
            // An order has no index beyond the last row.
            let rows = sets.next().map_or(&[][..], |set| &set.rows[..]);
            match rows.get(row) {
                Some(found) => return found,
                None => row -= rows.len(),
            }
        }
    }

    fn epoch(&self, index: usize, epoch: u64) -> Vec<usize> {
        let seed = self.order.seed;
        let rows = self.count(index);
        if !self.order.shuffle {
            return (0..rows).collect();
        }
        let mut rng = match self.mixture {
            Some(_) => host_rng::stream(seed, "data.order.of", &[index as u64, epoch]),
            None => host_rng::stream(seed, "data.order", &[epoch]),
        };
        host_rng::permutation(&mut rng, rows)
    }

    /// Hash of the training rows that are used.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The first `count` held-out rows; it is an error if there are fewer, or none.
    pub fn held_out(&self, count: usize) -> Result<Vec<Example>> {
        let Some(eval) = &self.eval else {
            bail!(
                "dataset `{}` has no held-out prompts \
                 (set `eval_dataset_name`, or `num_prompts` of `[eval]` to 0)",
                self.train.first().map_or("", |set| &set.name)
            );
        };
        ensure_available(&format!("`{}`", eval.name), eval.rows.len(), count)?;
        Ok(eval.rows[..count].to_vec())
    }

    /// Description of the datasets: their numbers of rows, and the rows that were left out.
    pub(super) fn describe(&self) -> String {
        let sets = self
            .train
            .iter()
            .chain(self.eval.as_ref().filter(|eval| eval.has_left_out()));
        sets.map(Set::describe).collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ops::Range;
    use std::path::PathBuf;

    use tempfile::TempDir;

    use super::super::{OnBadRow, Reading, Tokenizer, TokenizerConfigs};
    use super::*;

    const SHUFFLED: Order = Order {
        seed: 3,
        shuffle: true,
        max_train_samples: 0,
    };

    fn source(path: PathBuf) -> Source {
        Source {
            name: path.display().to_string(),
            files: vec![path],
            reading: Reading::default(),
            weight: None,
        }
    }

    /// Files with these texts, which are called `a.jsonl`, `b.jsonl` and so on.
    fn files(texts: &[&str]) -> (TempDir, Vec<Source>) {
        let directory = tempfile::tempdir().unwrap();
        let file = |(letter, text): (char, &&str)| {
            let path = directory.path().join(format!("{letter}.jsonl"));
            std::fs::write(&path, text).unwrap();
            source(path)
        };
        let sources = ('a'..).zip(texts).map(file).collect();
        (directory, sources)
    }

    /// Rows whose prompts are `letter` with a number, and whose answers are the numbers.
    fn numbered(letter: char, rows: impl IntoIterator<Item = usize>) -> String {
        rows.into_iter()
            .map(|row| format!("{{\"prompt\": \"{letter}{row}\", \"answer\": {row}}}\n"))
            .collect()
    }

    /// Opens files with a tokenizer that has one id for all unknown text.
    fn open(
        train: &[Source],
        eval: Option<&Source>,
        order: Order,
        on_bad_row: OnBadRow,
    ) -> Result<Rows> {
        let json = r#"{"model": {"type": "WordLevel", "vocab": {"<unk>": 0, "<eos>": 1}, "unk_token": "<unk>"}}"#;
        let configs = TokenizerConfigs {
            tokenizer: serde_json::json!({"eos_token": "<eos>"}),
            ..Default::default()
        };
        let tokenizer = Tokenizer::from_bytes(json.as_bytes(), &configs).unwrap();
        let demands = Demands {
            on_bad_row,
            ..super::super::tests::demands(&tokenizer)
        };
        Rows::open(train, eval, order, &demands)
    }

    fn opened(train: &[Source], order: Order) -> Rows {
        open(train, None, order, OnBadRow::Error).unwrap()
    }

    fn prompts(rows: &mut Rows, cursors: Range<u64>) -> Vec<String> {
        cursors
            .map(|cursor| rows.train(cursor).unwrap().prompt)
            .collect()
    }

    /// The whole error chain about a file, without its directory.
    fn error(text: &str, on_bad_row: OnBadRow) -> String {
        let (directory, sources) = files(&[text]);
        let error = open(&sources, None, SHUFFLED, on_bad_row).unwrap_err();
        format!("{error:#}").replace(&format!("{}/", directory.path().display()), "")
    }

    #[test]
    fn errors_name_bad_rows_and_files() {
        let cases = include_str!("../tests/data/rows/bad.jsonl").lines();
        for (text, expected) in
            cases.map(|case| serde_json::from_str::<(String, String)>(case).unwrap())
        {
            let said = error(&text, OnBadRow::Error);
            assert_eq!(
                said.replace(" (mend it, or set `data.on_bad_row` to `skip`)", ""),
                expected
            );
        }
        let absent = open(
            &[source("absent.jsonl".into())],
            None,
            SHUFFLED,
            OnBadRow::Error,
        )
        .unwrap_err();
        assert_eq!(absent.to_string(), "cannot read `absent.jsonl`");
    }

    #[test]
    fn a_row_may_lack_an_answer_that_nobody_reads() {
        let texts = [
            "{\"prompt\": \"p\"}",
            "{\"prompt\": \"p\", \"answer\": null}",
            "{\"prompt\": \"p\", \"answer\": [1], \"solution\": true}",
        ];
        let (_directory, mut sources) = files(&[&(texts.join("\n") + "\n" + &numbered('p', 7..8))]);
        open(&sources, None, SHUFFLED, OnBadRow::Error).unwrap_err();
        sources[0].reading.answer_is_unread = true;
        let mut rows = opened(
            &sources,
            Order {
                shuffle: false,
                ..SHUFFLED
            },
        );
        let answers: Vec<String> = (0..4)
            .map(|cursor| rows.train(cursor).unwrap().answer)
            .collect();
        assert_eq!(answers, ["", "", "", "7"]);
        assert!(
            rows.describe().ends_with("(4 rows, 3 without an answer)"),
            "{}",
            rows.describe()
        );
    }

    #[test]
    fn a_file_without_usable_rows_is_an_error() {
        let said = [
            error("\n \n", OnBadRow::Error),
            error("{}\n[]\n", OnBadRow::Skip),
        ];
        let expected = [
            "`a.jsonl` holds no rows (give it at least one)",
            "`a.jsonl` holds no rows but 2 bad ones (set `data.on_bad_row` to `error`, which says what is wrong)",
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn every_epoch_has_all_rows_in_a_new_order() {
        let (_directory, sources) = files(&[&numbered('p', 0..20)]);
        let mut rows = opened(&sources, SHUFFLED);
        let (first, second) = (prompts(&mut rows, 0..20), prompts(&mut rows, 20..40));
        assert_ne!(first, second);
        assert_eq!(
            first,
            prompts(&mut rows, 0..20),
            "going back must give the same order"
        );
        for order in [first, second] {
            assert_eq!(order.into_iter().collect::<BTreeSet<_>>().len(), 20);
        }
        let far = 20_000_007..20_000_008;
        assert_eq!(
            prompts(&mut rows, far.clone()),
            prompts(&mut opened(&sources, SHUFFLED), far)
        );
    }

    #[test]
    fn held_out_rows_come_from_the_eval_file_alone() {
        let (_directory, sources) = files(&[&numbered('t', 0..1), &numbered('e', 0..2)]);
        let rows = open(&sources[..1], Some(&sources[1]), SHUFFLED, OnBadRow::Error).unwrap();
        assert_eq!(rows.held_out(1).unwrap()[0].prompt, "e0");
        let few = rows.held_out(3).unwrap_err().to_string();
        let most =
            "has 2 held-out prompts, 3 were asked for (set `num_prompts` of `[eval]` to at most 2)";
        assert!(few.ends_with(most), "{few}");
        let none = opened(&sources[..1], SHUFFLED)
            .held_out(1)
            .unwrap_err()
            .to_string();
        let set =
            "has no held-out prompts (set `eval_dataset_name`, or `num_prompts` of `[eval]` to 0)";
        assert!(none.ends_with(set), "{none}");
    }

    #[test]
    fn skipped_rows_do_not_change_the_order() {
        // Every third line is bad, in one of three ways.
        let bad = ["{\"prompt\": \"p\"}\n", "no json\n", "[]\n"];
        let line = |i: usize| {
            if i % 3 == 2 {
                bad[i / 3 % 3].to_owned()
            } else {
                numbered('p', [i])
            }
        };
        let mixed: String = (0..24).map(line).collect();
        let (_directory, sources) =
            files(&[&mixed, &numbered('p', (0..24).filter(|i| i % 3 != 2))]);
        let skip = |source: &Source| {
            open(std::slice::from_ref(source), None, SHUFFLED, OnBadRow::Skip).unwrap()
        };
        let (mut mixed, mut good) = (skip(&sources[0]), skip(&sources[1]));
        for cursor in [0, 1, 2, 15, 16, 31, 100] {
            let (a, b) = (mixed.train(cursor).unwrap(), good.train(cursor).unwrap());
            assert_eq!((a.prompt, a.answer), (b.prompt, b.answer));
        }
        assert!(
            mixed
                .describe()
                .ends_with("a.jsonl (16 rows, 8 skipped: line 3, 6, 9, 12, 15, ...)"),
            "{mixed:?}"
        );
        assert!(good.describe().ends_with("b.jsonl (16 rows)"), "{good:?}");
    }

    #[test]
    fn the_next_prompt_reports_a_bad_row_found_in_the_background() {
        let (_directory, sources) = files(&[&numbered('p', 0..1)]);
        let mut rows = opened(&sources, SHUFFLED);
        let finding = rows.train[0].find_later();
        rows.train(0).unwrap();
        finding.set("bad row at line 9".into()).unwrap();
        assert_eq!(rows.train(1).unwrap_err().to_string(), "bad row at line 9");
    }

    #[test]
    fn unshuffled_rows_have_the_order_of_their_files() {
        let (_directory, sources) = files(&[&numbered('a', 0..3), &numbered('b', 0..2)]);
        let mut rows = opened(
            &sources,
            Order {
                shuffle: false,
                ..SHUFFLED
            },
        );
        assert_eq!(
            prompts(&mut rows, 0..7),
            ["a0", "a1", "a2", "b0", "b1", "a0", "a1"]
        );
    }

    #[test]
    fn datasets_without_weights_are_one_dataset() {
        let (a, b) = (numbered('a', 0..30), numbered('b', 0..20));
        let (_directory, sources) = files(&[&a, &b, &format!("{a}{b}")]);
        let (mut two, mut one) = (
            opened(&sources[..2], SHUFFLED),
            opened(&sources[2..], SHUFFLED),
        );
        assert_eq!(prompts(&mut two, 0..120), prompts(&mut one, 0..120));
        assert_eq!(two.fingerprint(), one.fingerprint());
    }

    #[test]
    fn weighted_datasets_have_epochs_of_their_own() {
        let (_directory, mut sources) = files(&[&numbered('a', 0..10), &numbered('b', 0..40)]);
        (sources[0].weight, sources[1].weight) = (Some(3.0), Some(1.0));
        let all = prompts(&mut opened(&sources, SHUFFLED), 0..160);
        let of = |letter: char| {
            all.iter()
                .filter(|prompt| prompt.starts_with(letter))
                .collect::<Vec<_>>()
        };
        assert!((100..140).contains(&of('a').len()), "{}", of('a').len());
        for epoch in of('a')
            .chunks_exact(10)
            .chain(of('b')[..of('b').len().min(40)].chunks(40))
        {
            assert_eq!(
                epoch.iter().collect::<BTreeSet<_>>().len(),
                epoch.len(),
                "an epoch passes once over its rows"
            );
        }
        let again = prompts(&mut opened(&sources, SHUFFLED), 100..160);
        assert_eq!(again, all[100..], "the order is one of the cursor alone");
    }

    #[test]
    fn draws_a_sample_by_the_seed() {
        let (_directory, sources) = files(&[&numbered('a', 0..50)]);
        let drawn = |seed: u64| {
            let mut rows = opened(
                &sources,
                Order {
                    seed,
                    max_train_samples: 10,
                    ..SHUFFLED
                },
            );
            assert!(
                rows.describe().ends_with("(10 rows, 40 not sampled)"),
                "{}",
                rows.describe()
            );
            let prompts: BTreeSet<String> = prompts(&mut rows, 0..10).into_iter().collect();
            assert_eq!(prompts.len(), 10);
            prompts
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
    }

    #[test]
    fn the_fingerprint_depends_on_what_rows_say() {
        let print = |text: &str| opened(&files(&[text]).1, SHUFFLED).fingerprint().to_owned();
        let row = r#"{"prompt": "p", "answer": "a", "level": 1}"#;
        assert_eq!(print(row), print(&row.replace(", ", ",   ")));
        for other in [
            row.replace("\"p\"", "\"q\""),
            row.replace("\"a\"", "\"b\""),
            row.replace('1', "2"),
            format!("{row}\n{row}"),
        ] {
            assert_ne!(print(row), print(&other), "{other}");
        }
    }
}
