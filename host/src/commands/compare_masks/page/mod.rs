//! A comparison as one page of HTML that needs nothing else.

use anyhow::Result;

use super::comparison::Comparison;
use super::tokens::Tokens;
use crate::commands::batches::Batches;

/// The page.
///
/// # Errors
///
/// A batch that cannot be read again.
pub fn html(_: &Comparison, _: &Tokens, _: &Batches<'_>) -> Result<String> {
    Ok(String::new())
}
