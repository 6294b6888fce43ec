//! Prompts from files, and the order of their rows.

use anyhow::{Result, bail};
use host_ops::rng;
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
    /// The newest epoch and its order of rows: one entry per weighted dataset, or one for all datasets together.
    orders: Vec<(u64, Vec<usize>)>,
    fingerprint: String,
}

impl Rows {
    /// Reads all files whole. Rows are checked now, or, if that would take long, while training goes on.
    ///
    /// Errors name the file, the row and the column.
    pub fn open(train: &[Source], eval: Option<&Source>, order: Order, demands: &Demands<'_>) -> Result<Self> {
        let weights: Option<Vec<f64>> = train.iter().map(|source| source.weight).collect();
        let mixture = weights.map(|weights| Mixture::new(&weights, order.seed)).transpose()?;
        let mut sets = train.iter().map(|source| Set::read(source, demands)).collect::<Result<Vec<_>>>()?;
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
        let fingerprint = hex(hash);
        let mut rows = Rows { train: sets, eval, order, mixture, orders: Vec::new(), fingerprint };
        let orders = if rows.mixture.is_some() { rows.train.len() } else { 1 };
        rows.orders = (0..orders).map(|index| (0, rows.epoch(index, 0))).collect();
        Ok(rows)
    }

    /// The prompt at `cursor`: each epoch visits all rows once, in its own random order. It depends only on the seed and the usable
    /// rows, not on other rows of the files.
    pub fn train(&mut self, cursor: u64) -> Result<Example> {
        self.train.iter().try_for_each(Set::check_finding)?;
        let (index, cursor) = self.mixture.as_mut().map_or((0, cursor), |mixture| mixture.at(cursor));
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

    /// The order of rows in an epoch.
    fn epoch(&self, index: usize, epoch: u64) -> Vec<usize> {
        let (seed, rows) = (self.order.seed, self.count(index));
        if !self.order.shuffle {
            return (0..rows).collect();
        }
        let mut rng = match self.mixture {
            Some(_) => rng::stream(seed, "data.order.of", &[index as u64, epoch]),
            None => rng::stream(seed, "data.order", &[epoch]),
        };
        rng::permutation(&mut rng, rows)
    }

    /// Hash of the training rows that are used.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The first `count` held-out rows; it is an error if there are fewer, or none.
    pub fn held_out(&self, count: usize) -> Result<Vec<Example>> {
        let Some(eval) = &self.eval else {
            bail!(
                "dataset `{}` has no held-out prompts (set `eval_dataset_name`, or `num_prompts` of `[eval]` to 0)",
                self.train.first().map_or("", |set| &set.name)
            );
        };
        ensure_available(&format!("`{}`", eval.name), eval.rows.len(), count)?;
        Ok(eval.rows[..count].to_vec())
    }

    /// Description of the datasets: their numbers of rows, and the rows that were left out.
    pub(super) fn describe(&self) -> String {
        let sets = self.train.iter().chain(self.eval.as_ref().filter(|eval| eval.has_left_out()));
        sets.map(Set::describe).collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::super::{OnBadRow, Reading, Tokenizer, TokenizerConfigs};
    use super::*;

    fn open(text: &str) -> Result<Rows> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows.jsonl");
        std::fs::write(&path, text).unwrap();
        open_files(&path, None, 3, OnBadRow::Error)
    }

    fn source(path: &Path, weight: Option<f64>) -> Source {
        let (name, files) = (path.display().to_string(), vec![path.to_owned()]);
        Source { name, files, reading: Reading::default(), weight }
    }

    /// Opens files with a tokenizer that accepts text outside the embedded vocabulary.
    fn open_files(train: &Path, eval: Option<&Path>, seed: u64, on_bad_row: OnBadRow) -> Result<Rows> {
        let eval = eval.map(|path| source(path, None));
        open_sources(&[source(train, None)], eval.as_ref(), order(seed), on_bad_row)
    }

    fn order(seed: u64) -> Order {
        Order { seed, shuffle: true, max_train_samples: 0 }
    }

    fn open_sources(train: &[Source], eval: Option<&Source>, order: Order, on_bad_row: OnBadRow) -> Result<Rows> {
        let tokenizer = any_text();
        let demands = Demands { on_bad_row, ..super::super::tests::demands(&tokenizer) };
        Rows::open(train, eval, order, &demands)
    }

    /// Files with these numbers of rows, whose prompts begin with `a`, `b` and so on.
    fn files(counts: &[usize]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let directory = tempfile::tempdir().unwrap();
        let file = |(index, count): (usize, &usize)| {
            let letter = char::from(b'a' + index as u8);
            let path = directory.path().join(format!("{letter}.jsonl"));
            let row = |row| format!("{{\"prompt\": \"{letter}{row}\", \"answer\": {row}}}\n");
            std::fs::write(&path, (0..*count).map(row).collect::<String>()).unwrap();
            path
        };
        let paths = counts.iter().enumerate().map(file).collect();
        (directory, paths)
    }

    fn prompts(rows: &mut Rows, cursors: std::ops::Range<u64>) -> Vec<String> {
        cursors.map(|cursor| rows.train(cursor).unwrap().prompt).collect()
    }

    /// A tokenizer with one id for all unknown text.
    fn any_text() -> Tokenizer {
        let json = r#"{"model": {"type": "WordLevel", "vocab": {"<unk>": 0, "<eos>": 1}, "unk_token": "<unk>"}}"#;
        let configs = TokenizerConfigs { tokenizer: serde_json::json!({"eos_token": "<eos>"}), ..Default::default() };
        Tokenizer::from_bytes(json.as_bytes(), &configs).unwrap()
    }

    /// The whole error chain, without the directory.
    fn error(text: &str) -> String {
        let error = format!("{:#}", open(text).unwrap_err());
        let (before, after) = error.split_once('`').unwrap();
        format!("{before}`{}", &after[after.find("rows.jsonl").unwrap()..])
    }

    #[test]
    fn bad_rows_are_named_by_line() {
        let good = "{\"prompt\": \"p\", \"answer\": \"a\"}\n\n";
        for (row, expected) in [
            ("{\"prompt\": \"p\"}", "no column `answer` (columns of this row: `prompt`)"),
            ("{\"promt\": 1, \"answer\": 2}", "no column `prompt` (columns of this row: `answer`, `promt`)"),
            ("[1]", "expected a JSON object, found a list"),
            ("{\"prompt\": [\"p\"]}", "column `prompt` is a list, expected text (write it as one string)"),
            ("{\"prompt\": \" \"}", "column `prompt` is empty (remove the row or fill it in)"),
            ("{\"prompt\": ", "not valid JSON: EOF while parsing a value at line 1 column 11"),
        ] {
            assert_eq!(
                error(&format!("{good}{row}")),
                format!("bad row at line 3 of `rows.jsonl` (mend it, or set `data.on_bad_row` to `skip`): {expected}")
            );
        }
        let broken = open_files(Path::new("absent.jsonl"), None, 0, OnBadRow::Error).unwrap_err().to_string();
        assert_eq!(broken, "cannot read `absent.jsonl`");
    }

    #[test]
    fn a_file_without_rows_is_an_error() {
        assert_eq!(error("\n \n"), "`rows.jsonl` holds no rows (expected one JSON object per line)");
    }

    #[test]
    fn every_epoch_passes_once_over_all_rows_in_a_new_order() {
        let text: String = (0..20).map(|row| format!("{{\"prompt\": \"p{row}\", \"answer\": {row}}}\n")).collect();
        let mut rows = open(&text).unwrap();
        let mut epoch =
            |start: u64| (start..start + 20).map(|cursor| rows.train(cursor).unwrap().answer).collect::<Vec<_>>();
        let (first, second) = (epoch(0), epoch(20));
        assert_ne!(first, second);
        assert_eq!(first, epoch(0), "going back must give the same order");
        for order in [first, second] {
            let distinct: std::collections::BTreeSet<_> = order.into_iter().collect();
            assert_eq!(distinct.len(), 20);
        }
        let far = rows.train(20_000_007).unwrap().answer;
        assert_eq!(far, open(&text).unwrap().train(20_000_007).unwrap().answer);
    }

    #[test]
    fn held_out_rows_come_from_the_eval_file_alone() {
        let directory = tempfile::tempdir().unwrap();
        let (train, eval) = (directory.path().join("train.jsonl"), directory.path().join("eval.jsonl"));
        std::fs::write(&train, "{\"prompt\": \"t\", \"answer\": 1}").unwrap();
        std::fs::write(&eval, "{\"prompt\": \"e0\", \"answer\": 1}\n{\"prompt\": \"e1\", \"answer\": 1}").unwrap();
        let rows = open_files(&train, Some(&eval), 0, OnBadRow::Error).unwrap();
        assert_eq!(rows.held_out(1).unwrap()[0].prompt, "e0");
        let error = rows.held_out(3).unwrap_err().to_string();
        assert!(
            error.ends_with("has 2 held-out prompts, 3 were asked for (set `num_prompts` of `[eval]` to at most 2)"),
            "{error}"
        );
        let error = open_files(&train, None, 0, OnBadRow::Error);
        let error = error.unwrap().held_out(1).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("has no held-out prompts (set `eval_dataset_name`, or `num_prompts` of `[eval]` to 0)")
        );
    }

