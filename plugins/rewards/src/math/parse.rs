//! Parses tokens to an expression, by recursive descent of limited depth.

use std::borrow::Cow;

use super::expression::{Constant, Expression};
use super::lex::{MOST_BYTES, Reading, Token, lex};
use super::rational::Rational;
use super::relation;

/// Deepest nesting of brackets, fractions, roots and powers.
const MOST_DEPTH: usize = 80;

const RELATIONS: [char; 8] = ['=', '<', '>', '≤', '≥', '≠', '∈', '≈'];

/// Commands that lead to an answer.
const LEADS: [&str; 4] = ["\\therefore", "\\implies", "\\Rightarrow", "\\Longrightarrow"];

/// The expression of a formula; `None` if the text is not a formula, or is too large.
pub(super) fn parse(text: &str, reading: Reading) -> Option<Expression> {
    let text = text.trim();
    if text.len() > MOST_BYTES {
        return None;
    }
    let text = single(text);
    let text = LEADS.iter().find_map(|lead| text.strip_prefix(lead)).unwrap_or(&text);
    let tokens = lex(text.trim_end_matches(['.', ':', '\\', ' ', '\n']), reading)?;
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

/// The text with single backslashes, if a program has doubled all of them: `\\frac{1}{2}`.
fn single(text: &str) -> Cow<'_, str> {
    let mut runs = text.split(|c: char| c != '\\').map(str::len);
    let doubled = text.match_indices("\\\\").any(|(at, pair)| {
        let behind = &text[at + pair.len()..];
        behind.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '{' | '%' | '$' | '!'))
    });
    if doubled && runs.all(|run| run % 2 == 0) { text.replace("\\\\", "\\").into() } else { text.into() }
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
    pub(super) tokens: Vec<Token>,
    pub(super) at: usize,
    /// Number of open levels.
    depth: usize,
    /// True if the next bar closes an absolute value.
    barred: bool,
    /// Place behind the last unit; no factor begins there.
    pub(super) measured: usize,
    /// True within the argument of a sine or the like, where degrees count.
    pub(super) is_angle: bool,
}

impl Parser {
    fn new(tokens: Vec<Token>) -> Self {
        Self { tokens, at: 0, depth: 0, barred: false, measured: 0, is_angle: false }
    }

    fn whole(mut self) -> Option<Expression> {
        // `≈ 3.14`
        self.at += usize::from(matches!(self.mark(), Some('=' | '≈')));
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
    pub(super) fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        self.depth += 1;
        let found = if self.depth > MOST_DEPTH { None } else { parse(self) };
        self.depth -= 1;
        found
    }

    /// Parses relations between commas: a single one, or a list.
    fn list(&mut self) -> Option<Expression> {
        let mut items = self.items()?;
        if items.len() == 1 { items.pop() } else { Some(Expression::List(relation::unnumbered(items))) }
    }

    pub(super) fn items(&mut self) -> Option<Vec<Expression>> {
        let mut items = vec![self.relation()?];
        while self.eat(',') || self.eat(';') {
            // Accepts `1, and 2`.
            while self.eat(',') {}
            items.push(self.relation()?);
        }
        Some(items)
    }

    pub(super) fn relation(&mut self) -> Option<Expression> {
        let mut parts = vec![self.side()?];
        let mut signs = Vec::new();
        while let Some(sign) = self.mark().filter(|mark| RELATIONS.contains(mark)) {
            self.at += 1;
            // `x ≈ 11` gives x its only value.
            signs.push(if sign == '≈' && signs.is_empty() && parts[0].is_name() && !parts[0].is_constant() {
                '='
            } else {
                sign
            });
            parts.push(self.side()?);
        }
        // `5 > x` is kept as `x < 5`.
        if !signs.is_empty() && signs.iter().all(|sign| matches!(sign, '>' | '≥')) {
            parts.reverse();
            signs.reverse();
            signs.iter_mut().for_each(|sign| *sign = if *sign == '>' { '<' } else { '≤' });
        }
        if signs.is_empty() { parts.pop() } else { Some(Expression::Relation(parts, signs)) }
    }

    /// Parses a side of a relation. Its modulus may be left out, as may the base of a number.
    fn side(&mut self) -> Option<Expression> {
        let side = self.sets()?;
        if !matches!(self.peek(), Some(Token::Command(name)) if name == "pmod") {
            return Some(side);
        }
        self.at += 1;
        Some(Expression::Tuple('_', vec![side, self.atom()?], '_'))
    }

    fn sets(&mut self) -> Option<Expression> {
        let mut parts = vec![self.ratio()?];
        loop {
            if self.eat('∪') {
                parts.push(self.ratio()?);
            } else if self.eat('∖') {
                // An interval without a point is two intervals.
                let Expression::Set(holes) = self.ratio()? else { return None };
                for hole in holes {
                    let Expression::Tuple(open, mut ends, close) = parts.pop()? else { return None };
                    let upper = vec![hole.clone(), ends.pop()?];
                    ends.push(hole);
                    parts.extend([Expression::Tuple(open, ends, ')'), Expression::Tuple('(', upper, close)]);
                }
            } else {
                break;
            }
        }
        if parts.len() == 1 { parts.pop() } else { Some(Expression::Union(parts)) }
    }

    /// Parses a ratio. One of two parts, `3:5`, is their fraction.
    fn ratio(&mut self) -> Option<Expression> {
        let mut parts = vec![self.sum()?];
        while self.eat(':') {
            parts.push(self.sum()?);
        }
        Some(match <[Expression; 2]>::try_from(parts) {
            Ok([one, other]) => one.over(other),
            Err(mut parts) if parts.len() == 1 => parts.remove(0),
            Err(parts) => Expression::Tuple(':', parts, ':'),
        })
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
            } else if self.eat('/') || self.eat('÷') {
                let minus = self.eat('-');
                let below = self.factor()?.inverse();
                factors.push(if minus { below.negated() } else { below });
            } else if let Some(mixed) = self.mixed(factors.last()?) {
                *factors.last_mut()? = self.signed(mixed)?;
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
        // `(2)\frac12` is a product.
        if !self.behind_number() {
            return None;
        }
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

    /// The token before the next one.
    fn before(&self) -> Option<&Token> {
        self.tokens.get(self.at.wrapping_sub(1))
    }

    fn behind_number(&self) -> bool {
        matches!(self.before(), Some(Token::Number(_)))
    }

    fn begins_factor(&self) -> bool {
        match self.peek() {
            Some(Token::Mark('|')) => !self.barred,
            Some(Token::Mark(mark)) => matches!(mark, '(' | '{' | '⦃' | '∞' | '∅'),
            // Neither `1 2` nor `17 % 5` is a product.
            Some(Token::Number(_)) => !self.behind_number() && self.before() != Some(&Token::Mark('%')),
            Some(Token::Name(_) | Token::Begin) => true,
            Some(Token::Command(name)) => !matches!(name.as_str(), "rfloor" | "rceil" | "rangle" | "pmod"),
            _ => false,
        }
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
            '⦃' => self.set(),
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
