//! LaTeX commands: fractions, roots, functions, matrices.

use super::expression::{self, Constant, Expression, Function};
use super::lex::Token;
use super::parse::Parser;

impl Parser {
    pub(super) fn command(&mut self, name: &str) -> Option<Expression> {
        match name {
            "frac" => Some(self.digit()?.over(self.digit()?)),
            "binom" => Some(Expression::Call("binomial", vec![self.digit()?, self.digit()?])),
            "sqrt" => self.root(),
            "pi" => Some(Expression::Constant(Constant::Pi)),
            "log" => self.logarithm(),
            "exp" => {
                let exponent = Box::new(self.applied()?);
                Some(Expression::Power(Box::new(Expression::Constant(Constant::E)), exponent))
            }
            "mathbb R" => {
                let infinity = Expression::Constant(Constant::Infinity);
                Some(Expression::Tuple('(', vec![infinity.clone().negated(), infinity], ')'))
            }
            _ if name.starts_with("mathbb") => Some(Expression::Symbol(name.into())),
            "lfloor" => self.fenced("rfloor", "floor"),
            "lceil" => self.fenced("rceil", "ceil"),
            "overline" | "bar" => Some(self.atom()?.marked("\u{305}")),
            "dot" | "ddot" => Some(self.atom()?.marked(name)),
            "boxed" | "fbox" | "underline" | "overrightarrow" | "widehat" => self.atom(),
            _ => self.function(expression::function(name)?),
        }
    }

    fn root(&mut self) -> Option<Expression> {
        let degree = if self.eat('[') { Some(self.sum()?) } else { None };
        if degree.is_some() && !self.eat(']') {
            return None;
        }
        let inner = self.atom()?;
        Some(Expression::Call("root", vec![inner, degree.unwrap_or(Expression::whole(2))]))
    }

    fn logarithm(&mut self) -> Option<Expression> {
        let base = if self.eat('_') { self.atom()? } else { Expression::whole(10) };
        Some(Expression::Call("log", vec![base, self.applied()?]))
    }

    fn fenced(&mut self, close: &str, function: Function) -> Option<Expression> {
        let inner = self.sum()?;
        let closed = matches!(self.next()?, Token::Command(name) if name == close);
        closed.then_some(Expression::call(function, inner))
    }

    /// A function with a power before its argument: `\sin^2 x`.
    fn function(&mut self, function: Function) -> Option<Expression> {
        let power = if self.eat('^') { Some(self.atom()?) } else { None };
        let is_angle = matches!(function, "sin" | "cos" | "tan" | "cot" | "sec" | "csc");
        let outer = std::mem::replace(&mut self.is_angle, is_angle);
        let argument = self.applied();
        self.is_angle = outer;
        let arguments = match argument? {
            Expression::Tuple(_, parts, _) | Expression::Set(parts) => parts,
            one => vec![one],
        };
        let inverse = expression::function(&format!("arc{function}"));
        Some(match (power, inverse) {
            (None, _) => Expression::Call(function, arguments),
            (Some(power), Some(inverse)) if power == Expression::whole(-1) => Expression::Call(inverse, arguments),
            (Some(power), _) => Expression::Power(Box::new(Expression::Call(function, arguments)), Box::new(power)),
        })
    }

    /// The value of so many degrees: in radians in an angle, else without the unit.
    pub(super) fn degrees(&self, value: Expression) -> Expression {
        if !self.is_angle {
            return value;
        }
        Expression::product(vec![value, Expression::Constant(Constant::Pi), Expression::whole(180).inverse()])
    }

    /// Argument of a function without brackets: all factors up to the next function.
    fn applied(&mut self) -> Option<Expression> {
        let bracket = self.mark() == Some('(');
        let mut factors = vec![self.factor()?];
        let plain = |token: Option<&Token>| match token {
            Some(Token::Number(_) | Token::Name(_)) => true,
            Some(Token::Command(name)) => matches!(name.as_str(), "pi" | "frac" | "sqrt"),
            _ => false,
        };
        while !bracket && plain(self.peek()) {
            factors.push(self.factor()?);
        }
        Some(Expression::product(factors))
    }

    /// The members in `\{1, 2\}`, or the condition in `\{x \mid x > 1\}`.
    pub(super) fn set(&mut self) -> Option<Expression> {
        let name = match self.tokens.get(self.at..)? {
            [Token::Name(_), Token::Mark('|' | ':'), ..] => 2,
            [Token::Name(_), Token::Mark('∈'), Token::Command(all), Token::Mark('|' | ':'), ..]
                if all == "mathbb R" =>
            {
                4
            }
            _ => 0,
        };
        self.at += name;
        let mut items = self.items()?;
        let conditions = items.iter().all(|item| matches!(item, Expression::Relation(..)));
        if !self.eat('⦄') || name > 0 && !conditions {
            return None;
        }
        Some(match items.pop() {
            Some(condition) if name > 0 && items.is_empty() => condition,
            last => {
                items.extend(last);
                if name > 0 { Expression::List(items) } else { Expression::Set(items) }
            }
        })
    }

    pub(super) fn matrix(&mut self) -> Option<Expression> {
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
}
