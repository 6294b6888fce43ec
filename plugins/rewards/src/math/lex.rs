//! Tokens of LaTeX and plain formulas, without layout commands and without units after numbers.

use std::sync::LazyLock;

use ::regex::Regex;

use super::expression;
use super::signs;

/// Longest text that is read, bytes; no answer is longer.
pub(super) const MOST_BYTES: usize = 4096;

/// Deepest nesting of `\text{...}`.
const MOST_TEXTS: usize = 3;

/// Largest number of tokens in a formula.
const MOST_TOKENS: usize = 1000;

/// Which of two meanings a text gets where it has two: `5 mg` is a quantity or a product, and `2e-3` a product or a number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    First,
    Second,
}

/// A piece of a formula.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
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
    /// Start of a matrix.
    Begin,
    /// End of a row of a matrix.
    Row,
    /// End of a matrix.
    End,
}

/// The tokens of a formula; `None` if it is too long, or if a command's brace is unclosed.
pub(super) fn lex(text: &str, reading: Reading) -> Option<Vec<Token>> {
    within(text, reading, 0)
}

/// The tokens of a text nested `depth` deep; `None` as for [`lex`].
fn within(text: &str, reading: Reading, depth: usize) -> Option<Vec<Token>> {
    if text.len() > MOST_BYTES || depth > MOST_TEXTS {
        return None;
    }
    let plain = signs::spelled(&text.replace("\\qquad", " ").replace("\\quad", " "));
    let mut lexer = Lexer { rest: &plain, tokens: Vec::new(), reading, depth, spaced: false, brackets: 0 };
    while !lexer.rest.is_empty() {
        lexer.next()?;
        if lexer.tokens.len() > MOST_TOKENS {
            return None;
        }
    }
    Some(lexer.tokens)
}

struct Lexer<'t> {
    rest: &'t str,
    tokens: Vec<Token>,
    reading: Reading,
    depth: usize,
    /// True behind white space.
    spaced: bool,
    /// Number of open brackets, in which a comma separates members and not thousands.
    brackets: usize,
}

impl<'t> Lexer<'t> {
    fn next(&mut self) -> Option<()> {
        let c = self.rest.chars().next()?;
        let before = self.rest;
        match c {
            '\\' => self.command()?,
            '0'..='9' | '.' => self.number(),
            _ if c.is_alphabetic() => self.letters(),
            _ => self.sign(c),
        }
        let read = &before[..before.len() - self.rest.len()];
        self.spaced = c.is_whitespace() || matches!(read, "~" | "\\ " | "\\," | "\\:" | "\\;");
        Some(())
    }

    /// Reads a sign, or one that two characters write.
    fn sign(&mut self, c: char) {
        const PAIRS: [(&str, char); 5] = [("<=", '≤'), (">=", '≥'), ("==", '='), ("**", '^'), ("!=", '≠')];
        // `5!=120` is about a factorial.
        let unequal = self.spaced || matches!(self.tokens.last(), Some(Token::Name(_)));
        let pair = PAIRS.iter().find(|(pair, sign)| self.rest.starts_with(pair) && (*sign != '≠' || unequal));
        self.skip(pair.map_or(c.len_utf8(), |(pair, _)| pair.len()));
        // Dollar signs mark a currency here, or remain from a formula's delimiters.
        if !c.is_whitespace() && !matches!(c, '$' | '~' | '€' | '£' | '¥' | '₹') {
            self.mark(pair.map_or(c, |(_, sign)| *sign));
        }
    }

    fn mark(&mut self, mark: char) {
        match mark {
            '(' | '[' | '⦃' => self.brackets += 1,
            ')' | ']' | '⦄' => self.brackets = self.brackets.saturating_sub(1),
            // Braces around the whole text are those of a set.
            '{' if self.tokens.is_empty() => self.brackets += 1,
            _ => {}
        }
        self.tokens.push(Token::Mark(mark));
    }

    fn skip(&mut self, bytes: usize) -> &'t str {
        let (head, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        head
    }

