//! Environments: matrices, cases, and aligned lines.

use crate::expression::{CASE, Expression};
use crate::parse::Parser;
use crate::token::{RELATIONS, Token};
use crate::{relation, signs, tails};

/// Environments whose rows are lines of formulas.
const LINES: &str = "\
    align aligned alignat alignedat equation gather gathered split multline multlined eqnarray \
    flalign displaymath math";

/// Environments of formulas with a brace before them.
const CASES: &str = "cases dcases rcases numcases";

/// True for an environment, without its star, whose rows are lines of formulas.
pub(crate) fn is_lines(name: &str) -> bool {
    signs::is_in(LINES, name)
}

impl Parser {
    /// Parses what follows the beginning of an environment, with its end.
    pub(crate) fn environment(&mut self, name: &str) -> Option<Expression> {
        match name {
            _ if is_lines(name) => self.lines(),
            _ if signs::is_in(CASES, name) => self.cases(),
            _ => self.matrix(),
        }
    }

    fn matrix(&mut self) -> Option<Expression> {
        let mut rows = vec![Vec::new()];
        loop {
            rows.last_mut()?.push(self.relation()?);
            match self.next()? {
                Token::Mark('&') => {}
                Token::End => break,
                Token::Row if self.peek() == Some(&Token::End) => {
                    self.at += 1;
                    break;
                }
                Token::Row => rows.push(Vec::new()),
                _ => return None,
            }
        }
        Some(Expression::Matrix(rows))
    }

    /// Parses rows of formulas. If they have conditions, they are a function in pieces, otherwise a
    /// list.
    pub(crate) fn cases(&mut self) -> Option<Expression> {
        let mut rows = Vec::new();
        loop {
            rows.push(self.case()?);
            let ended = match self.next()? {
                Token::End => true,
                Token::Row if self.peek() == Some(&Token::End) => {
                    self.at += 1;
                    true
                }
                Token::Row => false,
                _ => return None,
            };
            if ended {
                break;
            }
        }
        let pieces = rows
            .iter()
            .filter(|row| matches!(row, Expression::Tuple(CASE, ..)))
            .count();
        match pieces {
            _ if rows.len() == 1 => rows.pop(),
            0 => Some(Expression::List(rows)),
            _ if pieces == rows.len() => Some(Expression::Set(rows)),
            _ => None,
        }
    }

    /// Parses a row of cases, with its condition if it has one.
    fn case(&mut self) -> Option<Expression> {
        let mut cells = vec![self.relation()?];
        loop {
            let separated = self.eat(',') || self.eat(';');
            let apart = self.eat('&');
            if matches!(self.peek(), Some(Token::Words(words)) if tails::is_condition(words)) {
                self.at += 1;
            }
            match self.peek()? {
                Token::Row | Token::End => break,
                Token::Words(words)
                    if matches!(words.as_str(), "otherwise" | "else" | "elsewhere") =>
                {
                    self.at += 1;
                    cells.push(Expression::Words("otherwise".into()));
                }
                _ if separated || apart => cells.push(self.relation()?),
                _ => return None,
            }
        }
        let value = cells.remove(0);
        Some(match cells.len() {
            0 => value,
            1 => Expression::Tuple(CASE, vec![value, cells.remove(0)], CASE),
            _ => Expression::Tuple(CASE, vec![value, Expression::List(cells)], CASE),
        })
    }

    /// Parses lines of formulas. They are a list if they give different names their values, else
    /// steps of which the last counts.
    fn lines(&mut self) -> Option<Expression> {
        let mut lines: Vec<Vec<Token>> = vec![Vec::new()];
        let mut depth = 0usize;
        loop {
            let token = self.next()?;
            match &token {
                Token::End if depth == 0 => break,
                Token::Begin(_) => depth += 1,
                Token::End => depth -= 1,
                Token::Row if depth == 0 => {
                    lines.push(Vec::new());
                    continue;
                }
                Token::Mark('&') if depth == 0 => continue,
                Token::Command(name) if matches!(name.as_str(), "nonumber" | "notag") => continue,
                _ => {}
            }
            lines.last_mut()?.push(token);
        }
        let mut steps: Vec<Vec<Token>> = Vec::new();
        for line in lines.into_iter().filter(|line| !line.is_empty()) {
            let continues = match line.first() {
                Some(Token::Mark(mark)) => RELATIONS.contains(mark) || *mark == '+',
                _ => false,
            };
            match steps.last_mut().filter(|_| continues) {
                Some(step) => step.extend(line),
                None => steps.push(line),
            }
        }
        let mut steps: Vec<Option<Expression>> = steps.iter().map(|step| self.step(step)).collect();
        let all: Option<Vec<Expression>> = steps.iter().cloned().collect();
        match all {
            Some(all) if all.len() > 1 && relation::is_system(&all) => Some(Expression::List(all)),
            _ => steps.pop()?,
        }
    }

    /// The expression of a line without the punctuation at its end.
    fn step(&self, line: &[Token]) -> Option<Expression> {
        let end = line
            .iter()
            .rposition(|token| !matches!(token, Token::Mark('.' | ',' | ';')))?;
        self.within(line[..=end].to_vec())
    }
}
