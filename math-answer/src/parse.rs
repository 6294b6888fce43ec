//! Parses tokens to an expression, by recursive descent of limited depth.

use std::borrow::Cow;

use crate::expression::{ALL_HOLD, BASED, CASE, Constant, Expression, QUANTITY, RATIO};
use crate::lex::{MOST_BYTES, Reading, lex};
use crate::rational::Rational;
use crate::token::{RELATIONS, Token};
use crate::{label, relation, signs, tails};

/// Deepest nesting of brackets, fractions, roots and powers.
const MOST_DEPTH: usize = 80;

/// Signs between the members of a list. The last two say that all hold, and that one of them holds.
const SEPARATORS: [char; 4] = [';', ',', '∧', '∨'];

/// Commands that lead to an answer.
const LEADS: [&str; 4] = [
    "\\therefore",
    "\\implies",
    "\\Rightarrow",
    "\\Longrightarrow",
];

/// The expression of a formula; `None` if the text is not a formula, or is too large.
pub(crate) fn parse(text: &str, reading: Reading) -> Option<Expression> {
    let text = text.trim();
    if text.len() > MOST_BYTES {
        return None;
    }
    let text = single(text);
    let text = LEADS
        .iter()
        .find_map(|lead| text.strip_prefix(lead))
        .unwrap_or(&text);
    // `0.333...`
    let dots = text
        .strip_suffix("...")
        .filter(|number| number.ends_with(|c: char| c.is_ascii_digit()));
    let dotted = dots.map(|number| format!("{number}\\ldots"));
    let text = dotted
        .as_deref()
        .unwrap_or(text)
        .trim_end_matches(['.', ':', '\\', ' ', '\n']);
    formula(text, reading).or_else(|| labelled(text, reading))
}

/// The expression of a text without the words and signs around a formula.
fn formula(text: &str, reading: Reading) -> Option<Expression> {
    let tokens = lex(text, reading)?;
    if let Some(quantity) = quantity(&tokens) {
        return Some(quantity);
    }
    if !tokens
        .iter()
        .any(|token| matches!(token, Token::Mark('±' | '∓')))
    {
        return Parser::new(tokens).whole();
    }
    // `±` gives two answers, one per sign.
    let mut both = Vec::new();
    for (plus, minus) in [('+', '-'), ('-', '+')] {
        let mut signed = tokens.clone();
        for token in &mut signed {
            match token {
                Token::Mark(mark @ '±') => *mark = plus,
                Token::Mark(mark @ '∓') => *mark = minus,
                _ => {}
            }
        }
        match Parser::new(signed).whole()? {
            Expression::List(items) => both.extend(items),
            one => both.push(one),
        }
    }
    Some(Expression::List(both))
}

/// The value behind a left side that cannot be read as a formula, as in `\det A = 1`. That side is
/// a name of the value.
fn labelled(text: &str, reading: Reading) -> Option<Expression> {
    let equals = label::equals(text)?;
    let first = *equals.first()?;
    let name = &text[..first];
    let behind = &text[first + 1..];
    let value = formula(behind, reading)?;
    let (values, signs) = match value {
        Expression::Relation(parts, signs) if signs.iter().all(|sign| *sign == '=') => {
            (parts, signs)
        }
        Expression::List(_) | Expression::Relation(..) => return None,
        one => (vec![one], Vec::new()),
    };
    let parts = [vec![Expression::Words(label::name(name)?)], values].concat();
    Some(Expression::Relation(parts, [vec!['='], signs].concat()))
}

/// The text with single backslashes, if a program has doubled all of them: `\\frac{1}{2}`.
fn single(text: &str) -> Cow<'_, str> {
    let mut runs = text.split(|c: char| c != '\\').map(str::len);
    let doubled = text.match_indices("\\\\").any(|(at, pair)| {
        let behind = &text[at + pair.len()..];
        // `x=2 \\ y=3` has a line break.
        let letters = behind.bytes().take_while(u8::is_ascii_alphabetic).count();
        letters > 1 || behind.starts_with(['{', '%', '$', '!'])
    });
    if doubled && runs.all(|run| run % 2 == 0) {
        text.replace("\\\\", "\\").into()
    } else {
        text.into()
    }
}

