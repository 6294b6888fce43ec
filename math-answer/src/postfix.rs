//! What stands behind a value: powers, indices, units, primes and other signs.

use crate::expression::{BASED, Constant, Expression, QUANTITY};
use crate::parse::Parser;
use crate::token::Token;
use crate::{canonical, signs, tails};

/// Largest number of signs after a number or bracket: `!`, `%`, `°` and similar signs.
const MOST_SIGNS: usize = 4;

impl Parser {
    /// Parses an atom with its power and other postfix signs.
    pub(crate) fn factor(&mut self) -> Option<Expression> {
        self.deeper(|parser| {
            let value = parser.atom()?;
            parser.signed(value)
        })
    }

    /// A value with its power and other postfix signs.
    pub(crate) fn signed(&mut self, mut value: Expression) -> Option<Expression> {
        for _ in 0..MOST_SIGNS {
            if value == Expression::Symbol("C".into())
                && let Some(binomial) = self.scripts()
            {
                value = binomial;
                continue;
            }
            value = match self.peek() {
                Some(Token::Mark('!'))
                    if self.tokens.get(self.at + 1) == Some(&Token::Mark('!')) =>
                {
                    self.at += 1;
                    Expression::call("doublefactorial", value)
                }
                Some(Token::Mark('!')) => Expression::call("factorial", value),
                Some(Token::Mark('%')) => Expression::Percent(Box::new(value)),
                Some(Token::Mark('°'))
                    if matches!(self.tokens.get(self.at + 1), Some(Token::Name(_)))
                        && value.is_name() =>
                {
                    self.at += 1;
                    value = Expression::Call("after", vec![value, self.factor()?]);
                    continue;
                }
                Some(Token::Mark('°')) => self.degrees(value),
                Some(Token::Mark('\'')) => value.marked("'"),
                // Behind a name only a known unit is one: `no solution` is a text.
                Some(Token::Words(words))
                    if (!value.is_name() || signs::is_unit(words))
                        && !tails::is_condition(words)
                        && !tails::is_for_all(words)
                        && words != "otherwise" =>
                {
                    self.unit();
                    continue;
                }
                Some(Token::Remark(_)) => {
                    let words = self.remark();
                    self.measured = self.at;
                    let parts = vec![value, Expression::Words(words)];
                    return Some(Expression::Tuple(QUANTITY, parts, QUANTITY));
                }
                // `f^{-1}(3)`
                Some(Token::Mark('(')) if is_inverse(&value) => {
                    value = Expression::Symbol(format!("{}^-1", value.symbols().first()?));
                    value = called(value, self.arguments()?);
                    continue;
                }
                Some(Token::Mark('(')) if self.is_function(&value) => {
                    value = called(value, self.arguments()?);
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

    /// True for the name of a function, before its bracket: `f`, and `g` or `h` beside it. Any
    /// other letter may be a factor.
    fn is_function(&self, value: &Expression) -> bool {
        let Expression::Symbol(name) = value else {
            return matches!(value, Expression::Call("after", _));
        };
        // `d(n)`, but `x(y+1)`
        if matches!(
            self.tokens.get(self.at..),
            Some([_, Token::Name(_), Token::Mark(')'), ..])
        ) {
            return true;
        }
        let calls_f = [Token::Name("f".into()), Token::Mark('(')];
        match &name[..name.find(['_', '\'']).unwrap_or(name.len())] {
            "f" | "F" | "Gamma" | "zeta" => true,
            "g" | "h" => self.tokens.windows(2).any(|pair| pair == calls_f),
            _ => false,
        }
    }

    /// Parses the arguments of a function in brackets.
    fn arguments(&mut self) -> Option<Vec<Expression>> {
        Some(match self.deeper(Self::atom)? {
            Expression::Tuple('(', parts, ')') => parts,
            one => vec![one],
        })
    }

    /// The words that come next.
    fn remark(&mut self) -> String {
        let mut letters = String::new();
        while let Some(Token::Words(words) | Token::Remark(words)) = self.peek() {
            letters.push_str(words);
            self.at += 1;
        }
        letters
    }

    /// Skips the words after a value, with their powers; they name its unit: `m/s^2`.
    fn unit(&mut self) {
        loop {
            while matches!(self.peek(), Some(Token::Words(words)) if !tails::is_condition(words)) {
                self.at += 1;
            }
            match self.tokens.get(self.at..) {
                Some([Token::Mark('^'), Token::Number(_), ..]) => self.at += 2,
                Some([Token::Mark('^'), inside @ ..])
                    if inside.first() == Some(&Token::Mark('{')) =>
                {
                    let close = inside.iter().position(|token| *token == Token::Mark('}'));
                    self.at += close.map_or(0, |close| close + 2);
                }
                _ => {}
            }
            if !matches!(
                self.tokens.get(self.at..),
                Some([Token::Mark('/'), Token::Words(_), ..])
            ) {
                break;
            }
            self.at += 1;
        }
        self.measured = self.at;
    }

    /// Parses a power, from the right: `2^3^2` is `2^9`. Primes, degrees and the ending of `5^{th}`
    /// are written like one.
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
            && matches!(ending.as_str(), "st" | "nd" | "rd" | "th" | "o")
        {
            self.at = behind;
            // `60^o`
            return Some(if ending == "o" {
                self.degrees(base)
            } else {
                base
            });
        }
        // `(2, -3)^T`
        if let Some(behind) = self.transposed(&base) {
            self.at = behind;
            return Some(base.transposed());
        }
        let minus = self.eat('-');
        let mut exponent = self.deeper(Self::atom)?;
        if self.eat('^') {
            exponent = self.deeper(|parser| parser.raised(exponent))?;
        }
        Some(Expression::Power(
            Box::new(base),
            Box::new(if minus { exponent.negated() } else { exponent }),
        ))
    }

    /// The place behind the sign that makes a column of a row.
    fn transposed(&self, base: &Expression) -> Option<usize> {
        let is_vector = matches!(
            base,
            Expression::Matrix(_) | Expression::Tuple('(' | '[', ..)
        );
        let is_sign =
            |token: &Token| *token == Token::Name("T".into()) || *token == Token::Mark('⊤');
        match self.tokens.get(self.at..)? {
            [Token::Mark('{'), sign, Token::Mark('}'), ..] if is_vector && is_sign(sign) => {
                Some(self.at + 3)
            }
            [sign, ..] if is_vector && is_sign(sign) => Some(self.at + 1),
            _ => None,
        }
    }

    /// Parses a binomial coefficient behind the letter `C`: `C(10,3)`; also `10C3`.
    pub(crate) fn choices(&mut self, last: &Expression) -> Option<Expression> {
        match (last, self.tokens.get(self.at..)?) {
            (Expression::Symbol(name), [Token::Mark('('), ..]) if name == "C" && self.is_pair() => {
                self.committed(|parser| match parser.deeper(Self::atom)? {
                    Expression::Tuple('(', parts, ')') if parts.len() == 2 => {
                        Some(Expression::Call("binomial", parts))
                    }
                    _ => None,
                })
            }
            (Expression::Number(..), [letter, Token::Number(_), ..])
                if is_c(letter) && self.behind_number() =>
            {
                self.at += 1;
                self.committed(Self::atom)
                    .map(|below| Expression::Call("binomial", vec![last.clone(), below]))
            }
            _ => None,
        }
    }

    /// True if the bracket that comes next has one comma between its two parts.
    fn is_pair(&self) -> bool {
        let mut depth = 0usize;
        let mut commas = 0;
        for token in &self.tokens[self.at..] {
            match token {
                Token::Mark('(' | '[' | '{' | '⦃') => depth += 1,
                Token::Mark(')' | ']' | '}' | '⦄') if depth <= 1 => {
                    return commas == 1 && *token == Token::Mark(')');
                }
                Token::Mark(')' | ']' | '}' | '⦄') => depth -= 1,
                Token::Mark(',') if depth == 1 => commas += 1,
                _ => {}
            }
        }
        false
    }

    /// Parses both scripts of the letter `C`, of which the lower one is the number to choose from:
    /// `C_{10}^3`, `C^3_{10}`.
    fn scripts(&mut self) -> Option<Expression> {
        let first = self.mark().filter(|mark| matches!(mark, '^' | '_'))?;
        let second = if first == '_' { '^' } else { '_' };
        if self.tokens.get(self.behind_script()?) != Some(&Token::Mark(second)) {
            return None;
        }
        self.at += 1;
        let parts = self.committed(|parser| {
            let one = parser.deeper(Self::atom)?;
            let other = if parser.eat(second) {
                parser.deeper(Self::atom)?
            } else {
                return None;
            };
            Some(if first == '_' {
                vec![one, other]
            } else {
                vec![other, one]
            })
        })?;
        Some(Expression::Call("binomial", parts))
    }

    /// The place behind the script that comes next.
    fn behind_script(&self) -> Option<usize> {
        let mut depth = 0usize;
        for (at, token) in self.tokens.iter().enumerate().skip(self.at + 1) {
            match token {
                Token::Mark('{') => depth += 1,
                Token::Mark('}') => depth = depth.checked_sub(1)?,
                _ => {}
            }
            if depth == 0 {
                return Some(at + 1);
            }
        }
        None
    }

    /// The result of `parse`. If there is none, no other way to read the tokens is tried, because
    /// the number of ways would grow with every level of brackets.
    fn committed<T>(&mut self, parse: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let found = parse(self);
        self.failed |= found.is_none();
        found
    }

    /// Parses a binomial coefficient from the script before its letter: `{}^{10}C_3`.
    pub(crate) fn before_c(&mut self) -> Option<Expression> {
        if !self.eat('^') && !self.eat('_') {
            return None;
        }
        let above = self.deeper(Self::atom)?;
        let is_c = self.next()? == Token::Name("C".into()) && (self.eat('_') || self.eat('^'));
        if !is_c {
            return None;
        }
        Some(Expression::Call(
            "binomial",
            vec![above, self.deeper(Self::atom)?],
        ))
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
        // `1011_{\text{base }2}`
        if let Some(
            [
                Token::Mark('{'),
                Token::Words(base),
                number @ Token::Number(_),
                Token::Mark('}'),
                ..,
            ],
        ) = self.tokens.get(self.at..)
            && base == "base"
        {
            let base = self.within(vec![number.clone()])?;
            self.at += 4;
            return Some(Expression::Tuple(BASED, vec![value, base], BASED));
        }
        let index = match self.deeper(Self::atom)? {
            // `1011_{\text{two}}`
            Expression::Words(words) => Expression::whole(counted(&words)?),
            other => other,
        };
        Some(match value {
            Expression::Symbol(name) => {
                Expression::Symbol(format!("{name}_{}", canonical::text(&index)))
            }
            number @ Expression::Number(..) => Expression::Tuple(BASED, vec![number, index], BASED),
            other => other,
        })
    }

    /// The letters and digits that come next, in braces or as one token, and the place behind them;
    /// `None` if there is more than these.
    fn spelled(&self) -> Option<(String, usize)> {
        let rest = self.tokens.get(self.at..)?;
        let close = rest.iter().position(|token| *token == Token::Mark('}'));
        let (inside, length) = match (rest.first()?, close) {
            (Token::Mark('{'), Some(close)) => (&rest[1..close], close + 1),
            _ => (&rest[..1], 1),
        };
        let letters = inside.iter().map(|token| match token {
            Token::Name(letters) | Token::Words(letters) | Token::Number(letters) => {
                Some(letters.as_str())
            }
            Token::Command(name) if matches!(name.as_str(), "max" | "min") => Some(name.as_str()),
            _ => None,
        });
        let letters: String = letters.collect::<Option<_>>()?;
        (!letters.is_empty()).then_some((letters, self.at + length))
    }
}

/// True for the letter of a binomial coefficient.
fn is_c(token: &Token) -> bool {
    *token == Token::Name("C".into())
}

/// True for the inverse of a function, before its bracket.
fn is_inverse(value: &Expression) -> bool {
    let Expression::Power(base, exponent) = value else {
        return false;
    };
    let Expression::Symbol(name) = base.as_ref() else {
        return false;
    };
    matches!(name.as_str(), "f" | "g" | "h" | "F" | "G") && **exponent == Expression::whole(-1)
}

/// The base of a number that words name.
fn counted(words: &str) -> Option<i64> {
    const BASES: &str = "\
        two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen \
        sixteen";
    let words = words.strip_prefix("base").unwrap_or(words);
    (2..)
        .zip(BASES.split(' '))
        .find(|(_, known)| *known == words)
        .map(|(base, _)| base)
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
