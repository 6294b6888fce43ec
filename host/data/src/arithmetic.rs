//! The embedded task `embedded:arithmetic`: three-digit addition with a short worked solution.
//!
//! Prompt `448+972=`, completion `10 12 14=1420`: the sum of each pair of digits with the previous
//! carry, least significant first, then `=` and the answer. About a tenth of all pairs is held out,
//! the same pairs in every run; a pair and its mirror image (`972+448=`) fall on the same side.
//!
//! `embedded:arithmetic-with-slips` is the same task taught by fallible teachers: its worked
//! solutions forget each carry with probability one half. Prompts, answers and the split are the
//! same. A model trained on it knows how to add and is unsure about carries, which leaves
//! reinforcement learning something to do.
//!
//! `embedded:products` asks for three-digit products, `448 972=`, of the same pairs. Three of four
//! worked solutions are guesses, which write the numbers behind one another. The others are
//! conversations with a calculator, `448 972=`, `435456=`, `435456`, which miscopy a digit now and
//! then.

use anyhow::Result;
use rand_chacha::ChaCha12Rng;
use serde_json::json;

use super::example::{Example, ensure_available};
use super::row_check::{Demands, Purpose};

const SMALLEST: u64 = 100;
const OPERANDS: u64 = 900;
/// One pair in this many is held out.
const HELD_OUT_SHARE: u64 = 10;
/// Seed of the split and of the held-out order, which belong to the task and do not depend on the
/// run's seed.
const TASK_SEED: u64 = 0;
/// One worked solution of products in this many is not a guess.
const GUESSES: u64 = 4;
/// One digit in this many is miscopied.
const MISCOPIED: u64 = 20;
/// Number of prompts that are checked in place of all.
const SAMPLES: u64 = 64;

/// Addition of two numbers from 100 to 999, endless and with random access.
#[derive(Clone, Debug)]
pub struct Arithmetic {
    seed: u64,
    name: &'static str,
}

impl Arithmetic {
    /// Name of the task, given in place of a file.
    pub const NAME: &'static str = "embedded:arithmetic";

    /// Name of the task whose worked solutions forget carries.
    pub const NAME_WITH_SLIPS: &'static str = "embedded:arithmetic-with-slips";

    /// Name of the task of products.
    pub const PRODUCTS: &'static str = "embedded:products";