    #[test]
    fn rows_that_are_skipped_leave_the_order_of_a_file_without_them() {
        let directory = tempfile::tempdir().unwrap();
        let (mixed, good) = (directory.path().join("mixed.jsonl"), directory.path().join("good.jsonl"));
        let row = |row: usize| format!("{{\"prompt\": \"p{row}\", \"answer\": {row}}}\n");
        // Every third line is bad, in one of three ways.
        let bad = ["{\"prompt\": \"p\"}\n", "no json\n", "[]\n"];
        let all: String = (0..24).map(|i| if i % 3 == 2 { bad[i / 3 % 3].to_owned() } else { row(i) }).collect();
        std::fs::write(&mixed, all).unwrap();
        std::fs::write(&good, (0..24).filter(|i| i % 3 != 2).map(row).collect::<String>()).unwrap();
        let skip = |path: &Path| open_files(path, None, 3, OnBadRow::Skip).unwrap();
        let (mut mixed, mut good) = (skip(&mixed), skip(&good));
        for cursor in [0, 1, 2, 15, 16, 31, 100] {
            let (a, b) = (mixed.train(cursor).unwrap(), good.train(cursor).unwrap());
            assert_eq!((a.prompt, a.answer), (b.prompt, b.answer));
        }
        assert!(mixed.describe().ends_with("mixed.jsonl (16 rows, 8 skipped: line 3, 6, 9, 12, 15, ...)"), "{mixed:?}");
        assert!(good.describe().ends_with("good.jsonl (16 rows)"), "{good:?}");
    }

