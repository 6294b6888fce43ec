//! The pieces of a formula.

/// Signs of relations.
pub(crate) const RELATIONS: [char; 8] = ['=', '<', '>', '≤', '≥', '≠', '∈', '≈'];

/// A piece of a formula.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    /// Digits with at most one point, and optionally an exponent.
    Number(String),
    /// A variable: a letter, or the command of a Greek letter.
    Name(String),
    /// Text in `\text{...}`: lower-case letters.
    Words(String),
    /// A command with a meaning, without its backslash.
    Command(String),
    /// Any other single character; relations and similar signs in Unicode.
    Mark(char),
    /// Words behind a value that are not a unit, because they change the value or judge it: `or
    /// more`, `is wrong`.
    Remark(String),
    /// A wide space or a line break, which may part two answers.
    Gap,
    /// A space before what may be the next of two relations: `x=2 y=3`.
    Seam,
    /// Start of an environment with this name, without its star.
    Begin(String),
    /// End of a row of an environment.
    Row,
    /// End of an environment.
    End,
}