    /// Consumes the characters for which `accept` is true.
    fn take(&mut self, accept: impl Fn(char) -> bool) -> &'t str {
        self.skip(self.rest.find(|c| !accept(c)).unwrap_or(self.rest.len()))
    }

    /// Reads digits, groups of three digits with thousands separators, a fraction, and an exponent.
    fn number(&mut self) {
        let mut digits = self.take(|c| c.is_ascii_digit()).to_owned();
        let first = digits.len();
        while (1..=3).contains(&first)
            && !digits.starts_with('0')
            && let Some((separator, group)) = self.thousands()
        {
            self.skip(separator + 3);
            digits.push_str(group);
        }
        if self.rest.starts_with('.') {
            self.skip(1);
            digits.push('.');
            digits.push_str(self.take(|c| c.is_ascii_digit()));
        }
        if digits == "." {
            self.tokens.push(Token::Mark('.'));
            return;
        }
        if let Some(length) = exponent(self.rest, digits.contains('.') || self.reading == Reading::Second) {
            digits.push_str(self.skip(length));
        }
        self.tokens.push(Token::Number(digits));
    }

    /// Length of a thousands separator, and the three digits after it.
    fn thousands(&self) -> Option<(usize, &'t str)> {
        let length = self.rest.find(|c| !matches!(c, '\\' | '!' | '{' | '}' | ',' | '~' | ' '))?;
        let (separator, rest) = self.rest.split_at(length);
        let group = rest.as_bytes();
        let is_group = group.len() >= 3
            && group[..3].iter().all(u8::is_ascii_digit)
            && !group.get(3).is_some_and(u8::is_ascii_digit);
        // A space does not separate thousands in `\log_2 512`. No member of a set or an interval is written `000`.
        let attached = matches!(self.tokens.last(), Some(Token::Mark('_' | '^')));
        let fits = match separator.replace(' ', "").as_str() {
            "\\!" | "{,}" | ",\\!" | "\\!,\\!" | "{,}\\!" => true,
            "," => separator == "," && (self.brackets == 0 || group.starts_with(b"0")),
            "\\," | "~" => !attached,
            _ => separator == " " && !attached,
        };
        // `2 113/225` is a mixed number.
        let below = rest.get(3..).and_then(|rest| rest.trim_start().strip_prefix('/')).unwrap_or_default().trim_start();
        let below = &below[..below.find(|c: char| !c.is_ascii_digit()).unwrap_or(below.len())];
        let is_mixed = !separator.contains([',', '!']) && (below.len(), below) > (3, rest.get(..3)?);
        (is_group && fits && !is_mixed).then(|| (length, &rest[..3]))
    }

    /// Reads a run of letters: a unit after a number, a function, a conjunction, or variables.
    fn letters(&mut self) {
        let run = self.take(char::is_alphabetic);
        let lower = run.to_lowercase();
        let long = run.chars().count() > 3 || lower == "per";
        let measures = self.after_number() && signs::is_unit(&lower) && (long || self.measures(run))
            || self.after_degree() && matches!(run, "C" | "F");
        match lower.as_str() {
            "and" | "or" => self.mark(','),
            "inf" | "infinity" => self.mark('∞'),
            "percent" | "percentage" | "pct" => self.mark('%'),
            function if signs::is_in(signs::FUNCTIONS, function) => self.tokens.push(Token::Command(lower)),
            _ if measures || long && !self.calculates() => self.tokens.push(Token::Words(lower)),
            _ => self.tokens.extend(run.chars().map(|c| Token::Name(c.into()))),
        }
    }

    /// True if the letters just read are a short unit, and not variables, which look the same: they stand at the end of the answer, or of a
    /// member of a list, outside of brackets, and no variable is before them. A single letter also has a space before it.
    fn measures(&self, run: &str) -> bool {
        // Its power, a unit below a stroke, and what may follow an answer: nothing, another one, or words.
        static END: LazyLock<Regex> = LazyLock::new(|| {
            let power = r"(?:\s*\^(?:\d|\{-?\d+\}))?";
            let follows = r"$|[,;≈]|\s\d|\\(?:text|approx)|(?:and|or|per|[a-zA-Z]{4,})\b";
            let end = format!(r"^{power}(?:\s*/\s*([a-zA-Z]+){power})?(?:[\s$.~]|\\[^a-zA-Z\\])*?(?:{follows})");
            Regex::new(&end).expect("the pattern is a constant")
        });
        let Some(end) = END.captures(self.rest).filter(|_| self.reading == Reading::First) else { return false };
        let below = end.get(1).map(|below| signs::is_unit(below.as_str()));
        let spaced = match self.tokens.last() {
            Some(Token::Number(_)) => self.spaced,
            // `10^{8} m/s`
            Some(Token::Mark('}')) => self.spaced && below == Some(true),
            _ => self.below(),
        };
        let (mut depth, mut named, mut adds) = (0, false, false);
        let before = [None].into_iter().chain(self.tokens.iter().map(Some));
        for (before, token) in before.zip(&self.tokens) {
            match token {
                Token::Mark('(' | '[' | '{' | '⦃') => depth += 1,
                Token::Mark(')' | ']' | '}' | '⦄') => depth -= 1,
                Token::Mark(',' | ';' | '=' | '<' | '>' | '≤' | '≥' | '≠' | '≈') => {
                    (named, adds) = (false, false)
                }
                Token::Mark('+' | '-') if depth == 0 => {
                    adds |= matches!(before, Some(Token::Number(_) | Token::Words(_) | Token::Mark(')' | '}' | '°')));
                }
                Token::Name(_) => named = true,
                _ => {}
            }
        }
        let single = run.len() == 1;
        // `f(s) = 3 s`
        let is_used = |letter: char| self.tokens.contains(&Token::Name(letter.into()));
        named |= (single || !self.spaced) && below.is_none() && !self.below() && run.chars().any(is_used);
        (!single || spaced) && below != Some(false) && depth == 0 && !named && !(adds && (single || !self.spaced))
    }

    /// True if the letters just read touch a number, a variable or a sign of a calculation: `24abcd`, `abcd+1`.
    fn calculates(&self) -> bool {
        let touches = match self.tokens.last() {
            Some(Token::Number(_) | Token::Name(_)) => true,
            Some(Token::Mark(mark)) => matches!(mark, ')' | ']' | '}' | '+' | '-' | '*'),
            _ => false,
        };
        touches && !self.spaced || self.rest.starts_with(['+', '*', '^', '_'])
    }

    /// True behind the stroke of `m/s`.
    fn below(&self) -> bool {
        self.tokens.last() == Some(&Token::Mark('/'))
    }

    fn after_degree(&self) -> bool {
        matches!(self.tokens.as_slice(), [.., Token::Mark('°')] | [.., Token::Mark('°'), Token::Mark('}')])
    }

    fn after_number(&self) -> bool {
        match self.tokens.as_slice() {
            [.., Token::Words(_), Token::Mark('/')] => true,
            [.., Token::Command(name)] => name == "pi",
            [.., last] => matches!(last, Token::Number(_) | Token::Words(_) | Token::Mark('}' | ')' | '°')),
            [] => false,
        }
    }

    fn command(&mut self) -> Option<()> {
        self.skip(1);
        let name = self.take(|c| c.is_ascii_alphabetic());
        if name.is_empty() {
            self.escaped();
            return Some(());
        }
        if signs::is_in(signs::SILENT, name) {
            // `\left.` means no bracket.
            if matches!(name, "left" | "right") && self.rest.starts_with('.') {
                self.skip(1);
            }
            return Some(());
        }
        if signs::is_in(signs::TEXT, name) {
            return self.words();
        }
        let token = match (name, signs::mark(name)) {
            (_, Some(mark)) => {
                self.mark(mark);
                return Some(());
            }
            ("color" | "textcolor", _) => {
                self.argument()?;
                return Some(());
            }
            ("mathbb", _) => Token::Command(format!("mathbb {}", self.argument()?.trim())),
            ("begin" | "end", _) => {
                // A determinant is compared as text.
                let environment = self.argument().filter(|name| !matches!(*name, "vmatrix" | "Vmatrix"))?;
                if environment == "array" && name == "begin" {
                    self.argument();
                }
                if name == "begin" { Token::Begin } else { Token::End }
            }
            ("dfrac" | "tfrac" | "cfrac" | "frac", _) => Token::Command("frac".into()),
            ("dbinom" | "tbinom" | "binom" | "choose", _) => Token::Command("binom".into()),
            _ if signs::is_in(signs::GREEK, name) => Token::Name(name.into()),
            _ => Token::Command(name.into()),
        };
        self.tokens.push(token);
        Some(())
    }

    /// Reads a non-letter after a backslash.
    fn escaped(&mut self) {
        let Some(c) = self.rest.chars().next() else { return };
        self.skip(c.len_utf8());
        match c {
            '{' => self.mark('⦃'),
            '}' => self.mark('⦄'),
            '%' | '|' => self.mark(c),
            '\\' => self.tokens.push(Token::Row),
            // Spaces of every width, escaped dollars, and line breaks are skipped.
            _ => {}
        }
    }

    /// The text between the braces that follow.
    fn argument(&mut self) -> Option<&'t str> {
        let rest = self.rest.trim_start().strip_prefix('{')?;
        let length = closing(rest)?;
        self.rest = &rest[length + 1..];
        Some(&rest[..length])
    }

    /// Reads `\text{...}`.
    fn words(&mut self) -> Option<()> {
        let text = self.argument()?.trim().trim_matches(['.', '~', ',']).trim();
        let bare = text.trim_start_matches('(').trim_end_matches(')');
        // `5 \text{ cm and } 6 \text{ cm}`
        if let Some(core) = bare.strip_suffix(" and").or(bare.strip_suffix(" or")) {
            self.said(core)?;
            self.mark(',');
            return Some(());
        }
        self.said(bare)
    }

    /// Reads what stands in `\text{...}`.
    fn said(&mut self, bare: &str) -> Option<()> {
        match bare.to_lowercase().as_str() {
            "" => {}
            unit if self.after_number() && signs::is_unit(unit) => self.tokens.push(Token::Words(unit.into())),
            "and" | "or" | ", and" => self.mark(','),
            "percent" => self.mark('%'),
            "all real numbers" => self.tokens.push(Token::Command("mathbb R".into())),
            function if expression::function(function).is_some() => self.tokens.push(Token::Command(function.into())),
            _ if self.after_number() && signs::is_in(signs::LETTERS, bare)
                || self.after_degree() && matches!(bare, "C" | "F") =>
            {
                self.tokens.push(Token::Words(bare.to_lowercase()))
            }
            one if one.chars().count() == 1 && one.chars().all(char::is_alphabetic) => {
                self.tokens.extend(bare.chars().map(|c| Token::Name(c.into())))
            }
            _ if bare.starts_with(|c: char| c.is_ascii_digit() || "-+.$\\".contains(c)) => {
                self.tokens.extend(within(bare, self.reading, self.depth + 1)?)
            }
            words => self.tokens.push(Token::Words(words.chars().filter(|c| c.is_alphanumeric()).collect())),
        }
        Some(())
    }
}

/// Number of bytes before the brace that closes the one before `text`.
pub(super) fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut escaped) = (0usize, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'{' => depth += 1,
            b'}' if depth == 0 => return Some(at),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Length of an exponent: `e5`, `E12`, `e-05`. A single digit after a sign is one only if `short`: `2e-3` is `2e` minus 3.
fn exponent(rest: &str, short: bool) -> Option<usize> {
    let digits = rest.strip_prefix(['e', 'E'])?;
    let unsigned = digits.strip_prefix(['+', '-']).unwrap_or(digits);
    let count = unsigned.bytes().take_while(u8::is_ascii_digit).count();
    let least = if short || unsigned.len() == digits.len() { 1 } else { 2 };
    (count >= least).then_some(rest.len() - unsigned.len() + count)
}
