//! Grades pairs of texts with `math`: a line of JSON with `gold`, `answer` and optionally `anchored` gives a line with 0 or 1.
//!
//! ```sh
//! cargo run -p capo-rewards --example grade < pairs.jsonl
//! ```

use std::io::{Error, stdin};

use capo_rewards::math::{Answer, Places};

#[derive(serde::Deserialize)]
struct Pair {
    gold: String,
    answer: String,
    #[serde(default)]
    anchored: bool,
}

fn main() -> Result<(), Error> {
    for line in stdin().lines() {
        let pair: Pair = serde_json::from_str(&line?)?;
        let places = if pair.anchored { Places::Anchored } else { Places::Any };
        let right = Answer::of(&pair.answer, places).is_some_and(|answer| answer.matches(&Answer::gold(&pair.gold)));
        println!("{}", u8::from(right));
    }
    Ok(())
}