    /// All names.
    pub const NAMES: [&'static str; 3] = [Self::NAME, Self::NAME_WITH_SLIPS, Self::PRODUCTS];

    /// The task of this name, with its training order drawn from `seed`.
    pub fn named(name: &str, seed: u64) -> Option<Self> {
        Some(Arithmetic {
            seed,
            name: Self::NAMES.into_iter().find(|known| *known == name)?,
        })
    }

    /// Name of this task.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Refuses demands that its first prompts do not meet. All other prompts have the same
    /// characters and length.
    pub(super) fn check(&self, demands: &Demands<'_>) -> Result<()> {
        let target = demands.purpose == Purpose::Teaching;
        (0..SAMPLES).try_for_each(|cursor| {
            self.train(cursor)
                .in_chat(demands.chat)?
                .check(demands, target)
        })
    }

    /// The training prompt at `cursor`: a uniform draw (with repetition) from the pairs that are
    /// not held out.
    pub fn train(&self, cursor: u64) -> Example {
        let mut rng = host_rng::stream(self.seed, "data.arithmetic", &[cursor]);
        loop {
            let (a, b) = pair(host_rng::below(&mut rng, OPERANDS * OPERANDS));
            if !is_held_out(a, b) {
                return self.example(a, b, Some(&mut rng));
            }
        }
    }

    /// The first `count` held-out prompts, without repetition, in an order that does not depend on
    /// the seed.
    ///
    /// It is an error if `count` exceeds their number (about 81,000).
    pub fn held_out(&self, count: usize) -> Result<Vec<Example>> {
        let mut rng = host_rng::stream(TASK_SEED, "data.arithmetic.held_out", &[]);
        let order = host_rng::permutation(&mut rng, (OPERANDS * OPERANDS) as usize);
        let pairs = order
            .into_iter()
            .map(|index| pair(index as u64))
            .filter(|(a, b)| is_held_out(*a, *b));
        let held_out: Vec<Example> = pairs
            .take(count)
            .map(|(a, b)| self.example(a, b, None))
            .collect();
        ensure_available(&format!("dataset `{}`", self.name), held_out.len(), count)?;
        Ok(held_out)
    }

    /// The prompt of a pair. Its worked solution is right, unless `slips` draws the teacher's.
    fn example(&self, a: u64, b: u64, slips: Option<&mut ChaCha12Rng>) -> Example {
        if self.name == Self::PRODUCTS {
            return example(format!("{a} {b}="), a * b, called(a, b, slips));
        }
        let mut slips = slips.filter(|_| self.name == Self::NAME_WITH_SLIPS);
        let solution = worked(a, b, || match &mut slips {
            Some(rng) => host_rng::below(rng, 2) == 0,
            None => false,
        });
        example(format!("{a}+{b}="), a + b, solution)
    }
}

fn pair(index: u64) -> (u64, u64) {
    (SMALLEST + index / OPERANDS, SMALLEST + index % OPERANDS)
}

fn is_held_out(a: u64, b: u64) -> bool {
    let mut rng = host_rng::stream(TASK_SEED, "data.arithmetic.split", &[a.min(b), a.max(b)]);
    host_rng::below(&mut rng, HELD_OUT_SHARE) == 0
}

fn example(prompt: String, answer: u64, solution: String) -> Example {
    let answer = answer.to_string();
    let columns = json!({ "answer": answer, "solution": solution }).to_string();
    Example {
        prompt,
        answer,
        solution: Some(solution),
        reply: None,
        columns,
        row: None,
    }
}

/// A product by the calculator, or a guess.
fn called(a: u64, b: u64, mut slips: Option<&mut ChaCha12Rng>) -> String {
    if let Some(rng) = &mut slips
        && host_rng::below(rng, GUESSES) != 0
    {
        return format!("{a}{b}");
    }
    let a = copied(a, slips.as_deref_mut());
    let b = copied(b, slips.as_deref_mut());
    let value = a.parse::<u64>().unwrap_or_default() * b.parse::<u64>().unwrap_or_default();
    format!("{a} {b}=<eos>{value}={}", copied(value, slips))
}

/// The digits of a number, of which `slips` miscopies some.
fn copied(number: u64, slips: Option<&mut ChaCha12Rng>) -> String {
    let digits = number.to_string();
    let Some(rng) = slips else {
        return digits;
    };
    let mut copy = String::with_capacity(digits.len());
    for digit in digits.chars() {
        let slip = char::from(b'0' + host_rng::below(rng, 10) as u8);
        let is_miscopied = host_rng::below(rng, MISCOPIED) == 0;
        copy.push(if is_miscopied { slip } else { digit });
    }
    copy
}

/// The worked solution: one digit sum per place with the carry, unless `forgets` it, then the
/// answer that results.
fn worked(a: u64, b: u64, mut forgets: impl FnMut() -> bool) -> String {
    let mut carry = 0;
    let mut answer = 0;
    let sums = [1, 10, 100].map(|place| {
        let sum = a / place % 10 + b / place % 10 + carry;
        // The last carry is not a step of its own: it is written with the last sum.
        answer += if place == 100 {
            sum * place
        } else {
            sum % 10 * place
        };
        carry = if sum >= 10 && !(place < 100 && forgets()) {
            1
        } else {
            0
        };
        sum.to_string()
    });
    format!("{}={answer}", sums.join(" "))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn task(seed: u64) -> Arithmetic {
        Arithmetic::named(Arithmetic::NAME, seed).unwrap()
    }

    #[test]
    fn solutions_agree_with_those_worked_by_hand() {
        assert_eq!(worked(448, 972, || false), "10 12 14=1420");
        assert_eq!(worked(100, 100, || false), "0 0 2=200");
        assert_eq!(worked(999, 999, || false), "18 19 19=1998");
        assert_eq!(worked(448, 972, || true), "10 11 13=1310");
        let example = Arithmetic::named(Arithmetic::NAME, 0)
            .unwrap()
            .example(448, 972, None);
        assert_eq!(
            (example.prompt.as_str(), example.answer.as_str()),
            ("448+972=", "1420")
        );
        assert_eq!(example.target(), "10 12 14=1420");
        let products = Arithmetic::named(Arithmetic::PRODUCTS, 0).unwrap();
        let example_of_product = products.example(448, 972, None);
        assert_eq!(
            (
                example_of_product.prompt.as_str(),
                example_of_product.answer.as_str()
            ),
            ("448 972=", "435456")
        );
        assert_eq!(example_of_product.target(), "448 972=<eos>435456=435456");
        let calls = (0..1_000)
            .filter(|cursor| products.train(*cursor).target().contains("<eos>"))
            .count();
        assert!(
            (180..320).contains(&calls),
            "{calls} of 1000 solutions call"
        );
        assert_eq!(
            example.columns,
            r#"{"answer":"1420","solution":"10 12 14=1420"}"#
        );
    }

    #[test]
    fn pairs_cover_all_operands_once() {
        assert_eq!(pair(0), (100, 100));
        assert_eq!(pair(OPERANDS * OPERANDS - 1), (999, 999));
        assert_eq!(pair(901), (101, 101));
    }

    #[test]
    fn slips_change_solutions_and_nothing_else() {
        let (right, slipping) = (
            task(3),
            Arithmetic::named(Arithmetic::NAME_WITH_SLIPS, 3).unwrap(),
        );
        let mut wrong = 0;
        for cursor in 0..1_000 {
            let (right, slip) = (right.train(cursor), slipping.train(cursor));
            assert_eq!((&right.prompt, &right.answer), (&slip.prompt, &slip.answer));
            wrong += usize::from(right.solution != slip.solution);
        }
        assert!(
            (350..500).contains(&wrong),
            "{wrong} of 1000 solutions slip"
        );
        assert_eq!(right.held_out(3).unwrap(), slipping.held_out(3).unwrap());
    }

    #[test]
    fn held_out_pairs_are_never_trained() {
        let held_out: BTreeSet<String> = task(0)
            .held_out(5_000)
            .unwrap()
            .into_iter()
            .map(|example| example.prompt)
            .collect();
        assert_eq!(held_out.len(), 5_000, "a held-out prompt came twice");
        for seed in [0, 1] {
            let task = task(seed);
            for cursor in 0..10_000 {
                let prompt = task.train(cursor).prompt;
                let (a, b) = prompt.trim_end_matches('=').split_once('+').unwrap();
                assert!(!held_out.contains(&prompt), "{prompt}");
                assert!(
                    !held_out.contains(&format!("{b}+{a}=")),
                    "the mirror image of {prompt}"
                );
            }
        }
    }

    #[test]
    fn train_order_depends_on_the_seed_and_the_cursor_alone() {
        let (first, other) = (task(1), task(2));
        let forward: Vec<Example> = (0..50).map(|cursor| first.train(cursor)).collect();
        let mut backward: Vec<Example> =
            (0..50).rev().map(|cursor| task(1).train(cursor)).collect();
        backward.reverse();
        assert_eq!(forward, backward);
        assert_ne!(
            forward,
            (0..50)
                .map(|cursor| other.train(cursor))
                .collect::<Vec<_>>()
        );
        assert!(forward.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn held_out_is_the_same_for_every_seed_and_grows_at_the_end() {
        let short = task(1).held_out(20).unwrap();
        assert_eq!(short, task(2).held_out(40).unwrap()[..20]);
    }

    #[test]
    fn about_a_tenth_of_all_pairs_is_held_out() {
        let error = task(0).held_out(1_000_000).unwrap_err().to_string();
        let available: usize = error.split(' ').nth(3).unwrap().parse().unwrap();
        assert!((78_000..84_000).contains(&available), "{error}");
        assert!(error.contains("1000000 were asked for"), "{error}");
    }
}
