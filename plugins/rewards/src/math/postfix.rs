//! What stands behind a value: powers, indices, units, primes and other signs.

use super::expression::{Constant, Expression};
use super::lex::Token;
use super::parse::Parser;
use super::{canonical, signs};

/// Largest number of signs after a number or bracket: `!`, `%`, `°` and similar signs.
const MOST_SIGNS: usize = 4;

impl Parser {
    /// Parses an atom with its power and other postfix signs.
    pub(super) fn factor(&mut self) -> Option<Expression> {
        self.deeper(|parser| {
            let value = parser.atom()?;
            parser.signed(value)
        })
    }

    /// A value with its power and other postfix signs.
    pub(super) fn signed(&mut self, mut value: Expression) -> Option<Expression> {
        for _ in 0..MOST_SIGNS {
            value = match self.peek() {
                Some(Token::Mark('!')) if self.tokens.get(self.at + 1) == Some(&Token::Mark('!')) => {
                    self.at += 1;
                    Expression::call("doublefactorial", value)
                }
                Some(Token::Mark('!')) => Expression::call("factorial", value),
                Some(Token::Mark('%')) => Expression::Percent(Box::new(value)),
                Some(Token::Mark('°'))
                    if matches!(self.tokens.get(self.at + 1), Some(Token::Name(_))) && value.is_name() =>
                {
                    self.at += 1;
                    value = Expression::Call("after", vec![value, self.factor()?]);
                    continue;
                }
                Some(Token::Mark('°')) => self.degrees(value),
                Some(Token::Mark('\'')) => value.marked("'"),
                // Behind a name only a known unit is one: `no solution` is a text.
                Some(Token::Words(words)) if !value.is_name() || signs::is_unit(words) => {
                    self.unit();
                    continue;
                }
                Some(Token::Mark('(')) if self.is_function(&value) => {
                    let arguments = match self.deeper(Self::atom)? {
                        Expression::Tuple('(', parts, ')') => parts,
                        one => vec![one],
                    };
                    value = called(value, arguments);
                    continue;
                }
                Some(Token::Mark('^')) => {
                    self.at += 1;
                    value = self.raised(value)?;
                    continue;
                }
                Some(Token::Mark('_')) => {
                    self.at += 1;
                    value = self.indexed(value)?;
                    continue;
                }
                _ => break,
            };
            self.at += 1;
        }
        Some(value)
    }

    /// True for the name of a function, before its bracket: `f`, and `g` or `h` beside it. Any other letter may be a factor.
    fn is_function(&self, value: &Expression) -> bool {
        let Expression::Symbol(name) = value else { return matches!(value, Expression::Call("after", _)) };
        let calls = |letter: &str| {
            let call = [Token::Name(letter.into()), Token::Mark('(')];
            self.tokens.windows(2).any(|pair| pair == call)
        };
        match &name[..name.find(['_', '\'']).unwrap_or(name.len())] {
            "f" | "F" | "Gamma" | "zeta" => true,
            "g" | "h" => calls("f"),
            _ => false,
        }
    }

    /// Skips the words after a value, with their powers; they name its unit: `m/s^2`.
    fn unit(&mut self) {
        loop {
            while matches!(self.peek(), Some(Token::Words(_))) {
                self.at += 1;
            }
            match self.tokens.get(self.at..) {
                Some([Token::Mark('^'), Token::Number(_), ..]) => self.at += 2,
                Some([Token::Mark('^'), inside @ ..]) if inside.first() == Some(&Token::Mark('{')) => {
                    let close = inside.iter().position(|token| *token == Token::Mark('}'));
                    self.at += close.map_or(0, |close| close + 2);
                }
                _ => {}
            }
            if !matches!(self.tokens.get(self.at..), Some([Token::Mark('/'), Token::Words(_), ..])) {
                break;
            }
            self.at += 1;
        }
        self.measured = self.at;
    }

    /// Parses a power, from the right: `2^3^2` is `2^9`. Primes, degrees and the ending of `5^{th}` are written like one.
    fn raised(&mut self, base: Expression) -> Option<Expression> {
        let grouped = self.eat('{');
        let inside = self.at;
        let value = match self.mark() {
            Some('\'') => {
                let mut value = base.clone();
                while self.eat('\'') {
                    value = value.marked("'");
                }
                Some(value)
            }
            Some('°') => {
                self.at += 1;
                Some(self.degrees(base.clone()))
            }
            _ => None,
        };
        if let Some(value) = value.filter(|_| !grouped || self.eat('}')) {
            return Some(value);
        }
        self.at = inside - usize::from(grouped);
        if matches!(base, Expression::Number(..))
            && let Some((ending, behind)) = self.spelled()
            && matches!(ending.as_str(), "st" | "nd" | "rd" | "th")
        {
            self.at = behind;
            return Some(base);
        }
        let minus = self.eat('-');
        let mut exponent = self.deeper(Self::atom)?;
        if self.eat('^') {
            exponent = self.deeper(|parser| parser.raised(exponent))?;
        }
        Some(Expression::Power(Box::new(base), Box::new(if minus { exponent.negated() } else { exponent })))
    }

    /// Parses an index: part of a variable's name, or the base of a number's digits.
    fn indexed(&mut self, value: Expression) -> Option<Expression> {
        // `e_1` is a variable.
        let value = match value {
            Expression::Constant(Constant::E) => Expression::Symbol("e".into()),
            Expression::Constant(Constant::I) => Expression::Symbol("i".into()),
            other => other,
        };
        if let (Expression::Symbol(name), Some((index, behind))) = (&value, self.spelled()) {
            self.at = behind;
            return Some(Expression::Symbol(format!("{name}_{index}")));
        }
        let index = self.deeper(Self::atom)?;
        Some(match value {
            Expression::Symbol(name) => Expression::Symbol(format!("{name}_{}", canonical::text(&index))),
            number @ Expression::Number(..) => Expression::Tuple('_', vec![number, index], '_'),
            other => other,
        })
    }

    /// The letters and digits that come next, in braces or as one token, and the place behind them; `None` if there is more than these.
    fn spelled(&self) -> Option<(String, usize)> {
        let rest = self.tokens.get(self.at..)?;
        let close = rest.iter().position(|token| *token == Token::Mark('}'));
        let (inside, length) = match (rest.first()?, close) {
            (Token::Mark('{'), Some(close)) => (&rest[1..close], close + 1),
            _ => (&rest[..1], 1),
        };
        let letters = inside.iter().map(|token| match token {
            Token::Name(letters) | Token::Words(letters) | Token::Number(letters) => Some(letters.as_str()),
            Token::Command(name) if matches!(name.as_str(), "max" | "min") => Some(name.as_str()),
            _ => None,
        });
        let letters: String = letters.collect::<Option<_>>()?;
        (!letters.is_empty()).then_some((letters, self.at + length))
    }
}

/// The value of a function; `(f \circ g)(x)` is `f(g(x))`.
fn called(function: Expression, arguments: Vec<Expression>) -> Expression {
    match function {
        Expression::Call("after", mut parts) if parts.len() == 2 => {
            let inner = called(parts.remove(1), arguments);
            Expression::Call("of", vec![parts.remove(0), inner])
        }
        name => Expression::Call("of", [vec![name], arguments].concat()),
    }
}
