//! Tokens of LaTeX and plain formulas, without layout commands and without units after numbers.

use crate::token::Token;
use crate::{expression, joints, label, signs, tails};

/// Longest text that is read, bytes; no answer is longer.
pub(crate) const MOST_BYTES: usize = 4096;

/// Deepest nesting of `\text{...}`.
const MOST_TEXTS: usize = 3;

/// Largest number of tokens in a formula.
const MOST_TOKENS: usize = 1000;

/// The meaning of a text that has two: `5 mg` is first a quantity and second a product, and `2e-3`
/// first a product and second a number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    First,
    Second,
}

/// The tokens of a formula; `None` if it is too long, or if a command's brace is unclosed.
pub(crate) fn lex(text: &str, reading: Reading) -> Option<Vec<Token>> {
    within(text, Vec::new(), reading, 0).map(joints::joined)
}

/// The tokens of a text nested `depth` deep, behind `tokens`; `None` as for [`lex`].
fn within(text: &str, tokens: Vec<Token>, reading: Reading, depth: usize) -> Option<Vec<Token>> {
    if text.len() > MOST_BYTES || depth > MOST_TEXTS {
        return None;
    }
    let plain = signs::spelled(text);
    let tight = !joints::has_spaced_relation(&plain);
    let mut lexer = Lexer {
        rest: &plain,
        tokens,
        reading,
        depth,
        spaced: false,
        tight,
        brackets: 0,
    };
    while !lexer.rest.is_empty() {
        lexer.next()?;
        if lexer.tokens.len() > MOST_TOKENS {
            return None;
        }
    }
    Some(lexer.tokens)
}

/// The first letter that is not of the Latin, Greek or Cyrillic alphabets or their like: signs of
/// Chinese, Japanese and Korean come from here on.
const CHINESE: char = '\u{2e80}';

/// What precedes a token.
#[derive(Default)]
struct Before {
    /// Number of open brackets.
    depth: i32,
    /// True if there is a variable.
    has_name: bool,
    /// True if a sum or a difference has begun outside of brackets.
    adds: bool,
}

