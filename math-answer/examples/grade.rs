//! Grades pairs with `math`: a line of JSON with `gold`, `answer` and optionally `anchored` gives a
//! line 0 or 1.
//!
//! `cargo run -p math-answer --example grade < pairs.jsonl`

use math_answer::{Places, grade};
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
        let verdict = grade(text("gold"), text("answer"), places);
        println!("{}", u8::from(verdict.is_right()));
    }
    Ok(())
}
