//! What joins the parts of an answer that no comma separates: wide spaces, line breaks, and a space
//! between two relations.

use crate::label;
use crate::token::{RELATIONS, Token};

/// True if a relation sign of the text has a space beside it.
pub(crate) fn has_spaced_relation(text: &str) -> bool {
    pattern!(r"\s[=<>]|[=<>]\s").is_match(text)
}

/// True if a dollar sign closes a formula, and another formula begins with only spaces between.
pub(crate) fn parts_formulas(rest: &str) -> bool {
    let behind = rest.trim_start_matches('$');
    behind.len() + 2 >= rest.len()
        && behind.starts_with(char::is_whitespace)
        && behind.trim_start().starts_with('$')
}

/// True if the text behind a name continues a relation that begins with it: `y=3`, `f(x) < 2`.
pub(crate) fn begins_relation(rest: &str) -> bool {
    const INDEX: &str = r"(?:_\w|_\{\w{1,8}\})?'?(?:\(\w\))?";
    let begins = pattern!(
        "^",
        INDEX,
        r"\s*(?:[=<>≤≥≠≈∈]|",
        r"\\(?:leq?|geq?|leqslant|geqslant|lt|gt|neq?|in|approx|equiv)(?:[^a-zA-Z]|$))",
    );
    begins.is_match(rest)
}

/// The tokens with a comma for each gap between two answers, without the other gaps, without the
/// words that lead to an answer, and with the words that begin a label as one.
pub(crate) fn joined(tokens: Vec<Token>) -> Vec<Token> {
    let tokens = commas(tokens);
    let mut joined: Vec<Token> = Vec::with_capacity(tokens.len());
    let mut begins = 0;
    for token in tokens {
        let leads = joined.len() > begins
            && joined[begins..]
                .iter()
                .all(|token| matches!(token, Token::Words(_)));
        match (&token, joined.last_mut()) {
            (Token::Words(words), Some(Token::Words(before))) if leads => before.push_str(words),
            // `Area: 5`
            (Token::Mark(':'), Some(Token::Words(words))) if leads && !label::is_denied(words) => {
                joined.truncate(begins)
            }
            _ => {
                if leads && begins_operand(&token) && is_label(&joined[begins], &token) {
                    joined.truncate(begins);
                }
                let separates = matches!(token, Token::Mark(',' | ';' | '∧' | '∨'));
                joined.push(token);
                begins = if separates { joined.len() } else { begins };
            }
        }
    }
    joined
}

/// True if words before a value only say that it is the answer, or roughly so.
fn is_label(words: &Token, next: &Token) -> bool {
    let label = pattern!(
        "^(?:so|thus|hence|therefore)?",
        "(?:(?:the)?(?:final|correct|right|exact)?(?:answers?|solutions?|result|value))?",
        "(?:approximately|approx|about|around|roughly|exactly|nearly|is|are|equals|equalto|itis|",
        "答案是|答案为|答案|约|大约|等于|usd|eur|gbp|cny|rmb|inr|jpy)*$",
    );
    let Token::Words(words) = words else {
        return false;
    };
    let choice = ["option", "choice", "theansweris", "optionis"];
    label.is_match(words) || is_letter(next) && choice.contains(&words.as_str())
}

/// True for a capital letter, which may be a choice.
fn is_letter(token: &Token) -> bool {
    let Token::Name(name) = token else {
        return false;
    };
    name.len() == 1 && name.bytes().all(|b| b.is_ascii_uppercase())
}

fn is_gap(token: &Token) -> bool {
    matches!(token, Token::Gap | Token::Seam)
}

/// The tokens with a comma for each gap that parts two answers, and without the other gaps.
fn commas(tokens: Vec<Token>) -> Vec<Token> {
    if !tokens
        .iter()
        .any(|token| is_gap(token) || *token == Token::Row)
    {
        return tokens;
    }
    let mut joined: Vec<Token> = Vec::with_capacity(tokens.len());
    let mut depth = 0i64;
    let mut environments = 0i64;
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Token::Mark('(' | '[' | '{' | '⦃') => depth += 1,
            Token::Mark(')' | ']' | '}' | '⦄') => depth -= 1,
            Token::Begin(_) => environments += 1,
            Token::End => environments -= 1,
            _ => {}
        }
        let breaks = *token == Token::Row && environments <= 0;
        if !is_gap(token) && !breaks {
            joined.push(token.clone());
            continue;
        }
        let rest = &tokens[at + 1..];
        let next = rest
            .iter()
            .position(|token| !is_gap(token))
            .map(|next| &rest[next..]);
        let parts = depth <= 0
            && environments <= 0
            && ends_operand(&joined)
            && next.is_some_and(|next| {
                begins_answer(next) && (*token != Token::Seam || are_relations(&joined, next))
            });
        if parts {
            joined.push(Token::Mark(','));
        }
    }
    joined
}

/// True if both the answer before and the answer behind are relations.
fn are_relations(before: &[Token], behind: &[Token]) -> bool {
    is_relation(before.iter().rev()) && is_relation(behind.iter())
}

/// True if a relation sign comes before the next sign that separates answers.
fn is_relation<'t>(tokens: impl Iterator<Item = &'t Token>) -> bool {
    for token in tokens {
        match token {
            Token::Mark(',' | ';' | '∧' | '∨') | Token::Gap | Token::Seam | Token::Row => break,
            Token::Mark(mark) if RELATIONS.contains(mark) => return true,
            _ => {}
        }
    }
    false
}

/// True if an operand ends with the last token.
fn ends_operand(tokens: &[Token]) -> bool {
    match tokens {
        [
            ..,
            Token::Number(_) | Token::Name(_) | Token::End | Token::Remark(_),
        ] => true,
        [.., Token::Mark(mark)] => matches!(
            mark,
            ')' | ']' | '}' | '⦄' | '%' | '°' | '!' | '\'' | '∞' | '∅' | '|'
        ),
        [.., Token::Command(name)] => {
            matches!(name.as_str(), "pi" | "mathbb R" | "rfloor" | "rceil")
        }
        [.., before, Token::Words(_)] => !matches!(before, Token::Mark(',' | ';')),
        _ => false,
    }
}

/// True if a token begins an operand.
fn begins_operand(token: &Token) -> bool {
    match token {
        Token::Number(_) | Token::Name(_) | Token::Begin(_) => true,
        Token::Mark(mark) => matches!(mark, '(' | '[' | '{' | '⦃' | '-' | '±' | '|' | '∞' | '∅'),
        Token::Command(name) => !matches!(
            name.as_str(),
            "rfloor" | "rceil" | "pmod" | "over" | "choose" | "to"
        ),
        _ => false,
    }
}

/// True if an answer of its own begins with these tokens; a modulus in brackets belongs to the one
/// before.
fn begins_answer(tokens: &[Token]) -> bool {
    let is_modulus = match tokens {
        [Token::Mark('('), Token::Words(_), ..] => true,
        [Token::Mark('('), Token::Command(name), ..] => name == "pmod",
        _ => false,
    };
    tokens.first().is_some_and(begins_operand) && !is_modulus
}
