//! Parses tokens to an expression, by recursive descent of limited depth.

use super::expression::{Constant, Expression};
use super::lex::{MOST_BYTES, Token, lex, single};
use super::rational::Rational;

/// Deepest nesting of brackets, fractions, roots and powers.
const MOST_DEPTH: usize = 80;

/// Largest number of signs after a number or bracket: `!`, `%`, `°` and similar signs.
const MOST_SIGNS: usize = 4;

const RELATIONS: [char; 8] = ['=', '<', '>', '≤', '≥', '≠', '∈', '≈'];

/// The expression of a formula; `None` if the text is not a formula, or is too large.
pub(super) fn parse(text: &str) -> Option<Expression> {
    let text = text.trim();
    if text.len() > MOST_BYTES {
        return None;
    }
    let text = single(text);
    let tokens = lex(text.trim_end_matches(['.', ':', '\\', ' ', '\n']))?;
    if let Some(quantity) = quantity(&tokens) {
        return Some(quantity);
    }
    if !tokens.iter().any(|token| matches!(token, Token::Mark('±' | '∓'))) {
        return Parser::new(tokens).whole();
    }
    // `±` gives two answers, one per sign.
    let signed = |plus, minus| {
        let sign = |token: &Token| match token {
            Token::Mark('±') => Token::Mark(plus),
            Token::Mark('∓') => Token::Mark(minus),
            other => other.clone(),
        };
        Parser::new(tokens.iter().map(sign).collect()).whole()
    };
    let both = [signed('+', '-')?, signed('-', '+')?].into_iter().flat_map(|side| match side {
        Expression::List(items) => items,
        one => vec![one],
    });
    Some(Expression::List(both.collect()))
}

/// A quantity in several units, as `4 hours 15 minutes`.
fn quantity(tokens: &[Token]) -> Option<Expression> {
    let tokens: Vec<&Token> = tokens.iter().filter(|token| **token != Token::Mark(',')).collect();
    let mut parts = Vec::new();
    for pair in tokens.chunks(2) {
        let [Token::Number(digits), Token::Words(unit)] = pair else { return None };
        let unit = Expression::Words(unit.trim_end_matches('s').into());
        if parts.contains(&unit) {
            return None;
        }
        parts.extend([Expression::Number(Rational::decimal(digits)?, digits.contains('.')), unit]);
    }
    (parts.len() > 2).then_some(Expression::Tuple(' ', parts, ' '))
}

pub(super) struct Parser {
    tokens: Vec<Token>,
    pub(super) at: usize,
    /// Number of open levels.
    depth: usize,
    /// True if the next bar closes an absolute value.
    barred: bool,
    /// Place behind the last unit; no factor begins there.
    measured: usize,
    /// True within the argument of a sine or the like, where degrees count.
    pub(super) is_angle: bool,
}

impl Parser {
    fn new(tokens: Vec<Token>) -> Self {
        Self { tokens, at: 0, depth: 0, barred: false, measured: 0, is_angle: false }
    }

    fn whole(mut self) -> Option<Expression> {
        let list = self.list()?;
        (self.at == self.tokens.len()).then_some(list)
    }

    pub(super) fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    pub(super) fn next(&mut self) -> Option<Token> {
        self.at += 1;
        self.tokens.get(self.at - 1).cloned()
    }

    pub(super) fn mark(&self) -> Option<char> {
        if let Some(Token::Mark(mark)) = self.peek() { Some(*mark) } else { None }
    }

    /// Consumes `mark` if it comes next.
    pub(super) fn eat(&mut self, mark: char) -> bool {
        let found = self.mark() == Some(mark);
        self.at += usize::from(found);
        found
    }

