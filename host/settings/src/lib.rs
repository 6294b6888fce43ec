//! `#[settings]`: a struct whose fields hold everything that is known of a setting.
//!
//! ```ignore
//! #[settings]
//! #[derive(Serialize, Deserialize)]
//! pub struct RolloutConfig {
//!     /// The number of completions per prompt.
//!     #[setting(default = 8, at_least = 1, trl, verl = ["n"])]
//!     pub num_generations: usize,
//! }
//! ```
//!
//! The attribute gives each field its default in serde, and the struct `Default` and `Settings`
//! with a `Setting` per field. Both names must be imported where it stands. Unknown fields are
//! refused, and empty lists are not written. The keys of `#[setting(...)]` are `default` and the
//! fields of `Setting`. A key without a value says `true`, or for `trl` and `verl` that the name
//! there is the same. An `Option` without a default is `None`; any other field without one must be
//! given.

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Code;
use quote::{format_ident, quote};
use syn::punctuated::Punctuated;
use syn::{
    Attribute, Error, Expr, ExprLit, Field, GenericArgument, Ident, ItemStruct, Lit, Meta,
    PathArguments, Result, Token, Type, parse_macro_input, parse_quote,
};

#[proc_macro_attribute]
pub fn settings(_: TokenStream, item: TokenStream) -> TokenStream {
    let mut item = parse_macro_input!(item as ItemStruct);
    described(&mut item)
        .map_or_else(Error::into_compile_error, |code| quote!(#item #code))
        .into()
}

/// Gives the fields their defaults in serde; returns the implementations.
fn described(item: &mut ItemStruct) -> Result<Code> {
    let name = item.ident.clone();
    item.attrs.push(parse_quote!(#[serde(deny_unknown_fields)]));
    let (mut functions, mut defaults, mut settings) = (Vec::new(), Vec::new(), Vec::new());
    for field in &mut item.fields {
        let Some(ident) = field.ident.clone() else {
            return Err(Error::new_spanned(field, "a setting has a name"));
        };
        let keys = taken(&mut field.attrs)?;
        if field.attrs.iter().any(is_skipped) {
            defaults.push(quote!(#ident: Default::default()));
            continue;
        }
        let given = keys
            .iter()
            .find_map(|(key, value)| (key == "default").then_some(value.as_ref()).flatten());
        let required = given.is_none() && inner(&field.ty).is_none();
        if let Some(value) = given {
            let (function, ty) = (format_ident!("default_of_{ident}"), &field.ty);
            let path = format!("{name}::{function}");
            field.attrs.push(parse_quote!(#[serde(default = #path)]));
            let is_text = matches!(
                value,
                Expr::Lit(ExprLit {
                    lit: Lit::Str(_),
                    ..
                })
            );
            let value = if is_text {
                quote!(#value.into())
            } else {
                quote!(#value)
            };
            functions.push(quote!(fn #function() -> #ty { #value }));
            defaults.push(quote!(#ident: Self::#function()));
        } else {
            defaults.push(quote!(#ident: Default::default()));
        }
        settings.push(setting(field, &ident, &keys, required));
    }
    Ok(quote! {
        impl #name { #(#functions)* }
        impl Default for #name {
            fn default() -> Self { Self { #(#defaults),* } }
        }
        impl Settings for #name {
            const SETTINGS: &'static [Setting] = &[#(#settings),*];
        }
    })
}

/// The `Setting` of a field.
fn setting(field: &Field, ident: &Ident, keys: &[(Ident, Option<Expr>)], required: bool) -> Code {
    let (name, about) = (ident.to_string(), about(&field.attrs));
    let ty = inner(&field.ty).unwrap_or(&field.ty);
    let keys = keys
        .iter()
        .filter(|(key, _)| key != "default")
        .map(|(key, value)| {
            let value = match (key.to_string().as_str(), value) {
                ("at_least" | "above" | "at_most" | "below", Some(value)) => {
                    quote!(Some(#value as f64))
                }
                ("trl" | "verl", Some(names)) => quote!(&#names),
                ("trl" | "verl", None) => quote!(&[#name]),
                (_, Some(value)) => quote!(#value),
                (_, None) => quote!(true),
            };
            quote!(#key: #value)
        });
    quote!(Setting { name: #name, about: #about, required: #required, #(#keys,)* ..Setting::of::<Self, #ty>(#name) })
}

/// Takes all `#[setting(...)]` from the attributes, as keys with values.
fn taken(attributes: &mut Vec<Attribute>) -> Result<Vec<(Ident, Option<Expr>)>> {
    let mut keys = Vec::new();
    for attribute in attributes.extract_if(.., |one| one.path().is_ident("setting")) {
        for meta in attribute.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)? {
            keys.push(match meta {
                Meta::NameValue(pair) => (pair.path.require_ident()?.clone(), Some(pair.value)),
                Meta::Path(path) => (path.require_ident()?.clone(), None),
                Meta::List(list) => return Err(Error::new_spanned(list, "write `key = value`")),
            });
        }
    }
    Ok(keys)
}

/// The text of the doc comment, as one line.
fn about(attributes: &[Attribute]) -> String {
    let line = |attribute: &Attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(ExprLit {
                lit: Lit::Str(text),
                ..
            }) => Some(text.value().trim().to_owned()),
            _ => None,
        },
        _ => None,
    };
    attributes
        .iter()
        .filter_map(line)
        .collect::<Vec<_>>()
        .join(" ")
}

/// True for `#[serde(skip)]`: the field is no setting.
fn is_skipped(attribute: &Attribute) -> bool {
    attribute.path().is_ident("serde")
        && attribute
            .parse_args::<Ident>()
            .is_ok_and(|word| word == "skip")
}

/// The type in an `Option`.
fn inner(ty: &Type) -> Option<&Type> {
    let Type::Path(path) = ty else { return None };
    let PathArguments::AngleBracketed(arguments) = &path.path.segments.last()?.arguments else {
        return None;
    };
    let only = arguments.args.first().filter(|_| is_called(ty, "Option"))?;
    if let GenericArgument::Type(ty) = only {
        Some(ty)
    } else {
        None
    }
}

/// True if the last part of a type's path is `name`.
fn is_called(ty: &Type, name: &str) -> bool {
    matches!(ty, Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == name))
}