/// A quantity in several units, as `4 hours 15 minutes`.
fn quantity(tokens: &[Token]) -> Option<Expression> {
    let tokens: Vec<&Token> = tokens
        .iter()
        .filter(|token| !matches!(token, Token::Mark(',' | '∧')))
        .collect();
    let mut parts = Vec::new();
    for pair in tokens.chunks(2) {
        let [Token::Number(digits), Token::Words(unit)] = pair else {
            return None;
        };
        let unit = Expression::Words(unit.trim_end_matches('s').into());
        if parts.contains(&unit) {
            return None;
        }
        parts.extend([
            Expression::Number(Rational::decimal(digits)?, digits.contains('.')),
            unit,
        ]);
    }
    (parts.len() > 2).then_some(Expression::Tuple(QUANTITY, parts, QUANTITY))
}

pub(crate) struct Parser {
    pub(crate) tokens: Vec<Token>,
    pub(crate) at: usize,
    /// Number of open levels.
    depth: usize,
    /// True if the next bar closes an absolute value.
    barred: bool,
    /// Place behind the last unit; no factor begins there.
    pub(crate) measured: usize,
    /// True if the tokens can be read in no way.
    pub(crate) failed: bool,
    /// True within the argument of a sine or the like, where degrees count.
    pub(crate) is_angle: bool,
}

impl Parser {
    pub(crate) fn new(tokens: Vec<Token>) -> Self {
        Self {
            tokens,
            at: 0,
            depth: 0,
            barred: false,
            measured: 0,
            failed: false,
            is_angle: false,
        }
    }

    /// The expression of other tokens at this depth.
    pub(crate) fn within(&self, tokens: Vec<Token>) -> Option<Expression> {
        let mut parser = Self::new(tokens);
        parser.depth = self.depth + 1;
        if parser.depth > MOST_DEPTH {
            None
        } else {
            parser.whole()
        }
    }

    fn whole(mut self) -> Option<Expression> {
        // `≈ 3.14`
        self.at += usize::from(matches!(self.mark(), Some('=' | '≈')));
        // `<2, -3>`
        if let [Token::Mark(open @ '<'), .., Token::Mark(close @ '>')] = self.tokens.as_mut_slice()
        {
            (*open, *close) = ('(', ')');
        }
        let list = self.list()?;
        (self.at == self.tokens.len() && !self.failed).then_some(list)
    }

    pub(crate) fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    pub(crate) fn next(&mut self) -> Option<Token> {
        self.at += 1;
        self.tokens.get(self.at - 1).cloned()
    }

    pub(crate) fn mark(&self) -> Option<char> {
        if let Some(Token::Mark(mark)) = self.peek() {
            Some(*mark)
        } else {
            None
        }
    }

    /// Consumes `mark` if it comes next.
    pub(crate) fn eat(&mut self, mark: char) -> bool {
        let found = self.mark() == Some(mark);
        self.at += usize::from(found);
        found
    }