struct Lexer<'t> {
    rest: &'t str,
    tokens: Vec<Token>,
    reading: Reading,
    depth: usize,
    /// True behind white space.
    spaced: bool,
    /// True if no relation of the text has spaces around it, so that a space parts two of them.
    tight: bool,
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
        self.spaced = c.is_whitespace()
            || matches!(
                read,
                "~" | "\\ " | "\\," | "\\:" | "\\;" | "\\quad" | "\\qquad"
            )
            || read.ends_with("{ }");
        Some(())
    }

    /// Reads a sign, or one that two characters write.
    fn sign(&mut self, c: char) {
        const PAIRS: [(&str, char); 5] = [
            ("<=", '≤'),
            (">=", '≥'),
            ("==", '='),
            ("**", '^'),
            ("!=", '≠'),
        ];
        // `5!=120` is about a factorial.
        let unequal = self.spaced || matches!(self.tokens.last(), Some(Token::Name(_)));
        // `$x=1$ $n=2$` are two formulas, and two lines may be two.
        if c == '\n' || c == '$' && joints::parts_formulas(self.rest) {
            self.gap(if c == '\n' { Token::Seam } else { Token::Gap });
        }
        let pair = PAIRS
            .iter()
            .find(|(pair, sign)| self.rest.starts_with(pair) && (*sign != '≠' || unequal));
        self.skip(pair.map_or(c.len_utf8(), |(pair, _)| pair.len()));
        // Dollar signs mark a currency here, or remain from a formula's delimiters.
        if !c.is_whitespace() && !matches!(c, '$' | '~' | '€' | '£' | '¥' | '₹') {
            self.mark(pair.map_or(c, |(_, sign)| *sign));
        }
    }

    /// Adds a gap behind a token.
    fn gap(&mut self, gap: Token) {
        if !self.tokens.is_empty() {
            self.tokens.push(gap);
        }
    }

    /// The last token that is not a gap.
    fn last(&self) -> Option<&Token> {
        self.tokens
            .iter()
            .rfind(|token| !matches!(token, Token::Gap | Token::Seam))
    }

    /// Adds a name, behind a seam if a relation begins with it behind a space.
    fn name(&mut self, name: &str) {
        let behind = match self.tokens.last() {
            Some(Token::Number(_)) => true,
            // The space behind `\pi` ends the command, and that in `a = b c = d` may mean nothing.
            Some(Token::Name(before)) => self.tight && before.chars().count() == 1,
            Some(Token::Mark(')' | '}')) => self.tight,
            _ => false,
        };
        if self.spaced && behind && joints::begins_relation(self.rest) {
            self.tokens.push(Token::Seam);
        }
        self.tokens.push(Token::Name(name.into()));
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
        if let Some(length) = exponent(
            self.rest,
            digits.contains('.') || self.reading == Reading::Second,
        ) {
            digits.push_str(self.skip(length));
        }
        self.tokens.push(Token::Number(digits));
    }

    /// Length of a thousands separator, and the three digits after it.
    fn thousands(&self) -> Option<(usize, &'t str)> {
        let length = self.rest.find(|c| {
            !matches!(
                c,
                '\\' | '!' | '{' | '}' | ',' | '~' | ' ' | ';' | ':' | '\''
            )
        })?;
        let (separator, rest) = self.rest.split_at(length);
        let group = rest.as_bytes();
        let is_group = group.len() >= 3
            && group[..3].iter().all(u8::is_ascii_digit)
            && !group.get(3).is_some_and(u8::is_ascii_digit);
        // A space does not separate thousands in `\log_2 512`. No member of a set or an interval is
        // written `000`.
        let attached = matches!(self.tokens.last(), Some(Token::Mark('_' | '^')));
        let fits = match separator.replace(' ', "").as_str() {
            "\\!" | "{,}" | ",\\!" | "\\!,\\!" | "{,}\\!" => true,
            "," => separator == "," && (self.brackets == 0 || group.starts_with(b"0")),
            "\\," | "\\;" | "\\:" | "~" => !attached,
            "'" => separator == "'",
            _ => separator == " " && !attached,
        };
        // `2 113/225` is a mixed number.
        let below = rest
            .get(3..)
            .and_then(|rest| rest.trim_start().strip_prefix('/'))
            .unwrap_or_default()
            .trim_start();
        let below = &below[..below
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(below.len())];
        let is_mixed =
            !separator.contains([',', '!']) && (below.len(), below) > (3, rest.get(..3)?);
        (is_group && fits && !is_mixed).then(|| (length, &rest[..3]))
    }

    /// Reads a run of letters: a unit after a number, a function, a conjunction, or variables.
    fn letters(&mut self) {
        let chinese = self.take(|c| c.is_alphabetic() && c >= CHINESE);
        if !chinese.is_empty() {
            if self.behind_value() {
                self.tokens.extend(tails::chinese(chinese));
            } else {
                self.tokens.push(Token::Words(chinese.into()));
            }
            return;
        }
        let run = self.take(|c| c.is_alphabetic() && c < CHINESE);
        let lower = run.to_lowercase();
        let long = run.chars().count() > 3 || lower == "per";
        let measures =
            self.after_number() && signs::is_unit(&lower) && (long || self.measures(run))
                || self.after_degree() && matches!(run, "C" | "F");
        let stands_alone = (self.spaced || self.tokens.is_empty())
            && (self.rest.is_empty()
                || self
                    .rest
                    .starts_with(|c: char| c.is_whitespace() || ",.:$~".contains(c)));
        let is_word =
            long && !self.calculates() || stands_alone && signs::is_in(signs::SHORT_WORDS, &lower);
        let calls =
            self.rest.trim_start().starts_with(['(', '{']) || self.rest.starts_with("\\left(");
        match lower.as_str() {
            "and" => self.mark('∧'),
            "or" => self.mark('∨'),
            "dne" => self.tokens.push(Token::Words(lower)),
            "inf" | "infinity" => self.mark('∞'),
            "percent" | "percentage" | "pct" => self.mark('%'),
            function if signs::is_in(signs::FUNCTIONS, function) => {
                self.tokens.push(Token::Command(lower))
            }
            function if calls && !measures && expression::function(function).is_some() => {
                self.tokens.push(Token::Command(lower));
            }
            _ if measures => self.tokens.push(Token::Words(lower)),
            greek if signs::is_in(signs::GREEK, greek) && run == lower => self.name(&lower),
            "is" | "equals"
                if stands_alone
                    && matches!(self.last(), Some(Token::Name(_) | Token::Words(_))) =>
            {
                self.mark('=');
            }
            _ if is_word && self.behind_value() => {
                let behind_unit = matches!(self.last(), Some(Token::Words(_)));
                self.tokens.extend(tails::tokens(&lower, behind_unit));
            }
            _ if is_word => self.tokens.push(Token::Words(lower)),
            _ => {
                if run.chars().count() == 1 {
                    self.name(run);
                } else {
                    self.variables(run);
                }
            }
        }
    }

    /// Adds each letter as a variable.
    fn variables(&mut self, letters: &str) {
        self.tokens
            .extend(letters.chars().map(|c| Token::Name(c.into())));
    }

    /// True behind a value, which words may follow.
    fn behind_value(&self) -> bool {
        match self.last() {
            Some(Token::Number(_) | Token::Name(_) | Token::Words(_) | Token::End) => true,
            Some(Token::Mark(mark)) => matches!(
                mark,
                ')' | ']' | '}' | '⦄' | '%' | '°' | '!' | '\'' | '∞' | '|'
            ),
            Some(Token::Command(name)) => name == "pi",
            _ => false,
        }
    }

    /// True if the letters just read are a short unit, and not variables, which look the same: they
    /// stand at the end of the answer, or of a member of a list, outside of brackets, and no
    /// variable is before them. A single letter also has a space before it.
    fn measures(&self, run: &str) -> bool {
        const POWER: &str = r"(?:\s*\^(?:\d|\{-?\d+\}))?";
        if self.reading != Reading::First {
            return false;
        }
        let end = pattern!(
            // The unit's power, and a unit below a stroke.
            "^",
            POWER,
            r"(?:\s*/\s*([a-zA-Z]+)",
            POWER,
            // Then nothing, another answer, or words.
            r")?(?:[\s$.~]|\\[^a-zA-Z\\])*?",
            r"(?:$|[,;≈]|\s\d|\\(?:text|approx|q?quad)|(?:and|or|per|[a-zA-Z]{4,})\b)",
        );
        let Some(end) = end.captures(self.rest) else {
            return false;
        };
        let below = end.get(1).map(|below| signs::is_unit(below.as_str()));
        let spaced = match self.tokens.last() {
            Some(Token::Number(_)) => self.spaced,
            // `10^{8} m/s`
            Some(Token::Mark('}')) => self.spaced && below == Some(true),
            _ => self.below(),
        };
        let before = self.before();
        let single = run.len() == 1;
        // `f(s) = 3 s`
        let is_used = (single || !self.spaced)
            && below.is_none()
            && !self.below()
            && run
                .chars()
                .any(|letter| self.tokens.contains(&Token::Name(letter.into())));
        (!single || spaced)
            && below != Some(false)
            && before.depth == 0
            && !before.has_name
            && !is_used
            && !(before.adds && (single || !self.spaced))
    }

    /// What precedes the next token in its member of a list or its side of a relation.
    fn before(&self) -> Before {
        let mut found = Before::default();
        let mut last: Option<&Token> = None;
        for token in &self.tokens {
            match token {
                Token::Mark('(' | '[' | '{' | '⦃') => found.depth += 1,
                Token::Mark(')' | ']' | '}' | '⦄') => found.depth -= 1,
                Token::Mark(',' | ';' | '∧' | '∨' | '=' | '<' | '>' | '≤' | '≥' | '≠' | '≈') =>
                {
                    found.has_name = false;
                    found.adds = false;
                }
                Token::Mark('+' | '-') if found.depth == 0 => {
                    found.adds |= matches!(
                        last,
                        Some(Token::Number(_) | Token::Words(_) | Token::Mark(')' | '}' | '°'))
                    );
                }
                Token::Name(_) => found.has_name = true,
                _ => {}
            }
            last = Some(token);
        }
        found
    }

    /// True if the letters just read touch a number, a variable or a sign of a calculation:
    /// `24abcd`, `abcd+1`.
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
        matches!(
            self.tokens.as_slice(),
            [.., Token::Mark('°')] | [.., Token::Mark('°'), Token::Mark('}')]
        )
    }

    fn after_number(&self) -> bool {
        if let [.., Token::Words(_), Token::Mark('/')] = self.tokens.as_slice() {
            return true;
        }
        match self.last() {
            Some(Token::Command(name)) => name == "pi",
            Some(last) => matches!(
                last,
                Token::Number(_) | Token::Words(_) | Token::Mark('}' | ')' | '°')
            ),
            None => false,
        }
    }

    fn command(&mut self) -> Option<()> {
        self.skip(1);
        let name = self.take(|c| c.is_ascii_alphabetic());
        if name.is_empty() {
            self.escaped();
            return Some(());
        }
        if matches!(name, "quad" | "qquad") {
            self.gap(Token::Gap);
            return Some(());
        }
        if matches!(name, "hspace" | "newline" | "hskip") {
            self.argument();
            self.gap(Token::Gap);
            return Some(());
        }
        if self.measured(name) {
            self.tokens.push(Token::Words(name.to_lowercase()));
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
                let environment = self
                    .argument()
                    .filter(|name| !matches!(*name, "vmatrix" | "Vmatrix"))?;
                let environment = environment.trim_end_matches('*');
                if matches!(environment, "array" | "alignat" | "alignedat") && name == "begin" {
                    self.argument();
                }
                if name == "begin" {
                    Token::Begin(environment.into())
                } else {
                    Token::End
                }
            }
            ("dfrac" | "tfrac" | "cfrac" | "frac", _) => Token::Command("frac".into()),
            ("dbinom" | "tbinom" | "binom", _) => Token::Command("binom".into()),
            ("ldots" | "dots" | "cdots" | "dotsc" | "dotsb", _) if self.ends_decimal() => {
                self.repeat();
                return Some(());
            }
            _ if signs::is_in(signs::GREEK, name) => {
                self.name(name);
                return Some(());
            }
            _ => Token::Command(name.into()),
        };
        self.tokens.push(token);
        Some(())
    }

    /// True for the name of a command that writes a unit behind a number, with the rest of the
    /// unit, which is skipped: `5\ \Omega`, `5\,\mu\text{m}`.
    fn measured(&mut self, name: &str) -> bool {
        if !matches!(self.last(), Some(Token::Number(_) | Token::Mark('}' | ')'))) {
            return false;
        }
        let behind = match name {
            "Omega" if pattern!(r"^[\s$.~]*(?:$|[,;])").is_match(self.rest) => Some(0),
            "mu" => {
                let unit = pattern!(
                    r"^\s*\\(?:text|mathrm|textrm)\s*",
                    r"\{\s*(?:m|s|g|F|A|C|V|W|H|L|l|M|mol)\s*\}",
                );
                unit.find(self.rest).map(|unit| unit.end())
            }
            "frac" | "dfrac" | "tfrac" => ratio_of_units(self.rest),
            _ => None,
        };
        self.skip(behind.unwrap_or(0));
        behind.is_some()
    }

    /// True if the dots behind a decimal only say that more digits follow.
    fn ends_decimal(&self) -> bool {
        let ends = self.rest.trim_matches(['$', ' ', '.', '~']).is_empty();
        ends && matches!(self.tokens.last(), Some(Token::Number(digits)) if digits.contains('.'))
    }

    /// In the second reading, the last digits of a decimal are a period if they stand there three
    /// times: `0.333\ldots`, `0.181818\ldots`.
    fn repeat(&mut self) {
        let Some(Token::Number(digits)) = self
            .tokens
            .last_mut()
            .filter(|_| self.reading == Reading::Second)
        else {
            return;
        };
        let places = digits.len() - digits.find('.').map_or(digits.len(), |point| point + 1);
        let period = (1..=places / 3).find(|length| {
            let period = &digits[digits.len() - length..];
            digits.ends_with(&period.repeat(3))
        });
        let Some(length) = period else {
            return;
        };
        let period = digits.split_off(digits.len() - length);
        while digits.ends_with(&period) {
            digits.truncate(digits.len() - length);
        }
        self.tokens.extend([
            Token::Command("overline".into()),
            Token::Mark('{'),
            Token::Number(period),
            Token::Mark('}'),
        ]);
    }

    /// Reads a non-letter after a backslash.
    fn escaped(&mut self) {
        let Some(c) = self.rest.chars().next() else {
            return;
        };
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
        for (word, mark) in [(" and", '∧'), (" or", '∨')] {
            if let Some(core) = bare.strip_suffix(word) {
                self.said(core)?;
                self.mark(mark);
                return Some(());
            }
        }
        self.said(bare)
    }

    /// Reads what stands in `\text{...}`.
    fn said(&mut self, bare: &str) -> Option<()> {
        let lower = bare.to_lowercase();
        match lower.as_str() {
            "" => {}
            unit if self.after_number() && signs::is_unit(unit) => {
                self.tokens.push(Token::Words(unit.into()))
            }
            "and" | ", and" => self.mark('∧'),
            "or" | ", or" => self.mark('∨'),
            "percent" => self.mark('%'),
            "all real numbers" | "all reals" => self.tokens.push(Token::Command("mathbb R".into())),
            "infinity" => self.mark('∞'),
            "negative infinity" => self.tokens.extend([Token::Mark('-'), Token::Mark('∞')]),
            "the empty set" | "empty set" => self.mark('∅'),
            "is" | "equals" | "is equal to"
                if matches!(self.last(), Some(Token::Name(_) | Token::Words(_))) =>
            {
                self.mark('=');
            }
            "mod" if self.behind_value() || self.tokens.ends_with(&[Token::Mark('(')]) => {
                self.tokens.push(Token::Command("pmod".into()));
            }
            function if expression::function(function).is_some() => {
                self.tokens.push(Token::Command(function.into()))
            }
            _ if self.after_number() && signs::is_in(signs::LETTERS, bare)
                || self.after_degree() && matches!(bare, "C" | "F") =>
            {
                self.tokens.push(Token::Words(lower))
            }
            _ if let Some(letter) = chosen(bare) => self.tokens.push(Token::Name(letter.into())),
            one if one.chars().count() == 1
                && one.chars().all(|c| c.is_alphabetic() && c < CHINESE) =>
            {
                self.variables(bare);
            }
            _ if bare.starts_with(|c: char| c.is_ascii_digit() || "-+.$\\".contains(c)) => {
                let tokens = std::mem::take(&mut self.tokens);
                self.tokens = within(bare, tokens, self.reading, self.depth + 1)?;
            }
            unit if self.after_number() && is_compound(unit) => {
                self.tokens.push(Token::Words(tails::letters(unit)))
            }
            _ if bare.contains(|c: char| c.is_ascii_digit()) => self.mixed(bare)?,
            _ if bare.starts_with(|c: char| c >= CHINESE) && self.behind_value() => {
                self.tokens.extend(tails::chinese(bare));
            }
            words if self.behind_value() => {
                let behind_unit = matches!(self.last(), Some(Token::Words(_)));
                self.tokens.extend(tails::tokens(words, behind_unit));
            }
            text if text.ends_with(':') && self.begins() && !label::denies(text) => {}
            words => {
                // `\text{The minimum is }5`
                let name = words
                    .strip_suffix(" is")
                    .or(words.strip_suffix(" equals"))
                    .filter(|_| self.begins());
                self.tokens
                    .push(Token::Words(tails::letters(name.unwrap_or(words))));
                if name.is_some() {
                    self.mark('=');
                }
            }
        }
        Some(())
    }

    /// Reads words and numbers in `\text{...}`, as in `hours 30 minutes`.
    fn mixed(&mut self, text: &str) -> Option<()> {
        let parts: Vec<&str> = text.split_whitespace().collect();
        for run in parts.chunk_by(|one, next| is_word(one) && is_word(next)) {
            let joined = run.join(" ");
            let bare = joined.trim_matches(['.', ',', ';', '(', ')']);
            if !is_word(run[0]) {
                let tokens = std::mem::take(&mut self.tokens);
                self.tokens = within(bare, tokens, self.reading, self.depth + 1)?;
            } else if matches!(bare, "base" | "in base") && self.behind_value() {
                self.tokens.push(Token::Command("base".into()));
            } else if let Some(core) = bare.strip_suffix(" and") {
                self.said(core)?;
                self.mark('∧');
            } else {
                self.said(bare)?;
            }
            if joined.ends_with([',', ';']) {
                self.mark(',');
            }
        }
        Some(())
    }

    /// True where an answer or a member of a list begins.
    fn begins(&self) -> bool {
        matches!(self.last(), None | Some(Token::Mark(',' | ';' | '∧' | '∨')))
    }
}

