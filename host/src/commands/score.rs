//! `host score`.

use anyhow::{Result, ensure};
use host_data::{Limits, Pairs};
use host_model::{ModelFiles, Policy};
use serde_json::json;

use super::failure::Failure;
use super::inference_args::ScoreArgs;
use super::output::{self, Lines};
use crate::score::score;
use crate::terminal::{grouped, say};

/// Computes log-probabilities for the completions of a file, with one output line each.
pub(super) fn run(args: &ScoreArgs) -> Result<(), Failure> {
    let (files, policy) = open(args).map_err(Failure::Input)?;
    let mut out = Lines::create(&args.out).map_err(Failure::Input)?;
    let limits = Limits {
        vocab_size: policy.config().vocab_size,
        positions: policy.config().max_position_embeddings,
    };
    let pairs = Pairs::open(&args.input, &files, limits, !args.no_special_tokens)
        .map_err(Failure::Input)?;
    let mut bad = None;
    let pairs = pairs.map_while(|pair| pair.map_err(|error| bad = Some(error)).ok());
    let mut rows = 0;
    let mut tokens = 0;
    score(&policy, args.batch_tokens, pairs, |logps| {
        rows += 1;
        tokens += logps.len() as u64;
        out.write(&json!({ "logps": logps }).to_string())
    })
    .map_err(Failure::Run)?;
    if let Some(error) = bad {
        return Err(Failure::Input(error));
    }
    if let Some(path) = out.finish().map_err(Failure::Run)? {
        say(&format!(
            "{} completions, {} tokens: `{}`",
            grouped(rows),
            grouped(tokens),
            path.display()
        ));
    }
    Ok(())
}

fn open(args: &ScoreArgs) -> Result<(ModelFiles, Policy)> {
    ensure!(
        args.batch_tokens > 0,
        "`--batch-tokens` is 0, expected at least 1"
    );
    output::check_not_read("--out", &args.out, &args.model.model, [args.input.clone()])?;
    args.model.open()
}
