//! Grades pairs with `math`: a line of JSON with `gold`, `answer` and optionally `anchored` gives a
//! line 0 or 1.
//!
//! `cargo run -p capo-rewards --example grade < pairs.jsonl`

use capo_rewards::math::{Answer, Places};
use serde_json::Value;

fn main() -> Result<(), std::io::Error> {
    for line in std::io::stdin().lines() {
        let pair: Value = serde_json::from_str(&line?)?;
        let text = |key: &str| pair[key].as_str().unwrap_or_default();
        let places = if pair["anchored"] == true {
            Places::Anchored
        } else {
            Places::Any
        };
        let right = Answer::of(text("answer"), places)
            .is_some_and(|answer| answer.matches(&Answer::gold(text("gold"))));
        println!("{}", u8::from(right));
    }
    Ok(())
}