/// True for a part of a text that is a word with its punctuation.
fn is_word(part: &str) -> bool {
    part.chars()
        .all(|c| c.is_alphabetic() || "-'’,:;.()".contains(c))
}

/// The length of the two arguments of a fraction of units: `\frac{\text{m}}{\text{s}}`.
fn ratio_of_units(rest: &str) -> Option<usize> {
    const UNIT: &str = concat!(
        r"\{\s*(?:\\(?:text|mathrm|textrm)\s*\{)?\s*",
        r"([a-zA-Z]+)\s*\}?(?:\^(?:\d|\{-?\d\}))?\s*\}",
    );
    let ratio = pattern!(r"^\s*", UNIT, r"\s*", UNIT, r"[\s$.~]*(?:$|[,;])");
    let units = ratio.captures(rest)?;
    let is_text = units[0].contains("\\text") || units[0].contains("\\mathrm");
    let are_known = [1, 2]
        .iter()
        .all(|&part| signs::is_unit(&units[part].to_lowercase()));
    (is_text && are_known).then(|| units[0].trim_end_matches([',', ';']).len())
}

/// True for a unit with powers: `m/s^2`, `kg m2`.
fn is_compound(text: &str) -> bool {
    const POWER: &str = r"(?:\^?\{?-?\d\}?)";
    let unit = pattern!(
        "^(?:[a-zµ]+",
        POWER,
        r"|[a-zµ]+\s*/\s*[a-zµ]+",
        POWER,
        r"?)(?:\s*[/·*]?\s*[a-zµ]+",
        POWER,
        "?)*$",
    );
    unit.is_match(text)
}

/// The letter of a choice that its text only names: `Option B`, `choice (C)`.
fn chosen(text: &str) -> Option<&str> {
    let choice = pattern!(r"^(?i:option|choice|answer)\s*:?\s*\(?([A-Z])\)?$");
    choice.captures(text)?.get(1).map(|letter| letter.as_str())
}

/// Number of bytes before the brace that closes the one before `text`.
pub(crate) fn closing(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    let mut escaped = false;
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

/// Length of an exponent: `e5`, `E12`, `e-05`. A single digit after a sign is one only if `short`:
/// `2e-3` is `2e` minus 3.
fn exponent(rest: &str, short: bool) -> Option<usize> {
    let digits = rest.strip_prefix(['e', 'E'])?;
    let unsigned = digits.strip_prefix(['+', '-']).unwrap_or(digits);
    let count = unsigned.bytes().take_while(u8::is_ascii_digit).count();
    let least = if short || unsigned.len() == digits.len() {
        1
    } else {
        2
    };
    (count >= least).then_some(rest.len() - unsigned.len() + count)
}