    /// Runs `parse` one level deeper.
    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        self.depth += 1;
        let found = if self.depth > MOST_DEPTH { None } else { parse(self) };
        self.depth -= 1;
        found
    }

    /// Parses relations between commas: a single one, or a list.
    fn list(&mut self) -> Option<Expression> {
        let mut items = self.items()?;
        if items.len() == 1 { items.pop() } else { Some(Expression::List(items)) }
    }

    fn items(&mut self) -> Option<Vec<Expression>> {
        let mut items = vec![self.relation()?];
        while self.eat(',') || self.eat(';') {
            // Accepts `1, and 2`.
            while self.eat(',') {}
            items.push(self.relation()?);
        }
        Some(items)
    }

    pub(super) fn relation(&mut self) -> Option<Expression> {
        let mut parts = vec![self.sets()?];
        let mut signs = Vec::new();
        while let Some(sign) = self.mark().filter(|mark| RELATIONS.contains(mark)) {
            self.at += 1;
            // `x ≈ 11` gives x its only value.
            signs.push(if sign == '≈' && signs.is_empty() && parts[0].is_name() { '=' } else { sign });
            parts.push(self.sets()?);
        }
        // `5 > x` is kept as `x < 5`.
        if !signs.is_empty() && signs.iter().all(|sign| matches!(sign, '>' | '≥')) {
            parts.reverse();
            signs.reverse();
            signs.iter_mut().for_each(|sign| *sign = if *sign == '>' { '<' } else { '≤' });
        }
        if signs.is_empty() { parts.pop() } else { Some(Expression::Relation(parts, signs)) }
    }

    fn sets(&mut self) -> Option<Expression> {
        let mut parts = vec![self.sum()?];
        while self.eat('∪') {
            parts.push(self.sum()?);
        }
        if parts.len() == 1 { parts.pop() } else { Some(Expression::Union(parts)) }
    }

    pub(super) fn sum(&mut self) -> Option<Expression> {
        let mut terms = vec![self.product()?];
        while let Some(sign) = self.mark().filter(|mark| matches!(mark, '+' | '-')) {
            self.at += 1;
            let term = self.product()?;
            terms.push(if sign == '-' { term.negated() } else { term });
        }
        if terms.len() == 1 { terms.pop() } else { Some(Expression::Sum(terms)) }
    }

    fn product(&mut self) -> Option<Expression> {
        let mut minus = false;
        while let Some(sign) = self.mark().filter(|mark| matches!(mark, '+' | '-')) {
            self.at += 1;
            minus ^= sign == '-';
        }
        let mut factors = vec![self.factor()?];
        loop {
            if self.eat('*') {
                let minus = self.eat('-');
                let factor = self.factor()?;
                factors.push(if minus { factor.negated() } else { factor });
            } else if self.eat('/') || self.eat('÷') || self.eat(':') {
                let minus = self.eat('-');
                let below = self.factor()?.inverse();
                factors.push(if minus { below.negated() } else { below });
            } else if let Some(mixed) = self.mixed(factors.last()?) {
                *factors.last_mut()? = mixed;
                if matches!(self.peek(), Some(Token::Words(_))) {
                    self.unit();
                }
            } else if self.begins_factor() && self.measured != self.at {
                factors.push(self.factor()?);
            } else {
                break;
            }
        }
        let product = Expression::product(factors);
        Some(if minus { product.negated() } else { product })
    }

    /// Parses a whole number with a fraction after it: `1\frac12`, `1 1/2`.
    fn mixed(&mut self, last: &Expression) -> Option<Expression> {
        let Expression::Number(whole, false) = last else { return None };
        let place = self.at;
        let fraction = match self.peek()? {
            Token::Command(name) if name == "frac" => self.atom(),
            Token::Number(_) => self.plain_fraction(),
            _ => return None,
        };
        let sum = fraction.as_ref().and_then(proper_fraction).and_then(|fraction| whole.add(&fraction));
        if sum.is_none() {
            self.at = place;
        }
        sum.map(|sum| Expression::Number(sum, false))
    }

    fn plain_fraction(&mut self) -> Option<Expression> {
        let above = self.atom()?;
        if !self.eat('/') {
            return None;
        }
        Some(above.over(self.atom()?))
    }

    fn begins_factor(&self) -> bool {
        match self.peek() {
            Some(Token::Mark('|')) => !self.barred,
            Some(Token::Mark(mark)) => matches!(mark, '(' | '{' | '⦃' | '∞' | '∅'),
            // `1 2` is no product.
            Some(Token::Number(_)) => !matches!(self.tokens.get(self.at.wrapping_sub(1)), Some(Token::Number(_))),
            Some(Token::Name(_) | Token::Begin) => true,
            Some(Token::Command(name)) => !matches!(name.as_str(), "rfloor" | "rceil" | "rangle"),
            _ => false,
        }
    }

    /// Parses an atom with its power and other postfix signs.
    pub(super) fn factor(&mut self) -> Option<Expression> {
        self.deeper(|parser| {
            let mut value = parser.atom()?;
            for _ in 0..MOST_SIGNS {
                value = match parser.peek() {
                    Some(Token::Mark('!')) => Expression::call("factorial", value),
                    Some(Token::Mark('%')) => Expression::Percent(Box::new(value)),
                    Some(Token::Mark('°')) => parser.degrees(value),
                    Some(Token::Mark('\'')) => value,
                    // Behind a name only a known unit is one: `no solution` is a text.
                    Some(Token::Words(words)) if !value.is_name() || super::signs::is_unit(words) => {
                        parser.unit();
                        continue;
                    }
                    Some(Token::Mark('^')) => {
                        parser.at += 1;
                        value = parser.raised(value)?;
                        continue;
                    }
                    Some(Token::Mark('_')) => {
                        parser.at += 1;
                        value = parser.indexed(value)?;
                        continue;
                    }
                    _ => break,
                };
                parser.at += 1;
            }
            Some(value)
        })
    }

    /// Skips the words after a value, with their power; they name its unit.
    fn unit(&mut self) {
        while matches!(self.peek(), Some(Token::Words(_))) {
            self.at += 1;
        }
        let power = [self.peek(), self.tokens.get(self.at + 1)];
        match power {
            [Some(Token::Mark('^')), Some(Token::Number(_))] => self.at += 2,
            [Some(Token::Mark('^')), Some(Token::Mark('{'))] => {
                let close = self.tokens[self.at..].iter().position(|token| *token == Token::Mark('}'));
                self.at += close.map_or(0, |close| close + 1);
            }
            [Some(Token::Mark('/')), Some(Token::Words(_))] => self.at += 2,
            _ => {}
        }
        self.measured = self.at;
    }

    fn raised(&mut self, base: Expression) -> Option<Expression> {
        if self.eat('\'') {
            return Some(base);
        }
        let degrees = [Token::Mark('{'), Token::Mark('°'), Token::Mark('}')];
        let grouped = self.tokens[self.at..].starts_with(&degrees);
        self.at += degrees.len() * usize::from(grouped);
        if grouped || self.eat('°') {
            return Some(self.degrees(base));
        }
        let minus = self.eat('-');
        let exponent = if minus { self.deeper(Self::atom)?.negated() } else { self.deeper(Self::atom)? };
        Some(Expression::Power(Box::new(base), Box::new(exponent)))
    }

    /// Parses an index: part of a variable's name, or the base of a number's digits.
    fn indexed(&mut self, value: Expression) -> Option<Expression> {
        let index = self.deeper(Self::atom)?;
        Some(match value {
            Expression::Symbol(name) => Expression::Symbol(format!("{name}_{}", super::canonical::text(&index))),
            number @ Expression::Number(..) => Expression::Tuple('_', vec![number, index], '_'),
            other => other,
        })
    }

    /// Argument of a fraction: a group, or one digit, letter or command.
    pub(super) fn digit(&mut self) -> Option<Expression> {
        if let Some(Token::Number(digits)) = self.tokens.get_mut(self.at)
            && digits.len() > 1
        {
            let digit = digits.remove(0).to_string();
            return Some(Expression::Number(Rational::decimal(&digit)?, false));
        }
        self.atom()
    }

    /// A group, a number, a name or a command; the argument of a command is one of these.
    pub(super) fn atom(&mut self) -> Option<Expression> {
        self.deeper(|parser| match parser.next()? {
            Token::Number(digits) => parser.number(&digits),
            Token::Name(name) => Some(named(name)),
            Token::Words(words) => Some(Expression::Words(words)),
            Token::Command(name) => parser.command(&name),
            Token::Begin => parser.matrix(),
            Token::Mark(mark) => parser.bracket(mark),
            Token::Row | Token::End => None,
        })
    }

    fn number(&mut self, digits: &str) -> Option<Expression> {
        let repeats = matches!(self.peek(), Some(Token::Command(name)) if matches!(name.as_str(), "overline" | "bar"));
        if let Some((_, places)) = digits.split_once('.').filter(|_| repeats) {
            let rest = &self.tokens[self.at + 1..];
            if let [Token::Mark('{'), Token::Number(period), Token::Mark('}'), ..] = rest {
                let value = repeating(digits, places.len(), period);
                self.at += 4;
                return Some(Expression::Number(value?, false));
            }
        }
        Some(Expression::Number(Rational::decimal(digits)?, digits.contains(['.', 'e', 'E'])))
    }

    fn bracket(&mut self, mark: char) -> Option<Expression> {
        match mark {
            '∞' => Some(Expression::Constant(Constant::Infinity)),
            '∅' => Some(Expression::Set(Vec::new())),
            '⦃' if self.eat('⦄') => Some(Expression::Set(Vec::new())),
            '⦃' => {
                let items = self.items()?;
                self.eat('⦄').then_some(Expression::Set(items))
            }
            '{' => {
                let inner = self.list()?;
                self.eat('}').then_some(inner)
            }
            '|' => {
                let outer = std::mem::replace(&mut self.barred, true);
                let inner = self.sum()?;
                self.barred = outer;
                self.eat('|').then_some(Expression::call("abs", inner))
            }
            '(' | '[' => {
                let mut items = self.items()?;
                let close = self.mark().filter(|mark| matches!(mark, ')' | ']'))?;
                self.at += 1;
                let matching = (mark == '(') == (close == ')');
                match items.len() {
                    1 if matching => items.pop(),
                    1 => None,
                    _ => Some(Expression::Tuple(mark, items, close)),
                }
            }
            _ => None,
        }
    }
}

fn named(name: String) -> Expression {
    match name.as_str() {
        "e" => Expression::Constant(Constant::E),
        "i" => Expression::Constant(Constant::I),
        "π" => Expression::Constant(Constant::Pi),
        _ => Expression::Symbol(name),
    }
}

/// Value of `digits` with `places` of them after the point, followed by a repeating `period`.
fn repeating(digits: &str, places: usize, period: &str) -> Option<Rational> {
    let nines = Rational::decimal(&format!("{}{}", "9".repeat(period.len()), "0".repeat(places)))?;
    Rational::decimal(digits)?.add(&Rational::decimal(period)?.times(&nines.inverse()?)?)
}

/// Value of a fraction between 0 and 1 of two whole numbers.
fn proper_fraction(expression: &Expression) -> Option<Rational> {
    let Expression::Product(factors) = expression else { return None };
    let [Expression::Number(above, false), Expression::Power(below, _)] = factors.as_slice() else { return None };
    let Expression::Number(below, false) = below.as_ref() else { return None };
    let value = above.times(&below.inverse()?)?;
    (!above.is_negative() && above < below).then_some(value)
}
