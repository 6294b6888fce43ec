//! LaTeX commands: fractions, roots, functions, matrices.

use crate::expression::{self, Constant, Expression, Function};
use crate::parse::{Parser, named};
use crate::token::Token;

impl Parser {
    pub(crate) fn command(&mut self, name: &str) -> Option<Expression> {
        match name {
            "frac" => Some(self.digit()?.over(self.digit()?)),
            "binom" => Some(Expression::Call(
                "binomial",
                vec![self.digit()?, self.digit()?],
            )),
            "sqrt" => self.root(),
            "pi" => Some(Expression::Constant(Constant::Pi)),
            "log" => self.logarithm(),
            "exp" => {
                let exponent = Box::new(self.applied()?);
                Some(Expression::Power(
                    Box::new(Expression::Constant(Constant::E)),
                    exponent,
                ))
            }
            "mathbb R" => {
                let infinity = Expression::Constant(Constant::Infinity);
                Some(Expression::Tuple(
                    '(',
                    vec![infinity.clone().negated(), infinity],
                    ')',
                ))
            }
            _ if name.starts_with("mathbb") => Some(Expression::Symbol(name.into())),
            "lfloor" => self.fenced("rfloor", "floor"),
            "lceil" => self.fenced("rceil", "ceil"),
            "overline" | "bar" => Some(self.atom()?.marked("\u{305}")),
            "dot" | "ddot" => Some(self.atom()?.marked(name)),
            "sum" | "prod" => self.series(if name == "sum" { "sum" } else { "prod" }),
            "int" => self.integral(),
            "lim" => self.limit(),
            "boxed" | "fbox" | "underline" | "overrightarrow" | "widehat" => self.atom(),
            _ => self.function(expression::function(name)?),
        }
    }

    fn root(&mut self) -> Option<Expression> {
        let degree = if self.eat('[') {
            Some(self.sum()?)
        } else {
            None
        };
        if degree.is_some() && !self.eat(']') {
            return None;
        }
        let inner = self.atom()?;
        Some(Expression::Call(
            "root",
            vec![inner, degree.unwrap_or(Expression::whole(2))],
        ))
    }

    fn logarithm(&mut self) -> Option<Expression> {
        let base = if self.eat('_') {
            self.atom()?
        } else {
            Expression::whole(10)
        };
        Some(Expression::Call("log", vec![base, self.applied()?]))
    }

    fn fenced(&mut self, close: &str, function: Function) -> Option<Expression> {
        let inner = self.sum()?;
        let closed = matches!(self.next()?, Token::Command(name) if name == close);
        closed.then_some(Expression::call(function, inner))
    }

    /// A function with a power before its argument: `\sin^2 x`.
    fn function(&mut self, function: Function) -> Option<Expression> {
        let power = if self.eat('^') {
            Some(self.atom()?)
        } else {
            None
        };
        let is_angle = matches!(function, "sin" | "cos" | "tan" | "cot" | "sec" | "csc");
        let outer = std::mem::replace(&mut self.is_angle, is_angle);
        let argument = self.applied();
        let argument = argument.and_then(|argument| self.turned(argument));
        self.is_angle = outer;
        let arguments = match argument? {
            Expression::Tuple(_, parts, _) | Expression::Set(parts) => parts,
            one => vec![one],
        };
        let inverse = expression::function(&format!("arc{function}"));
        Some(match (power, inverse) {
            (None, _) => Expression::Call(function, arguments),
            (Some(power), Some(inverse)) if power == Expression::whole(-1) => {
                Expression::Call(inverse, arguments)
            }
            (Some(power), _) => Expression::Power(
                Box::new(Expression::Call(function, arguments)),
                Box::new(power),
            ),
        })
    }

    /// A number of degrees: in radians in an angle, otherwise without the unit.
    pub(crate) fn degrees(&self, value: Expression) -> Expression {
        if !self.is_angle {
            return value;
        }
        Expression::product(vec![
            value,
            Expression::Constant(Constant::Pi),
            Expression::whole(180).inverse(),
        ])
    }

    /// The argument of a function in brackets, with the sign of degrees that may follow them:
    /// `\sin(30)^\circ`.
    fn turned(&mut self, argument: Expression) -> Option<Expression> {
        let is_degree = match self.tokens.get(self.at..) {
            Some([Token::Mark('°'), ..]) => 1,
            Some([Token::Mark('^'), Token::Mark('°'), ..]) => 2,
            Some(
                [
                    Token::Mark('^'),
                    Token::Mark('{'),
                    Token::Mark('°'),
                    Token::Mark('}'),
                    ..,
                ],
            ) => 4,
            _ => return Some(argument),
        };
        self.at += is_degree;
        Some(self.degrees(argument))
    }