    #[test]
    fn a_file_of_bad_rows_alone_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows.jsonl");
        std::fs::write(&path, "{}\n[]\n").unwrap();
        let error = open_files(&path, None, 0, OnBadRow::Skip).unwrap_err().to_string();
        assert!(error.ends_with("holds no rows but 2 bad ones (expected one JSON object per line)"), "{error}");
    }

    #[test]
    fn what_the_background_finds_is_told_by_the_next_prompt() {
        let mut rows = open("{\"prompt\": \"p\", \"answer\": 1}").unwrap();
        let finding = rows.train[0].find_later();
        rows.train(0).unwrap();
        finding.set("bad row at line 9".into()).unwrap();
        assert_eq!(rows.train(1).unwrap_err().to_string(), "bad row at line 9");
    }

    #[test]
    fn rows_come_in_the_order_of_their_files_where_they_are_not_shuffled() {
        let (_directory, paths) = files(&[3, 2]);
        let sources: Vec<Source> = paths.iter().map(|path| source(path, None)).collect();
        let order = Order { shuffle: false, ..order(1) };
        let mut rows = open_sources(&sources, None, order, OnBadRow::Error).unwrap();
        assert_eq!(prompts(&mut rows, 0..7), ["a0", "a1", "a2", "b0", "b1", "a0", "a1"]);
    }

    #[test]
    fn datasets_without_weights_are_one() {
        let (_directory, paths) = files(&[30, 20]);
        let sources: Vec<Source> = paths.iter().map(|path| source(path, None)).collect();
        let mut two = open_sources(&sources, None, order(1), OnBadRow::Error).unwrap();
        let both = paths.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect::<String>();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows.jsonl");
        std::fs::write(&path, both).unwrap();
        let mut one = open_files(&path, None, 1, OnBadRow::Error).unwrap();
        assert_eq!(prompts(&mut two, 0..120), prompts(&mut one, 0..120));
        assert_eq!(two.fingerprint(), one.fingerprint());
    }

    #[test]
    fn weighted_datasets_have_epochs_of_their_own() {
        let (_directory, paths) = files(&[10, 40]);
        let sources = [source(&paths[0], Some(3.0)), source(&paths[1], Some(1.0))];
        let mut rows = open_sources(&sources, None, order(5), OnBadRow::Error).unwrap();
        let all = prompts(&mut rows, 0..160);
        let of = |letter: char| all.iter().filter(|prompt| prompt.starts_with(letter)).collect::<Vec<_>>();
        assert!((100..140).contains(&of('a').len()), "{}", of('a').len());
        for epoch in of('a').chunks_exact(10).chain(of('b')[..of('b').len().min(40)].chunks(40)) {
            let distinct: std::collections::BTreeSet<_> = epoch.iter().collect();
            assert_eq!(distinct.len(), epoch.len(), "an epoch passes once over its rows");
        }
        let mut again = open_sources(&sources, None, order(5), OnBadRow::Error).unwrap();
        assert_eq!(prompts(&mut again, 100..160), all[100..], "the order is one of the cursor alone");
    }

    #[test]
    fn as_many_rows_as_are_asked_for_are_drawn_by_the_seed() {
        let (_directory, paths) = files(&[50]);
        let drawn = |seed: u64| {
            let order = Order { max_train_samples: 10, ..order(seed) };
            let mut rows = open_sources(&[source(&paths[0], None)], None, order, OnBadRow::Error).unwrap();
            assert!(rows.describe().ends_with("(10 rows, 40 not sampled)"), "{}", rows.describe());
            let mut prompts = prompts(&mut rows, 0..10);
            prompts.sort();
            prompts.dedup();
            assert_eq!(prompts.len(), 10);
            prompts
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
    }

    #[test]
    fn what_a_row_says_is_in_the_fingerprint() {
        let print = |text: &str| open(text).unwrap().fingerprint().to_owned();
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
