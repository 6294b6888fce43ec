//! Parts of a struct that all macros read: attributes such as `#[key(default = 1, above = 0)]`, doc
//! comments, and whether a type is an `Option`.

use syn::punctuated::Punctuated;
use syn::{
    Attribute, Error, Expr, ExprLit, GenericArgument, Ident, Lit, Meta, PathArguments, Result,
    Token, Type,
};

/// One `name = value`, or `name` alone, of an attribute.
pub struct Argument {
    pub name: Ident,
    pub value: Option<Expr>,
}

impl Argument {
    /// The value of an argument that must have one.
    pub fn value(&self) -> Result<&Expr> {
        self.value.as_ref().ok_or_else(|| {
            Error::new(
                self.name.span(),
                format!("give a value: `{} = ...`", self.name),
            )
        })
    }
}

/// The arguments of an attribute.
pub struct Arguments {
    pub list: Vec<Argument>,
}

impl Arguments {
    pub fn find(&self, name: &str) -> Option<&Argument> {
        self.list.iter().find(|argument| argument.name == name)
    }

    /// Refuses names that are not in `known`, and names that are there twice.
    pub fn check(&self, known: &[&str]) -> Result<()> {
        for (at, argument) in self.list.iter().enumerate() {
            let name = &argument.name;
            if !known.iter().any(|known| name == known) {
                return Err(Error::new(
                    name.span(),
                    format!("unknown argument `{name}` (known: {})", known.join(", ")),
                ));
            }
            if self.list[..at].iter().any(|other| other.name == *name) {
                return Err(Error::new(
                    name.span(),
                    format!("`{name}` is there twice (leave one out)"),
                ));
            }
        }
        Ok(())
    }
}

/// Takes all attributes called `name` from the list; `None` where there is none.
pub fn take(attributes: &mut Vec<Attribute>, name: &str) -> Result<Option<Arguments>> {
    let mut taken: Option<Arguments> = None;
    for attribute in attributes.extract_if(.., |one| one.path().is_ident(name)) {
        let all = taken.get_or_insert(Arguments { list: Vec::new() });
        if matches!(attribute.meta, Meta::Path(_)) {
            continue;
        }
        for meta in attribute.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)? {
            all.list.push(argument(meta)?);
        }
    }
    Ok(taken)
}

fn argument(meta: Meta) -> Result<Argument> {
    match meta {
        Meta::NameValue(pair) => Ok(Argument {
            name: pair.path.require_ident()?.clone(),
            value: Some(pair.value),
        }),
        Meta::Path(path) => Ok(Argument {
            name: path.require_ident()?.clone(),
            value: None,
        }),
        Meta::List(list) => Err(Error::new_spanned(list, "write `name = value`")),
    }
}

/// The lines of the doc comment.
fn doc_lines(attributes: &[Attribute]) -> impl Iterator<Item = String> {
    attributes.iter().filter_map(|attribute| {
        let Meta::NameValue(pair) = &attribute.meta else {
            return None;
        };
        match &pair.value {
            Expr::Lit(ExprLit {
                lit: Lit::Str(text),
                ..
            }) if pair.path.is_ident("doc") => Some(text.value().trim().to_owned()),
            _ => None,
        }
    })
}

/// The doc comment as one line.
pub fn doc(attributes: &[Attribute]) -> String {
    doc_lines(attributes).collect::<Vec<_>>().join(" ")
}

/// The first paragraph of the doc comment, as one line.
pub fn first_paragraph(attributes: &[Attribute]) -> String {
    doc_lines(attributes)
        .skip_while(String::is_empty)
        .take_while(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// The text of a string literal.
pub fn text(value: &Expr) -> Option<String> {
    match value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => Some(text.value()),
        _ => None,
    }
}

/// The type in an `Option`.
pub fn in_option(ty: &Type) -> Option<&Type> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last()?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return None;
    };
    match arguments.args.first() {
        Some(GenericArgument::Type(ty)) if last.ident == "Option" => Some(ty),
        _ => None,
    }
}