    /// Argument of a function. In brackets it ends with them: `\sin(x)^2` is the square of a sine.
    /// Without brackets it is all factors up to the next function.
    fn applied(&mut self) -> Option<Expression> {
        let bracket = matches!(self.mark(), Some('(' | '['));
        if bracket {
            return self.deeper(Self::atom);
        }
        let mut factors = vec![self.factor()?];
        while match self.peek() {
            Some(Token::Number(_) | Token::Name(_)) => true,
            Some(Token::Command(name)) => matches!(name.as_str(), "pi" | "frac" | "sqrt"),
            _ => false,
        } {
            factors.push(self.factor()?);
        }
        Some(Expression::product(factors))
    }

    /// Parses a sum or a product over a variable: `\sum_{k=1}^{10} k`. It goes up to the next `+`
    /// or `-`.
    fn series(&mut self, function: Function) -> Option<Expression> {
        if !(self.eat('_') && self.eat('{')) {
            return None;
        }
        let Token::Name(variable) = self.next()? else {
            return None;
        };
        let from = if self.eat('=') {
            self.sum()?
        } else {
            return None;
        };
        let to = if self.eat('}') && self.eat('^') {
            self.deeper(Self::atom)?
        } else {
            return None;
        };
        let body = self.deeper(Self::product)?;
        Some(over(function, &variable, body, [from, to]))
    }

    /// Parses an integral from one end to another.
    fn integral(&mut self) -> Option<Expression> {
        let from = if self.eat('_') {
            self.signed_atom()?
        } else {
            return None;
        };
        let to = if self.eat('^') {
            self.signed_atom()?
        } else {
            return None;
        };
        let rest = self.tokens.get(self.at..)?;
        let mut depth = 0i64;
        let mut end = None;
        for (at, pair) in rest.windows(2).enumerate() {
            match pair {
                [Token::Mark('(' | '[' | '{'), _] => depth += 1,
                [Token::Mark(')' | ']' | '}'), _] => depth -= 1,
                [Token::Name(d), Token::Name(variable)] if d == "d" && depth == 0 => {
                    end = Some((at, variable.clone()));
                    break;
                }
                _ => {}
            }
        }
        let (end, variable) = end?;
        let body = if end == 0 {
            Expression::whole(1)
        } else {
            self.within(rest[..end].to_vec())?
        };
        self.at += end + 2;
        body.is_scalar()
            .then(|| over("integral", &variable, body, [from, to]))
    }

    /// The end of an integral, which may have a sign: `^{-1}`.
    fn signed_atom(&mut self) -> Option<Expression> {
        let minus = self.eat('-');
        let end = self.deeper(Self::atom)?;
        Some(if minus { end.negated() } else { end })
    }

    /// Parses a limit: `\lim_{x \to 0^+} f(x)`. It goes up to the next `+` or `-`.
    fn limit(&mut self) -> Option<Expression> {
        if !(self.eat('_') && self.eat('{')) {
            return None;
        }
        let Token::Name(variable) = self.next()? else {
            return None;
        };
        let minus = if self.eat('→') {
            self.eat('-')
        } else {
            return None;
        };
        let place = self.deeper(Self::atom)?;
        let place = if minus { place.negated() } else { place };
        let mut side = 0;
        if self.eat('^') {
            let grouped = self.eat('{');
            side = if self.eat('+') {
                1
            } else {
                -i64::from(self.eat('-'))
            };
            if side == 0 || grouped && !self.eat('}') {
                return None;
            }
        }
        if !self.eat('}') {
            return None;
        }
        let body = self.deeper(Self::product)?;
        Some(over(
            "limit",
            &variable,
            body,
            [place, Expression::whole(side)],
        ))
    }

    /// The members in `\{1, 2\}`, or the condition in `\{x \mid x > 1\}`.
    pub(crate) fn set(&mut self) -> Option<Expression> {
        let name = match self.tokens.get(self.at..)? {
            [Token::Name(_), Token::Mark('|' | ':'), ..] => 2,
            [
                Token::Name(_),
                Token::Mark('∈'),
                Token::Command(all),
                Token::Mark('|' | ':'),
                ..,
            ] if all == "mathbb R" => 4,
            _ => 0,
        };
        self.at += name;
        let mut items = self.items()?;
        let conditions = items
            .iter()
            .all(|item| matches!(item, Expression::Relation(..)));
        if !self.eat('⦄') || name > 0 && !conditions {
            return None;
        }
        Some(match items.pop() {
            Some(condition) if name > 0 && items.is_empty() => condition,
            last => {
                items.extend(last);
                if name > 0 {
                    Expression::List(items)
                } else {
                    Expression::Set(items)
                }
            }
        })
    }
}

/// A function of a formula, its variable, which is bound by it, and two values.
fn over(function: Function, variable: &str, body: Expression, ends: [Expression; 2]) -> Expression {
    let bound = Expression::Symbol(expression::bound(variable));
    // `i` may number the terms of a sum.
    let body = body.replaced(&named(variable.into()), &bound);
    let [from, to] = ends;
    Expression::Call(function, vec![body, bound, from, to])
}