    /// Runs `parse` one level deeper.
    pub(crate) fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        self.depth += 1;
        let found = if self.depth > MOST_DEPTH || self.failed {
            None
        } else {
            parse(self)
        };
        self.depth -= 1;
        found
    }

    /// Parses relations between commas: a single one, or a list.
    fn list(&mut self) -> Option<Expression> {
        let (mut items, signs) = self.separated()?;
        if items.len() == 1 {
            return items.pop();
        }
        if relation::are_bounds(&items) {
            if signs.iter().all(|sign| *sign == '∧') {
                let chain = relation::between(&items);
                return Some(chain.unwrap_or(Expression::Tuple(ALL_HOLD, items, ALL_HOLD)));
            }
            if signs.iter().all(|sign| *sign == '∨') {
                return Some(Expression::Union(items));
            }
        }
        Some(Expression::List(relation::unnumbered(items)))
    }

    pub(crate) fn items(&mut self) -> Option<Vec<Expression>> {
        self.separated().map(|(items, _)| items)
    }

    /// Parses relations and the signs that separate them.
    fn separated(&mut self) -> Option<(Vec<Expression>, Vec<char>)> {
        let mut items = vec![self.relation()?];
        let mut signs = Vec::new();
        while let Some(sign) = self.mark().filter(|mark| SEPARATORS.contains(mark)) {
            self.at += 1;
            signs.push(sign);
            // Accepts `1, and 2`.
            while let Some(next) = self.mark().filter(|mark| SEPARATORS[1..].contains(mark)) {
                self.at += 1;
                *signs.last_mut()? = next;
            }
            items.push(self.relation()?);
        }
        Some((items, signs))
    }

    pub(crate) fn relation(&mut self) -> Option<Expression> {
        let begin = self.at;
        let mut parts = vec![self.side()?];
        let mut signs = Vec::new();
        while let Some(sign) = self.mark().filter(|mark| RELATIONS.contains(mark)) {
            let unit = self.words(begin);
            self.at += 1;
            let behind = self.at;
            let part = self.side()?;
            // `5 km ≈ 3.1 mi` converts a unit and rounds nothing.
            if sign == '≈'
                && !unit.is_empty()
                && !self.words(behind).is_empty()
                && unit != self.words(behind)
            {
                continue;
            }
            // `x ≈ 11` gives x its only value.
            signs.push(
                if sign == '≈' && signs.is_empty() && parts[0].is_name() && !parts[0].is_constant()
                {
                    '='
                } else {
                    sign
                },
            );
            parts.push(part);
        }
        // `5 > x` is kept as `x < 5`.
        if !signs.is_empty() && signs.iter().all(|sign| matches!(sign, '>' | '≥')) {
            parts.reverse();
            signs.reverse();
            signs
                .iter_mut()
                .for_each(|sign| *sign = if *sign == '>' { '<' } else { '≤' });
        }
        let relation = if signs.is_empty() {
            parts.pop()?
        } else {
            Expression::Relation(parts, signs)
        };
        self.conditioned(relation)
    }

    /// The words among the tokens from a place on.
    fn words(&self, from: usize) -> Vec<String> {
        let words = self.tokens[from..self.at]
            .iter()
            .filter_map(|token| match token {
                Token::Words(words) => Some(words.clone()),
                _ => None,
            });
        words.collect()
    }

    /// Parses a condition on what stands before it, as in `x = 1 \text{ if } n = 2`. `for all x` is
    /// left out.
    fn conditioned(&mut self, value: Expression) -> Option<Expression> {
        let Some(Token::Words(words)) = self.peek() else {
            return Some(value);
        };
        if tails::is_for_all(words) {
            self.at += 1;
            if matches!(self.peek(), Some(Token::Name(_))) {
                self.at += 1;
                if self.eat('∈') {
                    self.atom()?;
                }
            }
            return Some(value);
        }
        if !tails::is_condition(words) {
            return Some(value);
        }
        self.at += 1;
        let condition = self.deeper(Self::relation)?;
        Some(Expression::Tuple(CASE, vec![value, condition], CASE))
    }

    /// Parses a side of a relation. Its modulus may be left out, as may the base of a number.
    fn side(&mut self) -> Option<Expression> {
        let side = self.sets()?;
        let grouped = self.mark() == Some('(') && is_modulus(self.tokens.get(self.at + 1));
        if !grouped && !is_modulus(self.peek()) {
            return Some(side);
        }
        self.at += 1 + usize::from(grouped);
        let modulus = self.atom()?;
        if grouped && !self.eat(')') {
            return None;
        }
        Some(Expression::Tuple(BASED, vec![side, modulus], BASED))
    }

    fn sets(&mut self) -> Option<Expression> {
        let mut parts = vec![self.ratio()?];
        loop {
            if self.eat('∪') {
                parts.push(self.ratio()?);
            } else if self.eat('∖') {
                // An interval without a point is two intervals.
                let Expression::Set(holes) = self.ratio()? else {
                    return None;
                };
                // `\{1,2\} \setminus \{2\}`
                if let Some(Expression::Set(members)) = parts.last_mut() {
                    members.retain(|member| !holes.contains(member));
                    continue;
                }
                for hole in holes {
                    let Expression::Tuple(open, mut ends, close) = parts.pop()? else {
                        return None;
                    };
                    let upper = vec![hole.clone(), ends.pop()?];
                    ends.push(hole);
                    parts.extend([
                        Expression::Tuple(open, ends, ')'),
                        Expression::Tuple('(', upper, close),
                    ]);
                }
            } else {
                break;
            }
        }
        if parts.len() == 1 {
            return parts.pop();
        }
        // `\{1\} \cup \{2\}`
        let mut members = Vec::new();
        for part in &parts {
            let Expression::Set(set) = part else {
                return Some(Expression::Union(parts));
            };
            members.extend(set.iter().cloned());
        }
        Some(Expression::Set(members))
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
            Err(parts) => Expression::Tuple(RATIO, parts, RATIO),
        })
    }

    pub(crate) fn sum(&mut self) -> Option<Expression> {
        let mut terms = vec![self.product()?];
        while let Some(sign) = self.mark().filter(|mark| matches!(mark, '+' | '-')) {
            self.at += 1;
            let term = self.product()?;
            terms.push(if sign == '-' { term.negated() } else { term });
        }
        let sum = if terms.len() == 1 {
            terms.pop()?
        } else {
            Expression::Sum(terms)
        };
        self.stacked(sum)
    }

    /// Parses what stands below in `{17 \over 12}` or `{10 \choose 3}`.
    fn stacked(&mut self, above: Expression) -> Option<Expression> {
        let Some(Token::Command(name)) = self.peek() else {
            return Some(above);
        };
        let is_fraction = name == "over";
        if !is_fraction && name != "choose" {
            return Some(above);
        }
        self.at += 1;
        let below = self.deeper(Self::sum)?;
        Some(if is_fraction {
            above.over(below)
        } else {
            Expression::Call("binomial", vec![above, below])
        })
    }

    pub(crate) fn product(&mut self) -> Option<Expression> {
        let mut minus = false;
        while let Some(sign) = self.mark().filter(|mark| matches!(mark, '+' | '-')) {
            self.at += 1;
            minus ^= sign == '-';
        }
        let mut factors = vec![self.factor()?];
        loop {
            if let Some(choices) = self.choices(factors.last()?) {
                *factors.last_mut()? = self.signed(choices)?;
            } else if self.eat('*') {
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
        let Expression::Number(whole, false) = last else {
            return None;
        };
        // `(2)\frac12` is a product.
        if !self.behind_number() {
            return None;
        }
        let place = self.at;
        let fraction = match self.peek()? {
            // Only numbers make a proper fraction.
            Token::Command(name) if name == "frac" && self.is_plain() => self.atom(),
            Token::Number(_) => self.plain_fraction(),
            _ => return None,
        };
        let sum = fraction
            .as_ref()
            .and_then(proper_fraction)
            .and_then(|fraction| whole.add(&fraction));
        if sum.is_none() {
            self.at = place;
        }
        sum.map(|sum| Expression::Number(sum, false))
    }

    /// True if the fraction that comes next is one of two numbers.
    fn is_plain(&self) -> bool {
        use Token::{Mark, Number};
        match &self.tokens[self.at + 1..] {
            [
                Mark('{'),
                Number(_),
                Mark('}'),
                Mark('{'),
                Number(_),
                Mark('}'),
                ..,
            ]
            | [Mark('{'), Number(_), Mark('}'), Number(_), ..]
            | [Number(_), Mark('{'), Number(_), Mark('}'), ..] => true,
            // `\frac12`
            [Number(digits), ..] => digits.len() > 1,
            _ => false,
        }
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

    pub(crate) fn behind_number(&self) -> bool {
        matches!(self.before(), Some(Token::Number(_)))
    }

    fn begins_factor(&self) -> bool {
        match self.peek() {
            Some(Token::Mark('|')) => !self.barred,
            Some(Token::Mark(mark)) => matches!(mark, '(' | '{' | '⦃' | '∞' | '∅'),
            // Neither `1 2` nor `17 % 5` is a product.
            Some(Token::Number(_)) => {
                !self.behind_number() && self.before() != Some(&Token::Mark('%'))
            }
            Some(Token::Name(_) | Token::Begin(_)) => true,
            Some(Token::Command(name)) => !matches!(
                name.as_str(),
                "rfloor" | "rceil" | "rangle" | "pmod" | "base" | "over" | "choose" | "to"
            ),
            _ => false,
        }
    }

    /// Argument of a fraction: a group, or one digit, letter or command.
    pub(crate) fn digit(&mut self) -> Option<Expression> {
        if let Some(Token::Number(digits)) = self.tokens.get_mut(self.at)
            && digits.len() > 1
        {
            let digit = digits.remove(0).to_string();
            return Some(Expression::Number(Rational::decimal(&digit)?, false));
        }
        self.atom()
    }

    /// A group, a number, a name or a command; the argument of a command is one of these.
    pub(crate) fn atom(&mut self) -> Option<Expression> {
        self.deeper(|parser| match parser.next()? {
            Token::Number(digits) => parser.number(&digits),
            Token::Name(name) => Some(named(name)),
            Token::Words(words) => Some(Expression::Words(signs::synonym(&words))),
            Token::Command(name) => parser.command(&name),
            Token::Begin(name) => parser.environment(&name),
            Token::Mark(mark) => parser.bracket(mark),
            Token::Remark(_) | Token::Gap | Token::Seam | Token::Row | Token::End => None,
        })
    }

    fn number(&mut self, digits: &str) -> Option<Expression> {
        let repeats = is_command(self.peek(), &["overline", "bar"]);
        if let Some((_, places)) = digits.split_once('.').filter(|_| repeats) {
            let rest = &self.tokens[self.at + 1..];
            if let [
                Token::Mark('{'),
                Token::Number(period),
                Token::Mark('}'),
                ..,
            ] = rest
            {
                let value = repeating(digits, places.len(), period);
                self.at += 4;
                return Some(Expression::Number(value?, false));
            }
        }
        Some(Expression::Number(
            Rational::decimal(digits)?,
            digits.contains(['.', 'e', 'E']),
        ))
    }

    /// True before the rows of a function in pieces.
    fn begins_rows(&self) -> bool {
        let Some(Token::Begin(name)) = self.peek() else {
            return false;
        };
        matches!(name.as_str(), "array" | "aligned" | "matrix")
    }

    fn bracket(&mut self, mark: char) -> Option<Expression> {
        match mark {
            '∞' => Some(Expression::Constant(Constant::Infinity)),
            '∅' => Some(Expression::Set(Vec::new())),
            '⦃' if self.eat('⦄') => Some(Expression::Set(Vec::new())),
            // `{}^{10}C_3`
            '{' if self.mark() == Some('}') => {
                self.at += 1;
                self.before_c()
            }
            '^' | '_' => {
                self.at -= 1;
                self.before_c()
            }
            '⦃' if self.begins_rows() => {
                self.at += 1;
                let cases = self.cases()?;
                self.eat('⦄');
                Some(cases)
            }
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

/// True for one of these commands.
fn is_command(token: Option<&Token>, names: &[&str]) -> bool {
    matches!(token, Some(Token::Command(name)) if names.contains(&name.as_str()))
}

/// True for the command before a modulus or a base.
fn is_modulus(token: Option<&Token>) -> bool {
    is_command(token, &["pmod", "base"])
}

/// The constant or the variable of this name.
pub(crate) fn named(name: String) -> Expression {
    match name.as_str() {
        "e" => Expression::Constant(Constant::E),
        "i" => Expression::Constant(Constant::I),
        "π" => Expression::Constant(Constant::Pi),
        _ => Expression::Symbol(name),
    }
}

/// Value of `digits` with `places` of them after the point, followed by a repeating `period`.
fn repeating(digits: &str, places: usize, period: &str) -> Option<Rational> {
    let nines = Rational::decimal(&format!(
        "{}{}",
        "9".repeat(period.len()),
        "0".repeat(places)
    ))?;
    Rational::decimal(digits)?.add(&Rational::decimal(period)?.times(&nines.inverse()?)?)
}

/// Value of a fraction between 0 and 1 of two whole numbers.
fn proper_fraction(expression: &Expression) -> Option<Rational> {
    let Expression::Product(factors) = expression else {
        return None;
    };
    let [
        Expression::Number(above, false),
        Expression::Power(below, _),
    ] = factors.as_slice()
    else {
        return None;
    };
    let Expression::Number(below, false) = below.as_ref() else {
        return None;
    };
    let value = above.times(&below.inverse()?)?;
    (!above.is_negative() && above < below).then_some(value)
}
